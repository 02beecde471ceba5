//! The whole state of a request's sparse decode as bytes, and back: where replay starts from.
//!
//! Little-endian, lists with their lengths before them. Bytes come from another node: every length
//! is compared with what is left before memory is taken, and a state that the calls could not have
//! made is refused. Not a checksum: whoever stores a snapshot verifies it like a slice (P2).

mod bytes;
mod read;
#[cfg(test)]
mod tests;
mod write;

use ids::{KvHeadIdx, LayerIdx};
use kv::Shape;

use crate::covered::Covered;
use crate::guard::{Decision, Guard};
use crate::meter::Meter;
use crate::policy::{InvalidPolicy, Policy};
use crate::selection::Selection;

/// The first bytes: what it is and which version.
const HEAD: [u8; 8] = *b"OKVsel\x00\x01";
/// Longest policy text, as policies are read.
const POLICY_BYTES_MAX: usize = 512;
/// Blocks of a sequence at most, 16 million tokens: a reader allocates by it in later calls.
const BLOCKS_MAX: u32 = 1 << 20;
/// Rows of a step at most: the actual one and 4 drafted ones.
const ROWS_MAX: usize = 5;

/// Everything that decides about a request's sets.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// What was fixed at admission.
    pub policy: Policy,
    /// The sets.
    pub selection: Selection,
    /// What they miss.
    pub meter: Meter,
    /// What follows from it.
    pub guard: Guard,
    /// Which tokens helped to choose them.
    pub covered: Covered,
}

/// Bytes that are no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSnapshot {
    /// Another kind of bytes, or another version.
    #[error("snapshot does not begin with the mark of version 1")]
    Head,
    /// The end came too early.
    #[error("snapshot ends inside {what}")]
    Short {
        /// The field that was being read.
        what: &'static str,
    },
    /// Bytes follow the end.
    #[error("snapshot has {bytes} bytes after its end")]
    Long {
        /// How many.
        bytes: usize,
    },
    /// The policy inside is none.
    #[error("policy of the snapshot cannot be")]
    Policy(#[source] InvalidPolicy),
    /// No sequence of calls leads to this state.
    #[error("{what} of the snapshot cannot be")]
    State {
        /// The field.
        what: &'static str,
    },
}

impl State {
    /// Of a request whose prompt is done; see [`Selection::new`].
    pub fn new<'a>(
        policy: Policy,
        shape: Shape,
        blocks: u32,
        first: impl FnMut(LayerIdx, KvHeadIdx) -> &'a [f32],
    ) -> Self {
        Self {
            selection: Selection::new(&policy, shape, blocks, first),
            meter: Meter::new(shape),
            guard: Guard::new(&policy),
            covered: Covered::default(),
            policy,
        }
    }

    /// Ends a step after which the sequence has `blocks` blocks: closes the meter, lets the guard
    /// judge, and flips the sets. The one order of these calls, for a run and for its replay.
    pub fn end_step(&mut self, blocks: u32) -> Option<Decision> {
        let observed = self.meter.close().is_some();
        let step = self.selection.step();
        let decision = if observed { self.guard.judge(step, self.meter.missed()) } else { None };
        self.selection.adopt(self.guard.limits());
        self.selection.grow(blocks);
        self.selection.advance();
        decision
    }

    /// The snapshot.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        write::state(self)
    }

    /// The state that a snapshot holds; what follows from it are the bits that would have followed
    /// from the state it was taken of. The caller compares shape and blocks with its sequence.
    ///
    /// # Errors
    /// [`InvalidSnapshot`]; never a panic, whatever the bytes are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidSnapshot> {
        read::state(bytes)
    }
}
