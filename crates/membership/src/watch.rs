//! A watch on a registry: a snapshot, then every change, until the watch ends.

use ids::{Incarnation, NodeId};
use placement::NodeRecord;
use proto::cluster::{Change, WatchEvent};
use proto::limits::NODES_MAX;
use proto::v1;
use tokio::sync::broadcast;

use crate::registry::Subscription;

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Everything that was listed when the watch began; always the first event.
    Snapshot(Vec<NodeRecord>),
    /// A node is listed, or its record changed.
    Joined(NodeRecord),
    /// A node left or its lease ran out.
    Gone {
        /// Its name.
        node: NodeId,
        /// Which start of it; a later one may be listed already.
        incarnation: Incarnation,
    },
}

/// See [`crate::Membership::watch`].
#[derive(Debug)]
pub struct Watch {
    /// What the snapshot has so far; `None` once it was told.
    snapshot: Option<Vec<NodeRecord>>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Memory(broadcast::Receiver<WatchEvent>),
    Remote(Box<tonic::Streaming<v1::WatchEvent>>),
}

impl Watch {
    pub(crate) fn of_memory(subscription: Subscription) -> Self {
        Self { snapshot: Some(subscription.records), source: Source::Memory(subscription.events) }
    }

    pub(crate) fn of_remote(stream: tonic::Streaming<v1::WatchEvent>) -> Self {
        Self { snapshot: Some(Vec::new()), source: Source::Remote(Box::new(stream)) }
    }

    /// The next event; `None` when the watch ended (the registry is gone, or this side fell too
    /// far behind): begin a new one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let event = match &mut self.source {
                Source::Memory(events) => {
                    if let Some(records) = self.snapshot.take() {
                        return Some(Event::Snapshot(records));
                    }
                    events.recv().await.ok()?
                }
                Source::Remote(stream) => read(stream).await?,
            };
            match (event.change, &mut self.snapshot) {
                (Change::Joined(record), Some(records)) => {
                    if records.len() >= NODES_MAX {
                        tracing::warn!(NODES_MAX, "the registry lists more nodes than allowed");
                        return None;
                    }
                    records.push(record);
                }
                (Change::SnapshotEnd, snapshot) => {
                    return snapshot.take().map(Event::Snapshot);
                }
                (Change::Joined(record), None) => return Some(Event::Joined(record)),
                (Change::Gone { node, incarnation }, _) => {
                    return Some(Event::Gone { node, incarnation });
                }
            }
        }
    }
}

async fn read(stream: &mut tonic::Streaming<v1::WatchEvent>) -> Option<WatchEvent> {
    match stream.message().await {
        Ok(message) => match WatchEvent::try_from(message?) {
            Ok(event) => Some(event),
            Err(invalid) => {
                tracing::warn!(%invalid, "the registry sent an event that is not one");
                None
            }
        },
        Err(status) => {
            tracing::debug!(%status, "the watch on the registry ended");
            None
        }
    }
}
