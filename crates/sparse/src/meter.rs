//! How much attention mass a request misses, estimated from the summaries of all blocks (P5).
//!
//! Counts and means only; what follows from them is the guard's.

use ids::LayerIdx;
use kv::Shape;

use crate::selection::Observed;

/// Groups of neighbouring layers that are told apart: early, two middle ones, late. Layers differ
/// (recall .78 to .99 at 512 tokens, evidence.md), and metrics need a bounded label.
pub(crate) const GROUPS: usize = 4;
/// The request's mean looks back about ten steps.
const DECAY: f32 = 0.9;

/// What attention read in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// The set.
    Set,
    /// Every block (the guard's last stage): nothing was missed, and what the set would have
    /// missed still tells the guard whether it would do again.
    Everything,
}

/// Sums since the request began. Masses are shares of one column and step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Columns times steps that were observed.
    pub observed: u64,
    /// Steps that were closed with at least one observation.
    pub steps: u64,
    /// Missed mass: the sum of the three below, up to rounding.
    pub missed: f64,
    /// Missed because nobody wanted the block.
    pub unpredicted: f64,
    /// Missed because a bound kept the block out.
    pub capped: f64,
    /// Missed because the block had not arrived.
    pub late: f64,
    /// Columns and steps whose masses were no numbers above 0: nothing is known of them, and the
    /// meter counts them as missed altogether.
    pub unknown: u64,
}

impl Totals {
    /// Attended share of mass over all columns and steps; 1 when nothing was observed.
    #[must_use]
    pub fn recall(&self) -> f64 {
        if self.observed == 0 { 1.0 } else { 1.0 - self.missed / self.observed as f64 }
    }
}

/// Sum and count of a step in the making, or of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    pub(crate) missed: f64,
    pub(crate) count: u64,
}

impl Tally {
    fn add(&mut self, missed: f64) {
        self.missed += missed;
        self.count += 1;
    }

    fn mean(self) -> f32 {
        if self.count == 0 { 0.0 } else { (self.missed / self.count as f64) as f32 }
    }
}

/// The meter of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Meter {
    pub(crate) shape: Shape,
    /// Of the step that is being observed.
    pub(crate) now: Tally,
    /// Mean of the last closed step that had observations.
    pub(crate) last: f32,
    /// Decayed mean over steps; the first step sets it.
    pub(crate) decayed: f32,
    /// Per layer group since the start.
    pub(crate) groups: [Tally; GROUPS],
    pub(crate) totals: Totals,
}

impl Meter {
    /// Nothing was observed yet.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            now: Tally::default(),
            last: 0.0,
            decayed: 0.0,
            groups: [Tally::default(); GROUPS],
            totals: Totals::default(),
        }
    }

    /// Takes in one column of a step. Order matters to the last bit: call it in the order of the
    /// columns, whichever was scored first.
    pub fn record(&mut self, layer: LayerIdx, observed: &Observed, attended: Attended) {
        let known = observed.total > 0.0 || observed.exact;
        let of_set = if known { f64::from(observed.missed) } else { 1.0 };
        self.now.add(of_set);
        let group = self.group(layer);
        let totals = &mut self.totals;
        totals.observed += 1;
        totals.unknown += u64::from(!known);
        match attended {
            Attended::Everything => self.groups[group].add(0.0),
            Attended::Set => {
                self.groups[group].add(of_set);
                totals.missed += of_set;
                totals.unpredicted += if known { f64::from(observed.unpredicted) } else { 1.0 };
                totals.capped += f64::from(observed.capped);
                totals.late += f64::from(observed.late);
            }
        }
    }

    /// Ends a step and tells its mean missed mass; None when nothing was observed in it.
    pub fn close(&mut self) -> Option<f32> {
        let step = std::mem::take(&mut self.now);
        if step.count == 0 {
            return None;
        }
        self.last = step.mean();
        let first = self.totals.steps == 0;
        self.decayed =
            if first { self.last } else { DECAY * self.decayed + (1.0 - DECAY) * self.last };
        self.totals.steps += 1;
        Some(self.last)
    }

    /// Decayed mean of missed mass over the request's last steps, 0 to 1: what the guard judges.
    #[must_use]
    pub fn missed(&self) -> f32 {
        self.decayed
    }

    /// Mean of missed mass per layer group since the start, early layers first.
    #[must_use]
    pub fn missed_by_group(&self) -> [f32; GROUPS] {
        self.groups.map(Tally::mean)
    }

    /// Sums since the request began.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    fn group(&self, layer: LayerIdx) -> usize {
        let layers = usize::from(self.shape.layers).max(1);
        (usize::from(layer.0) * GROUPS / layers).min(GROUPS - 1)
    }
}

#[cfg(test)]
mod tests {
    use ids::LayerIdx;
    use kv::Shape;

    use super::{Attended, Meter};
    use crate::selection::Observed;

    fn missed(missed: f32) -> Observed {
        Observed { total: 1.0, missed, unpredicted: missed, ..Observed::default() }
    }

    #[test]
    fn p5_means_are_over_columns_and_then_over_steps() {
        let mut meter = Meter::new(Shape { layers: 4, heads: 1 });
        assert_eq!(meter.close(), None, "an empty step says nothing");
        for (layer, share) in [(0, 0.0), (1, 0.5), (2, 0.25), (3, 0.25)] {
            meter.record(LayerIdx(layer), &missed(share), Attended::Set);
        }
        assert_eq!(meter.close(), Some(0.25));
        assert_eq!(meter.missed(), 0.25, "the first step sets the mean");
        assert_eq!(meter.missed_by_group(), [0.0, 0.5, 0.25, 0.25]);
        for layer in 0..4 {
            meter.record(LayerIdx(layer), &missed(0.75), Attended::Set);
        }
        assert_eq!(meter.close(), Some(0.75));
        assert!((meter.missed() - 0.3).abs() < 1e-6, "{}", meter.missed());
        assert_eq!(meter.totals().recall(), 0.5);
    }

    #[test]
    fn p5_masses_that_are_no_numbers_count_as_missed() {
        let mut meter = Meter::new(Shape { layers: 1, heads: 1 });
        meter.record(LayerIdx(0), &Observed::default(), Attended::Set);
        assert_eq!(meter.close(), Some(1.0));
        assert_eq!(meter.totals().unknown, 1);
    }

    #[test]
    fn p5_an_exact_step_misses_nothing() {
        let mut meter = Meter::new(Shape { layers: 1, heads: 1 });
        let exact = Observed { exact: true, ..Observed::default() };
        meter.record(LayerIdx(0), &exact, Attended::Set);
        assert_eq!(meter.close(), Some(0.0), "not even without masses");
        meter.record(LayerIdx(0), &missed(0.5), Attended::Everything);
        assert_eq!(meter.close(), Some(0.5), "what the set would have missed");
        assert_eq!(meter.totals().recall(), 1.0);
        assert_eq!(meter.missed_by_group(), [0.0; 4]);
    }
}
