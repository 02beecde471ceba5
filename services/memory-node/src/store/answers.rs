//! What the store answers, and why it refuses.

use ids::BlockKey;

use remote::{Denied, LandedBlock, LocatedBlock};

/// Blocks were not placed or located; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlaceRefused {
    /// The grant does not open the session.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// More than the session reserved.
    #[error("{wanted} slices wanted, the session's reservation has {left} left; reserve more")]
    OverReservation {
        /// Slices of the blocks asked for that the session does not hold yet.
        wanted: usize,
        /// Slices of the reservation that are not in use.
        left: usize,
    },
    /// The session was promised the room, but connections of ended sessions still hold slots.
    #[error("{wanted} slots wanted, {free} free until ended transfers let go; ask again")]
    Busy {
        /// Slots to allocate.
        wanted: usize,
        /// Slots without a guard.
        free: u32,
    },
    /// A block of this key is here with other checksums: one of the two is not what it claims.
    #[error("block {key:?} is held here under a receipt with other checksums")]
    Conflict {
        /// Which block.
        key: BlockKey,
    },
    /// One request names a block twice.
    #[error("block {key:?} is listed twice")]
    Twice {
        /// Which block.
        key: BlockKey,
    },
}

/// Slots were not opened; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessRefused {
    /// The grant does not open the session.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The session may not touch this slot (now).
    #[error("slot {0} is not open for this session")]
    NotYours(u32),
    /// The slot holds something newer than the reference.
    #[error("slot {0} was reused since")]
    Stale(u32),
}

/// The answer to [`Store::place`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    /// To be written, in the order asked.
    pub(crate) place: Vec<LocatedBlock>,
    /// Here already, and pinned for the session from now on.
    pub(crate) held: Vec<BlockKey>,
}

/// The answer to [`Store::locate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Located {
    /// Every kept shard of the keys, in the order asked.
    pub(crate) found: Vec<LocatedBlock>,
    /// Keys of which nothing is kept.
    pub(crate) missing: Vec<BlockKey>,
}

/// What became of a block that was to be committed, before verification.
#[derive(Debug)]
pub(crate) enum Verdict<F> {
    /// Was committed before: nothing to do.
    Kept,
    /// All slices are here and must now be hashed against the receipt.
    Verify(LandedBlock<F>),
    /// Unknown, or not all of it arrived: dropped.
    Rejected,
}

/// Per block asked for, or per landing shard of it, what is to be done.
pub(crate) type Verdicts<F> = Vec<(BlockKey, Verdict<F>)>;

/// A verified block was not kept; it is dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeepRefused {
    /// The session ended during verification.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A block of this key came in meanwhile with other checksums.
    #[error("block {key:?} is held here under a receipt with other checksums")]
    Conflict {
        /// Which block.
        key: BlockKey,
    },
}
