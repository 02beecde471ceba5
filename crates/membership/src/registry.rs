//! The registry in this process: leases on the runtime's clock, and a bounded queue of changes per
//! watch. Keeps nothing on disk: after a restart the nodes register again.

use std::sync::Arc;
use std::time::Duration;

use ids::Span;
use parking_lot::Mutex;
use placement::NodeRecord;
use proto::cluster::{LeaseId, Register, Registered, Revision, WatchEvent};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::listing::Listing;
use crate::{KeepAliveError, RegisterError, Unavailable};

/// How often leases are looked at; a lease ends at most this much late.
const TICK: Duration = Duration::from_millis(250);

/// A tick this late means that the process was stopped or starved, and with it the keep-alives.
const LATE: Duration = Duration::from_secs(1);

/// Limits of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Shortest time to live that is granted: shorter ones end by a hiccup.
    pub ttl_min: Span,
    /// Longest time to live that is granted.
    pub ttl_max: Span,
    /// Most nodes listed at once.
    pub nodes_max: usize,
    /// Changes that a watch may fall behind before it ends and must begin anew.
    pub events_max: usize,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            ttl_min: Span::from_secs(2),
            ttl_max: Span::from_secs(60),
            nodes_max: proto::limits::NODES_MAX,
            events_max: 1_024,
        }
    }
}

/// A registry. Clones are the same registry.
#[derive(Clone, Debug)]
pub struct Registry(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    listing: Listing,
    /// `None` once closed.
    events: Option<broadcast::Sender<WatchEvent>>,
}

impl Registry {
    /// An empty registry.
    ///
    /// `first_lease` must differ between the starts of a process by more than the leases it gives:
    /// its incarnation will do. A lease of an earlier start is then unknown here, as it must be.
    #[must_use]
    pub fn new(config: RegistryConfig, first_lease: LeaseId) -> Self {
        let (events, _) = broadcast::channel(config.events_max.max(1));
        let listing = Listing::new(config, first_lease);
        Self(Arc::new(Mutex::new(State { listing, events: Some(events) })))
    }

    /// Ends leases that ran out, for as long as it is polled. The owner spawns it.
    ///
    /// Time in which this loop itself did not run does not count: after a freeze of the process
    /// nobody is believed dead for not having been heard.
    pub async fn expire(self) {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep_until(last + TICK).await;
            let now = Instant::now();
            let late = now.saturating_duration_since(last + TICK);
            let mut state = self.0.lock();
            if late > LATE {
                tracing::warn!(?late, "the registry did not run for a while; leases are extended");
                state.listing.postpone(late);
            }
            let events = state.listing.expire(now);
            for event in &events {
                tracing::info!(change = ?event.change, "a lease ran out");
            }
            state.publish(events);
            last = now;
        }
    }

    /// Ends every watch, for a server that drains.
    pub fn close(&self) {
        self.0.lock().events = None;
    }

    pub(crate) fn register(&self, register: Register) -> Result<Registered, RegisterError> {
        let mut state = self.0.lock();
        let (registered, events) = state.listing.register(register, Instant::now())?;
        for event in &events {
            tracing::info!(change = ?event.change, "membership changed");
        }
        state.publish(events);
        Ok(registered)
    }

    pub(crate) fn keep_alive(&self, lease: LeaseId) -> Result<Span, KeepAliveError> {
        let mut state = self.0.lock();
        state.listing.keep_alive(lease, Instant::now()).ok_or(KeepAliveError::Forgotten)
    }

    pub(crate) fn leave(&self, lease: LeaseId) {
        let mut state = self.0.lock();
        let event = state.listing.leave(lease);
        if let Some(event) = &event {
            tracing::info!(change = ?event.change, "a node left");
        }
        state.publish(event);
    }

    /// What is listed now, and the changes from then on.
    pub(crate) fn subscribe(&self) -> Result<Subscription, Unavailable> {
        let state = self.0.lock();
        let Some(events) = &state.events else {
            return Err(Unavailable { reason: "closing".to_owned() });
        };
        Ok(Subscription {
            records: state.listing.records(),
            since: state.listing.revision(),
            events: events.subscribe(),
        })
    }
}

/// See [`Registry::subscribe`].
#[derive(Debug)]
pub(crate) struct Subscription {
    /// Ascending by node id.
    pub records: Vec<NodeRecord>,
    /// Of the records: everything up to here is in them.
    pub since: Revision,
    /// Everything later. Ends with an error when its reader fell too far behind.
    pub events: broadcast::Receiver<WatchEvent>,
}

impl State {
    /// In the order of the changes: the caller holds the lock from the change on.
    fn publish(&self, events: impl IntoIterator<Item = WatchEvent>) {
        let Some(sender) = &self.events else { return };
        for event in events {
            // An error means that nobody watches.
            drop(sender.send(event));
        }
    }
}
