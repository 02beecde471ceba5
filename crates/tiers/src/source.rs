//! A node that may hold slices of a session, and how it is addressed.
//!
//! Whether it answers is found out by asking, not here.

use ids::{NodeId, Tier};
use remote::{Grant, SliceRef};
use tonic::transport::Channel;
use transfer::{BulkAddress, Credential, SlotRef};

/// One node that may hold slices of a session.
#[derive(Clone, Debug)]
pub struct Source {
    /// Which node; what is quarantined after a failure.
    pub node: NodeId,
    /// What its memory counts as.
    pub tier: Tier,
    /// Its gRPC services; the `MemoryNode` one is used.
    pub control: Channel,
    /// Where it serves its slots.
    pub bulk: BulkAddress,
    /// What it granted to the session.
    pub grant: Grant,
}

impl Source {
    pub(crate) fn credential(&self) -> Credential {
        Credential {
            session: self.grant.session,
            epoch: self.grant.epoch,
            secret: self.grant.secret,
        }
    }
}

/// The same place in the bulk transport's words.
pub(crate) fn slot_ref(at: &SliceRef) -> SlotRef {
    SlotRef { slot: at.slot, generation: at.generation }
}
