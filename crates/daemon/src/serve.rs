//! HTTP/1.1 on a bounded listener: every connection must send its next head in time, every request
//! is counted until its answer is written, and the end is orderly.
//! What it deliberately does not do: bound bodies or answers, which may take as long as they take;
//! whoever reads a body bounds it. Encrypt.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt;

use crate::listen::{BoundedListener, Connection};

#[cfg(test)]
mod tests;

/// What connections get at the end to take the last bytes of answers that are complete. Less than
/// the drain's flush, which waits for it.
const LINGER: Duration = Duration::from_millis(500);

/// A router on a listener.
#[derive(Debug)]
pub struct HttpServer {
    listener: BoundedListener,
    router: Router,
    head_wait_max: Duration,
    requests: OpenRequests,
}

/// The requests of a server that are not answered to the end. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct OpenRequests(TaskTracker);

impl OpenRequests {
    /// Waits for a moment without any.
    pub async fn none(&self) {
        // A closed tracker still counts; it only says that waiting for zero is meant.
        self.0.close();
        self.0.wait().await;
    }
}

impl HttpServer {
    /// A connection that does not send the whole head of its next request within `head_wait_max`
    /// is closed, be it new, silent, slow, or idle after an answer.
    #[must_use]
    pub fn new(listener: BoundedListener, router: Router, head_wait_max: Duration) -> Self {
        Self { listener, router, head_wait_max, requests: OpenRequests::default() }
    }

    /// Its open requests, for a drain that waits for them.
    #[must_use]
    pub fn requests(&self) -> OpenRequests {
        self.requests.clone()
    }

    /// Serves until `close`; then the port is closed, idle connections are, and the others get a
    /// moment to finish. Dropping it cuts everything off.
    pub async fn run(self, close: CancellationToken) {
        let Self { mut listener, router, head_wait_max, requests } = self;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(head_wait_max);
        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        let _cut = cut.clone().drop_guard();
        while let Some(connection) = close.run_until_cancelled(listener.accept()).await {
            let serving = serve(&http, connection, router.clone(), &requests, close.clone());
            let cut = cut.clone();
            connections.spawn(async move { cut.run_until_cancelled(serving).await });
        }
        drop(listener);
        connections.close();
        if timeout(LINGER, connections.wait()).await.is_err() {
            let open = connections.len();
            tracing::info!(open, "connections were cut off");
        }
    }
}

/// One connection to its end.
fn serve(
    http: &http1::Builder,
    connection: Connection,
    router: Router,
    requests: &OpenRequests,
    close: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let requests = requests.0.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, open) = (router.clone(), requests.token());
        async move {
            let response = router.oneshot(request.map(Body::new)).await?;
            Ok::<_, Infallible>(response.map(|body| Counted { body, _open: open }))
        }
    });
    let served = http.serve_connection(TokioIo::new(connection), service);
    async move {
        let mut served = std::pin::pin!(served);
        let outcome = tokio::select! {
            outcome = served.as_mut() => outcome,
            () = close.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// The body of an answer, which counts as open until it is dropped.
struct Counted {
    body: Body,
    _open: TaskTrackerToken,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
