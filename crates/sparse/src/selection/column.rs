//! The set of one (layer, KV head) and what is remembered about its members.

use std::ops::Range;

use super::choice::{Scratch, Swaps};
use super::{Change, Pinned};
use crate::policy::{Predictor, Sparse};

/// State of one column. The first three lists run side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Column {
    /// The set, ascending.
    pub(crate) blocks: Vec<u32>,
    /// When each member was last wanted, in steps.
    pub(crate) selected: Vec<u32>,
    /// Its score the last time somebody looked.
    pub(crate) scores: Vec<f32>,
    /// What the next step changes; empty where nothing was observed since the last flip.
    pub(crate) pending: Change,
    /// Scores of `pending.enter`, side by side with it.
    pub(crate) pending_scores: Vec<f32>,
    /// Wanted and kept out by a bound, ascending: a miss of one of these is "capped".
    pub(crate) held: Vec<u32>,
    /// Decayed past masses of every block; empty unless the predictor is `history`.
    pub(crate) history: Vec<f32>,
    /// K of this column.
    pub(crate) cap: u32,
    /// Decayed share of missed mass, what pooled budgets follow.
    pub(crate) need: f32,
}

impl Column {
    pub(crate) fn new(cap: u32) -> Self {
        Self { cap, ..Self::default() }
    }

    /// The first set, from the scores that are loaded.
    pub(crate) fn start(
        &mut self,
        policy: &Sparse,
        pinned: Pinned,
        complete: bool,
        scratch: &mut Scratch,
    ) {
        if policy.predictor == Predictor::History {
            self.history.extend_from_slice(&scratch.scores);
        }
        if complete {
            self.blocks.extend(0..pinned.blocks);
        } else if policy.predictor == Predictor::Window {
            let newest = pinned.blocks - (self.cap - pinned.sinks);
            self.blocks.extend((0..pinned.sinks).chain(newest..pinned.blocks));
        } else {
            scratch.rank(pinned, self.cap.saturating_sub(pinned.count()));
            self.blocks.extend((0..pinned.sinks).chain(pinned.recent..pinned.blocks));
            self.blocks.extend(scratch.ranked());
            self.blocks.sort_unstable();
        }
        self.selected.resize(self.blocks.len(), 0);
        let scores = &scratch.scores;
        self.scores.extend(self.blocks.iter().map(|block| scores[*block as usize]));
        if policy.predictor == Predictor::Window {
            // Age alone decides who leaves.
            self.scores.fill(0.0);
        }
    }

    /// New blocks at the end of the sequence: recent, hence members.
    pub(crate) fn append(&mut self, new: Range<u32>, step: u32) {
        if !self.history.is_empty() {
            self.history.resize(new.end as usize, 0.0);
        }
        for block in new {
            self.blocks.push(block);
            self.selected.push(step);
            self.scores.push(0.0);
        }
    }

    /// Brings the set down to K: the least useful leave, which are those that were wanted longest
    /// ago, then of the lower score, then of the lower index.
    pub(crate) fn trim(&mut self, pinned: Pinned, scratch: &mut Scratch) {
        let excess = self.blocks.len().saturating_sub(self.cap as usize);
        if excess == 0 {
            return;
        }
        let victims = &mut scratch.victims;
        victims.clear();
        for (place, block) in self.blocks.iter().enumerate() {
            if !pinned.holds(*block) {
                victims.push((usefulness(self.selected[place], self.scores[place]), *block));
            }
        }
        victims.sort_unstable();
        victims.truncate(excess);
        for (_, block) in victims.iter() {
            self.remove(*block);
        }
    }

    /// Applies swaps now.
    pub(crate) fn take(&mut self, swaps: &Swaps, step: u32) {
        for block in &swaps.leave {
            self.remove(*block);
        }
        for (block, score) in &swaps.enter {
            self.insert(*block, step, *score);
        }
    }

    /// Remembers swaps for the next flip, and what was held back.
    pub(crate) fn plan(&mut self, scratch: &Scratch) {
        scratch.swaps.write(&mut self.pending);
        self.pending_scores.clear();
        self.pending_scores.extend(scratch.swaps.enter.iter().map(|(_, score)| *score));
        self.held.clear();
        self.held.extend_from_slice(&scratch.held);
    }

    /// Forgets the plan and what was held back.
    pub(crate) fn forget_plan(&mut self) {
        self.pending.clear();
        self.pending_scores.clear();
        self.held.clear();
    }

    /// Applies the plan, which was made in `step`.
    pub(crate) fn flip(&mut self, step: u32) {
        for place in 0..self.pending.leave.len() {
            self.remove(self.pending.leave[place]);
        }
        for place in 0..self.pending.enter.len() {
            self.insert(self.pending.enter[place], step, self.pending_scores[place]);
        }
        self.pending.clear();
        self.pending_scores.clear();
    }

    fn insert(&mut self, block: u32, step: u32, score: f32) {
        if let Err(place) = self.blocks.binary_search(&block) {
            self.blocks.insert(place, block);
            self.selected.insert(place, step);
            self.scores.insert(place, score);
        }
    }

    fn remove(&mut self, block: u32) {
        if let Ok(place) = self.blocks.binary_search(&block) {
            self.blocks.remove(place);
            self.selected.remove(place);
            self.scores.remove(place);
        }
    }
}

/// Orders members: the lowest leaves first. Scores are not negative, so their bits are ordered.
pub(crate) fn usefulness(selected: u32, score: f32) -> u64 {
    u64::from(selected) << 32 | u64::from(score.to_bits())
}
