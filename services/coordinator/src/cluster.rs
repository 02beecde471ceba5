//! The one view of the cluster, its clock, and the gRPC service that answers from it.

use ids::{Incarnation, Moment, NodeId, Role, Term};
use parking_lot::Mutex;
use placement::{AdmitRequest, NodeRecord, NodeReport, View, ViewConfig};
use proto::v1;
use proto::v1::coordinator_server::Coordinator;
use std::sync::Arc;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;

/// Roles without which nothing can be planned.
pub(crate) const NEEDED: [Role; 3] = [Role::Prefill, Role::Decode, Role::Memory];

/// What all parts of the coordinator share.
#[derive(Debug)]
pub(crate) struct Cluster {
    view: Mutex<View>,
    term: Term,
    /// Where the view's moments count from.
    started: Instant,
    metrics: Metrics,
}

impl Cluster {
    pub(crate) fn new(config: ViewConfig, term: Term, metrics: Metrics) -> Self {
        Self { view: Mutex::new(View::new(config, term)), term, started: Instant::now(), metrics }
    }

    pub(crate) fn term(&self) -> Term {
        self.term
    }

    fn now(&self) -> Moment {
        Moment::default() + self.started.elapsed().into()
    }

    pub(crate) fn joined(&self, record: NodeRecord) {
        self.view.lock().joined(record);
    }

    pub(crate) fn gone(&self, node: &NodeId, incarnation: Incarnation) {
        self.view.lock().gone(node, incarnation);
    }

    pub(crate) fn reported(&self, of: &NodeRecord, report: NodeReport) {
        self.view.lock().reported(&of.id, of.incarnation, report, self.now());
    }

    /// The stream of reports broke.
    pub(crate) fn unheard(&self, of: &NodeRecord) {
        self.view.lock().unheard(&of.id, of.incarnation);
        self.metrics.broken(of.role);
    }

    /// How many nodes of each needed role take work now; told to the metrics too.
    pub(crate) fn survey(&self) -> [(Role, usize); 3] {
        let now = self.now();
        let view = self.view.lock();
        NEEDED.map(|role| {
            let live = view.live_count(role, now);
            self.metrics.live(role, live);
            (role, live)
        })
    }
}

/// Serves `Coordinator` from the view.
#[derive(Clone, Debug)]
pub(crate) struct Admission(pub(crate) Arc<Cluster>);

#[tonic::async_trait]
impl Coordinator for Admission {
    async fn admit(
        &self,
        request: Request<v1::AdmitRequest>,
    ) -> Result<Response<v1::AdmitResponse>, Status> {
        let request = AdmitRequest::try_from(request.into_inner())?;
        let begun = Instant::now();
        let answer = self.0.view.lock().admit(&request, self.0.now());
        self.0.metrics.decided(&answer, begun.elapsed().as_secs_f64());
        match &answer {
            Ok(plan) => tracing::debug!(
                session = %plan.session,
                prefill = %plan.prefill.node,
                decode = %plan.decode.node,
                homes = plan.homes.len(),
                sequence = plan.sequence,
                "planned"
            ),
            Err(refused) => tracing::debug!(
                session = %request.session,
                reason = refused.reason.name(),
                detail = refused.detail,
                "not planned"
            ),
        }
        Ok(Response::new(answer.into()))
    }

    async fn nodes(
        &self,
        _request: Request<v1::NodesRequest>,
    ) -> Result<Response<v1::NodesResponse>, Status> {
        let statuses = self.0.view.lock().statuses();
        Ok(Response::new(statuses.into()))
    }
}
