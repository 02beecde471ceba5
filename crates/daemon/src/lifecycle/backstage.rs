//! The thread behind the scenes: signals and admin endpoints run on it, on a runtime of its own,
//! so that both answer while the data plane is busy and while it drains.
//! What it deliberately does not do: any work of a role.

use std::io;
use std::net::SocketAddr;
use std::sync::OnceLock;

use axum::Router;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::admin;
use crate::listen::BoundedListener;
use crate::serve::HttpServer;

/// The running thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Backstage {
    handle: Handle,
    over: CancellationToken,
}

impl Backstage {
    /// The process's one, started if this is the first call.
    pub(super) fn of(cell: &OnceLock<Self>) -> Result<&Self, io::Error> {
        match cell.get() {
            Some(backstage) => Ok(backstage),
            // Two first callers may both start one; the loser's ends at once.
            None => {
                let backstage = Self::start()?;
                Ok(cell.get_or_init(|| backstage))
            }
        }
    }

    fn start() -> Result<Self, io::Error> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let over = CancellationToken::new();
        let until = over.clone();
        std::thread::Builder::new()
            .name("backstage".to_owned())
            .spawn(move || runtime.block_on(until.cancelled()))?;
        Ok(Self { handle, over })
    }

    /// Calls `first` with the name of the first signal that was not used up; the next such signal
    /// ends the process.
    pub(super) fn watch_signals(
        &self,
        used_up: impl Fn(&'static str) -> bool + Send + Sync + 'static,
        first: impl FnOnce(&'static str) + Send + 'static,
    ) -> Result<(), io::Error> {
        let _entered = self.handle.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        self.handle.spawn(async move {
            let mut next = async || loop {
                let (name, code) = tokio::select! {
                    _ = terminate.recv() => ("SIGTERM", 128 + libc::SIGTERM),
                    _ = interrupt.recv() => ("SIGINT", 128 + libc::SIGINT),
                };
                if !used_up(name) {
                    return (name, code);
                }
            };
            let (name, _) = next().await;
            first(name);
            let (name, code) = next().await;
            tracing::warn!(name, "second signal: exiting at once");
            leave(code);
        });
        Ok(())
    }

    /// Serves a router until the process ends.
    pub(super) fn serve(
        &self,
        listener: std::net::TcpListener,
        connections_max: usize,
        router: Router,
    ) -> Result<SocketAddr, io::Error> {
        let _entered = self.handle.enter();
        let address = listener.local_addr()?;
        let listener = BoundedListener::try_new(listener, connections_max)?;
        let router = router.fallback(admin::not_found);
        let server = HttpServer::new(listener, router, admin::HEAD_WAIT_MAX);
        self.handle.spawn(server.run(CancellationToken::new()));
        Ok(address)
    }
}

impl Drop for Backstage {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

#[expect(clippy::exit, reason = "the operator asked twice: nothing is waited for any more")]
fn leave(code: i32) -> ! {
    std::process::exit(code)
}
