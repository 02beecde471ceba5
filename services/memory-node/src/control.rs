//! The gRPC services of a memory node: reservations, placing and locating blocks.
//!
//! Reads messages, asks the shelf, writes answers; decides nothing.

use std::sync::Arc;

use ids::{BlockKey, Span};
use proto::storage::{Commit, Committed, Extend, Locate, Located, Place, Placed, Release};
use proto::v1;
use proto::v1::memory_node_server::MemoryNode;
use proto::v1::reservations_server::Reservations;
use remote::{Granted, Reservation, ReserveRefused};
use tonic::{Request, Response, Status};

use crate::shelf::Shelf;
use crate::status;

/// Both services, over one shelf.
#[derive(Clone)]
pub(crate) struct Control(Arc<Shelf>);

impl Control {
    pub(crate) fn new(shelf: Arc<Shelf>) -> Self {
        Self(shelf)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Reservations for Control {
    async fn reserve(&self, request: Request<v1::ReserveRequest>) -> Answer<v1::ReserveResponse> {
        let reservation = Reservation::try_from(request.into_inner())?;
        let answer: Result<Granted, ReserveRefused> = self.0.reserve(&reservation);
        Ok(Response::new(answer.into()))
    }

    async fn extend(&self, request: Request<v1::ExtendRequest>) -> Answer<v1::ExtendResponse> {
        let Extend { grant, lease } = request.into_inner().try_into()?;
        let lease: Span = self.0.extend(&grant, lease).map_err(status::denied)?;
        Ok(Response::new(lease.into()))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseResponse> {
        let Release { session, epoch } = request.into_inner().try_into()?;
        self.0.release(session, epoch);
        Ok(Response::new(v1::ReleaseResponse {}))
    }
}

#[tonic::async_trait]
impl MemoryNode for Control {
    async fn place(&self, request: Request<v1::PlaceRequest>) -> Answer<v1::PlaceResponse> {
        let Place { grant, receipts } = request.into_inner().try_into()?;
        let placed = self.0.place(&grant, receipts).map_err(status::place)?;
        let answer = Placed { place: placed.place, held: placed.held };
        Ok(Response::new(answer.into()))
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        let Commit { grant, keys } = request.into_inner().try_into()?;
        let outcome = self.0.commit(&grant, &keys).await.map_err(status::denied)?;
        let answer =
            Committed { committed: once(outcome.committed), rejected: once(outcome.rejected) };
        Ok(Response::new(answer.into()))
    }

    async fn locate(&self, request: Request<v1::LocateRequest>) -> Answer<v1::LocateResponse> {
        let Locate { grant, keys } = request.into_inner().try_into()?;
        let located = self.0.locate(&grant, &keys).map_err(status::place)?;
        let answer = Located { found: located.found, missing: located.missing };
        Ok(Response::new(answer.into()))
    }
}

/// A key whose shards were judged one by one is named once.
fn once(mut keys: Vec<BlockKey>) -> Vec<BlockKey> {
    keys.dedup();
    keys
}
