//! A prefill node: computes prompts in chunks, keeps their sealed blocks in host memory for decode
//! to fetch, writes a second copy to the homes of the plan, and reuses sealed prefixes.
//!
//! It never samples, never decides where copies go, and never sends KV that was not asked for.

mod config;
mod control;
mod host;
mod metrics;
mod run;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use daemon::{ConfigError, Endpoint, Exposure, OnExit, Role, bind};
use engine::{DeviceKv, PrefillEngine, PrefillOptions};
use ids::{ByteCount, ModelDigest, Tier};
use kernels::{Device, HostDevice};
use membership::{Bound, Observed};
use model::Opened;
use placement::{NodeRecord, NodeReport, TierCapacity};
use proto::{ChannelOptions, Channels};
use remote::LeaseLimits;
use tiers::{Copier, CopyLimits};
use tokio_util::task::TaskTracker;
use transfer::tcp::{ClientLimits, ServeLimits, TcpTransport, serve};
use transfer::{HugePages, Slab};

pub use config::Config;

use control::Control;
use host::HostTier;
use metrics::{Metrics, Scraped};

/// Peers whose gRPC channels are kept.
const PEERS_MAX: usize = 1024;

/// gRPC connections open at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 1024;

/// A prefill node at work. It ends with its role.
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
    model: ModelDigest,
    tier: Arc<HostTier>,
    memory: DeviceKv<HostDevice>,
    engine: PrefillEngine,
    /// Held by the prompt that enters the loop next; the others queue for it.
    turn: tokio::sync::Mutex<()>,
    copier: Copier,
    channels: Channels,
    metrics: Metrics,
    role: Role,
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
    let bulk = listen("listen.bulk", config.listen.bulk)?;
    let admin = listen("admin.listen", config.admin.listen)?;
    let bound = Bound { control: control.local_addr()?, bulk: Some(bulk.local_addr()?) };
    let spec = compute.model.spec();
    let mut record = config.node.record(ids::Role::Prefill, bound)?;
    compute.device.numerics_class().clone_into(&mut record.numerics_class);
    record.model = Some(compute.resolved.digest);
    record.block_bytes = ByteCount(spec.slice_bytes() as u64 * spec.shape().slices() as u64);

    let slab = slab(config, &record, spec.slice_bytes())?;
    let limits = LeaseLimits {
        sessions_max: config.lease.sessions_max,
        lease_max: config.lease.max.duration().into(),
    };
    let blocks_max = slab.occupancy().total as usize / spec.shape().slices();
    let tier = Arc::new(HostTier::new(slab, limits, blocks_max));
    let device_bytes = ByteCount(config.device.bytes.get());
    let memory =
        DeviceKv::try_new(&compute.device, spec.shape(), usize::from(spec.head_dim), device_bytes)
            .map_err(|error| ConfigError::invalid("device.bytes", error, "change it"))?;
    let options = PrefillOptions {
        chunk_tokens: config.batch.chunk_tokens,
        active_max: config.batch.active_max,
        waiting_max: config.batch.waiting_max,
    };
    let engine = PrefillEngine::start(Arc::clone(&compute.model), memory.clone(), None, options)?;

    let labels = [("role", "prefill"), ("node", record.id.as_str())];
    let registry = daemon::metrics::registry(&labels)?;
    let transport = Arc::new(TcpTransport::new(ClientLimits::default()));
    let node = Arc::new(Node {
        model: compute.resolved.digest,
        tier: Arc::clone(&tier),
        memory,
        engine,
        turn: tokio::sync::Mutex::new(()),
        copier: Copier::new(transport, CopyLimits::default()),
        channels: Channels::new(ChannelOptions::default(), PEERS_MAX),
        metrics: Metrics::try_new(&registry)?,
        role: role.clone(),
        record: record.clone(),
    });

    Scraped::register(&registry, &node)?;
    serve_bulk(config, role, bulk, Arc::clone(&tier))?;
    serve_control(role, control, &node)?;
    watch(config, role, &node);
    let admin = role.serve_admin(admin, config.admin.connections_max, vec![registry.clone()])?;
    membership::join(&config.membership, role, record.clone())?;
    let holding = Arc::clone(&node);
    role.on_drain("let sessions end", async move {
        holding.tier.emptied().await;
    });
    role.readiness().started();
    Ok(Running { record, admin, registry })
}

fn slab(config: &Config, record: &NodeRecord, slice_bytes: usize) -> anyhow::Result<Slab> {
    let size = config.host.bytes;
    if size.get() < record.block_bytes.0 {
        let problem = format!("is {size}; one block of this model takes {}", record.block_bytes);
        return Err(ConfigError::invalid("host.bytes", problem, "raise it").into());
    }
    // Pages are backed when first used: without this check a node would be killed in the middle
    // of its work.
    if let Ok(available) = daemon::available_memory()
        && available.get() < size.get().saturating_add(config.device.bytes.get())
    {
        let problem = format!(
            "{size} and device.bytes {} are wanted, but only {} can be had",
            config.device.bytes,
            available.approx()
        );
        let remedy = "lower one of them, or free memory on this host";
        return Err(ConfigError::invalid("host.bytes", problem, remedy).into());
    }
    let slots = u32::try_from(size.get() / slice_bytes as u64).map_err(|_| {
        ConfigError::invalid("host.bytes", "holds more than 2^32 slices", "lower it")
    })?;
    let huge = if config.host.huge_pages { HugePages::Auto } else { HugePages::Off };
    Slab::try_new(slots, slice_bytes, huge).context("host.bytes: no memory for the slab")
}

fn serve_bulk(
    config: &Config,
    role: &Role,
    listener: std::net::TcpListener,
    tier: Arc<HostTier>,
) -> anyhow::Result<()> {
    let limits =
        ServeLimits { connections_max: config.host.connections_max, ..ServeLimits::default() };
    let tracker = TaskTracker::new();
    serve(listener, tier, limits, &tracker, role.stop())?;
    let stop = role.stop();
    role.spawn("bulk transport", OnExit::Ignore, async move {
        stop.cancelled().await;
        tracker.close();
        tracker.wait().await;
    });
    Ok(())
}

fn serve_control(
    role: &Role,
    listener: std::net::TcpListener,
    node: &Arc<Node>,
) -> anyhow::Result<()> {
    let reporter = Arc::clone(node);
    let observed = Observed::serve(Arc::new(move || reporter.report()), role.stop());
    let control = Control::new(Arc::clone(node));
    let incoming = proto::incoming(listener, CONNECTIONS_MAX)?;
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(proto::server::reservations(control.clone()))
        .add_service(proto::server::prefill(control))
        .add_service(observed)
        .serve_with_incoming_shutdown(incoming, role.stop().cancelled_owned());
    role.spawn("control services", OnExit::Shutdown, serving);
    Ok(())
}

/// Ends leases on time, and tells liveness how the loop is doing.
fn watch(config: &Config, role: &Role, node: &Arc<Node>) {
    let heartbeat = role.heartbeat("prefill loop", config.admin.stall.duration());
    let (stop, node) = (role.stop(), Arc::clone(node));
    role.spawn("lease timer", OnExit::Shutdown, async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        let mut turns = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            node.metrics.sessions_expired.inc_by(node.tier.expire() as u64);
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
        let queued = u32::try_from(self.metrics.queued.get()).unwrap_or(0);
        let device = self.memory.pool().occupancy();
        let bytes = |slots: u32| ByteCount(u64::from(slots) * self.memory.slot_bytes() as u64);
        NodeReport {
            tiers: vec![
                TierCapacity {
                    tier: Tier::Device,
                    total: bytes(device.total),
                    free: bytes(device.free),
                },
                self.tier.capacity(),
            ],
            queued: state.waiting.saturating_add(queued),
            running: state.running,
            accepting: !self.role.draining().is_cancelled(),
        }
    }
}
