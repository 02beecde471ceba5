//! The coordinator's mind: what the cluster looks like, and the immutable plan for one request.
//!
//! Deterministic: the same view and request give the same plan. Knows no wire and no clock.

mod node;
mod plan;

pub use node::{NodeRecord, NodeReport, NodeStatus, TierCapacity};
pub use plan::{AdmitRequest, Home, Plan, RefuseReason, Refused, Target};
