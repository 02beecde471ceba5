//! Connections for a gRPC server: bounded in number, without Nagle's delay.
//!
//! While the bound is reached new connections wait in the system's backlog (P4). The delay would
//! cost each call tens of milliseconds: tonic writes heads and bodies apart.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo};

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
    let open = Arc::new(Semaphore::new(
        connections_max.clamp(1, Semaphore::MAX_PERMITS),
    ));
    Ok(stream::unfold(
        (listener, open),
        |(listener, open)| async move {
            let permit = Arc::clone(&open).acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            let accepted = listener.accept().await.and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                Ok(Connection {
                    stream,
                    _permit: permit,
                })
            });
            Some((accepted, (listener, open)))
        },
    ))
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
    use std::net::TcpListener;

    use futures::StreamExt;
    use tokio::net::TcpStream;

    use super::incoming;

    #[tokio::test]
    async fn p4_connections_beyond_the_bound_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Box::pin(incoming(listener, 1).unwrap());
        let _first_peer = TcpStream::connect(address).await.unwrap();
        let _second_peer = TcpStream::connect(address).await.unwrap();
        let first = connections.next().await.unwrap().unwrap();
        assert!(first.stream.nodelay().unwrap());
        let mut second = connections.next();
        assert!(futures::poll!(&mut second).is_pending(), "one is open");
        drop(first);
        assert!(second.await.unwrap().is_ok());
    }
}
