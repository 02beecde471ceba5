//! The node's side of the coordinator's stream: it says how it is, at once and then steadily.
//!
//! It does not decide what is said: that is the node's own business, asked anew for each report.

use std::pin::Pin;
use std::sync::Arc;

use ids::Term;
use parking_lot::Mutex;
use placement::NodeReport;
use proto::v1;
use proto::v1::node_server::{Node, NodeServer};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// How often a node reports while it is observed: many times within the silence that the
/// coordinator bears.
const REPORT_EVERY: std::time::Duration = std::time::Duration::from_millis(200);

/// Serves `Node.Observe` for one node.
pub struct Observed {
    report: Arc<dyn Fn() -> NodeReport + Send + Sync>,
    /// Ends the streams when the node ends.
    stop: CancellationToken,
    /// Highest term of a coordinator that observed; lower ones are refused.
    term: Mutex<Term>,
}

impl Observed {
    /// Of a node that answers `report` whenever asked, which must be quick; until `stop`.
    #[must_use]
    pub fn serve(
        report: Arc<dyn Fn() -> NodeReport + Send + Sync>,
        stop: CancellationToken,
    ) -> NodeServer<Self> {
        proto::server::node(Self { report, stop, term: Mutex::new(Term::default()) })
    }
}

#[tonic::async_trait]
impl Node for Observed {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<v1::NodeReport, Status>> + Send>>;

    async fn observe(
        &self,
        request: Request<v1::ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let asked = Term::try_from(request.into_inner())?;
        {
            let mut seen = self.term.lock();
            if asked < *seen {
                let text = format!("term {} is older than {}", asked.0, seen.0);
                return Err(Status::failed_precondition(text));
            }
            *seen = asked;
        }
        let mut ticks = tokio::time::interval(REPORT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let report = Arc::clone(&self.report);
        let reports = IntervalStream::new(ticks).map(move |_| Ok(report().into()));
        let stop = self.stop.clone().cancelled_owned();
        // The explicit path: tokio's StreamExt has no `take_until`.
        let until = futures::StreamExt::take_until(reports, stop);
        Ok(Response::new(Box::pin(until)))
    }
}
