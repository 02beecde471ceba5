//! The public HTTP interface: OpenAI's paths, the probes and metrics beside them, and errors in
//! OpenAI's shape for everything else.
//! What it deliberately does not do: generate; `generate` does, one task per request.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use ids::SessionId;
use session::Sampling;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::answer::Event;
use crate::config::Config;
use crate::generate::{Generator, Job, draw_seed};
use crate::metrics::{Metrics, Rejection};
use crate::text::{Encoded, ServedModel};
use body::BodyLimits;
use error::{ApiError, Kind};
use params::{Delivery, Params};
use request::Request;
use shape::{Endpoint, Shape};
use stream::{Encoder, Item};

mod body;
pub(crate) mod error;
mod fields;
mod models;
mod params;
mod refused;
pub(crate) mod request;
mod shape;
pub(crate) mod stream;

/// Names the request in the cluster's logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-oasiskv-request-id");

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) generator: Generator,
    pub(crate) config: Config,
    /// Cancelled once nothing new is taken.
    draining: CancellationToken,
    /// Places for requests in work.
    places: Arc<Semaphore>,
    /// Unix time of the start, for the model's `created`.
    started: u64,
}

impl Api {
    pub(crate) fn new(
        model: Arc<ServedModel>,
        metrics: Arc<Metrics>,
        generator: Generator,
        config: Config,
        draining: CancellationToken,
    ) -> Self {
        let bound = config.limits.requests_max.min(Semaphore::MAX_PERMITS);
        let places = Arc::new(Semaphore::new(bound));
        Self { model, metrics, generator, config, draining, places, started: unix_s() }
    }

    /// All paths; `beside` are the probes and metrics.
    pub(crate) fn router(self, beside: Router) -> Router {
        let api = Arc::new(self);
        Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(completions))
            .route("/v1/models", get(models::list))
            .route("/v1/models/{*name}", get(models::one))
            .route_layer(middleware::from_fn_with_state(Arc::clone(&api), unless_draining))
            .with_state(api)
            .merge(beside)
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
    }
}

/// While the gateway drains its API takes nothing new, and says so on a port that is still open.
async fn unless_draining(
    State(api): State<Arc<Api>>,
    http: HttpRequest,
    next: middleware::Next,
) -> Response {
    if !api.draining.is_cancelled() {
        return next.run(http).await;
    }
    api.metrics.rejected(Rejection::Unavailable);
    let kind = Kind::Unavailable { retry_after_s: 1 };
    let message = "the gateway is shutting down: try again";
    let mut response = ApiError::new(kind, "service_unavailable", None, message).into_response();
    // The next request on this connection had better go to another gateway.
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

async fn chat(State(api): State<Arc<Api>>, http: HttpRequest) -> Response {
    respond(&api, http, Endpoint::Chat).await
}

async fn completions(State(api): State<Arc<Api>>, http: HttpRequest) -> Response {
    respond(&api, http, Endpoint::Completions).await
}

async fn respond(api: &Arc<Api>, http: HttpRequest, endpoint: Endpoint) -> Response {
    let outcome = match prepare(api, http, endpoint).await {
        Ok(prepared) => answer(api, prepared).await,
        Err(error) => {
            let busy = matches!(error.kind, Kind::Busy { .. });
            api.metrics.rejected(if busy { Rejection::Concurrency } else { Rejection::Invalid });
            Err(error)
        }
    };
    outcome.unwrap_or_else(IntoResponse::into_response)
}

/// A request that is ready to run, and how its answer is sent.
struct Prepared {
    job: Job,
    endpoint: Endpoint,
    delivery: Delivery,
    seed: i64,
}

/// What a body asks for, held against the model.
struct Asked {
    encoded: Encoded,
    max_tokens: u32,
    params: Params,
}

impl Api {
    /// Parses, checks and encodes. Blocks for milliseconds with long prompts.
    fn read(&self, body: &[u8], endpoint: Endpoint) -> Result<Asked, ApiError> {
        let body = body::parse(body)?;
        let Request { input, params } = match endpoint {
            Endpoint::Chat => request::chat(body)?,
            Endpoint::Completions => request::completion(body)?,
        };
        models::check(self, &params.model)?;
        let now = i64::try_from(unix_s()).unwrap_or(i64::MAX);
        let encoded = self.model.encode(input, &params.salt, now)?;
        let default = self.config.limits.max_tokens_default;
        let max_tokens = self.model.room(&encoded, params.max_tokens, default)?;
        Ok(Asked { encoded, max_tokens, params })
    }
}

async fn prepare(
    api: &Arc<Api>,
    http: HttpRequest,
    endpoint: Endpoint,
) -> Result<Prepared, ApiError> {
    let since = Instant::now();
    let place = Arc::clone(&api.places).try_acquire_owned().map_err(|_| {
        let kind = Kind::Busy { retry_after_s: 1 };
        let message = "too many requests are in work: try again later";
        ApiError::new(kind, "rate_limit_exceeded", None, message)
    })?;
    let limits = BodyLimits {
        bytes_max: api.config.limits.body_max.as_usize(),
        wait_max: api.config.limits.body_wait_max.duration(),
    };
    let body = body::read(http, limits).await?;
    let shared = Arc::clone(api);
    // Parsing and encoding of a long prompt take milliseconds, which the runtime does not have.
    let work = tokio::task::spawn_blocking(move || shared.read(&body, endpoint));
    let Asked { encoded, max_tokens, params } = work.await.map_err(|error| {
        tracing::error!(%error, "preparing a request failed");
        ApiError::internal()
    })??;
    let seed = params.seed.map_or_else(draw_seed, Ok).map_err(|error| {
        tracing::error!(%error, "the system gives no random numbers");
        ApiError::internal()
    })?;
    let sampling = Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        // The same 64 bits; the sign is only how JSON writes them.
        seed: seed.cast_unsigned(),
        choice: 0,
    };
    let ends = api.model.end_tokens();
    let job = Job {
        encoded,
        sampling,
        max_tokens,
        stop_tokens: if params.ignore_eos { Arc::from([]) } else { ends },
        stops: params.stops,
        digest_logits: params.logits_digest,
        place,
        since,
    };
    api.metrics.accepted(max_tokens);
    Ok(Prepared { job, endpoint, delivery: params.delivery, seed })
}

/// Waits until the request is planned, and a moment for its first token: until then an error has
/// its own status.
async fn answer(api: &Api, prepared: Prepared) -> Result<Response, ApiError> {
    let Prepared { job, endpoint, delivery, seed } = prepared;
    let mut events = api.generator.start(job);
    let (session, class) = loop {
        match events.recv().await.unwrap_or_else(|| Err(ApiError::internal()))? {
            Event::Planned { session, numerics_class } => break (session, numerics_class),
            Event::Begun | Event::Text(_) | Event::Done(_) => {}
        }
    };
    let shape = Shape {
        endpoint,
        session,
        created: unix_s(),
        model: api.model.name().to_owned(),
        seed,
        fingerprint: api.model.fingerprint(&class),
    };
    match delivery {
        Delivery::Whole => whole(shape, events).await,
        Delivery::Stream { include_usage } => {
            let patience = api.config.stream.headers_wait_max.duration();
            let first = match timeout(patience, events.recv()).await {
                Ok(item) => vec![Ok(item.unwrap_or_else(|| Err(ApiError::internal()))?)],
                Err(_) => Vec::new(),
            };
            let open = api.metrics.streams_open.clone();
            let encoder = Encoder::new(shape, include_usage);
            let keepalive = api.config.stream.keepalive.duration();
            Ok(streamed(session, encoder, first, events, keepalive, open))
        }
    }
}

fn streamed(
    session: SessionId,
    encoder: Encoder,
    first: Vec<Item>,
    events: Receiver<Item>,
    keepalive: Duration,
    open: prometheus::IntGauge,
) -> Response {
    let body = stream::body(encoder, first, events, keepalive, open);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // nginx would hold tokens back to fill its buffer.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        (REQUEST_ID, id_header(session)),
    ];
    (headers, body).into_response()
}

async fn whole(mut shape: Shape, mut events: Receiver<Item>) -> Result<Response, ApiError> {
    let mut text = String::new();
    loop {
        match events.recv().await.unwrap_or_else(|| Err(ApiError::internal()))? {
            Event::Planned { session, .. } => shape.session = session,
            Event::Begun => {}
            Event::Text(more) => text.push_str(&more),
            Event::Done(outcome) => {
                let headers = [
                    (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
                    (REQUEST_ID, id_header(shape.session)),
                ];
                return Ok((headers, shape.whole(&text, &outcome)).into_response());
            }
        }
    }
}

fn id_header(session: SessionId) -> HeaderValue {
    HeaderValue::from_str(&session.to_string()).expect("hex digits are allowed in headers")
}

/// Paths of OpenAI's API that are refused by name.
const UNSUPPORTED: [&str; 12] = [
    "/v1/embeddings",
    "/v1/responses",
    "/v1/images",
    "/v1/audio",
    "/v1/moderations",
    "/v1/files",
    "/v1/batches",
    "/v1/fine_tuning",
    "/v1/assistants",
    "/v1/realtime",
    "/v1/rerank",
    "/v1/load_lora_adapter",
];

async fn not_found(http: HttpRequest) -> ApiError {
    let path = http.uri().path();
    let known = UNSUPPORTED.iter().find(|known| path.starts_with(**known));
    match known {
        Some(known) => {
            let message = format!("{known} is not supported yet");
            ApiError::new(Kind::NotFound, "unsupported_endpoint", None, message)
        }
        None => {
            let message = "no such path: this server has /v1/chat/completions, /v1/completions \
                           and /v1/models";
            ApiError::new(Kind::NotFound, "unknown_url", None, message)
        }
    }
}

async fn wrong_method(http: HttpRequest) -> ApiError {
    let wanted = match http.uri().path() {
        "/v1/chat/completions" | "/v1/completions" => "POST",
        _ => "GET",
    };
    let message =
        format!("{} does not go here: use {wanted}", fields::shorten(http.method().as_str()));
    ApiError::new(Kind::Method, "method_not_allowed", None, message)
}

#[expect(clippy::disallowed_methods, reason = "the API shows the wall clock: this is the edge")]
fn unix_s() -> u64 {
    // Before 1970 the clock is wrong, and 0 says so.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
