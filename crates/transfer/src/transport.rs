//! What every transport does: copy a batch of slots from or to one peer.
//!
//! No hedging, no retry, no choice of peer: those are policies of the callers.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::time::Instant;

use crate::address::BulkAddress;
use crate::gate::{Credential, Refusal, SlotRef};
use crate::slab::{Slot, SlotMut};
use crate::wire::Malformed;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a batch did not go through.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The peer's gate said no.
    #[error("refused by the peer: {0}")]
    Refused(Refusal),
    /// No connection could be made.
    #[error("peer cannot be reached")]
    Unreachable(#[source] io::Error),
    /// Too many batches wait for a connection to this peer.
    #[error("{waiting} batches wait for this peer already; waiting_per_peer_max is reached")]
    Busy {
        /// Batches that wait or run.
        waiting: usize,
    },
    /// More peers than configured are in use at once.
    #[error("{peers} peers are in use already; raise peers_max")]
    TooManyPeers {
        /// Peers in use.
        peers: usize,
    },
    /// The deadline passed; the connection was closed by force.
    #[error("deadline passed before the batch was complete")]
    Deadline,
    /// The connection broke.
    #[error("connection broke in the middle of a batch")]
    Broken(#[source] io::Error),
    /// The peer's bytes are no frame of ours; the connection was closed.
    #[error("peer sent a malformed frame")]
    Malformed(#[from] Malformed),
    /// The batch itself is wrong: nothing was sent.
    #[error(
        "batch lists {refs} references and {slots} slots; they must be as many, of one size up to \
         {SLICE_BYTES_LIMIT} bytes"
    )]
    Uneven {
        /// References given.
        refs: usize,
        /// Slots given.
        slots: usize,
    },
}

use crate::wire::SLICE_BYTES_LIMIT;

/// Whether the peer may have acted on a batch that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Surely not, beyond the slices counted as done: repeating is safe.
    NothingDone,
    /// It may have: a write must not be repeated without asking.
    Unknown,
}

impl Failure {
    /// Whether repeating is safe.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_)
            | Self::Unreachable(_)
            | Self::Busy { .. }
            | Self::TooManyPeers { .. }
            | Self::Uneven { .. } => Outcome::NothingDone,
            Self::Deadline | Self::Broken(_) | Self::Malformed(_) => Outcome::Unknown,
        }
    }

    /// The name used in metrics; a closed set.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Unreachable(_) => "unreachable",
            Self::Busy { .. } => "busy",
            Self::TooManyPeers { .. } => "too_many_peers",
            Self::Deadline => "deadline",
            Self::Broken(_) => "broken",
            Self::Malformed(_) => "malformed",
            Self::Uneven { .. } => "uneven",
        }
    }
}

/// A read failed. Whatever the landing slots hold now is not the peer's data.
#[derive(Debug, thiserror::Error)]
#[error("bulk read failed")]
pub struct ReadFailed {
    /// The landing slots that surely nothing writes to any more; empty when that is not known.
    pub landing: Vec<SlotMut>,
    /// Why.
    #[source]
    pub failure: Failure,
}

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("bulk write failed after {landed} slices had landed")]
pub struct WriteFailed {
    /// How many slices, counted from the first, the peer confirmed.
    pub landed: usize,
    /// Why the rest was not.
    #[source]
    pub failure: Failure,
}

/// Copies batches of slots between this process and a peer.
///
/// Dropping a returned future cancels the batch: its connection is closed, and the landing slots
/// go with the future.
pub trait Transport: Send + Sync + 'static {
    /// Fills `landing[i]` with the peer's slot `refs[i]`.
    ///
    /// # Errors
    /// [`ReadFailed`], with the landing slots inside.
    fn read<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        landing: Vec<SlotMut>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<SlotMut>, ReadFailed>>;

    /// Copies `sources[i]` into the peer's slot `refs[i]`.
    ///
    /// # Errors
    /// [`WriteFailed`], which says how many slices landed.
    fn write<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        sources: &'a [Slot],
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), WriteFailed>>;
}
