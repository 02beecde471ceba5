//! A memory node: lends host memory to sessions, keeps verified copies of sealed blocks, and
//! hands them out to whoever holds the session's grant.
//!
//! It learns slices, not models; verifies what is written to it against the writer's receipts and
//! never interprets it; plans nothing. Slices of one size: several size classes are not here yet.

pub mod config;
mod control;
mod metrics;
mod shelf;
mod status;
mod store;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use daemon::{ConfigError, Endpoint, Exposure, OnExit, Role, bind};
use ids::{ByteCount, Tier};
use membership::{Bound, Observed};
use placement::{NodeRecord, NodeReport, TierCapacity};
use prometheus::Registry;
use remote::LeaseLimits;
use tokio_util::task::TaskTracker;
use transfer::tcp::{ServeLimits, serve};
use transfer::{HugePages, Slab};

pub use config::Config;

use control::Control;
use metrics::{Events, Scraped};
use shelf::Shelf;
use store::Counts;

/// gRPC connections open at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 1024;

/// A memory node at work. It ends with its role.
#[derive(Debug)]
pub struct Running {
    /// What it registered as.
    pub record: NodeRecord,
    /// Its admin endpoint.
    pub admin: SocketAddr,
    /// Its metrics, for another page to join.
    pub registry: Registry,
}

/// Binds, maps the slab, serves, and registers: last, so that nobody sees it before it can answer.
///
/// # Errors
/// [`ConfigError`] and bind errors inside, with field and remedy; nothing is left behind but what
/// the role's drain ends.
pub fn start(config: Config, role: &Role) -> anyhow::Result<Running> {
    let exposure = Exposure::from_insecure(config.insecure);
    let listen = |field, address| {
        let endpoint = Endpoint { role: role.name(), field, address };
        bind(endpoint, exposure)
    };
    let control = listen("listen.control", config.listen.control)?;
    let bulk = listen("listen.bulk", config.listen.bulk)?;
    let admin = listen("admin.listen", config.admin.listen)?;
    let bound = Bound { control: control.local_addr()?, bulk: Some(bulk.local_addr()?) };
    let record = config.node.record(ids::Role::Memory, bound)?;
    let registry = daemon::metrics::registry(&[("role", "memory"), ("node", record.id.as_str())])?;

    let slab = slab(&config)?;
    let limits = LeaseLimits {
        sessions_max: config.limits.sessions_max,
        lease_max: config.limits.lease_max.duration().into(),
    };
    let shelf = Arc::new(Shelf::new(slab, limits, Events::try_new(&registry)?));
    let counters = Arc::new(OnceLock::new());
    Scraped::register(&registry, Arc::clone(&shelf), Arc::clone(&counters))?;

    let tracker = TaskTracker::new();
    let gate = Arc::clone(&shelf);
    let serving = serve(bulk, gate, bulk_limits(&config), &tracker, role.stop())?;
    counters.get_or_init(|| serving.counters);
    let stop = role.stop();
    role.spawn("bulk transport", OnExit::Ignore, async move {
        stop.cancelled().await;
        tracker.close();
        tracker.wait().await;
    });
    let (stop, expiring) = (role.stop(), Arc::clone(&shelf));
    role.spawn("lease timer", OnExit::Shutdown, async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = expiring.expire() => {}
        }
    });
    serve_control(&config, role, control, Arc::clone(&shelf))?;
    let admin = role.serve_admin(admin, config.admin.connections_max, vec![registry.clone()])?;
    membership::join(&config.membership, role, record.clone())?;
    role.on_drain("let sessions end", async move { shelf.drain().await });
    role.readiness().started();
    Ok(Running { record, admin, registry })
}

fn slab(config: &Config) -> anyhow::Result<Slab> {
    let size = config.slab.size;
    // Pages are backed when first used: without this check a node would be killed in the middle
    // of its work.
    if let Ok(available) = daemon::available_memory()
        && available < size
    {
        let problem = format!("is {size}, but only {} can be had", available.approx());
        let remedy = "lower it, or free memory on this host";
        return Err(ConfigError::invalid("slab.size", problem, remedy).into());
    }
    let huge = if config.slab.huge_pages { HugePages::Auto } else { HugePages::Off };
    let (slots, slice_bytes) = (config.slab.slots()?, config.slab.slice.as_usize());
    Slab::try_new(slots, slice_bytes, huge).context("slab.size: no memory for the slab")
}

fn bulk_limits(config: &Config) -> ServeLimits {
    let refs = config.limits.refs_per_frame_max;
    ServeLimits {
        connections_max: config.limits.connections_max,
        refs_per_frame_max: refs,
        frame_bytes_max: u64::from(refs) * config.slab.slice.get(),
        frame_wait_max: config.limits.frame_wait_max.duration(),
        ..ServeLimits::default()
    }
}

fn serve_control(
    config: &Config,
    role: &Role,
    listener: std::net::TcpListener,
    shelf: Arc<Shelf>,
) -> anyhow::Result<()> {
    let (slice_bytes, draining) = (config.slab.slice.get(), role.draining());
    let reporting = Arc::clone(&shelf);
    let report = move || report(&reporting.counts(), slice_bytes, !draining.is_cancelled());
    let control = Control::new(shelf);
    let incoming = proto::incoming(listener, CONNECTIONS_MAX)?;
    let serving = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(config.limits.calls_per_connection_max)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(proto::server::reservations(control.clone()))
        .add_service(proto::server::memory_node(control))
        .add_service(Observed::serve(Arc::new(report), role.stop()))
        .serve_with_incoming_shutdown(incoming, role.stop().cancelled_owned());
    role.spawn("control services", OnExit::Shutdown, serving);
    Ok(())
}

fn report(counts: &Counts, slice_bytes: u64, accepting: bool) -> NodeReport {
    let bytes = |slices: u32| ByteCount(u64::from(slices) * slice_bytes);
    NodeReport {
        tiers: vec![TierCapacity {
            tier: Tier::Remote,
            total: bytes(counts.total),
            free: bytes(counts.total - counts.reserved),
        }],
        queued: 0,
        running: counts.sessions,
        accepting,
    }
}
