//! The gateway over real sockets, against a coordinator and a decode node that follow a script:
//! what clients see, and what the cluster sees of clients that leave.
//! Answers of real models are the subject of the integration tests, not of these.

mod client;
mod model;
mod peers;

use std::sync::Arc;

use client::{Client, Reply};
use daemon::{Daemon, DrainConfig, Ending, Role, Span};
use gateway::{Config, Gateway, ServedModel};
use ids::{Span as Wait, Tier};
use peers::{Peers, finished, started, token};
use placement::{RefuseReason, Refused};
use serde_json::{Value, json};
use session::{Finish, StreamItem};
use tokio_util::task::TaskTracker;

/// A gateway, its peers and a client.
struct World {
    daemon: Daemon,
    role: Role,
    peers: Peers,
    client: Client,
    model: Arc<ServedModel>,
}

async fn world(change: impl FnOnce(&mut Config)) -> World {
    let model = Arc::new(model::tiny());
    let peers = Peers::start(model.digest()).await;
    let listen = "127.0.0.1:0".parse().expect("loopback");
    let mut config = Config { listen, ..Config::default() };
    config.admin.listen = listen;
    config.coordinator.address = peers.address.clone();
    config.coordinator.refresh = Span::millis(5);
    change(&mut config);
    let daemon = Daemon::new(DrainConfig::default());
    let role = daemon.role("gateway");
    let gateway = Gateway::start(&config, Arc::clone(&model), &role).expect("starts");
    World { daemon, role, peers, client: Client { address: gateway.address }, model }
}

fn chat() -> Value {
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": "say hi" }] })
}

fn with(changes: Value) -> Value {
    let mut body = chat();
    for (key, value) in changes.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// The items of an answer that says `text`, letter by letter.
fn says(world: &World, text: &str, finish: Finish) -> Vec<StreamItem> {
    let tokens: Vec<u32> = text.chars().map(model::token_of).collect();
    let mut items = vec![started(16)];
    items.extend(tokens.iter().map(|id| token(*id)));
    items.push(finished(finish, world.model.context(), tokens.len()));
    items
}

fn refusal(reason: RefuseReason) -> Refused {
    let detail = "node prefill-0 has 3 free slots".to_owned();
    Refused { reason, tier: Some(Tier::Remote), retry_after: Some(Wait::from_millis(1)), detail }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_and_streamed_answers_say_the_same() {
    let world = world(|_| {}).await;
    world.peers.answers(says(&world, "hi you", Finish::Length));
    let reply = world.client.post("/v1/chat/completions", &with(json!({ "seed": 7 }))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let whole = reply.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "hi you");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
    assert_eq!(whole["oasiskv"]["seed"], 7);
    let id = reply.header("x-oasiskv-request-id").expect("the request's id");
    assert_eq!(whole["id"], format!("chatcmpl-{id}"));
    assert_eq!(whole["oasiskv"]["session"], id);

    world.peers.answers(says(&world, "hi you", Finish::Length));
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let reply = world.client.post("/v1/chat/completions", &with(options)).await;
    assert!(reply.header("content-type").expect("a type").starts_with("text/event-stream"));
    let (chunks, done) = reply.events();
    assert!(done, "{}", reply.body);
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "hi you");
    let usage = &chunks.last().expect("chunks")["usage"];
    assert_eq!(*usage, whole["usage"], "the same counts either way");
    assert!(chunks[0]["usage"].is_null());

    let seen = world.peers.generated();
    assert_eq!(seen[0].generation.sampling.seed, 7);
    assert_ne!(seen[0].plan.session, seen[1].plan.session);
    assert_eq!(seen[0].prompt.hashes.len(), seen[0].prompt.tokens.len() / 16);
    assert_eq!(seen[0].prompt, seen[1].prompt);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_take_text_and_tokens() {
    let world = world(|_| {}).await;
    let ids: Vec<u32> = "abc".chars().map(model::token_of).collect();
    for prompt in [json!("abc"), json!(ids)] {
        world.peers.answers(says(&world, "d", Finish::Length));
        let body = json!({ "model": "tiny", "prompt": prompt, "max_tokens": 1 });
        let reply = world.client.post("/v1/completions", &body).await;
        assert_eq!(reply.json()["choices"][0]["text"], "d", "{}", reply.body);
    }
    let seen = world.peers.generated();
    assert_eq!(seen[0].prompt, seen[1].prompt);
    assert_eq!(seen[0].generation.max_tokens, 1);
    assert_eq!(*seen[0].generation.stop_tokens, [ids::TokenId(model::END)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_models_own_end_is_counted_and_not_shown() {
    let world = world(|_| {}).await;
    let mut items = says(&world, "hi", Finish::Stop);
    items.insert(3, token(model::END));
    world.peers.answers(items);
    let answer = world.client.post("/v1/chat/completions", &chat()).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "hi");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_text_ends_the_answer_and_cancels_decode_p6() {
    let world = world(|_| {}).await;
    // No last item: decode would go on for ever.
    let mut items = says(&world, "there and more", Finish::Length);
    items.pop();
    world.peers.answers(items);
    let body = with(json!({ "stop": ["re", "he"] }));
    let answer = world.client.post("/v1/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "t");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    world.peers.cancelled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_decode_streamed_or_not_p6() {
    let world = world(|_| {}).await;
    for stream in [true, false] {
        let mut items = says(&world, "hi", Finish::Length);
        items.pop();
        world.peers.answers(items);
        let body = with(json!({ "stream": stream }));
        let open = world.client.open("/v1/chat/completions", &body).await;
        world.peers.begun().await;
        if stream {
            open.first_event().await;
        } else {
            drop(open);
        }
        world.peers.cancelled().await;
    }
    let aborted = "finished_reason=\"abort\",model_name=\"tiny\"} 2";
    world.client.until_metric(aborted).await;
    world
        .client
        .until_metric("vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_waited_out_within_the_bound_p4() {
    let world = world(|config| config.queue.wait_max = Span::millis(800)).await;
    world.peers.refuses(refusal(RefuseReason::Capacity));
    world.peers.refuses(refusal(RefuseReason::NoNode));
    // Decode may refuse as well, before it begins.
    world.peers.answers(vec![StreamItem::Refused(refusal(RefuseReason::Capacity))]);
    world.peers.answers(says(&world, "hi", Finish::Length));
    let reply = world.client.post("/v1/chat/completions", &chat()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(world.peers.generated().len(), 2);

    for (reason, status, code) in [
        (RefuseReason::Capacity, 429, "rate_limit_exceeded"),
        (RefuseReason::NotLeader, 503, "kv_unavailable"),
    ] {
        world.peers.always_refuses(Some(refusal(reason)));
        let reply = world.client.post("/v1/chat/completions", &chat()).await;
        assert_eq!((reply.status, reply.code()), (status, code.to_owned()), "{}", reply.body);
        assert!(reply.header("retry-after").is_some());
        assert!(!reply.body.contains("prefill-0"), "{}", reply.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_fits_is_refused_at_once() {
    let world = world(|_| {}).await;
    world.peers.refuses(refusal(RefuseReason::NeverFits));
    let reply = world.client.post("/v1/chat/completions", &chat()).await;
    assert_eq!((reply.status, reply.code()), (400, "kv_never_fits".to_owned()));

    let asked = world.peers.admitted();
    let context = world.model.context();
    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(5_000) }] });
    for (change, told) in [
        (json!({ "max_tokens": context }), format!("asks for {context}")),
        (long, "no room for an answer".to_owned()),
    ] {
        let body = with(change);
        let reply = world.client.post("/v1/chat/completions", &body).await;
        assert_eq!((reply.status, reply.code()), (400, "context_length_exceeded".to_owned()));
        assert!(reply.body.contains(&told), "{}", reply.body);
    }
    assert_eq!(world.peers.admitted(), asked, "nothing reaches the cluster (sglang#30233)");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_ends_with_an_error_and_no_done() {
    let world = world(|_| {}).await;
    let mut items = says(&world, "hi", Finish::Length);
    items.pop();
    world.peers.answers_and_ends(items.clone());
    let reply = world.client.post("/v1/chat/completions", &with(json!({ "stream": true }))).await;
    let (chunks, done) = reply.events();
    assert!(!done, "{}", reply.body);
    assert_eq!(chunks.last().expect("events")["error"]["code"], "kv_unavailable");

    world.peers.answers_and_ends(items);
    let reply = world.client.post("/v1/chat/completions", &chat()).await;
    assert_eq!((reply.status, reply.code()), (503, "kv_unavailable".to_owned()));
    world.client.until_metric("finished_reason=\"error\",model_name=\"tiny\"} 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_allowed_are_turned_away_p4() {
    let world = world(|config| config.limits.requests_max = 1).await;
    let mut items = says(&world, "hi", Finish::Length);
    items.pop();
    world.peers.answers(items);
    let body = with(json!({ "stream": true }));
    let open = world.client.open("/v1/chat/completions", &body).await;
    world.peers.begun().await;
    let reply = world.client.post("/v1/chat/completions", &chat()).await;
    assert_eq!((reply.status, reply.code()), (429, "rate_limit_exceeded".to_owned()));
    assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    drop(open);
    world.peers.cancelled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_answered_in_openais_shape() {
    let world = world(|config| config.limits.body_max = daemon::ByteSize::bytes(200)).await;
    let check = |reply: Reply, status: u16, code: &str| {
        assert_eq!((reply.status, reply.code()), (status, code.to_owned()), "{}", reply.body);
        let error = reply.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{error}");
        }
    };
    let client = &world.client;
    let path = "/v1/chat/completions";
    check(client.get("/nothing").await, 404, "unknown_url");
    check(client.get("/v1/embeddings").await, 404, "unsupported_endpoint");
    check(client.get(path).await, 405, "method_not_allowed");
    check(client.get("/v1/models/other").await, 404, "model_not_found");
    check(client.raw(path, "text/plain", b"{}").await, 415, "unsupported_media_type");
    check(client.raw(path, "application/json", b"{").await, 400, "invalid_json");
    check(client.raw(path, "application/json", b"\"\xff\"").await, 400, "invalid_utf8");
    let large = "x".repeat(201);
    check(client.raw(path, "application/json", large.as_bytes()).await, 413, "request_too_large");
    check(client.post(path, &with(json!({ "model": "x" }))).await, 404, "model_not_found");
    check(client.post(path, &with(json!({ "n": 2 }))).await, 400, "unsupported_parameter");
    check(client.post(path, &with(json!({ "n": 0 }))).await, 400, "invalid_value");
    for body in ["[]", "null"] {
        let reply = client.raw(path, "application/json", body.as_bytes()).await;
        assert!(reply.json()["error"]["param"].is_null(), "{}", reply.body);
        check(reply, 400, "invalid_value");
    }
    let twice = b"{\"model\": \"tiny\", \"model\": \"tiny\"}";
    check(client.raw(path, "application/json", twice).await, 400, "invalid_json");
    let zipped = "application/json\r\ncontent-encoding: gzip";
    check(client.raw(path, zipped, b"{}").await, 415, "unsupported_media_type");
    assert_eq!(world.peers.admitted(), 0, "nothing of this reaches the cluster");
    let models = client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["max_model_len"], world.model.context());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_open_answers_finish_and_takes_no_new_ones() {
    let world = world(|_| {}).await;
    world.client.until_ready().await;
    let mut items = says(&world, "hi", Finish::Length);
    let last = items.pop().expect("an end");
    let end = world.peers.answers_until_told(items, last);
    let open = world.client.open("/v1/chat/completions", &with(json!({ "stream": true }))).await;
    world.peers.begun().await;

    world.daemon.end(Ending::Signal("SIGTERM"));
    let tasks = TaskTracker::new();
    let draining = tasks.spawn({
        let daemon = world.daemon.clone();
        async move { daemon.finish().await }
    });
    world.role.draining().cancelled().await;
    assert!(!world.role.readiness().failed().is_empty());

    // The port stays open: probes are answered, and new requests go elsewhere.
    assert_eq!(world.client.get("/livez").await.status, 200);
    assert_eq!(world.client.get("/readyz").await.status, 503);
    let admitted = world.peers.admitted();
    let keep = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json";
    for reply in [
        world.client.keep(keep, chat().to_string().as_bytes()).await,
        world.client.keep("GET /v1/models HTTP/1.1", b"").await,
    ] {
        // Read to the end: the server closes a connection that asked to be kept.
        let reply = reply.rest().await;
        assert_eq!((reply.status, reply.code()), (503, "service_unavailable".to_owned()));
        assert_eq!(reply.json()["error"]["type"], "service_unavailable");
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(world.peers.admitted(), admitted, "nothing new is planned");
    end.send(()).expect("decode waits");
    let (chunks, done) = open.rest().await.events();
    assert!(done, "{chunks:?}");
    let drained = draining.await.expect("drains");
    assert!(drained.overran.is_empty(), "{drained:?}");
    assert!(world.client.try_connect().await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_keep_others_out_p4() {
    let world = world(|config| {
        config.limits.connections_max = 1;
        config.limits.head_wait_max = Span::millis(20);
    })
    .await;
    let silent = world.client.try_connect().await.expect("connected");
    assert_eq!(world.client.get("/livez").await.status, 200);
    drop(silent);
}
