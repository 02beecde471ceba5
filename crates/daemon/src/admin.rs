//! The admin endpoint: probes and metrics over HTTP, as a router to merge or served on a thread
//! of its own, so that it answers while the data plane is busy.
//! What it deliberately does not do: change anything; it only reads.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::Registry;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::metrics;
use crate::probes::Probes;
use crate::units::Span;

#[cfg(test)]
mod tests;

/// How long a connection to an admin endpoint may take to send the head of its next request.
/// Longer than a scraper that keeps its connection needs for the head, shorter than a flood of
/// silent connections can keep the probes out.
pub(crate) const HEAD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where the admin endpoint listens, and when a loop counts as stalled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// The address of `/livez`, `/readyz`, `/startupz`, `/health` and `/metrics`; port 0 lets the
    /// system choose.
    pub listen: SocketAddr,
    /// How long a loop with queued work may be silent before `/livez` answers 503.
    pub stall: Span,
    /// How many connections may be open at once.
    pub connections_max: usize,
}

impl AdminConfig {
    /// The defaults at a port of this host.
    #[must_use]
    pub fn at_port(port: u16) -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), ..Self::default() }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            // Three kubelet probes of 10 s fit in; a step that takes 30 s is a hang.
            stall: Span::secs(30),
            connections_max: 64,
        }
    }
}

struct Admin {
    roles: Vec<Probes>,
    registries: Vec<Registry>,
}

/// The probes of `roles` and the metrics of `registries`, to merge into another router.
pub fn router(roles: Vec<Probes>, registries: Vec<Registry>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/health", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(startupz))
        .route("/metrics", get(expose))
        .with_state(Arc::new(Admin { roles, registries }))
}

/// The answer to paths that are not there, for a router that is served alone.
pub(crate) async fn not_found() -> (StatusCode, Json<Value>) {
    let paths = ["/livez", "/readyz", "/startupz", "/health", "/metrics"];
    (StatusCode::NOT_FOUND, Json(json!({ "error": "no such path", "paths": paths })))
}

fn answer(ok: bool, body: Value) -> Response {
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// Stays 200 while draining: a 503 here makes the kubelet kill a process that finishes its work.
async fn livez(State(admin): State<Arc<Admin>>) -> Response {
    let now = Instant::now();
    let mut stalled = Vec::new();
    for role in &admin.roles {
        for stall in role.liveness.stalled(now) {
            stalled.push(json!({ "role": role.role, "stalled": stall }));
        }
    }
    answer(stalled.is_empty(), json!({ "alive": stalled.is_empty(), "stalled": stalled }))
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let mut failed = Vec::new();
    for role in &admin.roles {
        for condition in role.readiness.failed() {
            failed.push(json!({
                "role": role.role,
                "condition": condition.condition,
                "reason": condition.reason,
            }));
        }
    }
    answer(failed.is_empty(), json!({ "ready": failed.is_empty(), "failed": failed }))
}

async fn startupz(State(admin): State<Arc<Admin>>) -> Response {
    let waiting: Vec<&str> = admin
        .roles
        .iter()
        .filter(|role| !role.readiness.is_started())
        .map(|role| role.role.as_str())
        .collect();
    answer(waiting.is_empty(), json!({ "started": waiting.is_empty(), "waiting": waiting }))
}

async fn expose(State(admin): State<Arc<Admin>>) -> Response {
    match metrics::expose(&admin.registries) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written out");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
