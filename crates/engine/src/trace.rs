//! What happened when within steps, for whoever wants to look: the layers of the loop, the scorer
//! behind them, and slices on their way. Off unless asked for; bounded.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Spans that are kept; later ones are forgotten.
const SPANS_MAX: usize = 200_000;

/// Who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The decode loop.
    Loop,
    /// The thread behind it.
    Scorer,
    /// Slices on their way to the device.
    Fetch,
}

/// Something that took a while.
#[derive(Clone, Copy, Debug)]
pub struct TraceSpan {
    /// What.
    pub name: &'static str,
    /// Who.
    pub lane: Lane,
    /// Of which layer.
    pub layer: u16,
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Collects spans. Clones collect into one list.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Arc<Mutex<Vec<TraceSpan>>>);

impl Tracer {
    pub(crate) fn add(&self, name: &'static str, lane: Lane, layer: u16, begin: Instant) {
        let mut spans = self.0.lock();
        if spans.len() < SPANS_MAX {
            spans.push(TraceSpan { name, lane, layer, begin, end: Instant::now() });
        }
    }

    /// Takes all spans so far.
    #[must_use]
    pub fn take(&self) -> Vec<TraceSpan> {
        std::mem::take(&mut self.0.lock())
    }
}
