//! The registry's state and its rules, without a clock: who is listed, under which lease, until
//! when.

use std::collections::BTreeMap;
use std::time::Duration;

use ids::{NodeId, Span};
use placement::NodeRecord;
use proto::cluster::{Change, LeaseId, Register, Registered, Revision, WatchEvent};
use tokio::time::Instant;

use crate::registry::RegistryConfig;
use crate::{RegisterError, Superseded};

#[derive(Debug)]
struct Listed {
    record: NodeRecord,
    lease: LeaseId,
    /// In force, not as asked.
    ttl: Span,
    /// When the lease runs out unless it is kept alive.
    expires: Instant,
}

/// Nodes by name and by lease.
#[derive(Debug)]
pub(crate) struct Listing {
    config: RegistryConfig,
    nodes: BTreeMap<NodeId, Listed>,
    leases: BTreeMap<LeaseId, NodeId>,
    /// Of the newest change.
    revision: Revision,
    /// Leases of another start of the registry must not be valid here, so they do not start at 0.
    next_lease: LeaseId,
}

impl Listing {
    pub(crate) fn new(config: RegistryConfig, first_lease: LeaseId) -> Self {
        Self {
            config,
            nodes: BTreeMap::new(),
            leases: BTreeMap::new(),
            revision: Revision::default(),
            next_lease: first_lease,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn records(&self) -> Vec<NodeRecord> {
        self.nodes.values().map(|listed| listed.record.clone()).collect()
    }

    /// Lists a node and says what watchers must hear.
    pub(crate) fn register(
        &mut self,
        register: Register,
        now: Instant,
    ) -> Result<(Registered, Vec<WatchEvent>), RegisterError> {
        let Register { node, ttl } = register;
        let ttl = ttl.clamp(self.config.ttl_min, self.config.ttl_max);
        let mut events = Vec::new();
        match self.nodes.get(&node.id) {
            Some(listed) if listed.record.incarnation > node.incarnation => {
                let seen = listed.record.incarnation;
                return Err(Superseded { node: node.id, given: node.incarnation, seen }.into());
            }
            Some(listed) if listed.record == node => {}
            Some(listed) if listed.record.incarnation == node.incarnation => {
                events.push(self.event(Change::Joined(node.clone())));
            }
            Some(listed) => {
                let gone = gone(&listed.record);
                events.push(self.event(gone));
                events.push(self.event(Change::Joined(node.clone())));
            }
            None if self.nodes.len() >= self.config.nodes_max => {
                return Err(RegisterError::Full { nodes_max: self.config.nodes_max });
            }
            None => events.push(self.event(Change::Joined(node.clone()))),
        }
        let lease = self.next_lease;
        self.next_lease = LeaseId(lease.0.wrapping_add(1));
        let id = node.id.clone();
        let listed = Listed { record: node, lease, ttl, expires: now + Duration::from(ttl) };
        if let Some(before) = self.nodes.insert(id.clone(), listed) {
            self.leases.remove(&before.lease);
        }
        self.leases.insert(lease, id);
        Ok((Registered { lease, ttl, revision: self.revision }, events))
    }

    /// Restarts a lease; `None` when it is not known.
    pub(crate) fn keep_alive(&mut self, lease: LeaseId, now: Instant) -> Option<Span> {
        let listed = self.nodes.get_mut(self.leases.get(&lease)?)?;
        listed.expires = now + Duration::from(listed.ttl);
        Some(listed.ttl)
    }

    /// Ends a lease.
    pub(crate) fn leave(&mut self, lease: LeaseId) -> Option<WatchEvent> {
        let node = self.leases.remove(&lease)?;
        let listed = self.nodes.remove(&node)?;
        Some(self.event(gone(&listed.record)))
    }

    /// Ends every lease that ran out.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<WatchEvent> {
        let over = |listed: &&Listed| listed.expires <= now;
        let leases: Vec<LeaseId> = self.nodes.values().filter(over).map(|l| l.lease).collect();
        leases.into_iter().filter_map(|lease| self.leave(lease)).collect()
    }

    /// Moves every end of a lease by the time in which nobody could keep it alive.
    pub(crate) fn postpone(&mut self, by: Duration) {
        for listed in self.nodes.values_mut() {
            listed.expires += by;
        }
    }

    fn event(&mut self, change: Change) -> WatchEvent {
        self.revision = Revision(self.revision.0 + 1);
        WatchEvent { revision: self.revision, change }
    }
}

fn gone(record: &NodeRecord) -> Change {
    Change::Gone { node: record.id.clone(), incarnation: record.incarnation }
}
