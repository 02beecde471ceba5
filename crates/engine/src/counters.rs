//! What a loop has done and is doing, for metrics and for liveness. Read from other threads.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ids::Span;
use tokio::time::Instant;

fn add(total: &AtomicU64, time: Duration) {
    total.fetch_add(Span::from(time).0, Ordering::Relaxed);
}

/// Written by one loop, read by anybody.
#[derive(Debug, Default)]
pub struct Counters {
    turns: AtomicU64,
    steps: AtomicU64,
    rows: AtomicU64,
    waiting: AtomicU32,
    running: AtomicU32,
    stopped: AtomicBool,
    /// Nanoseconds.
    slices_awaited: AtomicU64,
    scored: AtomicU64,
    chosen: AtomicU64,
}

/// One reading of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopState {
    /// Times that the loop looked at its work since the start. Grows while anything waits or
    /// runs, slow readers included, or the loop hangs.
    pub turns: u64,
    /// Passes through the model since the start.
    pub steps: u64,
    /// Rows (tokens) computed since the start.
    pub rows: u64,
    /// Requests that wait for their first step.
    pub waiting: u32,
    /// Requests in the batch.
    pub running: u32,
    /// The thread has ended.
    pub stopped: bool,
    /// Time that steps stood still for slices and for the choice of blocks.
    pub awaited: Span,
    /// Time that the background spent with masses, and with choosing and fetching.
    pub scored: Span,
    /// See `scored`.
    pub chosen: Span,
}

impl Counters {
    /// The current state; the fields may be of slightly different moments.
    #[must_use]
    pub fn read(&self) -> LoopState {
        LoopState {
            turns: self.turns.load(Ordering::Relaxed),
            steps: self.steps.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            stopped: self.stopped.load(Ordering::Relaxed),
            awaited: Span(self.slices_awaited.load(Ordering::Relaxed)),
            scored: Span(self.scored.load(Ordering::Relaxed)),
            chosen: Span(self.chosen.load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn stepped(&self, rows: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// A step has stood still since then.
    pub(crate) fn awaited_since(&self, since: Instant) {
        add(&self.slices_awaited, since.elapsed());
    }

    pub(crate) fn scored(&self, scored: Duration, chosen: Duration) {
        add(&self.scored, scored);
        add(&self.chosen, chosen);
    }

    pub(crate) fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// One more waits, unless `most` do already.
    pub(crate) fn try_come(&self, most: usize) -> bool {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let more = |waiting: u32| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One that was in the batch waits again.
    pub(crate) fn came_back(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn went(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set_running(&self, running: usize) {
        self.running.store(u32::try_from(running).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
