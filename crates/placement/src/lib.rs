//! The coordinator's mind: what the cluster looks like, and the immutable plan for one request.
//!
//! Deterministic: the same view and request give the same plan. Knows no wire and no clock.

mod admit;
mod affinity;
mod node;
mod plan;
mod rendezvous;
mod view;

pub use node::{NodeRecord, NodeReport, NodeStatus, TierCapacity};
pub use plan::{AdmitRequest, Home, Plan, RefuseReason, Refused, Target};
pub use view::{View, ViewConfig};
