//! One request's attended sets: a set of blocks per column, a column being one (layer, KV head).
//!
//! ```text
//!   block   0 | 1 .................... n-6 | n-5 .. n-1
//!          sink        chosen                 recent, the last one open
//! ```
//!
//! All three kinds count into K. KV of drafted rows is scratch of the step, at most 4 tokens beside
//! the set, and counts as nothing; once committed it lies in the open block or in one new block,
//! which [`Selection::grow`] takes in. While the sequence has at most K + slack blocks the set is
//! everything ("complete"), and once it left that state only the masses decide.
//!
//! A mass that is not a number above 0 counts as 0, and one above 1 as 1. A block without mass
//! never displaces another; among equals the lower index is better. Does not know what is resident.

mod choice;
mod column;
mod pooled;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use ids::{KvHeadIdx, LayerIdx};
use kv::Shape;

use crate::policy::{Budgets, Policy, Predictor, Ratio, Sparse};
pub(crate) use choice::Scratch;
pub(crate) use column::Column;

/// Factor of H2O-like sums at each step, and of the missed mass that pooled budgets follow.
/// 0.8 is the value that evidence.md measured for `history`.
pub(crate) const HISTORY_DECAY: f32 = 0.8;
/// The need of a column looks back about ten steps.
const NEED_DECAY: f32 = 0.9;

/// Blocks that enter and leave one column's set. Sorted ascending each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// New in the set.
    pub enter: Vec<u32>,
    /// No longer in the set.
    pub leave: Vec<u32>,
}

impl Change {
    /// Forgets both lists and keeps their memory.
    pub fn clear(&mut self) {
        self.enter.clear();
        self.leave.clear();
    }

    /// Whether nothing enters and nothing leaves.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.enter.is_empty() && self.leave.is_empty()
    }
}

/// Masses of one column's rows in one step: per row the share of each block, ascending index.
/// Blocks beyond the end of a row (the open one has no summary) count as 0.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Of the actual row.
    pub actual: &'a [f32],
    /// Of the drafted rows, one after another, each as long as `actual`.
    pub drafted: &'a [f32],
    /// Blocks of the set that this step left out because they had not arrived (`late=drop`).
    pub late: &'a [u32],
}

/// Where the mass of a column's actual row was, by the summaries. Shares of `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// The set was complete: nothing can have been missed, whatever the masses say.
    pub exact: bool,
    /// Mass of all blocks, about 1; 0 when the masses were no numbers above 0.
    pub total: f32,
    /// Share that was not attended: the three causes together.
    pub missed: f32,
    /// Nobody wanted the block before.
    pub unpredicted: f32,
    /// It was wanted, and C, R or hysteresis kept it out.
    pub capped: f32,
    /// It was in the set and had not arrived.
    pub late: f32,
}

/// What the guard sets within what was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// K per column; under pooled budgets their mean.
    pub budget_blocks: u32,
    /// R.
    pub repair_blocks: u32,
}

/// Which blocks are in the set whatever the masses are: `0..sinks` and `recent..blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) sinks: u32,
    pub(crate) recent: u32,
    pub(crate) blocks: u32,
}

impl Pinned {
    pub(crate) fn of(policy: &Sparse, blocks: u32) -> Self {
        let sinks = policy.sink_blocks.min(blocks);
        let recent = blocks.saturating_sub(policy.recent_blocks()).max(sinks);
        Self { sinks, recent, blocks }
    }

    pub(crate) fn holds(self, block: u32) -> bool {
        block < self.sinks || block >= self.recent
    }

    pub(crate) fn count(self) -> u32 {
        self.sinks + self.blocks - self.recent
    }
}

/// The attended sets of one request.
#[derive(Clone, Debug)]
pub struct Selection {
    pub(crate) policy: Sparse,
    pub(crate) shape: Shape,
    /// Blocks of the sequence, the open one included.
    pub(crate) blocks: u32,
    /// The step that is being made, from 1: members of the first set were last wanted in step 0.
    pub(crate) step: u32,
    /// Every block is attended, as ever since the start.
    pub(crate) complete: bool,
    /// In force now; the policy's unless the guard raised them.
    pub(crate) limits: Limits,
    /// In the order of [`Shape::index`].
    pub(crate) columns: Vec<Column>,
    pub(crate) scratch: Scratch,
}

impl PartialEq for Selection {
    /// Equal state; what is left in scratch does not count.
    fn eq(&self, other: &Self) -> bool {
        let of = |s: &Self| (s.blocks, s.step, s.complete, s.limits, s.shape);
        of(self) == of(other) && self.policy == other.policy && self.columns == other.columns
    }
}

impl Selection {
    /// The first working set of a sequence of `blocks` blocks, the open one included, from the
    /// masses of the prompt's last 32 queries (`first`, asked once per column in order).
    ///
    /// Under a dense policy the set is complete for ever.
    pub fn new<'a>(
        policy: &Policy,
        shape: Shape,
        blocks: u32,
        mut first: impl FnMut(LayerIdx, KvHeadIdx) -> &'a [f32],
    ) -> Self {
        let sparse = policy.in_force();
        let limits =
            Limits { budget_blocks: sparse.budget_blocks(), repair_blocks: sparse.repair_blocks };
        let complete = blocks <= limits.budget_blocks.saturating_add(sparse.slack_blocks());
        let pinned = Pinned::of(&sparse, blocks);
        let mut scratch = Scratch::default();
        let mut columns = Vec::with_capacity(shape.slices());
        for layer in 0..shape.layers {
            for head in 0..shape.heads {
                let mass = first(LayerIdx(layer), KvHeadIdx(head));
                let mut column = Column::new(limits.budget_blocks);
                scratch.load(mass, pinned);
                column.start(&sparse, pinned, complete, &mut scratch);
                columns.push(column);
            }
        }
        Self { policy: sparse, shape, blocks, step: 1, complete, limits, columns, scratch }
    }

    /// What attention of this column reads: ascending, sinks, recent ones and the open block in it.
    /// At most K entries ([`Selection::budget_blocks`]) unless [`Selection::is_complete`].
    #[must_use]
    pub fn attended(&self, layer: LayerIdx, head: KvHeadIdx) -> &[u32] {
        &self.columns[self.shape.index(layer, head)].blocks
    }

    /// What the next [`Selection::advance`] changes in this column, to be fetched meanwhile.
    #[must_use]
    pub fn pending(&self, layer: LayerIdx, head: KvHeadIdx) -> &Change {
        &self.columns[self.shape.index(layer, head)].pending
    }

    /// K of this column now.
    #[must_use]
    pub fn budget_blocks(&self, layer: LayerIdx, head: KvHeadIdx) -> u32 {
        self.columns[self.shape.index(layer, head)].cap
    }

    /// Blocks of the sequence, the open one included.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The step that is being made, from 1; [`Selection::advance`] begins the next one.
    #[must_use]
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Every column attends to every block, so that the step is exact and nothing can be missed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether masses are needed at this length. While the set is complete and stays so for two
    /// more blocks nobody needs them, and a short context pays nothing for them (P8).
    #[must_use]
    pub fn wants_masses(&self) -> bool {
        !self.complete || self.blocks.saturating_add(2) > self.complete_blocks_max()
    }

    /// Whether a step must ask [`Selection::repair`], given whether its actual token was covered.
    #[must_use]
    pub fn wants_repair(&self, covered: bool) -> bool {
        let asks = match self.policy.predictor {
            Predictor::Lookahead | Predictor::Previous | Predictor::History => !covered,
            Predictor::OnDemand | Predictor::Oracle => true,
            Predictor::Window => false,
        };
        asks && !self.complete && self.repair_bound() > 0
    }

    /// Lets wanted blocks in by the step's own query, before it attends: the best R without
    /// hysteresis (`oracle`: all), for those that are least useful. `change` says which.
    pub fn repair(&mut self, layer: LayerIdx, head: KvHeadIdx, mass: &[f32], change: &mut Change) {
        change.clear();
        let bound = self.repair_bound();
        if self.complete || bound == 0 {
            return;
        }
        let pinned = Pinned::of(&self.policy, self.blocks);
        let column = &mut self.columns[self.shape.index(layer, head)];
        self.scratch.load(mass, pinned);
        self.scratch.judge(column, pinned, self.step);
        let even = Ratio { num: 1, den: 1 };
        let room = choice::Room::OfVictimsOrFreeWithMass;
        self.scratch.swap(column, choice::Bound { blocks: bound, ratio: even, room });
        column.take(&self.scratch.swaps, self.step);
        self.scratch.swaps.write(change);
        // What R kept out is capped, beside what C kept out at the step before.
        column.held.extend_from_slice(&self.scratch.held);
        column.held.sort_unstable();
        column.held.dedup();
    }

    /// Takes in the masses of a step that attended to this column: measures what was missed, and
    /// plans what enters and leaves with the next step (at most C, with hysteresis).
    pub fn observe(&mut self, layer: LayerIdx, head: KvHeadIdx, rows: &Rows<'_>) -> Observed {
        let pinned = Pinned::of(&self.policy, self.blocks);
        let column = &mut self.columns[self.shape.index(layer, head)];
        let mut observed = self.scratch.measure(column, rows, pinned);
        observed.exact = self.complete && rows.late.is_empty();
        column.need = NEED_DECAY * column.need + (1.0 - NEED_DECAY) * observed.missed;
        column.forget_plan();
        match self.policy.predictor {
            Predictor::Lookahead => self.scratch.add_rows(rows.drafted, rows.actual.len()),
            Predictor::Previous => {}
            Predictor::History => self.scratch.add_history(&mut column.history),
            Predictor::OnDemand | Predictor::Window | Predictor::Oracle => return observed,
        }
        self.scratch.judge(column, pinned, self.step);
        if !self.complete {
            let bound = choice::Bound {
                blocks: self.policy.prefetch_blocks,
                ratio: self.policy.hysteresis,
                room: choice::Room::OfVictimsOrFree,
            };
            self.scratch.swap(column, bound);
            column.plan(&self.scratch);
        }
        observed
    }

    /// The sequence has `blocks` blocks now, the open one included. The new ones are recent; what
    /// is recent no longer stays as an ordinary member while there is room.
    ///
    /// # Panics
    /// When the sequence would shrink: drafted rows are not in it before they are committed.
    pub fn grow(&mut self, blocks: u32) {
        assert!(blocks >= self.blocks, "{} blocks cannot become {blocks}", self.blocks);
        let new = self.blocks..blocks;
        self.blocks = blocks;
        self.complete = self.complete && blocks <= self.complete_blocks_max();
        let pinned = Pinned::of(&self.policy, blocks);
        for column in &mut self.columns {
            column.append(new.clone(), self.step);
            if !self.complete {
                column.trim(pinned, &mut self.scratch);
            }
        }
    }

    /// Flips every column to its planned set; the step is over. Every 16 steps pooled budgets move.
    pub fn advance(&mut self) {
        for column in &mut self.columns {
            column.flip(self.step);
        }
        self.step = self.step.saturating_add(1);
        if self.complete {
            return;
        }
        if self.policy.budgets == Budgets::Pooled {
            self.rebalance();
        }
        let pinned = Pinned::of(&self.policy, self.blocks);
        for column in &mut self.columns {
            column.trim(pinned, &mut self.scratch);
        }
    }

    /// Puts other limits in force, between two steps. A lower budget makes the least useful members
    /// leave at once; a higher one is room that the next steps fill within their bounds.
    ///
    /// # Panics
    /// When the budget has no room for a block beside sinks and recent ones.
    pub fn adopt(&mut self, limits: Limits) {
        if limits == self.limits {
            return;
        }
        assert!(
            limits.budget_blocks > self.policy.pinned_blocks(),
            "a budget of {} blocks cannot hold sinks and recent ones",
            limits.budget_blocks
        );
        let before = std::mem::replace(&mut self.limits, limits);
        self.move_budgets(before.budget_blocks);
        self.complete = self.complete && self.blocks <= self.complete_blocks_max();
        let pinned = Pinned::of(&self.policy, self.blocks);
        for column in &mut self.columns {
            if !self.complete {
                column.trim(pinned, &mut self.scratch);
            }
        }
    }

    fn complete_blocks_max(&self) -> u32 {
        self.limits.budget_blocks.saturating_add(self.policy.slack_blocks())
    }

    fn repair_bound(&self) -> u32 {
        match self.policy.predictor {
            Predictor::Window => 0,
            Predictor::Oracle => u32::MAX,
            Predictor::Lookahead
            | Predictor::Previous
            | Predictor::History
            | Predictor::OnDemand => self.limits.repair_blocks,
        }
    }
}
