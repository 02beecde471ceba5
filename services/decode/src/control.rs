//! The gRPC face of a decode node: one stream per session.

use std::pin::Pin;
use std::sync::Arc;

use daemon::OnExit;
use proto::v1;
use proto::v1::decode_server::Decode;
use session::GenerateRequest;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::Node;
use crate::drive::Driver;

/// Items that the gateway may leave unread before the session's step loop is held back.
const UNREAD_MAX: usize = 64;

pub(crate) struct Control(Arc<Node>);

impl Control {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self(node)
    }

    /// The request must be for this node, its start, its weights and its arithmetic (P1, P2).
    fn check(&self, request: &GenerateRequest) -> Result<(), Status> {
        let (me, plan) = (&self.0.record, &request.plan);
        if self.0.role.draining().is_cancelled() {
            return Err(Status::unavailable("this node is draining"));
        }
        if plan.decode.node != me.id || plan.decode.incarnation != me.incarnation {
            return Err(Status::failed_precondition("the plan names another node or start"));
        }
        if Some(plan.model) != me.model || plan.numerics_class != me.numerics_class {
            return Err(Status::failed_precondition("other weights or another numerics class"));
        }
        if plan.final_tokens > self.0.context {
            let text = format!("{} tokens exceed the context", plan.final_tokens);
            return Err(Status::out_of_range(text));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Decode for Control {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateEvent, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let request = GenerateRequest::try_from(request.into_inner())?;
        self.check(&request)?;
        let permit = Arc::clone(&self.0.sessions).try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted("too many sessions"))?;
        let (output, stream) = mpsc::channel(UNREAD_MAX);
        let driver = Driver::new(Arc::clone(&self.0), request, output);
        self.0.role.spawn("session", OnExit::Ignore, async move {
            driver.run().await;
            drop(permit);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}
