//! Connections for a gRPC server: bounded in number, without Nagle's delay.
//!
//! While the bound is reached new connections wait in the system's backlog (P4). A connection
//! counts only once it has said the first words of HTTP/2, and is closed when it does not say them
//! soon: silent ones cannot lock the others out. Nagle's delay would cost each call tens of
//! milliseconds: tonic writes heads and bodies apart.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::stream::{self, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How a client of HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long it may take until the preface is there.
const PREFACE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Looks between parts of a preface that came in pieces.
const PREFACE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// After a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Connections that have not said the preface yet; more wait in the backlog.
const SILENT_MAX: usize = 256;

/// Connections of a bound listener, for `serve_with_incoming`. Inside a runtime only.
///
/// # Errors
/// What the runtime says when it cannot watch the socket.
pub fn incoming(
    listener: std::net::TcpListener,
    connections_max: usize,
) -> io::Result<impl Stream<Item = io::Result<Connection>>> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let open = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
    let accepted = stream::unfold(listener, |listener| async move {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => Some(stream),
            Err(_) => {
                // Out of descriptors, mostly: accepting again at once would spin.
                tokio::time::sleep(ACCEPT_RETRY).await;
                None
            }
        };
        Some((accepted, listener))
    });
    let begun = accepted.filter_map(std::future::ready).map(begin).buffer_unordered(SILENT_MAX);
    Ok(begun.filter_map(std::future::ready).then(move |stream| {
        let open = Arc::clone(&open);
        async move {
            let permit = open.acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            Ok(Connection { stream, _permit: permit })
        }
    }))
}

/// The connection, when it begins as HTTP/2 does and soon enough.
async fn begin(stream: TcpStream) -> Option<TcpStream> {
    stream.set_nodelay(true).ok()?;
    let said = async {
        let mut head = [0; PREFACE.len()];
        loop {
            let count = stream.peek(&mut head).await.ok()?;
            if count == 0 || head[..count] != PREFACE[..count] {
                return None;
            }
            if count == PREFACE.len() {
                return Some(());
            }
            tokio::time::sleep(PREFACE_LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PREFACE_WAIT_MAX, said).await.ok()??;
    Some(stream)
}

/// A connection that counts towards its listener's bound until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::{PREFACE, incoming};

    async fn peer(address: SocketAddr, says: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(says).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn p4_connections_beyond_the_bound_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Box::pin(incoming(listener, 1).unwrap());
        let _first_peer = peer(address, PREFACE).await;
        let _second_peer = peer(address, PREFACE).await;
        let first = connections.next().await.unwrap().unwrap();
        assert!(first.stream.nodelay().unwrap());
        let mut second = connections.next();
        assert!(futures::poll!(&mut second).is_pending(), "one is open");
        drop(first);
        assert!(second.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn p4_case_53_silent_and_foreign_connections_lock_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Box::pin(incoming(listener, 1).unwrap());
        let mut silent = peer(address, b"").await;
        let mut halting = peer(address, &PREFACE[..9]).await;
        let mut foreign = peer(address, b"GET / HTTP/1.1\r\n").await;
        let _honest = peer(address, PREFACE).await;
        let served = connections.next().await.unwrap().unwrap();
        let rest = tokio::time::timeout(super::PREFACE_WAIT_MAX * 2, connections.next());
        assert!(rest.await.is_err(), "nobody else began well");
        for stream in [&mut silent, &mut halting, &mut foreign] {
            // Closed, or reset because of what was not read.
            assert!(matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
        }
        drop(served);
    }
}
