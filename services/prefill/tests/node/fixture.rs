//! The node, and a client for it.

use std::time::Duration;

use checkpoint::FetchConfig;
use daemon::{ByteSize, Daemon, DrainConfig, OnExit};
use ids::{
    BLOCK_TOKENS, BlockHash, Epoch, Incarnation, PolicyDigest, SessionId, Span, Tenant, Term,
    TokenId,
};
use membership::{LeaseId, Registry, RegistryConfig, Service};
use model::ComputeConfig;
use placement::{Plan, Target};
use prefill::{Config, Running, start};
use proto::storage::Release;
use proto::{ChannelOptions, v1};
use remote::{Grant, Granted, Reservation, ReserveRefused};
use session::{Handover, PrefillEvent, PrefillRequest, Prompt, SealedBlock};
use tokens::BlockHashes;
use tokio::time::Instant;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use transfer::tcp::{ClientLimits, TcpTransport};
use transfer::{BulkAddress, Credential, Failure, HugePages, Slab, SlotMut, SlotRef, Transport};

use super::tiny::Tiny;
use super::writer::{Random, Stored};

/// Slices of a block of the tiny model, and the bytes of one.
const SLICES: usize = 4;
const SLICE_BYTES: usize = 2048;

/// Longer than any test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) daemon: Daemon,
    pub(crate) running: Running,
    pub(crate) channel: Channel,
    transport: TcpTransport,
    landing: Slab,
}

/// What a whole run gave.
pub(crate) struct Ran {
    pub(crate) sealed: Vec<SealedBlock>,
    pub(crate) handover: Handover,
}

impl Node {
    /// With device memory for so many tokens.
    pub(crate) async fn start(device_tokens: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        Tiny::llama(Stored::Q4_1, Stored::Q8_0).file().write(&path);
        let compute = ComputeConfig {
            name: path.to_str().unwrap().to_owned(),
            threads: 1,
            huge_pages: false,
            ..ComputeConfig::default()
        };
        let silent = &mut checkpoint::Silent;
        let opened =
            model::open(&compute, &FetchConfig::new(folder.path().into()), silent).unwrap();

        let daemon = Daemon::new(DrainConfig::default());
        let registry = Registry::new(RegistryConfig::default(), LeaseId(1));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::default();
        config.membership.coordinator = listener.local_addr().unwrap().to_string();
        let role = daemon.role("coordinator");
        let server = tonic::transport::Server::builder()
            .add_service(Service::serve(registry))
            .serve_with_incoming_shutdown(
                TcpListenerStream::new(listener),
                role.stop().cancelled_owned(),
            );
        role.spawn("registry", OnExit::Ignore, server);

        let block = (SLICES * SLICE_BYTES) as u64;
        config.device.bytes = ByteSize::bytes((device_tokens / BLOCK_TOKENS) as u64 * block);
        config.host.bytes = ByteSize::bytes(64 * block);
        config.host.huge_pages = false;
        config.batch.chunk_tokens = 64.try_into().unwrap();
        let running = start(&config, &opened, &daemon.role("prefill")).unwrap();
        let channel = proto::channel(&running.record.control, &ChannelOptions::default());
        Self {
            daemon,
            running,
            channel: channel.unwrap(),
            transport: TcpTransport::new(ClientLimits::default()),
            landing: Slab::try_new(512, SLICE_BYTES, HugePages::Off).unwrap(),
        }
    }

    /// Reserves for a prompt of so many tokens.
    pub(crate) async fn reserve(
        &self,
        session: u128,
        tokens: usize,
    ) -> Result<Grant, ReserveRefused> {
        let request = Reservation {
            session: SessionId(session),
            epoch: Epoch(1),
            tenant: Tenant::default(),
            slices: u32::try_from(tokens.div_ceil(BLOCK_TOKENS) * SLICES).unwrap(),
            lease: Span::from_secs(30),
        };
        let mut client = proto::client::reservations(self.channel.clone());
        let answer = client.reserve(v1::ReserveRequest::from(request)).await.unwrap();
        let answer: Result<Granted, ReserveRefused> = answer.into_inner().try_into().unwrap();
        answer.map(|granted| granted.grant)
    }

    pub(crate) async fn release(&self, grant: &Grant) {
        let release = Release { session: grant.session, epoch: grant.epoch };
        let mut client = proto::client::reservations(self.channel.clone());
        client.release(v1::ReleaseRequest::from(release)).await.unwrap();
    }

    /// A request as decode would make it.
    pub(crate) fn request(&self, grant: &Grant, prompt: &Prompt) -> PrefillRequest {
        let record = &self.running.record;
        let me = Target {
            node: record.id.clone(),
            incarnation: record.incarnation,
            control: record.control.clone(),
            bulk: record.bulk.clone(),
        };
        let decode =
            Target { node: "decode-0".parse().unwrap(), incarnation: Incarnation(1), ..me.clone() };
        PrefillRequest {
            plan: Plan {
                session: grant.session,
                epoch: grant.epoch,
                term: Term(1),
                sequence: 1,
                tenant: Tenant::default(),
                model: record.model.unwrap(),
                policy: PolicyDigest([0; 16]),
                numerics_class: record.numerics_class.clone(),
                prefill: me,
                decode,
                homes: Vec::new(),
                final_tokens: u32::try_from(prompt.tokens.len() + 1).unwrap(),
            },
            prompt: prompt.clone(),
            grant: grant.clone(),
            home_grants: Vec::new(),
        }
    }

    pub(crate) async fn begin(
        &self,
        request: PrefillRequest,
    ) -> Result<Streaming<v1::PrefillEvent>, Status> {
        let mut client = proto::client::prefill(self.channel.clone());
        let stream = client.run(v1::PrefillRequest::from(request)).await?;
        Ok(stream.into_inner())
    }

    pub(crate) async fn run(&self, grant: &Grant, prompt: &Prompt) -> Ran {
        let stream = self.begin(self.request(grant, prompt)).await.unwrap();
        finish(stream).await.unwrap()
    }

    /// Reads a block as decode does.
    pub(crate) async fn read(
        &self,
        grant: &Grant,
        block: &SealedBlock,
    ) -> Result<Vec<SlotMut>, Failure> {
        let auth = Credential { session: grant.session, epoch: grant.epoch, secret: grant.secret };
        let refs: Vec<SlotRef> = block
            .at
            .iter()
            .map(|at| SlotRef { slot: at.slot, generation: at.generation })
            .collect();
        let landing = self.landing.try_alloc_many(SLICES as u32).unwrap();
        let bulk = BulkAddress::Tcp(self.running.record.bulk.as_str().into());
        let soon = Instant::now() + PATIENCE;
        let read = self.transport.read(&bulk, &auth, &refs, landing, soon).await;
        read.map_err(|failed| failed.failure)
    }

    /// A value of the metrics page.
    pub(crate) fn metric(&self, name: &str, label: &str) -> i64 {
        let page = daemon::metrics::expose(std::slice::from_ref(&self.running.registry)).unwrap();
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        let line = line.unwrap_or_else(|| panic!("no {name} {label} in\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits for what the node does soon.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !is_so(self) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        waited.unwrap_or_else(|_| panic!("never came: {what}"));
    }

    /// P6: everything is free, but for sealed blocks that count as free.
    pub(crate) async fn quiet(&self) {
        self.until("everything is free", |node| {
            let host = |state: &str| node.metric("oasiskv_prefill_host_slots", state);
            let device = |state: &str| node.metric("oasiskv_prefill_device_slots", state);
            host("\"free\"") + host("\"idle\"") == host("\"total\"")
                && device("\"free\"") == device("\"total\"")
                && node.metric("oasiskv_prefill_sessions", "") == 0
                && node.metric("oasiskv_prefill_queued", "") == 0
                && node.metric("oasiskv_prefill_waiting", "") == 0
        })
        .await;
    }
}

/// Everything until the end of the stream.
pub(crate) async fn finish(mut stream: Streaming<v1::PrefillEvent>) -> Result<Ran, Status> {
    let mut sealed = Vec::new();
    let mut handover = None;
    while let Some(event) =
        tokio::time::timeout(PATIENCE, stream.message()).await.expect("the run goes on")?
    {
        match PrefillEvent::try_from(event).unwrap() {
            PrefillEvent::Sealed(blocks) => sealed.extend(blocks),
            PrefillEvent::Handover(it) => handover = Some(*it),
            PrefillEvent::Copied(copied) => assert_eq!(copied.blocks, 0),
        }
    }
    Ok(Ran { sealed, handover: handover.expect("a run ends with a hand-over") })
}

/// Random tokens of the tiny model.
pub(crate) fn prompt(seed: u64, length: usize) -> Prompt {
    let root = BlockHash([5; 32]);
    let mut random = Random(seed);
    let token = |_| TokenId(u32::try_from(random.next() % 96).unwrap());
    let tokens: Vec<TokenId> = (0..length).map(token).collect();
    Prompt {
        root,
        hashes: BlockHashes::from_root(root, &tokens).clone().into(),
        tokens: tokens.into(),
    }
}
