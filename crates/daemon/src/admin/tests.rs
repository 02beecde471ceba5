//! The endpoint over a real socket: status codes and bodies that probes act on.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bind::{Endpoint, Exposure, bind};
use crate::lifecycle::{Daemon, DrainConfig, Role};
use crate::metrics;

/// Serves a role's admin endpoint and answers its address.
fn serve(role: &Role) -> std::net::SocketAddr {
    let address = "127.0.0.1:0".parse().expect("loopback");
    let endpoint = Endpoint { role: "gateway", field: "admin.listen", address };
    let listener = bind(endpoint, Exposure::Loopback).expect("a free port");
    let registry = metrics::registry(&[("role", "gateway")]).expect("labels");
    let gauge = prometheus::IntGauge::new("open", "Open streams.");
    metrics::register(&registry, gauge).expect("new name").set(3);
    role.serve_admin(listener, 4, vec![registry]).expect("served")
}

/// Status line and body of `GET path`.
async fn get(address: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("text");
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.expect("a status"), body.expect("a body"))
}

#[tokio::test]
async fn readiness_lists_what_fails_and_liveness_outlives_the_drain() {
    let daemon = Daemon::new(DrainConfig::default());
    let role = daemon.role("gateway");
    let members = role.readiness().condition("membership");
    let address = serve(&role);
    assert_eq!(get(address, "/startupz").await.0, 503);
    role.readiness().started();
    assert_eq!(get(address, "/startupz").await.0, 200);

    let (status, body) = get(address, "/readyz").await;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 503);
    assert_eq!(body["failed"][0]["condition"], "membership");
    members.hold();
    assert_eq!(get(address, "/readyz").await.0, 200);

    role.readiness().drain();
    assert_eq!(get(address, "/readyz").await.0, 503);
    assert_eq!(get(address, "/livez").await.0, 200);
    assert_eq!(get(address, "/health").await.0, 200);
}

#[tokio::test]
async fn a_silent_loop_with_work_is_not_alive() {
    let daemon = Daemon::new(DrainConfig::default());
    let role = daemon.role("gateway");
    let address = serve(&role);
    let step = role.heartbeat("step loop", Duration::ZERO);
    step.queued(2);
    // The stall is judged in whole milliseconds; ask until one has passed.
    let (status, body) = loop {
        let answer = get(address, "/livez").await;
        if answer.0 != 200 {
            break answer;
        }
    };
    assert_eq!(status, 503);
    assert!(body.contains("step loop") && body.contains("\"queued\":2"), "{body}");
    step.queued(0);
    assert_eq!(get(address, "/livez").await.0, 200);
}

#[tokio::test]
async fn metrics_are_text_and_other_paths_are_404() {
    let role = Daemon::new(DrainConfig::default()).role("gateway");
    let address = serve(&role);
    let (status, body) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(body.contains("open{role=\"gateway\"} 3"), "{body}");
    let (status, body) = get(address, "/nothing").await;
    assert_eq!(status, 404);
    assert!(body.contains("/readyz"), "{body}");
}
