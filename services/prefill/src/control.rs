//! The gRPC face of a prefill node: reservations on its host memory, and runs.

use std::pin::Pin;
use std::sync::Arc;

use ids::Span;
use proto::storage::{Extend, Release};
use proto::v1;
use proto::v1::prefill_server::Prefill;
use proto::v1::reservations_server::Reservations;
use remote::{Denied, Granted, Reservation, ReserveRefused};
use session::PrefillRequest;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::Node;
use crate::run;

#[derive(Clone)]
pub(crate) struct Control(Arc<Node>);

impl Control {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self(node)
    }
}

/// Which status a grant that opens nothing becomes.
pub(crate) fn denied(denied: Denied) -> Status {
    let text = denied.to_string();
    match denied {
        Denied::NoSession => Status::not_found(text),
        Denied::StaleEpoch | Denied::Expired => Status::failed_precondition(text),
        Denied::WrongSecret => Status::permission_denied(text),
    }
}

fn secret() -> Result<[u8; 16], Status> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| Status::internal(format!("no random numbers: {error}")))?;
    Ok(secret)
}

#[tonic::async_trait]
impl Reservations for Control {
    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        let request = Reservation::try_from(request.into_inner())?;
        let answer: Result<Granted, ReserveRefused> = if self.0.role.draining().is_cancelled() {
            Err(ReserveRefused::Draining)
        } else {
            self.0.tier.reserve(&request, secret()?)
        };
        Ok(Response::new(answer.into()))
    }

    async fn extend(
        &self,
        request: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendResponse>, Status> {
        let Extend { grant, lease } = request.into_inner().try_into()?;
        let lease: Span = self.0.tier.extend(&grant, lease).map_err(denied)?;
        Ok(Response::new(lease.into()))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        let Release { session, epoch } = request.into_inner().try_into()?;
        self.0.tier.release(session, epoch);
        Ok(Response::new(v1::ReleaseResponse {}))
    }
}

#[tonic::async_trait]
impl Prefill for Control {
    type RunStream = Pin<Box<dyn Stream<Item = Result<v1::PrefillEvent, Status>> + Send>>;

    async fn run(
        &self,
        request: Request<v1::PrefillRequest>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let request = PrefillRequest::try_from(request.into_inner())?;
        let events = run::start(Arc::clone(&self.0), request)?;
        Ok(Response::new(Box::pin(events)))
    }
}
