//! The question to the coordinator and its answer.

use ids::{
    BlockHash, BlockIdx, Epoch, Incarnation, ModelDigest, NodeId, PolicyDigest, SessionId, ShardId,
    Span, Tenant, Term, Tier,
};

/// What the gateway asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmitRequest {
    /// Drawn by the gateway.
    pub session: SessionId,
    /// Who pays.
    pub tenant: Tenant,
    /// Which weights.
    pub model: ModelDigest,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Most tokens that will be generated.
    pub max_tokens: u32,
    /// Hashes of the prompt's full blocks, in order; for prefix hits.
    pub hashes: Vec<BlockHash>,
    /// What P1 fixes for this request.
    pub policy: PolicyDigest,
}

/// Where a node can be reached, and which start of it was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub node: NodeId,
    /// Which start of it; another one holds nothing of this session.
    pub incarnation: Incarnation,
    /// gRPC address, `host:port`.
    pub control: String,
    /// Bulk transport address, `host:port`.
    pub bulk: String,
}

/// Which nodes must hold a range of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// First block of the range.
    pub first: BlockIdx,
    /// How many blocks.
    pub count: u32,
    /// Which set of KV heads.
    pub shard: ShardId,
    /// The homes beside the prefill host, best first.
    pub nodes: Vec<Target>,
}

/// The coordinator's immutable answer: execution has no choices left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whose life this plans.
    pub session: SessionId,
    /// Ownership that the plan establishes.
    pub epoch: Epoch,
    /// Leadership under which it was made.
    pub term: Term,
    /// Number of the plan within its term.
    pub sequence: u64,
    /// Who pays.
    pub tenant: Tenant,
    /// Which weights.
    pub model: ModelDigest,
    /// What P1 fixes for this request.
    pub policy: PolicyDigest,
    /// Class within which bits agree; every computing node of the plan is in it.
    pub numerics_class: String,
    /// Computes the prompt.
    pub prefill: Target,
    /// Owns the session.
    pub decode: Target,
    /// Copies of the prompt's sealed blocks.
    pub homes: Vec<Home>,
    /// Prompt length plus most generated tokens: what every tier reserves for.
    pub final_tokens: u32,
}

/// Why a request is not planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// No live node of a role the plan needs, for this model and one numerics class.
    NoNode,
    /// Fits no node's pool even when that is empty.
    NeverFits,
    /// Does not fit now.
    Capacity,
    /// Nobody serves these weights.
    UnknownModel,
    /// This coordinator does not lead.
    NotLeader,
}

impl RefuseReason {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::NoNode, Self::NeverFits, Self::Capacity, Self::UnknownModel, Self::NotLeader];

    /// The lower-case name used in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoNode => "no_node",
            Self::NeverFits => "never_fits",
            Self::Capacity => "capacity",
            Self::UnknownModel => "unknown_model",
            Self::NotLeader => "not_leader",
        }
    }
}

/// No plan; nothing was done, so asking again is safe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refused {
    /// Why.
    pub reason: RefuseReason,
    /// The tier that is short, for `NeverFits` and `Capacity`.
    pub tier: Option<Tier>,
    /// When to ask again; `None` when that is useless.
    pub retry_after: Option<Span>,
    /// One sentence for an operator.
    pub detail: String,
}
