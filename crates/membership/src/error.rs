//! What can go wrong between a node and the registry.

use ids::{Incarnation, NodeId};

/// The registry could not be asked; whether it did anything is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registry cannot be reached: {reason}")]
pub struct Unavailable {
    /// What the transport said.
    pub reason: String,
}

/// A later start of the same node is listed; this one must end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} is registered with incarnation {} and this process has {}: two processes \
     have the same node id, give one of them another", seen.0, given.0
)]
pub struct Superseded {
    /// Whose name it is.
    pub node: NodeId,
    /// The start that asked.
    pub given: Incarnation,
    /// The start that is listed.
    pub seen: Incarnation,
}

/// A node was not listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Refused for good.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// Refused for now.
    #[error("the registry lists {nodes_max} nodes already, its limit `membership.nodes_max`")]
    Full {
        /// The limit.
        nodes_max: usize,
    },
    /// Perhaps done.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A lease was not restarted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepAliveError {
    /// The lease ran out, or the registry is another one than gave it: register again.
    #[error("the registry does not know the lease")]
    Forgotten,
    /// Perhaps done.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}
