//! The gRPC face of a [`Registry`].

use std::pin::Pin;

use ids::{Incarnation, Span};
use proto::cluster::{Change, LeaseId, Register, WatchEvent};
use proto::v1;
use proto::v1::membership_server::{Membership, MembershipServer};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::registry::Subscription;
use crate::{RegisterError, Registry};

/// Status text before the limit.
pub(crate) const FULL_PREFIX: &str = "limit of nodes reached: ";

/// Status text before the incarnation.
const SUPERSEDED_PREFIX: &str = "a later start is registered: ";

/// Serves a registry.
#[derive(Clone, Debug)]
pub struct Service(Registry);

impl Service {
    /// Of this registry; with the message limits of `proto`.
    #[must_use]
    pub fn serve(registry: Registry) -> MembershipServer<Self> {
        proto::server::membership(Self(registry))
    }
}

/// What [`Remote`](crate::Remote) reads out of the refusal.
pub(crate) fn superseded_by(status: &Status) -> Option<Incarnation> {
    status.message().strip_prefix(SUPERSEDED_PREFIX)?.parse().ok().map(Incarnation)
}

fn status(error: &RegisterError) -> Status {
    match error {
        RegisterError::Superseded(superseded) => {
            Status::already_exists(format!("{SUPERSEDED_PREFIX}{}", superseded.seen.0))
        }
        RegisterError::Full { nodes_max } => {
            Status::resource_exhausted(format!("{FULL_PREFIX}{nodes_max}"))
        }
        RegisterError::Unavailable(unavailable) => Status::unavailable(unavailable.to_string()),
    }
}

#[tonic::async_trait]
impl Membership for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let register = Register::try_from(request.into_inner())?;
        let registered = self.0.register(register).map_err(|error| status(&error))?;
        Ok(Response::new(registered.into()))
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        let lease = LeaseId(request.into_inner().lease);
        let ttl: Span =
            self.0.keep_alive(lease).map_err(|error| Status::not_found(error.to_string()))?;
        Ok(Response::new(ttl.into()))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        self.0.leave(LeaseId(request.into_inner().lease));
        Ok(Response::new(v1::LeaveResponse {}))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if request.into_inner().from_revision != 0 {
            return Err(Status::out_of_range(
                "this registry keeps no history: ask from revision 0",
            ));
        }
        let subscribed = self.0.subscribe();
        let Subscription { records, since, events } =
            subscribed.map_err(|error| Status::unavailable(error.to_string()))?;
        let snapshot = records.into_iter().map(Change::Joined).chain([Change::SnapshotEnd]);
        let snapshot = snapshot.map(move |change| WatchEvent { revision: since, change });
        // A watch that fell behind ends; its owner begins a new one.
        let later = BroadcastStream::new(events).map_while(Result::ok);
        let events = tokio_stream::iter(snapshot).chain(later);
        Ok(Response::new(Box::pin(events.map(|event| Ok(event.into())))))
    }
}
