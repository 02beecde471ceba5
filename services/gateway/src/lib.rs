//! The gateway: OpenAI's HTTP interface in front of the cluster. It renders, encodes and checks a
//! request once, asks the coordinator for a plan, and streams what decode samples.
//! What it deliberately does not do: compute, hold KV, or remember a request after its answer.

use std::net::SocketAddr;
use std::sync::Arc;

use daemon::{BoundedListener, Condition, Endpoint, Exposure, HttpServer, OnExit, Role};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::sleep;

mod answer;
mod api;
mod cluster;
mod config;
mod generate;
mod metrics;
mod pressure;
mod queue;
mod stops;
mod text;

pub use config::{Config, CoordinatorConfig, LimitsConfig, ModelConfig, QueueConfig, StreamConfig};
pub use text::{ModelError, ServedModel};

use api::Api;
use cluster::Cluster;
use generate::{Generator, Ingredients};
use metrics::Metrics;

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    /// The public address.
    pub address: SocketAddr,
    /// The admin endpoint's address.
    pub admin: SocketAddr,
}

/// Why a gateway did not start. What it had begun ends with its role.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be had.
    #[error("cannot listen")]
    Bind(#[from] daemon::BindError),
    /// The coordinator's address is malformed.
    #[error("`coordinator.address`")]
    Coordinator(#[from] proto::InvalidAddress),
    /// A metric clashes with another.
    #[error("cannot register the gateway's metrics")]
    Metrics(#[from] prometheus::Error),
    /// The system refused a socket or a thread.
    #[error("cannot serve")]
    System(#[from] std::io::Error),
}

impl Gateway {
    /// Binds, registers and serves as tasks of `role`; ready once the cluster is. Inside a runtime
    /// only.
    ///
    /// # Errors
    /// [`StartError`], which names the setting.
    pub fn start(
        config: &Config,
        model: Arc<ServedModel>,
        role: &Role,
    ) -> Result<Self, StartError> {
        let exposure = Exposure::from_insecure(config.insecure);
        let socket =
            |field, address| daemon::bind(Endpoint { role: role.name(), field, address }, exposure);
        let public = socket("listen", config.listen)?;
        let admin = socket("admin.listen", config.admin.listen)?;
        let address = public.local_addr()?;

        let registry = daemon::metrics::registry(&[])?;
        let metrics = metrics(&registry, &model, config)?;
        let cluster = Arc::new(Cluster::try_new(&config.coordinator)?);
        let class = Arc::new(Mutex::new(String::new()));
        let generator = Generator::new(Ingredients {
            role: role.clone(),
            cluster: Arc::clone(&cluster),
            model: Arc::clone(&model),
            metrics: Arc::clone(&metrics),
            queue: config.queue.clone(),
            stream: config.stream.clone(),
            class: Arc::clone(&class),
        });
        let watch = Watch {
            cluster,
            model: Arc::clone(&model),
            class,
            ready: role.readiness().condition("cluster"),
            metrics: Arc::clone(&metrics),
        };
        let every = config.coordinator.refresh.duration();
        let stop = role.stop();
        role.spawn("watch cluster", OnExit::Ignore, async move {
            stop.run_until_cancelled(watch.run(every)).await;
        });

        let beside = daemon::admin::router(vec![role.probes()], vec![registry.clone()]);
        let router =
            Api::new(model, metrics, generator, config.clone(), role.draining()).router(beside);
        let listener = BoundedListener::try_new(public, config.limits.connections_max)?;
        let head_wait_max = config.limits.head_wait_max.duration();
        serve(role, HttpServer::new(listener, router, head_wait_max));
        let admin = role.serve_admin(admin, config.admin.connections_max, vec![registry])?;
        role.readiness().started();
        tracing::info!(%address, %admin, "the gateway serves");
        Ok(Self { address, admin })
    }
}

fn metrics(
    registry: &Registry,
    model: &ServedModel,
    config: &Config,
) -> Result<Arc<Metrics>, prometheus::Error> {
    let limits = [
        ("queue.waiting_max", config.queue.waiting_max as u64),
        ("limits.requests_max", config.limits.requests_max as u64),
        ("limits.connections_max", config.limits.connections_max as u64),
        ("limits.body_max", config.limits.body_max.get()),
        ("stream.buffer", config.stream.buffer as u64),
    ];
    Metrics::try_new(registry, model.name(), &limits).map(Arc::new)
}

/// Serves until the end of the drain. Open answers get the drain's grace to finish; meanwhile the
/// port stays open, so that probes are answered and new requests are told to go elsewhere.
fn serve(role: &Role, server: HttpServer) {
    let open = server.requests();
    role.spawn("serve", OnExit::Shutdown, server.run(role.stop()));
    role.on_drain("finish answers", async move { open.none().await });
}

/// Keeps readiness and the expected numerics class up to date.
struct Watch {
    cluster: Arc<Cluster>,
    model: Arc<ServedModel>,
    class: Arc<Mutex<String>>,
    ready: Condition,
    metrics: Arc<Metrics>,
}

impl Watch {
    async fn run(self, every: std::time::Duration) {
        loop {
            let survey = match self.cluster.nodes().await {
                Ok(nodes) => {
                    let model = self.model.digest();
                    self.metrics.pressure(pressure::pressure(&nodes, model));
                    cluster::survey(&nodes, model)
                }
                Err(status) => {
                    tracing::debug!(%status, "the coordinator does not answer");
                    Err("the coordinator does not answer".to_owned())
                }
            };
            match survey {
                Ok(class) => {
                    *self.class.lock() = class;
                    self.ready.hold();
                }
                Err(missing) => self.ready.fail(missing),
            }
            sleep(every).await;
        }
    }
}
