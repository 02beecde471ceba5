//! A coordinator and nodes that only register and report, over real sockets of this host.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordinator::Config;
use daemon::{Daemon, DrainConfig, Ending, OnExit, Role};
use ids::{ByteCount, ModelDigest, PolicyDigest, SessionId, Span, Tenant, Tier};
use membership::{Bound, Membership, NodeConfig, Observed, Remote};
use placement::{AdmitRequest, NodeReport, NodeStatus, Plan, RefuseReason, Refused, TierCapacity};
use proto::v1::coordinator_client::CoordinatorClient;
use proto::{ChannelOptions, v1};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const MODEL: ModelDigest = ModelDigest([7; 32]);

/// A node that accepts work while `accepting`, and reports until `stop`.
struct Node {
    accepting: Arc<AtomicBool>,
    stop: CancellationToken,
    registration: membership::Registration,
}

async fn node(process: &Role, coordinator: &str, role: ids::Role, tier: Tier) -> Node {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let control = listener.local_addr().expect("bound");
    let accepting = Arc::new(AtomicBool::new(true));
    let says = Arc::clone(&accepting);
    let report = move || NodeReport {
        tiers: vec![TierCapacity { tier, total: ByteCount(1 << 20), free: ByteCount(1 << 20) }],
        accepting: says.load(Ordering::Relaxed),
        ..NodeReport::default()
    };
    let stop = CancellationToken::new();
    let serving = tonic::transport::Server::builder()
        .add_service(Observed::serve(Arc::new(report), stop.clone()))
        .serve_with_incoming_shutdown(
            TcpListenerStream::new(listener),
            stop.clone().cancelled_owned(),
        );
    process.spawn("node", OnExit::Ignore, serving);
    let config = NodeConfig::first_of(role);
    let mut record = config.record(role, Bound { control, bulk: None }).expect("valid names");
    if role != ids::Role::Memory {
        record.model = Some(MODEL);
        record.numerics_class = "host-1".into();
        record.block_bytes = ByteCount(1 << 10);
    }
    let channel = proto::channel(coordinator, &ChannelOptions::default()).expect("an address");
    let membership = Membership::Remote(Remote::new(channel));
    let (mut registration, keeper) = membership.register(record, Span::from_secs(60));
    process.spawn("registration", OnExit::Ignore, keeper);
    assert!(registration.listed().await);
    Node { accepting, stop, registration }
}

fn request(session: u128) -> AdmitRequest {
    AdmitRequest {
        session: SessionId(session),
        tenant: Tenant::default(),
        model: MODEL,
        prompt_tokens: 20,
        max_tokens: 12,
        hashes: vec![ids::BlockHash([1; 32])],
        policy: PolicyDigest([0; 16]),
    }
}

async fn admit(client: &mut CoordinatorClient<Channel>) -> Result<Plan, Refused> {
    let answer = client.admit(v1::AdmitRequest::from(request(5))).await.expect("it answers");
    answer.into_inner().try_into().expect("a valid answer")
}

/// Asks again until the answer is `Some`; fails the test after far longer than it may take.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        loop {
            tick.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(60), asking).await;
    answer.unwrap_or_else(|_| unreachable!("in vain: {what}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_found_planned_for_and_missed_when_they_stop_p3() {
    let daemon = Daemon::new(DrainConfig::default());
    let role = daemon.role("coordinator");
    let mut config = Config::default();
    config.listen.set_port(0);
    config.admin.listen.set_port(0);
    let running = coordinator::start(&config, &role).expect("it starts");
    let address = running.address.to_string();
    let channel = proto::channel(&address, &ChannelOptions::default()).expect("an address");
    let mut client = proto::client::coordinator(channel);

    let refused = admit(&mut client).await.expect_err("nobody is there");
    assert_eq!(refused.reason, RefuseReason::NoNode);
    assert_eq!(role.readiness().failed().len(), 3, "{:?}", role.readiness().failed());

    let nodes = daemon.role("nodes");
    let prefill = node(&nodes, &address, ids::Role::Prefill, Tier::PrefillHost).await;
    let decode = node(&nodes, &address, ids::Role::Decode, Tier::Device).await;
    let memory = node(&nodes, &address, ids::Role::Memory, Tier::Remote).await;
    until("ready", || async { role.readiness().failed().is_empty().then_some(()) }).await;

    let plan = admit(&mut client).await.expect("there is room");
    assert_eq!(plan.decode.node.as_str(), "decode-0");
    assert_eq!(plan.homes[0].nodes[0].node.as_str(), "memory-0");
    let listed = client.nodes(v1::NodesRequest {}).await.expect("it answers").into_inner();
    let listed = Vec::<NodeStatus>::try_from(listed).expect("a valid answer");
    let names: Vec<&str> = listed.iter().map(|status| status.record.id.as_str()).collect();
    assert_eq!(names, ["decode-0", "memory-0", "prefill-0"]);
    let too_long = AdmitRequest { max_tokens: 1 << 19, ..request(6) };
    let answer = client.admit(v1::AdmitRequest::from(too_long)).await.expect("it answers");
    let answer = Result::<Plan, Refused>::try_from(answer.into_inner()).expect("valid");
    assert_eq!(answer.expect_err("too long").reason, RefuseReason::NeverFits);

    // A node that drains gets nothing, one that came back does.
    decode.accepting.store(false, Ordering::Relaxed);
    let missing = || {
        let mut client = client.clone();
        async move { admit(&mut client).await.err() }
    };
    assert_eq!(until("drains", missing).await.reason, RefuseReason::NoNode);
    decode.accepting.store(true, Ordering::Relaxed);
    let planned = || {
        let mut client = client.clone();
        async move { admit(&mut client).await.ok() }
    };
    until("is back", planned).await;

    // A server that ends is noticed by its stream, long before its lease of 60 s.
    prefill.stop.cancel();
    assert_eq!(until("prefill stops", missing).await.reason, RefuseReason::NoNode);
    // A node that leaves is not listed.
    memory.registration.leave().await;
    let gone = || {
        let mut client = client.clone();
        async move {
            let nodes = client.nodes(v1::NodesRequest {}).await.expect("it answers");
            (nodes.into_inner().nodes.len() == 2).then_some(())
        }
    };
    until("memory left", gone).await;

    let page = daemon::metrics::expose(std::slice::from_ref(&running.registry)).expect("valid");
    for line in [
        "oasiskv_coordinator_refusals_total{reason=\"never_fits\",role=\"coordinator\"} 1",
        "oasiskv_coordinator_refusals_total{reason=\"not_leader\",role=\"coordinator\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    decode.stop.cancel();
    memory.stop.cancel();
    drop((prefill.registration, decode.registration, client));
    daemon.end(Ending::Finished);
    let drained = daemon.finish().await;
    assert!(drained.overran.is_empty(), "{drained:?}");
}

#[tokio::test]
async fn a_question_with_a_wrong_field_is_answered_by_its_name() {
    let daemon = Daemon::new(DrainConfig::default());
    let mut config = Config::default();
    config.listen.set_port(0);
    config.admin.listen.set_port(0);
    let running = coordinator::start(&config, &daemon.role("coordinator")).expect("it starts");
    let address = running.address.to_string();
    let channel = proto::channel(&address, &ChannelOptions::default()).expect("an address");
    let mut wire = v1::AdmitRequest::from(request(1));
    wire.block_hashes.clear();
    let status = proto::client::coordinator(channel).admit(wire).await.expect_err("a hash short");
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("block_hashes"), "{status}");
}
