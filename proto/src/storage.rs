//! `storage.proto`: reservations, and copies of sealed blocks on memory nodes.
//!
//! What the store decides about these is crate `remote`'s; here they only get read and written.

mod copies;

use std::sync::Arc;

use ids::{BlockHash, BlockIdx, BlockKey, Epoch, SessionId, SliceChecksum, Span};
use remote::{BlockReceipt, Grant, Granted, LocatedBlock, Reservation, ReserveRefused, SliceRef};

use crate::read::{self, as_millis};
use crate::{InvalidMessage, limits, v1};

/// Keep a reservation for longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Proof that the asker owns it.
    pub grant: Grant,
    /// From now on.
    pub lease: Span,
}

/// Give everything back that a session holds on a node. Needs no secret: a session that never got
/// the answer to its reservation must be able to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Whose.
    pub session: SessionId,
    /// Up to and including this ownership.
    pub epoch: Epoch,
}

/// Take slots out of a reservation for blocks that a home does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Proof that the asker owns the reservation.
    pub grant: Grant,
    /// What will be written.
    pub receipts: Vec<BlockReceipt>,
}

/// The answer to [`Place`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// To be written, in the order asked.
    pub place: Vec<LocatedBlock>,
    /// Already there, and pinned for the session from now on.
    pub held: Vec<BlockKey>,
}

/// Verify what was written; only then can it be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Proof that the asker owns the reservation.
    pub grant: Grant,
    /// Blocks that were placed and written.
    pub keys: Vec<BlockKey>,
}

/// The answer to [`Commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Readable from now on.
    pub committed: Vec<BlockKey>,
    /// Did not arrive or did not hash to the receipt: dropped.
    pub rejected: Vec<BlockKey>,
}

/// Ask where blocks lie, and pin them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locate {
    /// Proof that the asker acts for the session.
    pub grant: Grant,
    /// Which blocks.
    pub keys: Vec<BlockKey>,
}

/// The answer to [`Locate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// In the order asked.
    pub found: Vec<LocatedBlock>,
    /// Not here.
    pub missing: Vec<BlockKey>,
}

impl TryFrom<v1::Grant> for Grant {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Grant) -> Result<Self, InvalidMessage> {
        Ok(Self {
            session: read::session("session", &wire.session)?,
            epoch: read::epoch("epoch", wire.epoch)?,
            secret: read::digest("secret", &wire.secret)?,
        })
    }
}

impl From<Grant> for v1::Grant {
    fn from(grant: Grant) -> Self {
        Self {
            session: read::session_bytes(grant.session),
            epoch: grant.epoch.0,
            secret: grant.secret.to_vec().into(),
        }
    }
}

impl TryFrom<v1::ReserveRequest> for Reservation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ReserveRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            session: read::session("session", &wire.session)?,
            epoch: read::epoch("epoch", wire.epoch)?,
            tenant: read::tenant("tenant", wire.tenant)?,
            slices: read::within("slices", wire.slices, 1, limits::SLICES_PER_RESERVATION_MAX)?,
            lease: read::millis("lease_ms", wire.lease_ms, limits::LEASE_MS_MAX)?,
        })
    }
}

impl From<Reservation> for v1::ReserveRequest {
    fn from(reservation: Reservation) -> Self {
        Self {
            session: read::session_bytes(reservation.session),
            epoch: reservation.epoch.0,
            tenant: reservation.tenant.to_string(),
            slices: reservation.slices,
            lease_ms: as_millis(reservation.lease),
        }
    }
}

impl TryFrom<v1::ReserveResponse> for Result<Granted, ReserveRefused> {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ReserveResponse) -> Result<Self, InvalidMessage> {
        Ok(match read::present("answer", wire.answer)? {
            v1::reserve_response::Answer::Granted(granted) => {
                Ok(read::message("granted", Some(granted))?)
            }
            v1::reserve_response::Answer::Refused(refused) => {
                Err(read::message("refused", Some(refused))?)
            }
        })
    }
}

impl From<Result<Granted, ReserveRefused>> for v1::ReserveResponse {
    fn from(answer: Result<Granted, ReserveRefused>) -> Self {
        let answer = match answer {
            Ok(granted) => v1::reserve_response::Answer::Granted(granted.into()),
            Err(refused) => v1::reserve_response::Answer::Refused(refused.into()),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<v1::Granted> for Granted {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Granted) -> Result<Self, InvalidMessage> {
        Ok(Self {
            grant: read::message("grant", wire.grant)?,
            lease: read::millis("lease_ms", wire.lease_ms, limits::LEASE_MS_MAX)?,
        })
    }
}

impl From<Granted> for v1::Granted {
    fn from(granted: Granted) -> Self {
        Self { grant: Some(granted.grant.into()), lease_ms: as_millis(granted.lease) }
    }
}

impl TryFrom<v1::ReserveRefused> for ReserveRefused {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ReserveRefused) -> Result<Self, InvalidMessage> {
        use v1::reserve_refused::Reason;
        Ok(match read::present("reason", wire.reason)? {
            Reason::NeverFits(v1::NeverFits { wanted, total }) => Self::NeverFits { wanted, total },
            Reason::Full(v1::Full { wanted, free }) => Self::Full { wanted, free },
            Reason::StaleEpoch(v1::StaleEpoch { given, seen }) => Self::StaleEpoch { given, seen },
            Reason::Draining(v1::Draining {}) => Self::Draining,
        })
    }
}

impl From<ReserveRefused> for v1::ReserveRefused {
    fn from(refused: ReserveRefused) -> Self {
        use v1::reserve_refused::Reason;
        let reason = match refused {
            ReserveRefused::NeverFits { wanted, total } => {
                Reason::NeverFits(v1::NeverFits { wanted, total })
            }
            ReserveRefused::Full { wanted, free } => Reason::Full(v1::Full { wanted, free }),
            ReserveRefused::StaleEpoch { given, seen } => {
                Reason::StaleEpoch(v1::StaleEpoch { given, seen })
            }
            ReserveRefused::Draining => Reason::Draining(v1::Draining {}),
        };
        Self { reason: Some(reason) }
    }
}

impl TryFrom<v1::ExtendRequest> for Extend {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ExtendRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            grant: read::message("grant", wire.grant)?,
            lease: read::millis("lease_ms", wire.lease_ms, limits::LEASE_MS_MAX)?,
        })
    }
}

impl From<Extend> for v1::ExtendRequest {
    fn from(extend: Extend) -> Self {
        Self { grant: Some(extend.grant.into()), lease_ms: as_millis(extend.lease) }
    }
}

impl TryFrom<v1::ExtendResponse> for Span {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ExtendResponse) -> Result<Self, InvalidMessage> {
        read::millis("lease_ms", wire.lease_ms, limits::LEASE_MS_MAX)
    }
}

impl From<Span> for v1::ExtendResponse {
    fn from(lease: Span) -> Self {
        Self { lease_ms: as_millis(lease) }
    }
}

impl TryFrom<v1::ReleaseRequest> for Release {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ReleaseRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            session: read::session("session", &wire.session)?,
            epoch: read::epoch("epoch", wire.epoch)?,
        })
    }
}

impl From<Release> for v1::ReleaseRequest {
    fn from(release: Release) -> Self {
        Self { session: read::session_bytes(release.session), epoch: release.epoch.0 }
    }
}

impl TryFrom<v1::BlockKey> for BlockKey {
    type Error = InvalidMessage;

    fn try_from(wire: v1::BlockKey) -> Result<Self, InvalidMessage> {
        Ok(Self { hash: BlockHash(read::digest("hash", &wire.hash)?), generation: wire.generation })
    }
}

impl From<BlockKey> for v1::BlockKey {
    fn from(key: BlockKey) -> Self {
        Self { hash: key.hash.0.to_vec().into(), generation: key.generation }
    }
}

impl TryFrom<v1::BlockReceipt> for BlockReceipt {
    type Error = InvalidMessage;

    fn try_from(wire: v1::BlockReceipt) -> Result<Self, InvalidMessage> {
        let tokens = read::within("tokens", wire.tokens, 1, ids::BLOCK_TOKENS as u32)?;
        slice_count("checksums", wire.checksums.len())?;
        Ok(Self {
            key: read::message("key", wire.key)?,
            index: BlockIdx(wire.index),
            shard: read::shard("shard", wire.shard)?,
            tokens: read::narrow("tokens", tokens)?,
            checksums: wire.checksums.into_iter().map(SliceChecksum).collect(),
        })
    }
}

impl From<BlockReceipt> for v1::BlockReceipt {
    fn from(receipt: BlockReceipt) -> Self {
        Self {
            key: Some(receipt.key.into()),
            index: receipt.index.0,
            shard: receipt.shard.0.into(),
            tokens: receipt.tokens.into(),
            checksums: receipt.checksums.iter().map(|checksum| checksum.0).collect(),
        }
    }
}

impl TryFrom<v1::LocatedBlock> for LocatedBlock {
    type Error = InvalidMessage;

    fn try_from(wire: v1::LocatedBlock) -> Result<Self, InvalidMessage> {
        slice_count("slots", wire.slots.len())?;
        if wire.generations.len() != wire.slots.len() {
            let (slots, got) = (wire.slots.len(), wire.generations.len());
            let reason = format!("{got} entries, must be {slots} as in slots");
            return Err(InvalidMessage::new("generations", reason));
        }
        let slices: Arc<[SliceRef]> = wire
            .slots
            .into_iter()
            .zip(wire.generations)
            .map(|(slot, generation)| SliceRef { slot, generation })
            .collect();
        Ok(Self {
            key: read::message("key", wire.key)?,
            shard: read::shard("shard", wire.shard)?,
            slices,
        })
    }
}

impl From<LocatedBlock> for v1::LocatedBlock {
    fn from(located: LocatedBlock) -> Self {
        Self {
            key: Some(located.key.into()),
            shard: located.shard.0.into(),
            slots: located.slices.iter().map(|slice| slice.slot).collect(),
            generations: located.slices.iter().map(|slice| slice.generation).collect(),
        }
    }
}

/// A block has at least one slice.
fn slice_count(field: &str, count: usize) -> Result<(), InvalidMessage> {
    read::within(field, count, 1, limits::SLICES_PER_BLOCK_MAX).map(|_| ())
}
