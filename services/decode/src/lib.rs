//! A decode node: owns sessions from the first reservation to the last token, fetches their prompt
//! KV from where prefill and memory nodes keep it, decodes all of them in one batch, and samples.
//!
//! It computes no prompt and plans nothing. In this version the KV of its sequences is on its
//! device in full; the host memory is where slices land.

mod config;
mod control;
mod drive;
mod holders;
mod load;
mod metrics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use daemon::{ConfigError, Endpoint, Exposure, OnExit, Role, bind};
use engine::{DecodeEngine, DecodeOptions, DeviceKv};
use ids::{ByteCount, Moment, Span, Tier};
use kernels::{Device, HostDevice};
use membership::{Bound, Observed};
use model::Opened;
use placement::{NodeRecord, NodeReport, TierCapacity};
use proto::{ChannelOptions, Channels};
use tiers::{FetchLimits, Fetcher};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use transfer::tcp::{ClientLimits, TcpTransport};
use transfer::{HugePages, Slab};

pub use config::Config;

use control::Control;
use load::BLOCKS_PER_FETCH;
use metrics::{Metrics, Scraped};

/// Peers whose gRPC channels are kept.
const PEERS_MAX: usize = 1024;

/// gRPC connections open at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 1024;

/// A decode node at work. It ends with its role.
#[derive(Debug)]
pub struct Running {
    /// What it registered as.
    pub record: NodeRecord,
    /// Its admin endpoint.
    pub admin: SocketAddr,
    /// Its metrics, for another page to join.
    pub registry: prometheus::Registry,
}

/// What the parts of the node share.
pub(crate) struct Node {
    record: NodeRecord,
    /// Longest sequence that can be run.
    context: u32,
    memory: DeviceKv<HostDevice>,
    landing: Slab,
    engine: DecodeEngine,
    fetcher: Arc<Fetcher>,
    channels: Channels,
    reserve_wait_max: Span,
    /// One permit per session.
    sessions: Arc<Semaphore>,
    sessions_max: usize,
    metrics: Metrics,
    role: Role,
    /// Zero of the node's moments.
    started: Instant,
}

/// Binds, allocates, serves, and registers: last, so that nobody sees it before it can answer.
///
/// # Errors
/// [`ConfigError`] and bind errors inside, with field and remedy.
pub fn start(
    config: &Config,
    compute: &Opened<HostDevice>,
    role: &Role,
) -> anyhow::Result<Running> {
    let exposure = Exposure::from_insecure(config.insecure);
    let listen = |field, address| bind(Endpoint { role: role.name(), field, address }, exposure);
    let control = listen("listen.control", config.listen.control)?;
    let admin = listen("admin.listen", config.admin.listen)?;
    let spec = compute.model.spec();
    let bound = Bound { control: control.local_addr()?, bulk: None };
    let mut record = config.node.record(ids::Role::Decode, bound)?;
    compute.device.numerics_class().clone_into(&mut record.numerics_class);
    record.model = Some(compute.resolved.digest);
    record.block_bytes = ByteCount(spec.slice_bytes() as u64 * spec.shape().slices() as u64);

    let landing = landing(config, &record, spec.slice_bytes())?;
    let device_bytes = ByteCount(config.device.bytes.get());
    let memory =
        DeviceKv::try_new(&compute.device, spec.shape(), usize::from(spec.head_dim), device_bytes)
            .map_err(|error| ConfigError::invalid("device.bytes", error, "change it"))?;
    let options = DecodeOptions {
        batch_max: config.batch.sequences_max,
        waiting_max: config.batch.waiting_max,
        unread_max: config.batch.unread_max,
        // Dense decode without speculation: the services do not hand over what sparse decode needs
        // yet.
        drafts_max: 0,
        trace: None,
    };
    let engine = DecodeEngine::start(Arc::clone(&compute.model), memory.clone(), None, options)?;

    let labels = [("role", "decode"), ("node", record.id.as_str())];
    let registry = daemon::metrics::registry(&labels)?;
    let transport = Arc::new(TcpTransport::new(ClientLimits::default()));
    let node = Arc::new(Node {
        context: spec.context,
        fetcher: Arc::new(Fetcher::new(transport, landing.clone(), FetchLimits::default())),
        memory,
        landing,
        engine,
        channels: Channels::new(ChannelOptions::default(), PEERS_MAX),
        reserve_wait_max: config.session.reserve_wait_max.duration().into(),
        sessions: Arc::new(Semaphore::new(config.session.sessions_max)),
        sessions_max: config.session.sessions_max,
        metrics: Metrics::try_new(&registry)?,
        role: role.clone(),
        record: record.clone(),
        started: Instant::now(),
    });

    Scraped::register(&registry, &node)?;
    serve_control(role, control, &node)?;
    watch(config, role, &node);
    let admin = role.serve_admin(admin, config.admin.connections_max, vec![registry.clone()])?;
    membership::join(&config.membership, role, record.clone())?;
    let finishing = Arc::clone(&node);
    role.on_drain("let sessions end", async move {
        let all = u32::try_from(finishing.sessions_max).unwrap_or(u32::MAX);
        // A closed semaphore would mean the same: nobody is left.
        drop(finishing.sessions.acquire_many(all).await);
    });
    role.readiness().started();
    Ok(Running { record, admin, registry })
}

fn landing(config: &Config, record: &NodeRecord, slice_bytes: usize) -> anyhow::Result<Slab> {
    let size = config.host.bytes;
    // What a session fetches together must fit.
    let least = record.block_bytes.0 * BLOCKS_PER_FETCH as u64;
    if size.get() < least {
        let problem =
            format!("is {size}; {BLOCKS_PER_FETCH} blocks of this model take {}", ByteCount(least));
        return Err(ConfigError::invalid("host.bytes", problem, "raise it").into());
    }
    // Pages are backed when first used: without this check a node would be killed in the middle
    // of its work.
    if let Ok(available) = daemon::available_memory()
        && available.get() < size.get().saturating_add(config.device.bytes.get())
    {
        let problem = format!(
            "{} and host.bytes {size} are wanted, but only {} can be had",
            config.device.bytes,
            available.approx()
        );
        let remedy = "lower one of them, or free memory on this host";
        return Err(ConfigError::invalid("device.bytes", problem, remedy).into());
    }
    let slots = u32::try_from(size.get() / slice_bytes as u64).map_err(|_| {
        ConfigError::invalid("host.bytes", "holds more than 2^32 slices", "lower it")
    })?;
    let huge = if config.host.huge_pages { HugePages::Auto } else { HugePages::Off };
    Slab::try_new(slots, slice_bytes, huge).context("host.bytes: no memory for the slab")
}

fn serve_control(
    role: &Role,
    listener: std::net::TcpListener,
    node: &Arc<Node>,
) -> anyhow::Result<()> {
    let reporter = Arc::clone(node);
    let observed = Observed::serve(Arc::new(move || reporter.report()), role.stop());
    let incoming = proto::incoming(listener, CONNECTIONS_MAX)?;
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(proto::server::decode(Control::new(Arc::clone(node))))
        .add_service(observed)
        .serve_with_incoming_shutdown(incoming, role.stop().cancelled_owned());
    role.spawn("control services", OnExit::Shutdown, serving);
    Ok(())
}

/// Tells liveness how the loop is doing. A loop whose readers are all slow is alive.
fn watch(config: &Config, role: &Role, node: &Arc<Node>) {
    let heartbeat = role.heartbeat("decode loop", config.admin.stall.duration());
    let (stop, node) = (role.stop(), Arc::clone(node));
    role.spawn("watch", OnExit::Shutdown, async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        let mut turns = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let state = node.engine.state();
            heartbeat.queued(u64::from(state.waiting) + u64::from(state.running));
            if state.turns != turns {
                turns = state.turns;
                heartbeat.beat();
            }
        }
    });
}

impl Node {
    fn report(&self) -> NodeReport {
        let state = self.engine.state();
        let (device, landing) = (self.memory.pool().occupancy(), self.landing.occupancy());
        let bytes = |slots: u32| ByteCount(u64::from(slots) * self.memory.slot_bytes() as u64);
        NodeReport {
            tiers: vec![
                TierCapacity {
                    tier: Tier::Device,
                    total: bytes(device.total),
                    free: bytes(device.free),
                },
                TierCapacity {
                    tier: Tier::DecodeHost,
                    total: bytes(landing.total),
                    free: bytes(landing.free),
                },
            ],
            queued: state.waiting,
            running: state.running,
            accepting: !self.role.draining().is_cancelled(),
        }
    }

    fn session_count(&self) -> usize {
        self.sessions_max - self.sessions.available_permits()
    }

    /// The node's clock.
    fn now(&self) -> Moment {
        Moment(0) + self.started.elapsed().into()
    }

    /// When a moment of the node's clock comes.
    fn at(&self, moment: Moment) -> Instant {
        self.started + Duration::from_nanos(moment.0)
    }
}
