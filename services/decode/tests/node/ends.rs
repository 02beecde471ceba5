//! P6: however a session ends before its first token, the node keeps nothing of it.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::FetchConfig;
use daemon::{ByteSize, Daemon, DrainConfig, OnExit, Settings};
use decode::{Config, Running, start};
use ids::{
    BlockHash, Epoch, Incarnation, ModelDigest, PolicyDigest, SessionId, Tenant, Term, TokenId,
};
use membership::{LeaseId, Registry, RegistryConfig, Service};
use model::ComputeConfig;
use placement::{Plan, Target};
use proto::{ChannelOptions, v1};
use session::{GenerateRequest, Generation, Prompt, Sampling};
use tokens::BlockHashes;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::tiny::Tiny;
use super::writer::Stored;

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    /// Ends the node's tasks with the test.
    _daemon: Daemon,
    running: Running,
    channel: Channel,
}

impl Node {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        Tiny::llama(Stored::Q4_1, Stored::Q8_0).file().write(&path);
        let compute = ComputeConfig {
            name: path.to_str().unwrap().to_owned(),
            threads: 1,
            huge_pages: false,
            ..ComputeConfig::default()
        };
        let fetch = FetchConfig::new(folder.path().into());
        let opened = model::open(&compute, &fetch, &mut checkpoint::Silent).unwrap();

        let daemon = Daemon::new(DrainConfig::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::default();
        config.membership.coordinator = listener.local_addr().unwrap().to_string();
        let role = daemon.role("coordinator");
        let registry = Registry::new(RegistryConfig::default(), LeaseId(1));
        let server = tonic::transport::Server::builder()
            .add_service(Service::serve(registry))
            .serve_with_incoming_shutdown(
                TcpListenerStream::new(listener),
                role.stop().cancelled_owned(),
            );
        role.spawn("registry", OnExit::Ignore, server);
        config.device.bytes = ByteSize::mib(1);
        config.host.bytes = ByteSize::mib(1);
        config.host.huge_pages = false;
        let running = start(&config, &opened, &daemon.role("decode")).unwrap();
        let channel = proto::channel(&running.record.control, &ChannelOptions::default());
        Self { _daemon: daemon, running, channel: channel.unwrap() }
    }

    /// A session whose prefill node is at this address.
    fn request(&self, session: u128, prefill: &str) -> GenerateRequest {
        let record = &self.running.record;
        let tokens: Vec<TokenId> = (0..40).map(TokenId).collect();
        let root = BlockHash([5; 32]);
        let target = |name: &str, incarnation, control: &str| Target {
            node: name.parse().unwrap(),
            incarnation,
            control: control.to_owned(),
            bulk: control.to_owned(),
        };
        GenerateRequest {
            plan: Plan {
                session: SessionId(session),
                epoch: Epoch(1),
                term: Term(1),
                sequence: 1,
                tenant: Tenant::default(),
                model: record.model.unwrap(),
                policy: PolicyDigest([0; 16]),
                numerics_class: record.numerics_class.clone(),
                prefill: target("prefill-0", Incarnation(1), prefill),
                decode: target(record.id.as_str(), record.incarnation, &record.control),
                homes: Vec::new(),
                final_tokens: 50,
            },
            prompt: Prompt {
                root,
                hashes: BlockHashes::from_root(root, &tokens).clone().into(),
                tokens: tokens.into(),
            },
            generation: Generation {
                sampling: Sampling {
                    temperature: 0.0,
                    top_p: 1.0,
                    top_k: 0,
                    min_p: 0.0,
                    seed: 0,
                    choice: 0,
                },
                max_tokens: 10,
                stop_tokens: Arc::new([]),
                digest_logits: false,
            },
        }
    }

    async fn begin(
        &self,
        request: GenerateRequest,
    ) -> Result<Streaming<v1::GenerateEvent>, Status> {
        let mut client = proto::client::decode(self.channel.clone());
        let stream = client.generate(v1::GenerateRequest::from(request)).await?;
        Ok(stream.into_inner())
    }

    fn metric(&self, name: &str, label: &str) -> i64 {
        let page = daemon::metrics::expose(std::slice::from_ref(&self.running.registry)).unwrap();
        let named = format!("{name}{{");
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(&named) && line.contains(label));
        let line = line.unwrap_or_else(|| panic!("no {name} {label} in\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !is_so(self) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("never came: {what}"));
    }

    async fn quiet(&self) {
        self.until("everything is free", |node| {
            let free = |name: &str| node.metric(name, "\"free\"") == node.metric(name, "\"total\"");
            free("oasiskv_decode_device_slots")
                && free("oasiskv_decode_landing_slots")
                && node.metric("oasiskv_decode_sessions", "") == 0
        })
        .await;
    }
}

#[tokio::test]
async fn p6_a_session_whose_prefill_node_is_gone_fails_with_a_status_and_leaves_nothing() {
    let node = Node::start().await;
    // Bound and dropped: nobody listens there.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let request = node.request(1, &nobody.to_string());
    let mut stream = node.begin(request).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    node.quiet().await;
    assert_eq!(node.metric("oasiskv_decode_sessions_ended_total", "\"failed\""), 1);
}

#[tokio::test]
async fn p6_a_client_that_leaves_while_a_frozen_node_is_asked_leaves_nothing() {
    let node = Node::start().await;
    // Connects (the backlog takes it) and never says a word.
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = frozen.local_addr().unwrap().to_string();
    let stream = node.begin(node.request(1, &address)).await.unwrap();
    node.until("the session lives", |node| node.metric("oasiskv_decode_sessions", "") == 1).await;
    drop(stream);
    node.quiet().await;
    assert_eq!(node.metric("oasiskv_decode_sessions_ended_total", "\"cancelled\""), 1);
}

#[tokio::test]
async fn p7_sessions_that_are_not_for_this_node_are_refused_before_anything_is_taken() {
    let node = Node::start().await;
    let code = async |change: &dyn Fn(&mut GenerateRequest)| {
        let mut request = node.request(1, "127.0.0.1:1");
        change(&mut request);
        node.begin(request).await.map(drop).unwrap_err().code()
    };
    let start = |it: &mut GenerateRequest| it.plan.decode.incarnation = Incarnation(1);
    assert_eq!(code(&start).await, Code::FailedPrecondition);
    let weights = |it: &mut GenerateRequest| it.plan.model = ModelDigest([9; 32]);
    assert_eq!(code(&weights).await, Code::FailedPrecondition);
    let class = |it: &mut GenerateRequest| it.plan.numerics_class = "other".to_owned();
    assert_eq!(code(&class).await, Code::FailedPrecondition);
    let long = |it: &mut GenerateRequest| {
        it.plan.final_tokens = 600;
        it.generation.max_tokens = 560;
    };
    assert_eq!(code(&long).await, Code::OutOfRange);
    node.quiet().await;
}

#[test]
fn p4_a_queue_that_is_shorter_than_the_sessions_is_refused_with_its_remedy() {
    let mut config = Config::default();
    config.check().unwrap();
    config.session.sessions_max = config.batch.waiting_max.get() + 1;
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("batch.waiting_max") && error.contains("raise it"), "{error}");
}
