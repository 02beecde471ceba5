//! `cluster.proto`: node records, reports, registration and the watch.

use ids::{ByteCount, Incarnation, NodeId, Role, Span, Term, Tier};
use placement::{NodeRecord, NodeReport, TierCapacity};

use crate::read::{self, as_millis};
use crate::{InvalidMessage, limits, v1};

/// The right to be listed, until its time to live runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// Counts the changes of a registry; later ones are higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A node asks to be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Who and where.
    pub node: NodeRecord,
    /// How long without a keep-alive the listing should last.
    pub ttl: Span,
}

/// A node is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// To present with keep-alives.
    pub lease: LeaseId,
    /// The time to live in force, which may be longer than asked.
    pub ttl: Span,
    /// Of the registration.
    pub revision: Revision,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node is listed (again, when its incarnation or addresses changed).
    Joined(NodeRecord),
    /// A node left or its lease ran out.
    Gone {
        /// Its name.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
    },
    /// Everything that was listed when the watch began has been sent.
    SnapshotEnd,
}

/// A [`Change`] and when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Never below the one before.
    pub revision: Revision,
    /// What happened.
    pub change: Change,
}

pub(crate) fn tier(field: &str, value: i32) -> Result<Tier, InvalidMessage> {
    match v1::Tier::try_from(value) {
        Ok(v1::Tier::Device) => Ok(Tier::Device),
        Ok(v1::Tier::DecodeHost) => Ok(Tier::DecodeHost),
        Ok(v1::Tier::PrefillHost) => Ok(Tier::PrefillHost),
        Ok(v1::Tier::Remote) => Ok(Tier::Remote),
        Ok(v1::Tier::Unspecified) | Err(_) => {
            Err(InvalidMessage::new(field, format!("{value} is no tier")))
        }
    }
}

impl From<Tier> for v1::Tier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Device,
            Tier::DecodeHost => Self::DecodeHost,
            Tier::PrefillHost => Self::PrefillHost,
            Tier::Remote => Self::Remote,
        }
    }
}

fn role(field: &str, value: i32) -> Result<Role, InvalidMessage> {
    match v1::Role::try_from(value) {
        Ok(v1::Role::Gateway) => Ok(Role::Gateway),
        Ok(v1::Role::Coordinator) => Ok(Role::Coordinator),
        Ok(v1::Role::Prefill) => Ok(Role::Prefill),
        Ok(v1::Role::Decode) => Ok(Role::Decode),
        Ok(v1::Role::Memory) => Ok(Role::Memory),
        Ok(v1::Role::Unspecified) | Err(_) => {
            Err(InvalidMessage::new(field, format!("{value} is no role")))
        }
    }
}

impl From<Role> for v1::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Gateway => Self::Gateway,
            Role::Coordinator => Self::Coordinator,
            Role::Prefill => Self::Prefill,
            Role::Decode => Self::Decode,
            Role::Memory => Self::Memory,
        }
    }
}

impl TryFrom<v1::NodeRecord> for NodeRecord {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodeRecord) -> Result<Self, InvalidMessage> {
        let class_max = limits::NUMERICS_CLASS_BYTES_MAX;
        let model = match wire.model_digest.as_ref() {
            [] => None,
            _ => Some(read::model("model_digest", &wire.model_digest)?),
        };
        Ok(Self {
            id: read::name("id", &wire.id)?,
            role: role("role", wire.role)?,
            incarnation: read::incarnation("incarnation", wire.incarnation)?,
            control: read::address("control_address", wire.control_address)?,
            bulk: read::optional_address("bulk_address", wire.bulk_address)?,
            numerics_class: read::text("numerics_class", wire.numerics_class, class_max)?,
            model,
            host: read::name("host_domain", &wire.host_domain)?,
            zone: read::name("zone_domain", &wire.zone_domain)?,
            shards: read::narrow("shards", wire.shards)?,
            block_bytes: ByteCount(wire.block_bytes),
        })
    }
}

impl From<NodeRecord> for v1::NodeRecord {
    fn from(record: NodeRecord) -> Self {
        Self {
            id: record.id.to_string(),
            role: v1::Role::from(record.role).into(),
            incarnation: record.incarnation.0,
            control_address: record.control,
            bulk_address: record.bulk,
            numerics_class: record.numerics_class,
            model_digest: record.model.map(|d| d.0.to_vec().into()).unwrap_or_default(),
            host_domain: record.host.to_string(),
            zone_domain: record.zone.to_string(),
            shards: record.shards.into(),
            block_bytes: record.block_bytes.0,
        }
    }
}

impl TryFrom<v1::TierCapacity> for TierCapacity {
    type Error = InvalidMessage;

    fn try_from(wire: v1::TierCapacity) -> Result<Self, InvalidMessage> {
        Ok(Self {
            tier: tier("tier", wire.tier)?,
            total: ByteCount(wire.total_bytes),
            free: ByteCount(read::within("free_bytes", wire.free_bytes, 0, wire.total_bytes)?),
        })
    }
}

impl From<TierCapacity> for v1::TierCapacity {
    fn from(capacity: TierCapacity) -> Self {
        Self {
            tier: v1::Tier::from(capacity.tier).into(),
            total_bytes: capacity.total.0,
            free_bytes: capacity.free.0,
        }
    }
}

impl TryFrom<v1::NodeReport> for NodeReport {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodeReport) -> Result<Self, InvalidMessage> {
        Ok(Self {
            tiers: read::list("tiers", wire.tiers, Tier::ALL.len())?,
            queued: wire.queued,
            running: wire.running,
            accepting: wire.accepting,
        })
    }
}

impl From<NodeReport> for v1::NodeReport {
    fn from(report: NodeReport) -> Self {
        Self {
            tiers: report.tiers.into_iter().map(Into::into).collect(),
            queued: report.queued,
            running: report.running,
            accepting: report.accepting,
        }
    }
}

impl TryFrom<v1::ObserveRequest> for Term {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ObserveRequest) -> Result<Self, InvalidMessage> {
        Ok(Self(wire.term))
    }
}

impl From<Term> for v1::ObserveRequest {
    fn from(term: Term) -> Self {
        Self { term: term.0 }
    }
}

impl TryFrom<v1::RegisterRequest> for Register {
    type Error = InvalidMessage;

    fn try_from(wire: v1::RegisterRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            node: read::message("node", wire.node)?,
            ttl: read::millis("ttl_ms", wire.ttl_ms, limits::LEASE_MS_MAX)?,
        })
    }
}

impl From<Register> for v1::RegisterRequest {
    fn from(register: Register) -> Self {
        Self { node: Some(register.node.into()), ttl_ms: as_millis(register.ttl) }
    }
}

impl TryFrom<v1::RegisterResponse> for Registered {
    type Error = InvalidMessage;

    fn try_from(wire: v1::RegisterResponse) -> Result<Self, InvalidMessage> {
        Ok(Self {
            lease: LeaseId(wire.lease),
            ttl: read::millis("ttl_ms", wire.ttl_ms, limits::LEASE_MS_MAX)?,
            revision: Revision(wire.revision),
        })
    }
}

impl From<Registered> for v1::RegisterResponse {
    fn from(registered: Registered) -> Self {
        Self {
            lease: registered.lease.0,
            ttl_ms: as_millis(registered.ttl),
            revision: registered.revision.0,
        }
    }
}

impl From<LeaseId> for v1::KeepAliveRequest {
    fn from(lease: LeaseId) -> Self {
        Self { lease: lease.0 }
    }
}

impl From<LeaseId> for v1::LeaveRequest {
    fn from(lease: LeaseId) -> Self {
        Self { lease: lease.0 }
    }
}

impl TryFrom<v1::KeepAliveResponse> for Span {
    type Error = InvalidMessage;

    fn try_from(wire: v1::KeepAliveResponse) -> Result<Self, InvalidMessage> {
        read::millis("ttl_ms", wire.ttl_ms, limits::LEASE_MS_MAX)
    }
}

impl From<Span> for v1::KeepAliveResponse {
    fn from(ttl: Span) -> Self {
        Self { ttl_ms: as_millis(ttl) }
    }
}

impl TryFrom<v1::WatchEvent> for WatchEvent {
    type Error = InvalidMessage;

    fn try_from(wire: v1::WatchEvent) -> Result<Self, InvalidMessage> {
        let change = match read::present("change", wire.change)? {
            v1::watch_event::Change::Joined(record) => {
                Change::Joined(read::message("joined", Some(record))?)
            }
            v1::watch_event::Change::Gone(gone) => Change::Gone {
                node: read::name("gone.id", &gone.id)?,
                incarnation: read::incarnation("gone.incarnation", gone.incarnation)?,
            },
            v1::watch_event::Change::SnapshotEnd(v1::SnapshotEnd {}) => Change::SnapshotEnd,
        };
        Ok(Self { revision: Revision(wire.revision), change })
    }
}

impl From<WatchEvent> for v1::WatchEvent {
    fn from(event: WatchEvent) -> Self {
        let change = match event.change {
            Change::Joined(record) => v1::watch_event::Change::Joined(record.into()),
            Change::Gone { node, incarnation } => v1::watch_event::Change::Gone(v1::NodeGone {
                id: node.to_string(),
                incarnation: incarnation.0,
            }),
            Change::SnapshotEnd => v1::watch_event::Change::SnapshotEnd(v1::SnapshotEnd {}),
        };
        Self { revision: event.revision.0, change: Some(change) }
    }
}
