//! Keeps one node listed for as long as its process wants to be found.

use std::time::Duration;

use ids::Span;
use proto::cluster::{LeaseId, Register};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{KeepAliveError, Membership, RegisterError, Superseded};

/// Longest time between two keep-alives: a registry that restarted and forgot everybody knows
/// all nodes again within two seconds (case 52).
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(1);

/// First and longest pause after a registry that could not be asked.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Whether a node is listed, as far as this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not yet, or the registry forgot the node: being registered.
    Seeking,
    /// The registry has confirmed it.
    Listed,
    /// Left, or superseded.
    Ended,
}

/// A node's wish to be listed; dropping it makes the node leave.
#[derive(Debug)]
pub struct Registration {
    standing: watch::Receiver<Standing>,
    /// Asks the keeper to leave.
    stop: DropGuard,
    /// Cancelled once the keeper has left (or was never run to its end).
    done: CancellationToken,
}

impl Registration {
    /// Whether the node is listed now, and changes of that.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Waits until the registry lists the node. False when that will not happen any more.
    pub async fn listed(&mut self) -> bool {
        let seen = self.standing.wait_for(|standing| *standing != Standing::Seeking).await;
        seen.is_ok_and(|standing| *standing == Standing::Listed)
    }

    /// Leaves, and waits until the registry has heard of it or one call's time is over.
    pub async fn leave(self) {
        drop(self.stop);
        self.done.cancelled().await;
    }
}

pub(crate) fn register(
    membership: Membership,
    register: Register,
) -> (Registration, impl Future<Output = Result<(), Superseded>> + Send + use<>) {
    let (standing, seen) = watch::channel(Standing::Seeking);
    let (stop, done) = (CancellationToken::new(), CancellationToken::new());
    let registration =
        Registration { standing: seen, stop: stop.clone().drop_guard(), done: done.clone() };
    let done = done.drop_guard();
    let keeper = async move {
        let ended = Keeper { membership, register, stop, standing: &standing }.run().await;
        standing.send_replace(Standing::Ended);
        drop(done);
        ended
    };
    (registration, keeper)
}

struct Keeper<'a> {
    membership: Membership,
    register: Register,
    stop: CancellationToken,
    standing: &'a watch::Sender<Standing>,
}

impl Keeper<'_> {
    async fn run(self) -> Result<(), Superseded> {
        while let Some((lease, ttl)) = self.seek().await? {
            self.standing.send_replace(Standing::Listed);
            self.hold(lease, ttl).await;
            if self.stop.is_cancelled() {
                if let Err(error) = self.membership.leave(lease).await {
                    tracing::warn!(%error, "could not leave; the lease will run out");
                }
                return Ok(());
            }
            tracing::warn!(node = %self.register.node.id, "the registry forgot this node");
            self.standing.send_replace(Standing::Seeking);
        }
        Ok(())
    }

    /// Registers until that succeeds; `None` when asked to stop before.
    async fn seek(&self) -> Result<Option<(LeaseId, Span)>, Superseded> {
        let mut pause = PAUSE.0;
        let mut told = false;
        while !self.stop.is_cancelled() {
            // Not interrupted: an attempt that may have succeeded is either left or known.
            match self.membership.try_register(self.register.clone()).await {
                Ok(registered) => return Ok(Some((registered.lease, registered.ttl))),
                Err(RegisterError::Superseded(superseded)) => return Err(superseded),
                Err(error @ (RegisterError::Full { .. } | RegisterError::Unavailable(_))) => {
                    if !told {
                        tracing::info!(%error, "not registered yet; trying on");
                        told = true;
                    }
                }
            }
            self.pause(&mut pause).await;
        }
        Ok(None)
    }

    /// Keeps the lease alive until the registry does not know it any more, or a stop.
    async fn hold(&self, lease: LeaseId, ttl: Span) {
        let mut every = interval(ttl);
        let mut pause = PAUSE.0;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            match self.membership.keep_alive(lease).await {
                Ok(ttl) => {
                    every = interval(ttl);
                    pause = PAUSE.0;
                }
                Err(KeepAliveError::Forgotten) => return,
                Err(KeepAliveError::Unavailable(error)) => {
                    tracing::debug!(%error, "a keep-alive failed; trying on");
                    every = pause;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    async fn pause(&self, pause: &mut Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(*pause) => {}
        }
        *pause = (*pause * 2).min(PAUSE.1);
    }
}

/// A third of the lease, so that two may get lost.
fn interval(ttl: Span) -> Duration {
    (Duration::from(ttl) / 3).min(KEEP_ALIVE_MAX)
}
