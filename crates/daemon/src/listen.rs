//! A TCP listener with a bound on open connections. While the bound is reached new connections
//! wait in the system's backlog.
//! What it deliberately does not do: speak HTTP or end idle connections; `serve` does. Encrypt.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

/// What a failed accept waits before the next; the usual cause, no free descriptor, takes a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener that keeps at most so many connections open.
#[derive(Debug)]
pub struct BoundedListener {
    listener: TcpListener,
    open: Arc<Semaphore>,
}

impl BoundedListener {
    /// Takes over a socket from [`crate::bind`]. Inside a runtime only.
    ///
    /// # Errors
    /// What the runtime says when it cannot watch the socket.
    pub fn try_new(
        listener: std::net::TcpListener,
        connections_max: usize,
    ) -> Result<Self, io::Error> {
        let bound = connections_max.clamp(1, Semaphore::MAX_PERMITS);
        let open = Arc::new(Semaphore::new(bound));
        Ok(Self { listener: TcpListener::from_std(listener)?, open })
    }

    /// The next connection, once the bound has room for it. Failures are logged and tried again.
    pub(crate) async fn accept(&mut self) -> Connection {
        let permit = Arc::clone(&self.open).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let (stream, peer) = loop {
            match self.listener.accept().await {
                Ok(accepted) => break accepted,
                // The peer was gone before it was accepted: nothing to wait for.
                Err(error) if is_of_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // Tokens are small writes; waiting to fill a segment would delay each of them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "no TCP_NODELAY on a connection");
        }
        Connection { stream, _permit: permit }
    }
}

fn is_of_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

/// A connection that counts towards its listener's bound until it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
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
