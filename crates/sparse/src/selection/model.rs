//! The rules of blueprint section 5 as one would say them: whole sorts, sets and maps, one column.
//! What the fast code must agree with, step by step.

use std::collections::{BTreeMap, BTreeSet};

use super::Pinned;
use crate::policy::{Predictor, Ratio, Sparse};

/// One column. A member maps to (step it was last wanted, score then).
#[derive(Clone, Debug)]
pub(super) struct Model {
    policy: Sparse,
    blocks: u32,
    step: u32,
    cap: u32,
    complete: bool,
    pub(super) set: BTreeMap<u32, (u32, f32)>,
    pub(super) enter: BTreeMap<u32, f32>,
    pub(super) leave: BTreeSet<u32>,
    history: Vec<f32>,
}

fn clean(mass: Option<&f32>) -> f32 {
    let mass = mass.copied().unwrap_or(0.0);
    if mass.is_nan() || mass.is_infinite() || mass < 0.0 { 0.0 } else { mass.min(1.0) }
}

impl Model {
    pub(super) fn new(policy: &Sparse, blocks: u32, first: &[f32]) -> Self {
        let cap = policy.budget_blocks();
        let complete = blocks <= cap + policy.slack_blocks();
        let mut model = Self {
            policy: policy.clone(),
            blocks,
            step: 1,
            cap,
            complete,
            set: BTreeMap::new(),
            enter: BTreeMap::new(),
            leave: BTreeSet::new(),
            history: Vec::new(),
        };
        let scores = model.scores(first);
        if policy.predictor == Predictor::History {
            model.history = scores.clone();
        }
        let members: Vec<u32> = if complete {
            (0..blocks).collect()
        } else if policy.predictor == Predictor::Window {
            (0..policy.sink_blocks).chain(blocks - (cap - policy.sink_blocks)..blocks).collect()
        } else {
            model.wanted(&scores).into_iter().collect()
        };
        let window = policy.predictor == Predictor::Window;
        let score = |block: u32| if window { 0.0 } else { scores[block as usize] };
        model.set = members.into_iter().map(|block| (block, (0, score(block)))).collect();
        model
    }

    fn scores(&self, mass: &[f32]) -> Vec<f32> {
        (0..self.blocks as usize).map(|block| clean(mass.get(block))).collect()
    }

    fn is_pinned(&self, block: u32) -> bool {
        Pinned::of(&self.policy, self.blocks).holds(block)
    }

    /// Pinned blocks and the best others, up to K.
    fn wanted(&self, scores: &[f32]) -> BTreeSet<u32> {
        let (mut wanted, mut others): (BTreeSet<u32>, Vec<u32>) = (BTreeSet::new(), Vec::new());
        for block in 0..self.blocks {
            if self.is_pinned(block) {
                wanted.insert(block);
            } else {
                others.push(block);
            }
        }
        best_first(&mut others, scores);
        let room = (self.cap as usize).saturating_sub(wanted.len());
        wanted.extend(others.into_iter().take(room));
        wanted
    }

    /// Who would enter and leave by these scores.
    fn swaps(
        &mut self,
        scores: &[f32],
        bound: usize,
        ratio: Ratio,
        waits: bool,
    ) -> (BTreeMap<u32, f32>, BTreeSet<u32>) {
        let wanted = self.wanted(scores);
        let step = self.step;
        for (block, (selected, score)) in &mut self.set {
            *score = scores[*block as usize];
            if wanted.contains(block) {
                *selected = step;
            }
        }
        let mut victims: Vec<(u32, f32, u32)> = self
            .set
            .iter()
            .filter(|(block, _)| !wanted.contains(block))
            .map(|(block, (selected, score))| (*selected, *score, *block))
            .collect();
        victims.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let mut newcomers: Vec<u32> =
            wanted.into_iter().filter(|block| !self.set.contains_key(block)).collect();
        best_first(&mut newcomers, scores);
        let mut room = (self.cap as usize).saturating_sub(self.set.len());
        let (mut enter, mut leave) = (BTreeMap::new(), BTreeSet::new());
        for block in newcomers.into_iter().take(bound) {
            let score = scores[block as usize];
            if waits && score == 0.0 {
                continue;
            }
            if room > 0 {
                room -= 1;
                enter.insert(block, score);
                continue;
            }
            let enough =
                |old: f32| score > 0.0 && score * ratio.den as f32 >= old * ratio.num as f32;
            while !victims.is_empty() {
                let (_, old, victim) = victims.remove(0);
                if enough(old) {
                    enter.insert(block, score);
                    leave.insert(victim);
                    break;
                }
            }
        }
        (enter, leave)
    }

    pub(super) fn repair(&mut self, mass: &[f32]) -> (Vec<u32>, Vec<u32>) {
        let bound = match self.policy.predictor {
            Predictor::Window => 0,
            Predictor::Oracle => usize::MAX,
            _ => self.policy.repair_blocks as usize,
        };
        if self.complete || bound == 0 {
            return (Vec::new(), Vec::new());
        }
        let scores = self.scores(mass);
        let (enter, leave) = self.swaps(&scores, bound, Ratio { num: 1, den: 1 }, true);
        self.apply(&enter, &leave);
        (enter.into_keys().collect(), leave.into_iter().collect())
    }

    pub(super) fn observe(&mut self, actual: &[f32], drafted: &[&[f32]]) {
        let mut scores = self.scores(actual);
        match self.policy.predictor {
            Predictor::Lookahead => {
                for row in drafted {
                    for (block, score) in scores.iter_mut().enumerate() {
                        *score += clean(row.get(block));
                    }
                }
            }
            Predictor::Previous => {}
            Predictor::History => {
                self.history.resize(scores.len(), 0.0);
                for (score, sum) in scores.iter_mut().zip(&mut self.history) {
                    *score += 0.8 * *sum;
                    *sum = *score;
                }
            }
            Predictor::OnDemand | Predictor::Window | Predictor::Oracle => return,
        }
        let bound = self.policy.prefetch_blocks as usize;
        let (enter, leave) = self.swaps(&scores, bound, self.policy.hysteresis, false);
        (self.enter, self.leave) = (enter, leave);
    }

    pub(super) fn grow(&mut self, blocks: u32) {
        for block in self.blocks..blocks {
            self.set.insert(block, (self.step, 0.0));
        }
        self.blocks = blocks;
        self.complete = self.complete && blocks <= self.cap + self.policy.slack_blocks();
        self.trim();
    }

    pub(super) fn advance(&mut self) {
        let (enter, leave) = (std::mem::take(&mut self.enter), std::mem::take(&mut self.leave));
        self.apply(&enter, &leave);
        self.step += 1;
        self.trim();
    }

    fn apply(&mut self, enter: &BTreeMap<u32, f32>, leave: &BTreeSet<u32>) {
        self.set.retain(|block, _| !leave.contains(block));
        for (block, score) in enter {
            self.set.entry(*block).or_insert((self.step, *score));
        }
    }

    fn trim(&mut self) {
        while !self.complete && self.set.len() > self.cap as usize {
            let members = self.set.iter().filter(|(block, _)| !self.is_pinned(**block));
            let least = members
                .map(|(block, (selected, score))| (*selected, *score, *block))
                .min_by(|a, b| a.partial_cmp(b).unwrap())
                .expect("K has room for more than what is pinned");
            self.set.remove(&least.2);
        }
    }
}

fn best_first(blocks: &mut [u32], scores: &[f32]) {
    blocks.sort_by(|a, b| {
        let (one, other) = (scores[*a as usize], scores[*b as usize]);
        other.partial_cmp(&one).unwrap().then(a.cmp(b))
    });
}
