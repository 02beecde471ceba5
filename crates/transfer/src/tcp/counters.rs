//! What the TCP transport counts. Plain atomics: the services register them with their metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::gate::{Refusal, RefusalReason};

/// One counter or gauge.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// What a client has done, over all peers.
#[derive(Debug, Default)]
pub struct ClientCounters {
    /// Slice bytes read from peers.
    pub bytes_read: Count,
    /// Slice bytes that peers confirmed as landed.
    pub bytes_written: Count,
    /// Batches that went through.
    pub batches_ok: Count,
    /// Batches that failed, refused ones included.
    pub batches_failed: Count,
    /// Batches that a peer's gate refused.
    pub batches_refused: Count,
    /// Batches whose deadline passed.
    pub batches_late: Count,
    /// Connections opened.
    pub connections_opened: Count,
    /// Connections closed by force in the middle of a frame.
    pub connections_broken: Count,
}

/// What a server has done, over all connections.
#[derive(Debug, Default)]
pub struct ServerCounters {
    /// Slice bytes sent.
    pub bytes_sent: Count,
    /// Slice bytes landed.
    pub bytes_landed: Count,
    /// Frames served, refused ones included.
    pub frames: Count,
    /// Frames refused, by reason.
    refused: [Count; RefusalReason::ALL.len()],
    /// Connections closed because their bytes were no frame of ours.
    pub malformed: Count,
    /// Connections that broke or were too slow in the middle of a frame.
    pub broken: Count,
    /// Connections accepted.
    pub connections_accepted: Count,
    /// Connections closed at once because `connections_max` were open.
    pub connections_refused: Count,
    /// Connections open now.
    pub connections_open: Count,
}

impl ServerCounters {
    /// Frames refused for one reason.
    #[must_use]
    pub fn refused(&self, reason: RefusalReason) -> u64 {
        self.refused[reason as usize].get()
    }

    pub(super) fn note_refused(&self, refusal: Refusal) {
        self.refused[refusal.reason() as usize].add(1);
    }
}
