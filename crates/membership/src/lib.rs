//! Who is alive: leases, the watch on them, and the registration that keeps a node listed.
//!
//! Two registries behind one face: [`Registry`] in this process and [`Remote`] over gRPC (served
//! by [`Service`]); one conformance suite in `tests` holds for both. It plans nothing and believes
//! nobody dead before a lease ran out: the coordinator's streams to the nodes notice sooner.
//!
//! A node: `let (registration, keeper) = membership.register(record, ttl)`, spawn the keeper, wait
//! for [`Registration::listed`], and at the end [`Registration::leave`].

mod error;
mod join;
mod keeper;
mod listing;
mod observe;
mod registry;
mod remote;
mod service;
mod watch;

pub use error::{KeepAliveError, RegisterError, Superseded, Unavailable};
pub use join::{Bound, JoinConfig, NodeConfig, incarnation, join};
pub use keeper::{Registration, Standing};
pub use observe::Observed;
pub use proto::cluster::{LeaseId, Register, Registered, Revision};
pub use registry::{Registry, RegistryConfig};
pub use remote::Remote;
pub use service::Service;
pub use watch::{Event, Watch};

use ids::Span;
use placement::NodeRecord;

/// A way to a registry. Clones are the same way.
#[derive(Clone, Debug)]
pub enum Membership {
    /// The registry lives in this process.
    Memory(Registry),
    /// The registry is another process's.
    Remote(Remote),
}

impl Membership {
    /// Keeps a node listed from the first poll of the returned future on, which the caller spawns:
    /// it registers, keeps the lease alive, registers again when the registry forgot the node
    /// (case 9), and leaves when the [`Registration`] is dropped.
    ///
    /// It ends early only with [`Superseded`]: a later start of the node is listed, and this
    /// process must end.
    pub fn register(
        &self,
        node: NodeRecord,
        ttl: Span,
    ) -> (Registration, impl Future<Output = Result<(), Superseded>> + Send + use<>) {
        keeper::register(self.clone(), Register { node, ttl })
    }

    /// One attempt to be listed. [`Membership::register`] makes them until it succeeds.
    ///
    /// # Errors
    /// When the registry refuses or cannot be asked; in the latter case the node may be listed
    /// all the same, until the lease runs out.
    pub async fn try_register(&self, register: Register) -> Result<Registered, RegisterError> {
        match self {
            Self::Memory(registry) => registry.register(register),
            Self::Remote(remote) => remote.register(register).await,
        }
    }

    /// Restarts a lease; answers with the time to live in force.
    ///
    /// # Errors
    /// When the lease is not known (any more), or the registry cannot be asked.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Span, KeepAliveError> {
        match self {
            Self::Memory(registry) => registry.keep_alive(lease),
            Self::Remote(remote) => remote.keep_alive(lease).await,
        }
    }

    /// Ends a lease now; one that is not known is no error.
    ///
    /// # Errors
    /// When the registry cannot be asked; the lease then runs out by itself.
    pub async fn leave(&self, lease: LeaseId) -> Result<(), Unavailable> {
        match self {
            Self::Memory(registry) => {
                registry.leave(lease);
                Ok(())
            }
            Self::Remote(remote) => remote.leave(lease).await,
        }
    }

    /// Everything that is listed, then every change. Begins anew with each call.
    ///
    /// # Errors
    /// When the registry cannot be asked or is closing.
    pub async fn watch(&self) -> Result<Watch, Unavailable> {
        match self {
            Self::Memory(registry) => registry.subscribe().map(Watch::of_memory),
            Self::Remote(remote) => remote.watch().await,
        }
    }
}
