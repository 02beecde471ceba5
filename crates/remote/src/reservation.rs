//! Reservations: the right of one session to a number of slices on one node, under a lease.

use ids::{Epoch, SessionId, Span, Tenant};

/// What a session asks of a node before anything is computed (P4: try-only, all or nothing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Who asks.
    pub session: SessionId,
    /// Under which ownership; a lower one than the node has seen is refused.
    pub epoch: Epoch,
    /// Whose quota it counts against.
    pub tenant: Tenant,
    /// How many slices the session will need here at its final length.
    pub slices: u32,
    /// How long the node keeps the reservation without hearing of the session.
    pub lease: Span,
}

/// What proves to a node that a reader or writer acts for a session.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    /// Which session.
    pub session: SessionId,
    /// Under which ownership.
    pub epoch: Epoch,
    /// Drawn by the granting node; compared in constant time.
    pub secret: [u8; 16],
}

impl std::fmt::Debug for Grant {
    /// The secret is not printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").field("session", &self.session).field("epoch", &self.epoch).finish()
    }
}

/// A reservation was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// To present with every use.
    pub grant: Grant,
    /// The lease in force (a node may grant less than was asked).
    pub lease: Span,
}

/// A reservation was not taken; nothing was done, so asking again is safe.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReserveRefused {
    /// More than the node has in all: will never fit here.
    #[error("{wanted} slices can never fit into {total}")]
    NeverFits {
        /// Slices asked for.
        wanted: u32,
        /// Slices the node has.
        total: u32,
    },
    /// Does not fit now.
    #[error("{wanted} slices do not fit into the {free} that are free")]
    Full {
        /// Slices asked for.
        wanted: u32,
        /// Slices free or evictable now.
        free: u32,
    },
    /// The session has a newer owner.
    #[error("epoch {given} is older than {seen}")]
    StaleEpoch {
        /// The asker's epoch.
        given: u64,
        /// The newest that the node has seen.
        seen: u64,
    },
    /// The node is leaving.
    #[error("draining")]
    Draining,
}
