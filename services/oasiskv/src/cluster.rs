//! A whole cluster in one process: every role behind its real gRPC interface on loopback, embedded
//! membership, TCP between them. Only the weights are shared.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use daemon::{AdminConfig, ByteSize, ConfigError, Daemon};
use gateway::{Gateway, ServedModel};
use kernels::HostDevice;
use model::Opened;

use crate::config::Config;

/// Longest wait for all roles to be ready: they are in this process, so it is milliseconds.
const READY_WAIT_MAX: Duration = Duration::from_secs(20);

/// A line of the table that `up` prints.
pub(crate) struct Line {
    pub(crate) role: String,
    /// Where it serves its peers or clients.
    pub(crate) address: String,
    /// Probes and metrics.
    pub(crate) admin: SocketAddr,
    /// The tiers it holds, with their sizes.
    pub(crate) memory: Vec<(&'static str, ByteSize)>,
}

/// What was started.
pub(crate) struct Cluster {
    /// The public address.
    pub(crate) gateway: SocketAddr,
    /// What the API calls the model.
    pub(crate) model: String,
    /// In the order of a request's way, memory nodes last.
    pub(crate) lines: Vec<Line>,
}

impl Cluster {
    /// Starts all roles and waits until the gateway can route.
    pub(crate) async fn start(
        config: &Config,
        opened: &Opened<HostDevice>,
        daemon: &Daemon,
    ) -> anyhow::Result<Self> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // Drained from the last to the first: who others need comes first.
        let coordinator = coordinator::start(
            &coordinator::Config {
                listen: any_port,
                admin: AdminConfig::default(),
                ..coordinator::Config::default()
            },
            &daemon.role("coordinator"),
        )
        .context("coordinator")?;
        let registry = coordinator.address.to_string();
        let mut lines = Vec::new();
        for index in 0..config.memory.nodes {
            lines.push(memory_node(config, opened, daemon, &registry, index)?);
        }
        lines.insert(0, decode(config, opened, daemon, &registry)?);
        lines.insert(0, prefill(config, opened, daemon, &registry)?);
        lines.insert(
            0,
            Line {
                role: "coordinator".to_owned(),
                address: registry.clone(),
                admin: coordinator.admin,
                memory: Vec::new(),
            },
        );
        let served = ServedModel::open(&opened.resolved).context("gateway")?;
        let mut gateway = gateway::Config {
            listen: config.listen,
            insecure: config.insecure,
            admin: AdminConfig::default(),
            ..gateway::Config::default()
        };
        gateway.coordinator.address = registry;
        gateway.coordinator.refresh = daemon::Span::millis(50);
        let model = served.name().to_owned();
        let started = Gateway::start(&gateway, Arc::new(served), &daemon.role("gateway"))?;
        lines.insert(
            0,
            Line {
                role: "gateway".to_owned(),
                address: started.address.to_string(),
                admin: started.admin,
                memory: Vec::new(),
            },
        );
        ready(daemon).await?;
        Ok(Self { gateway: started.address, model, lines })
    }
}

fn memory_node(
    config: &Config,
    opened: &Opened<HostDevice>,
    daemon: &Daemon,
    registry: &str,
    index: usize,
) -> anyhow::Result<Line> {
    let name = format!("memory-{index}");
    let mut node = memory_node::Config::default();
    node.node.id.clone_from(&name);
    node.membership.coordinator = registry.to_owned();
    node.admin = AdminConfig::default();
    node.slab.size = config.memory.remote;
    node.slab.slice = ByteSize::bytes(opened.model.spec().slice_bytes() as u64);
    node.slab.huge_pages = config.model.huge_pages;
    let running = memory_node::start(node, &daemon.role(&name))
        .map_err(|error| in_own_words(error, &[("slab.size", "memory.remote")]))
        .context(name.clone())?;
    Ok(Line {
        role: name,
        address: running.record.control,
        admin: running.admin,
        memory: vec![("remote", config.memory.remote)],
    })
}

fn prefill(
    config: &Config,
    opened: &Opened<HostDevice>,
    daemon: &Daemon,
    registry: &str,
) -> anyhow::Result<Line> {
    let mut node = prefill::Config { model: config.model.clone(), ..prefill::Config::default() };
    node.membership.coordinator = registry.to_owned();
    node.admin = AdminConfig::default();
    node.device.bytes = config.memory.prefill_device;
    node.host.bytes = config.memory.prefill_host;
    node.host.huge_pages = config.model.huge_pages;
    let keys = [("device.bytes", "memory.prefill_device"), ("host.bytes", "memory.prefill_host")];
    let running = prefill::start(&node, opened, &daemon.role("prefill"))
        .map_err(|error| in_own_words(error, &keys))
        .context("prefill")?;
    Ok(Line {
        role: "prefill".to_owned(),
        address: running.record.control,
        admin: running.admin,
        memory: vec![
            ("device", config.memory.prefill_device),
            ("prefill host", config.memory.prefill_host),
        ],
    })
}

fn decode(
    config: &Config,
    opened: &Opened<HostDevice>,
    daemon: &Daemon,
    registry: &str,
) -> anyhow::Result<Line> {
    let mut node = decode::Config { model: config.model.clone(), ..decode::Config::default() };
    node.membership.coordinator = registry.to_owned();
    node.admin = AdminConfig::default();
    node.device.bytes = config.memory.device;
    node.host.bytes = config.memory.decode_host;
    node.host.huge_pages = config.model.huge_pages;
    let keys = [("device.bytes", "memory.device"), ("host.bytes", "memory.decode_host")];
    let running = decode::start(&node, opened, &daemon.role("decode"))
        .map_err(|error| in_own_words(error, &keys))
        .context("decode")?;
    Ok(Line {
        role: "decode".to_owned(),
        address: running.record.control,
        admin: running.admin,
        memory: vec![("device", config.memory.device), ("decode host", config.memory.decode_host)],
    })
}

/// A role's complaint about its configuration names its own keys; here the same sizes have others.
fn in_own_words(error: anyhow::Error, keys: &[(&str, &str)]) -> anyhow::Error {
    let renamed =
        |text: String| keys.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours));
    match error.downcast() {
        Ok(ConfigError::Invalid { field, problem, remedy }) => ConfigError::Invalid {
            field: renamed(field),
            problem: renamed(problem),
            remedy: renamed(remedy),
        }
        .into(),
        Ok(other) => other.into(),
        Err(other) => other,
    }
}

/// Waits until every role is ready.
async fn ready(daemon: &Daemon) -> anyhow::Result<()> {
    let all = async {
        loop {
            let failed: Vec<String> = daemon
                .probes()
                .iter()
                .flat_map(|probes| {
                    let role = probes.role.clone();
                    let failed = probes.readiness.failed();
                    failed.into_iter().map(move |failed| format!("{role}: {}", failed.reason))
                })
                .collect();
            if failed.is_empty() {
                return;
            }
            tracing::debug!(?failed, "not ready yet");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(READY_WAIT_MAX, all).await;
    waited.context("the roles did not become ready; --log-level debug tells which condition fails")
}
