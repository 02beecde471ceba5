//! What a node says of itself: once at registration, and again with every report.

use ids::{ByteCount, Domain, Incarnation, ModelDigest, NodeId, Role, Tier};

/// Registration: what stays the same while the process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its name, stable over restarts.
    pub id: NodeId,
    /// What it does.
    pub role: Role,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Where its gRPC services listen, `host:port`.
    pub control: String,
    /// Where its bulk transport listens, `host:port`; empty for roles that hold no KV.
    pub bulk: String,
    /// Kernel revision and device family; empty for roles that compute nothing.
    pub numerics_class: String,
    /// The checkpoint it serves; `None` for roles that load none.
    pub model: Option<ModelDigest>,
    /// Failure domain: the machine.
    pub host: Domain,
    /// Failure domain: the zone.
    pub zone: Domain,
    /// How many shards of KV heads it splits a block into (1 with one device).
    pub shards: u16,
    /// Bytes of K and V that one block of 16 tokens takes over all layers and heads; 0 where no
    /// model is loaded (a memory node learns slices, not models).
    pub block_bytes: ByteCount,
}

/// One tier of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierCapacity {
    /// Which tier the node's pool serves.
    pub tier: Tier,
    /// Configured size.
    pub total: ByteCount,
    /// Neither reserved nor held by a live session; evictable cached blocks count as free.
    pub free: ByteCount,
}

/// A node's state now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Its pools.
    pub tiers: Vec<TierCapacity>,
    /// Requests waiting.
    pub queued: u32,
    /// Requests being worked on.
    pub running: u32,
    /// False once it drains: nothing new is placed there.
    pub accepting: bool,
}

/// What the coordinator knows of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its registration.
    pub record: NodeRecord,
    /// Its newest report; `None` until the first one arrived.
    pub report: Option<NodeReport>,
}
