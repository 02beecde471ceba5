//! What a request does about missed mass: more repair, then a larger budget, then everything (P5).
//!
//! ```text
//!            raise           raise            raise
//!   Normal ---------> Repair ------> Budget -------> Dense
//!          <---------        <------        <-------
//!            lower           lower            lower
//! ```
//!
//! A pure function of the request's history: it reads the meter's decayed mean, never load. Stages
//! that would change nothing (no larger budget was reserved) are passed over. How a dense step
//! beyond the reservation is carried out is the engine's.

use std::collections::VecDeque;

use crate::policy::{Guarding, Policy};
use crate::selection::Limits;

/// Steps in a row above the threshold before the next stage begins: a few times what the decayed
/// mean looks back, so that one retrieval step alone moves nothing.
pub(crate) const RAISE_AFTER: u32 = 8;
/// Steps in a row below the threshold before a stage ends. Doubled whenever a stage begins again
/// after it had ended, up to the bound below, so that a request does not swing.
pub(crate) const LOWER_AFTER: u32 = 64;
pub(crate) const LOWER_AFTER_MAX: u32 = 4_096;
/// Decisions that are kept, newest last; older ones are counted only.
pub(crate) const DECISIONS_MAX: usize = 64;

/// How far the guard went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The policy's own bounds.
    Normal,
    /// Twice R, at least 4.
    Repair,
    /// That, and the budget that was reserved.
    Budget,
    /// Everything is attended.
    Dense,
}

impl Stage {
    /// All of them, mildest first.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Repair, Self::Budget, Self::Dense];

    /// The lower-case name used in metrics and ledgers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Repair => "repair",
            Self::Budget => "budget",
            Self::Dense => "dense",
        }
    }
}

/// Why a stage changed. Masses are in thousandths of all mass, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too much was missed for too long.
    Missed {
        /// The decayed mean at that step.
        permille: u16,
    },
    /// Little was missed for long enough.
    Recovered {
        /// The decayed mean at that step.
        permille: u16,
    },
}

/// A change of stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The step after which it was taken; it holds from the next one on.
    pub step: u32,
    /// The stage before.
    pub from: Stage,
    /// The stage from then on.
    pub to: Stage,
    /// Why.
    pub reason: Reason,
}

/// The guard of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The policy's thresholds.
    pub(crate) guarding: Guarding,
    /// What each stage sets; the last one sets what the one before it does.
    pub(crate) limits: [Limits; 3],
    pub(crate) stage: Stage,
    /// Steps in a row above the upper threshold.
    pub(crate) above: u32,
    /// Steps in a row below the lower threshold.
    pub(crate) below: u32,
    /// Steps below that end a stage, as doubled so far.
    pub(crate) patience: u32,
    /// Some stage has ended before.
    pub(crate) relapses: bool,
    pub(crate) decisions: VecDeque<Decision>,
    /// Decisions ever taken.
    pub(crate) decided: u64,
}

impl Guard {
    /// At the policy's own bounds.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let sparse = policy.in_force();
        let (k, k_max) = (sparse.budget_blocks(), sparse.budget_blocks_max());
        let r = sparse.repair_blocks;
        let more = r.saturating_mul(2).max(4);
        let limits = [(k, r), (k, more), (k_max, more)]
            .map(|(budget_blocks, repair_blocks)| Limits { budget_blocks, repair_blocks });
        Self {
            guarding: sparse.guard,
            limits,
            stage: Stage::Normal,
            above: 0,
            below: 0,
            patience: LOWER_AFTER,
            relapses: false,
            decisions: VecDeque::new(),
            decided: 0,
        }
    }

    /// Judges a step by the meter's decayed mean after it; a decision holds from the next step on.
    /// A mean that is no number counts as everything missed.
    pub fn judge(&mut self, step: u32, missed: f32) -> Option<Decision> {
        let (raise, lower) = match self.guarding {
            Guarding::Off => return None,
            Guarding::On { raise_permille, lower_permille } => (raise_permille, lower_permille),
        };
        let missed = if (0.0..=1.0).contains(&missed) { missed } else { 1.0 };
        let permille = (missed * 1_000.0) as u16;
        self.above = if permille > raise { self.above.saturating_add(1) } else { 0 };
        self.below = if permille < lower { self.below.saturating_add(1) } else { 0 };
        if self.above >= RAISE_AFTER && self.stage != Stage::Dense {
            let to = self.raised();
            if self.relapses {
                self.patience = self.patience.saturating_mul(2).min(LOWER_AFTER_MAX);
            }
            return Some(self.decide(step, to, Reason::Missed { permille }));
        }
        if self.below >= self.patience && self.stage != Stage::Normal {
            self.relapses = true;
            let to = self.lowered();
            return Some(self.decide(step, to, Reason::Recovered { permille }));
        }
        None
    }

    /// Where the guard stands.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The limits of this stage; under `Dense` those that the set is kept by meanwhile, so that
    /// the meter still tells when it would do again.
    #[must_use]
    pub fn limits(&self) -> Limits {
        match self.stage {
            Stage::Normal => self.limits[0],
            Stage::Repair => self.limits[1],
            Stage::Budget | Stage::Dense => self.limits[2],
        }
    }

    /// The newest decisions, oldest of them first, at most 64.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// Decisions ever taken.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided
    }

    fn has_larger_budget(&self) -> bool {
        self.limits[2] != self.limits[1]
    }

    fn raised(&self) -> Stage {
        match self.stage {
            Stage::Normal => Stage::Repair,
            Stage::Repair if self.has_larger_budget() => Stage::Budget,
            Stage::Repair | Stage::Budget | Stage::Dense => Stage::Dense,
        }
    }

    fn lowered(&self) -> Stage {
        match self.stage {
            Stage::Dense if self.has_larger_budget() => Stage::Budget,
            Stage::Dense | Stage::Budget => Stage::Repair,
            Stage::Repair | Stage::Normal => Stage::Normal,
        }
    }

    fn decide(&mut self, step: u32, to: Stage, reason: Reason) -> Decision {
        let decision = Decision { step, from: self.stage, to, reason };
        self.stage = to;
        (self.above, self.below) = (0, 0);
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
        self.decided += 1;
        decision
    }
}

#[cfg(test)]
mod tests {
    use super::{Decision, Guard, Reason, Stage};
    use crate::policy::Policy;

    fn guard(text: &str) -> Guard {
        Guard::new(&text.parse::<Policy>().unwrap())
    }

    /// Feeds one value for so many steps and collects what was decided.
    fn feed(guard: &mut Guard, missed: f32, steps: u32) -> Vec<Decision> {
        (0..steps).filter_map(|step| guard.judge(step, missed)).collect()
    }

    fn stages(decisions: &[Decision]) -> Vec<Stage> {
        decisions.iter().map(|decision| decision.to).collect()
    }

    #[test]
    fn p5_misses_raise_repair_then_the_budget_then_go_dense_and_back() {
        let mut guard = guard("sparse:v1,budget=512,budget_max=1024,repair=4,guard=200/100");
        let up = feed(&mut guard, 0.3, 24);
        assert_eq!(stages(&up), [Stage::Repair, Stage::Budget, Stage::Dense]);
        assert_eq!(up[0].step, 7, "eight steps in a row");
        assert_eq!(up[0].reason, Reason::Missed { permille: 300 });
        assert_eq!(guard.limits().budget_blocks, 64);
        assert_eq!(guard.limits().repair_blocks, 8);
        assert!(feed(&mut guard, 0.3, 100).is_empty(), "there is nothing above dense");
        assert!(feed(&mut guard, 0.15, 1_000).is_empty(), "between the thresholds nothing moves");
        let down = feed(&mut guard, 0.05, 3 * 64);
        assert_eq!(stages(&down), [Stage::Budget, Stage::Repair, Stage::Normal]);
        assert_eq!(guard.limits().repair_blocks, 4);
        assert_eq!(guard.decided(), 6);
    }

    #[test]
    fn p5_a_stage_that_changes_nothing_is_passed_over() {
        let mut guard = guard("sparse:v1,budget=512");
        assert_eq!(stages(&feed(&mut guard, 0.5, 16)), [Stage::Repair, Stage::Dense]);
        assert_eq!(stages(&feed(&mut guard, 0.0, 64)), [Stage::Repair]);
    }

    #[test]
    fn p5_a_relapse_makes_the_guard_more_patient() {
        let mut guard = guard("sparse:v1,budget=512");
        feed(&mut guard, 0.5, 8);
        assert_eq!(feed(&mut guard, 0.0, 64).len(), 1);
        assert_eq!(feed(&mut guard, 0.5, 8).len(), 1, "again");
        assert!(feed(&mut guard, 0.0, 127).is_empty(), "twice as long now");
        assert_eq!(feed(&mut guard, 0.0, 1).len(), 1);
    }

    #[test]
    fn p5_one_bad_step_moves_nothing_and_no_number_counts_as_bad() {
        let mut guard = guard("sparse:v1,budget=512");
        for _ in 0..50 {
            assert!(feed(&mut guard, 1.0, 7).is_empty());
            assert!(feed(&mut guard, 0.15, 1).is_empty());
        }
        assert_eq!(stages(&feed(&mut guard, f32::NAN, 8)), [Stage::Repair]);
        let mut off = Guard::new(&"sparse:v1,guard=off".parse::<Policy>().unwrap());
        assert!(feed(&mut off, 1.0, 100).is_empty());
        assert!(feed(&mut Guard::new(&Policy::dense()), 1.0, 100).is_empty());
    }
}
