//! Why blocks could not be read.
//!
//! Each source's own reason is kept, so that an operator sees which copy is bad and why.

use std::fmt;
use std::sync::Arc;

use ids::{BlockIdx, NodeId, Tier};
use tonic::Code;
use transfer::Failure;

/// Why one source did not give a block; a closed set, for metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It said no: grant, epoch, lease, or a reference that is not valid (any more).
    Refused,
    /// What it sent does not hash to the receipt, or is no valid message.
    Corrupt,
    /// It did not answer in time.
    Timeout,
    /// No connection, or it broke.
    Unreachable,
    /// It does not have the block.
    Missing,
    /// This process may not use more connections to it; raise the transport's limits.
    Busy,
}

impl Cause {
    /// All of them, in the order of the counters.
    pub const ALL: [Self; 6] =
        [Self::Refused, Self::Corrupt, Self::Timeout, Self::Unreachable, Self::Missing, Self::Busy];

    /// The name used in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Corrupt => "corrupt",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Missing => "missing",
            Self::Busy => "busy",
        }
    }

    /// Whether it speaks against the peer itself, not only against one session's use of it.
    pub(super) fn is_of_peer(self) -> bool {
        match self {
            Self::Corrupt | Self::Timeout | Self::Unreachable => true,
            Self::Refused | Self::Missing | Self::Busy => false,
        }
    }

    pub(super) fn of_read(failure: &Failure) -> Self {
        match failure {
            Failure::Refused(_) | Failure::Uneven { .. } => Self::Refused,
            Failure::Unreachable(_) | Failure::Broken(_) => Self::Unreachable,
            Failure::Busy { .. } | Failure::TooManyPeers { .. } => Self::Busy,
            Failure::Deadline => Self::Timeout,
            Failure::Malformed(_) => Self::Corrupt,
        }
    }

    pub(super) fn of_status(code: Code) -> Self {
        match code {
            // The client's own timer ends a call as cancelled.
            Code::Cancelled | Code::DeadlineExceeded => Self::Timeout,
            Code::Unavailable | Code::Unknown | Code::Internal => Self::Unreachable,
            Code::DataLoss => Self::Corrupt,
            // A session that it does not know is not found; a block is missing by its answer.
            Code::Ok
            | Code::NotFound
            | Code::InvalidArgument
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => Self::Refused,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one source said about one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    /// Which source.
    pub node: NodeId,
    /// What its memory counts as.
    pub tier: Tier,
    /// The kind of failure.
    pub cause: Cause,
    /// The failure in words, for the operator; not for clients.
    pub detail: Arc<str>,
}

impl fmt::Display for SourceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, tier, cause) = (&self.node, self.tier, self.cause);
        write!(f, "{node} ({tier}): {cause}: {}", self.detail)
    }
}

/// Blocks were not read. Reading changes nothing, so asking again is safe.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody to ask.
    #[error("{blocks} blocks are to be read, but no source is named; name one at least")]
    NoSources {
        /// Blocks asked for.
        blocks: usize,
    },
    /// A receipt that proves nothing.
    #[error("the receipt of block {} lists no checksums; a block has one slice at least", .index.0)]
    NoSlices {
        /// Which block of the sequence.
        index: BlockIdx,
    },
    /// More than the landing slab has, now and ever.
    #[error(
        "{wanted} slices can never land together in {total} slots; raise the landing slab or \
         fetch fewer blocks at once"
    )]
    NeverFits {
        /// Slices that must be there together.
        wanted: usize,
        /// Slots of the landing slab.
        total: u32,
    },
    /// The landing slab stayed too full.
    #[error(
        "no room to land {wanted} slices: {free} of {total} slots are free; let fetched blocks \
         go sooner or raise the landing slab"
    )]
    NoRoom {
        /// Slices that must be there together.
        wanted: usize,
        /// Slots that were free at last.
        free: u32,
        /// Slots of the landing slab.
        total: u32,
    },
    /// Every source failed for a block.
    #[error("block {} could not be read from any source: {}", .index.0, list(.failures))]
    Unreadable {
        /// The first such block of the sequence that was noticed.
        index: BlockIdx,
        /// Per source that was asked, in the order asked.
        failures: Vec<SourceFailure>,
    },
    /// The call's time was over before all sources were asked.
    #[error(
        "block {} was not read in time (call_wait_max); so far: {}", .index.0, list(.failures)
    )]
    Late {
        /// The first such block of the sequence that was noticed.
        index: BlockIdx,
        /// Per source that was asked, in the order asked.
        failures: Vec<SourceFailure>,
    },
    /// The runtime is shutting down.
    #[error("the process is stopping")]
    Stopped,
}

fn list(failures: &[SourceFailure]) -> String {
    if failures.is_empty() {
        return "no source was asked".into();
    }
    let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
