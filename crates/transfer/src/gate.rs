//! Who may read and write which slots of a server: the question, not the answer.
//!
//! A transport's server asks the [`Gate`] once per frame and holds what it gets for as long as
//! bytes are moving, so that a slot is never reused under a transfer (P7).

use ids::{Epoch, SessionId};

use crate::slab::{Slot, SlotMut};

/// Wire address of a slot: its number and the generation at which it was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// Number of the slot in the server's slab.
    pub slot: u32,
    /// Raised each time the slot is allocated: an old reference never matches new content.
    pub generation: u32,
}

/// What a client shows to be let in: issued by the server's control plane, checked by its gate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// Whose KV it is.
    pub session: SessionId,
    /// Which owner of the session; lower ones are fenced off.
    pub epoch: Epoch,
    /// Drawn at random by the server when it granted access; never logged.
    pub secret: [u8; 16],
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("session", &self.session)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// Why a server did not serve a frame. Nothing was read or written; the connection stays usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server granted this session nothing, or the secret is wrong.
    #[error("the server has no grant for this session")]
    NoGrant,
    /// The grant's lease ran out.
    #[error("the grant has expired; renew the session's lease")]
    Expired,
    /// The session has a newer owner.
    #[error("the session's epoch was raised; a newer owner has it")]
    StaleEpoch,
    /// The slot is not part of what was granted.
    #[error("slot {0} is not granted to this session")]
    NotYours(u32),
    /// The slot was freed and handed out again since.
    #[error("slot {0} was reused since the reference was made")]
    StaleGeneration(u32),
    /// The frame lists more than the server takes.
    #[error("the server takes at most {max} slots in a frame")]
    TooMany {
        /// The server's configured bound.
        max: u32,
    },
    /// The frame's slice size is not the server's.
    #[error("the server's slices have {bytes} bytes")]
    SliceBytes {
        /// The server's slice size.
        bytes: u32,
    },
}

/// [`Refusal`] without its details: a closed set, for metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is documented at the refusal of the same name")]
pub enum RefusalReason {
    NoGrant,
    Expired,
    StaleEpoch,
    NotYours,
    StaleGeneration,
    TooMany,
    SliceBytes,
}

impl RefusalReason {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Self; 7] = [
        Self::NoGrant,
        Self::Expired,
        Self::StaleEpoch,
        Self::NotYours,
        Self::StaleGeneration,
        Self::TooMany,
        Self::SliceBytes,
    ];

    /// The name used in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoGrant => "no_grant",
            Self::Expired => "expired",
            Self::StaleEpoch => "stale_epoch",
            Self::NotYours => "not_yours",
            Self::StaleGeneration => "stale_generation",
            Self::TooMany => "too_many",
            Self::SliceBytes => "slice_bytes",
        }
    }
}

impl Refusal {
    /// Which kind of refusal it is.
    #[must_use]
    pub fn reason(self) -> RefusalReason {
        match self {
            Self::NoGrant => RefusalReason::NoGrant,
            Self::Expired => RefusalReason::Expired,
            Self::StaleEpoch => RefusalReason::StaleEpoch,
            Self::NotYours(_) => RefusalReason::NotYours,
            Self::StaleGeneration(_) => RefusalReason::StaleGeneration,
            Self::TooMany { .. } => RefusalReason::TooMany,
            Self::SliceBytes { .. } => RefusalReason::SliceBytes,
        }
    }
}

/// The owner of a server's slots. Called on the transport's runtime: each call must be short
/// (under 0.5 ms for a full frame) and must not block.
pub trait Gate: Send + Sync + 'static {
    /// The slots behind `refs`, in order, for sending. The returned clones keep them from being
    /// reused until the last byte is out.
    ///
    /// # Errors
    /// [`Refusal`], which the client gets as it is.
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal>;

    /// Takes the landing slots behind `refs` out, in order. They belong to the one connection
    /// that asked until it calls [`Gate::landed`] or [`Gate::aborted`] with all of them.
    ///
    /// # Errors
    /// [`Refusal`], which the client gets as it is; no slot was taken out.
    fn open_write(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal>;

    /// All bytes of the frame are in. Nothing writes to the slots any more.
    ///
    /// # Errors
    /// [`Refusal`] when the right to write was lost meanwhile; the gate drops the slots.
    fn landed(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal>;

    /// The connection ended before all bytes were in: the slots hold a torn mixture. Nothing
    /// writes to them any more.
    fn aborted(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>);
}
