//! The coordinator: knows the nodes, and plans each request once.
//!
//! It hosts the embedded membership, listens to every node that holds KV, and answers `Admit` with
//! an immutable plan or a refusal (crate `placement` decides). It sees no token and no KV, and it
//! is not on the path of a request that has its plan. Its state is soft: after a restart the nodes
//! register and report again. One coordinator; several need etcd, which is not here yet.

mod cluster;
pub mod config;
mod metrics;
mod observe;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use daemon::{Condition, Endpoint, Exposure, OnExit, Role, bind};
use ids::Term;
use membership::{LeaseId, Membership, Registry, Service};

pub use config::Config;

use cluster::{Admission, Cluster, NEEDED};
use metrics::Metrics;
use observe::{Follower, Patience};

/// How often readiness and the gauges are brought up to date.
const SURVEY_EVERY: Duration = Duration::from_millis(100);

/// gRPC connections open at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 1024;

/// A coordinator at work. It ends with its role.
#[derive(Debug)]
pub struct Running {
    /// Its gRPC services: `Coordinator` and `Membership`.
    pub address: SocketAddr,
    /// Its admin endpoint.
    pub admin: SocketAddr,
    /// Its metrics, for another page to join.
    pub registry: prometheus::Registry,
}

/// Binds, serves, and listens to whoever registers. Inside a runtime only.
///
/// # Errors
/// Bind errors, with field and remedy; what was started ends with the role's drain.
pub fn start(config: &Config, role: &Role) -> anyhow::Result<Running> {
    let exposure = Exposure::from_insecure(config.insecure);
    let listen = |field, address| {
        let endpoint = Endpoint { role: role.name(), field, address };
        bind(endpoint, exposure)
    };
    let listener = listen("listen", config.listen)?;
    let admin = listen("admin.listen", config.admin.listen)?;
    let address = listener.local_addr()?;

    // Higher at each start: nodes tell a coordinator's restart by it, and leases of an earlier
    // start are unknown to this one.
    let incarnation = membership::incarnation();
    let registry = daemon::metrics::registry(&[("role", "coordinator")])?;
    let metrics = Metrics::try_new(&registry)?;
    let cluster = Arc::new(Cluster::new(config.view(), Term(incarnation.0), metrics));
    let nodes = Registry::new(config.registry(), LeaseId(incarnation.0));

    let (stop, expiring) = (role.stop(), nodes.clone());
    role.spawn("membership leases", OnExit::Shutdown, async move {
        stop.run_until_cancelled(expiring.expire()).await;
    });
    let follower = Follower {
        membership: Membership::Memory(nodes.clone()),
        cluster: Arc::clone(&cluster),
        role: role.clone(),
        patience: Patience {
            channels: config.channels(),
            silence_max: config.observe.silence_max.duration(),
            retry_max: config.observe.retry_max.duration(),
        },
        observed: BTreeMap::new(),
    };
    let stop = role.stop();
    role.spawn("membership watch", OnExit::Shutdown, async move {
        stop.run_until_cancelled(follower.run()).await;
    });
    survey(role, Arc::clone(&cluster));
    serve(config, role, listener, nodes, cluster)?;
    let admin = role.serve_admin(admin, config.admin.connections_max, vec![registry.clone()])?;
    role.readiness().started();
    Ok(Running { address, admin, registry })
}

fn serve(
    config: &Config,
    role: &Role,
    listener: std::net::TcpListener,
    nodes: Registry,
    cluster: Arc<Cluster>,
) -> anyhow::Result<()> {
    let incoming = proto::incoming(listener, CONNECTIONS_MAX)?;
    let closing = nodes.clone();
    let serving = tonic::transport::Server::builder()
        .max_concurrent_streams(Some(config.limits.calls_per_connection_max))
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(proto::server::coordinator(Admission(cluster)))
        .add_service(Service::serve(nodes))
        .serve_with_incoming_shutdown(incoming, role.stop().cancelled_owned());
    role.spawn("gRPC services", OnExit::Shutdown, serving);
    // Watches are streams without an end of their own: the server waits for them.
    let stop = role.stop();
    role.spawn("close the membership", OnExit::Ignore, async move {
        stop.cancelled().await;
        closing.close();
    });
    Ok(())
}

/// Ready when every role that a plan needs is there.
fn survey(role: &Role, cluster: Arc<Cluster>) {
    let conditions: Vec<Condition> =
        NEEDED.iter().map(|needed| role.readiness().condition(needed.name())).collect();
    let stop = role.stop();
    let watching = async move {
        let mut tick = tokio::time::interval(SURVEY_EVERY);
        loop {
            tick.tick().await;
            for ((needed, live), condition) in cluster.survey().into_iter().zip(&conditions) {
                if live > 0 {
                    condition.hold();
                } else {
                    condition.fail(format!("no {needed} node reports and accepts work"));
                }
            }
        }
    };
    role.spawn("survey", OnExit::Shutdown, async move {
        stop.run_until_cancelled(watching).await;
    });
}
