//! Configuration of the all-in-one process: few keys, because all roles share one host.
//!
//! A role's own keys belong to its own program; what is not here has that program's defaults.

use std::net::{Ipv4Addr, SocketAddr};

use daemon::{ByteSize, ConfigError, DrainConfig, Exposure, LogConfig, LogLevel, Settings};
use model::ComputeConfig;
use serde::{Deserialize, Serialize};

/// Everything that `oasiskv up` and `oasiskv run` can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The public address of the OpenAI API.
    pub(crate) listen: SocketAddr,
    /// Allow an address that other hosts can reach, without encryption.
    pub(crate) insecure: bool,
    /// Which weights, and how they are run.
    pub(crate) model: ComputeConfig,
    /// The pools.
    pub(crate) memory: MemoryConfig,
    /// What is logged.
    pub(crate) log: LogConfig,
    /// How long an orderly end may take.
    pub(crate) drain: DrainConfig,
}

/// The same for a command that starts a cluster for itself, perhaps beside one that is up: its
/// gateway takes a free port unless told otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Private(pub(crate) Config);

/// The same for a command that only talks to a gateway: what is set for a cluster may stand there
/// and is not held against this host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Visiting(pub(crate) Config);

/// The pools of all tiers. Pages are taken from the host when first used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MemoryConfig {
    /// KV memory of decode's device.
    pub(crate) device: ByteSize,
    /// Memory of the decode host, where slices land.
    pub(crate) decode_host: ByteSize,
    /// KV memory of prefill's device.
    pub(crate) prefill_device: ByteSize,
    /// Memory of the prefill host for sealed blocks.
    pub(crate) prefill_host: ByteSize,
    /// Memory of each memory node.
    pub(crate) remote: ByteSize,
    /// How many memory nodes.
    pub(crate) nodes: usize,
}

impl Default for Config {
    fn default() -> Self {
        let log = LogConfig { level: LogLevel::Warn, ..LogConfig::default() };
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            insecure: false,
            model: ComputeConfig::default(),
            memory: MemoryConfig::default(),
            log,
            drain: DrainConfig::default(),
        }
    }
}

impl Default for MemoryConfig {
    /// Room for several sequences of 8,192 tokens of the default model, which take 180 MiB each.
    fn default() -> Self {
        Self {
            device: ByteSize::mib(512),
            decode_host: ByteSize::mib(64),
            prefill_device: ByteSize::mib(256),
            prefill_host: ByteSize::mib(512),
            remote: ByteSize::mib(256),
            nodes: 2,
        }
    }
}

impl MemoryConfig {
    /// All pools together.
    pub(crate) fn total(&self) -> ByteSize {
        let one = [self.device, self.decode_host, self.prefill_device, self.prefill_host];
        let one = one.iter().fold(0, |sum: u64, size| sum.saturating_add(size.get()));
        ByteSize::bytes(one.saturating_add(self.remote.get().saturating_mul(self.nodes as u64)))
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
        Exposure::from_insecure(self.insecure).check("listen", self.listen)?;
        self.model.check().map_err(|invalid| {
            ConfigError::invalid(invalid.field, invalid.problem, "correct it")
        })?;
        if self.memory.nodes == 0 || self.memory.nodes > 64 {
            return Err(ConfigError::invalid("memory.nodes", "must be 1 to 64", "change it"));
        }
        let total = self.memory.total();
        if let Ok(available) = daemon::available_memory()
            && available < total
        {
            let problem = format!(
                "all pools together are {}, but only {} can be had",
                total.approx(),
                available.approx()
            );
            let remedy = "lower memory.device, memory.prefill_host or memory.remote";
            return Err(ConfigError::invalid("memory", problem, remedy));
        }
        Ok(())
    }
}

impl Default for Private {
    fn default() -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self(Config { listen, ..Config::default() })
    }
}

impl Settings for Private {
    fn log(&self) -> &LogConfig {
        self.0.log()
    }

    fn drain(&self) -> DrainConfig {
        self.0.drain
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.check()
    }
}

impl Settings for Visiting {
    fn log(&self) -> &LogConfig {
        self.0.log()
    }

    fn drain(&self) -> DrainConfig {
        self.0.drain
    }

    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}
