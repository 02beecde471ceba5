//! Configuration of the prefill role. The field docs are the manual.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use daemon::{
    AdminConfig, ByteSize, ConfigError, DrainConfig, Exposure, LogConfig, Settings, Span,
};
use membership::{JoinConfig, NodeConfig};
use model::ComputeConfig;
use serde::{Deserialize, Serialize};

/// Longest chunk: beyond it a pass takes seconds, and so does a cancel (P6).
const CHUNK_TOKENS_MAX: usize = 8_192;

/// Everything a prefill node is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Allow addresses that other hosts can reach, without encryption.
    pub insecure: bool,
    /// What is logged.
    pub log: LogConfig,
    /// How long an orderly end may take.
    pub drain: DrainConfig,
    /// Probes and metrics.
    pub admin: AdminConfig,
    /// Who the node is.
    pub node: NodeConfig,
    /// Where it listens.
    pub listen: ListenConfig,
    /// Where the registry is.
    pub membership: JoinConfig,
    /// Which weights, and the device they run on.
    pub model: ComputeConfig,
    /// Device memory.
    pub device: DeviceConfig,
    /// Host memory for sealed blocks.
    pub host: HostConfig,
    /// The loop.
    pub batch: BatchConfig,
    /// Sessions.
    pub lease: LeaseConfig,
}

/// Where the node listens. Port 0 lets the system choose; what is bound is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// gRPC.
    pub control: SocketAddr,
    /// Bulk transport.
    pub bulk: SocketAddr,
}

/// Device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// KV memory of the device: prompts that are being computed must fit.
    pub bytes: ByteSize,
}

/// Host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Memory for sealed blocks: those of live sessions, and as cache for later prompts.
    pub bytes: ByteSize,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// Bulk connections at once.
    pub connections_max: usize,
}

/// Bounds of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Tokens computed in one pass.
    pub chunk_tokens: NonZeroUsize,
    /// Prompts worked on in turn.
    pub active_max: NonZeroUsize,
    /// Prompts that may wait.
    pub waiting_max: NonZeroUsize,
}

/// Sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Sessions held at once.
    pub sessions_max: usize,
    /// Longest lease granted.
    pub max: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            insecure: false,
            log: LogConfig::default(),
            drain: DrainConfig::default(),
            admin: AdminConfig::default(),
            node: NodeConfig::first_of(ids::Role::Prefill),
            listen: ListenConfig::default(),
            membership: JoinConfig::default(),
            model: ComputeConfig::default(),
            device: DeviceConfig::default(),
            host: HostConfig::default(),
            batch: BatchConfig::default(),
            lease: LeaseConfig::default(),
        }
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { control: any_port, bulk: any_port }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(256) }
    }
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512), huge_pages: true, connections_max: 256 }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        let number = |n| NonZeroUsize::new(n).expect("not zero");
        Self { chunk_tokens: number(256), active_max: number(4), waiting_max: number(256) }
    }
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self { sessions_max: 1024, max: Span::secs(30) }
    }
}

impl Settings for Config {
    fn log(&self) -> &LogConfig {
        &self.log
    }

    fn drain(&self) -> DrainConfig {
        self.drain
    }

    fn check(&self) -> Result<(), ConfigError> {
        let exposure = Exposure::from_insecure(self.insecure);
        let sockets = [
            ("listen.control", self.listen.control),
            ("listen.bulk", self.listen.bulk),
            ("admin.listen", self.admin.listen),
        ];
        for (field, address) in sockets {
            exposure.check(field, address)?;
        }
        self.node.check()?;
        self.membership.check()?;
        self.model.check().map_err(|invalid| {
            ConfigError::invalid(invalid.field, invalid.problem, "correct it")
        })?;
        if self.batch.chunk_tokens.get() > CHUNK_TOKENS_MAX {
            let problem = format!("must be at most {CHUNK_TOKENS_MAX}");
            let remedy = "lower it: activations of a whole chunk are in memory at once";
            return Err(ConfigError::invalid("batch.chunk_tokens", problem, remedy));
        }
        let positive = [
            ("host.connections_max", self.host.connections_max > 0),
            ("lease.sessions_max", self.lease.sessions_max > 0),
            ("lease.max", !self.lease.max.is_zero()),
        ];
        match positive.into_iter().find(|(_, ok)| !ok) {
            Some((field, _)) => Err(ConfigError::invalid(field, "must be above zero", "raise it")),
            None => Ok(()),
        }
    }
}
