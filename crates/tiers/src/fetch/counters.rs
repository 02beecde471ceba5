//! What a fetcher has done, for metrics.
//!
//! Counts since start; registering them is the service's part.

use std::sync::atomic::{AtomicU64, Ordering};

use ids::Tier;

use super::Cause;

/// Counters of a fetcher. Each is exact; together they are no snapshot.
#[derive(Debug, Default)]
pub struct FetchCounters {
    bytes: [AtomicU64; Tier::ALL.len()],
    failures: [AtomicU64; Cause::ALL.len()],
    blocks: AtomicU64,
    replica_reads: AtomicU64,
}

impl FetchCounters {
    /// Verified bytes that came from this kind of memory.
    #[must_use]
    pub fn bytes(&self, from: Tier) -> u64 {
        self.bytes[from as usize].load(Ordering::Relaxed)
    }

    /// How often a source did not give a block, counted per block and source.
    #[must_use]
    pub fn failures(&self, cause: Cause) -> u64 {
        self.failures[cause as usize].load(Ordering::Relaxed)
    }

    /// Blocks read and verified.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Of those, the ones that came from another source than the first.
    #[must_use]
    pub fn replica_reads(&self) -> u64 {
        self.replica_reads.load(Ordering::Relaxed)
    }

    pub(super) fn note_read(&self, from: Tier, bytes: usize, replica: bool) {
        self.bytes[from as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.replica_reads.fetch_add(u64::from(replica), Ordering::Relaxed);
    }

    pub(super) fn note_failure(&self, cause: Cause) {
        self.failures[cause as usize].fetch_add(1, Ordering::Relaxed);
    }
}
