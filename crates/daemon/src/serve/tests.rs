//! The server over real sockets, on paused time: who is closed, who is not, and how it ends.
//! When nothing else can happen, time jumps to the next limit.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{HttpServer, OpenRequests};
use crate::listen::BoundedListener;

const HEAD_WAIT: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(300);

struct World {
    address: SocketAddr,
    close: CancellationToken,
    requests: OpenRequests,
    serving: JoinHandle<()>,
}

/// A server with room for one connection.
fn world() -> World {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.set_nonblocking(true).expect("nonblocking");
    let address = socket.local_addr().expect("bound");
    let router = Router::new()
        .route("/", get(async || "here"))
        .route("/stream", get(async || Body::from_stream(slowly())))
        .route("/body", post(async |body: Bytes| body));
    let listener = BoundedListener::try_new(socket, 1).expect("watched");
    let server = HttpServer::new(listener, router, HEAD_WAIT);
    let (close, requests) = (CancellationToken::new(), server.requests());
    let serving = TaskTracker::new().spawn(server.run(close.clone()));
    World { address, close, requests, serving }
}

/// Three pieces, minutes apart.
fn slowly() -> impl futures::Stream<Item = Result<&'static str, Infallible>> {
    futures::stream::unfold(0, async |count| {
        sleep(LONG).await;
        (count < 3).then_some((Ok("piece "), count + 1))
    })
}

impl World {
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(text.as_bytes()).await.expect("sent");
        stream
    }
}

/// Everything up to the end, however the server ends it.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end too.
    drop(stream.read_to_end(&mut bytes).await);
    String::from_utf8(bytes).expect("text")
}

const LAST: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn silent_and_half_sent_heads_do_not_hold_the_bound_p4() {
    let world = world();
    for text in ["", "GET / HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        let hostile = world.send(text).await;
        // The only place is taken: this one waits in the backlog until the other is closed.
        let begun = Instant::now();
        let answer = rest(world.send(LAST).await).await;
        assert!(answer.ends_with("here"), "{answer:?}");
        assert!(begun.elapsed() >= HEAD_WAIT - Duration::from_secs(1));
        let told = rest(hostile).await;
        assert!(!told.contains("200"), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_has_the_same_time_as_any_p4() {
    let world = world();
    let mut stream = world.send("GET / HTTP/1.1\r\n").await;
    let begun = Instant::now();
    while stream.write_all(b"x-a: b\r\n").await.is_ok() && begun.elapsed() < LONG {
        sleep(Duration::from_secs(2)).await;
    }
    assert!(begun.elapsed() < 2 * HEAD_WAIT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_for_the_next_request_and_closed_when_idle_p4() {
    let world = world();
    let mut stream = world.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let mut first = Vec::new();
    while !first.ends_with(b"here") {
        assert_ne!(stream.read_buf(&mut first).await.expect("readable"), 0);
    }
    sleep(HEAD_WAIT / 2).await;
    let second = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    stream.write_all(second).await.expect("still open");
    let begun = Instant::now();
    let answer = rest(stream).await;
    assert!(answer.ends_with("here"), "{answer:?}");
    assert!(begun.elapsed() < 2 * HEAD_WAIT, "closed once idle");
}

#[tokio::test(start_paused = true)]
async fn long_answers_and_slow_bodies_are_not_cut() {
    let world = world();
    let request = "GET /stream HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = rest(world.send(request).await).await;
    assert_eq!(answer.matches("piece ").count(), 3, "{answer:?}");

    let head = "POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 8\r\n\r\n";
    let mut stream = world.send(head).await;
    stream.write_all(b"half").await.expect("sent");
    sleep(LONG).await;
    stream.write_all(b"full").await.expect("sent");
    let answer = rest(stream).await;
    assert!(answer.ends_with("halffull"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_until_its_last_byte_and_the_end_closes_the_port() {
    let world = world();
    let request = "GET /stream HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut stream = world.send(request).await;
    let mut head = [0; 8];
    stream.read_exact(&mut head).await.expect("a head");
    let begun = Instant::now();
    world.requests.none().await;
    assert!(begun.elapsed() >= 3 * LONG, "{:?}", begun.elapsed());
    world.close.cancel();
    let answer = rest(stream).await;
    assert!(answer.ends_with("0\r\n\r\n"), "whole: {answer:?}");
    world.serving.await.expect("ends");
    assert!(TcpStream::connect(world.address).await.is_err());
}
