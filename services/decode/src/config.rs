//! Configuration of the decode role. The field docs are the manual.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;

use daemon::{
    AdminConfig, ByteSize, ConfigError, DrainConfig, Exposure, LogConfig, Settings, Span,
};
use membership::{JoinConfig, NodeConfig};
use model::ComputeConfig;
use serde::{Deserialize, Serialize};

/// Everything a decode node is told.
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
    /// Host memory: staging in this version.
    pub host: HostConfig,
    /// The loop.
    pub batch: BatchConfig,
    /// Sessions.
    pub session: SessionConfig,
}

/// Where the node listens. Port 0 lets the system choose; what is bound is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// gRPC.
    pub control: SocketAddr,
}

/// Device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// KV memory of the device: in this version all KV of the sequences in work must fit.
    pub bytes: ByteSize,
}

/// Host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Memory where slices land before they are verified and brought to the device.
    pub bytes: ByteSize,
    /// Ask for huge pages.
    pub huge_pages: bool,
}

/// Bounds of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Sequences in one step.
    pub sequences_max: NonZeroUsize,
    /// Sequences that may wait for a place.
    pub waiting_max: NonZeroUsize,
    /// Tokens that a slow reader may leave unread before its sequence sits steps out.
    pub unread_max: NonZeroUsize,
}

/// Sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Sessions at once, in whatever phase; one more is refused.
    pub sessions_max: usize,
    /// Longest wait for the answer to one reservation.
    pub reserve_wait_max: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            insecure: false,
            log: LogConfig::default(),
            drain: DrainConfig::default(),
            admin: AdminConfig::default(),
            node: NodeConfig::first_of(ids::Role::Decode),
            listen: ListenConfig::default(),
            membership: JoinConfig::default(),
            model: ComputeConfig::default(),
            device: DeviceConfig::default(),
            host: HostConfig::default(),
            batch: BatchConfig::default(),
            session: SessionConfig::default(),
        }
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { control: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512) }
    }
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(64), huge_pages: true }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        let number = |n| NonZeroUsize::new(n).expect("not zero");
        Self { sequences_max: number(32), waiting_max: number(512), unread_max: number(64) }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { sessions_max: 512, reserve_wait_max: Span::secs(2) }
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
        let sockets =
            [("listen.control", self.listen.control), ("admin.listen", self.admin.listen)];
        for (field, address) in sockets {
            exposure.check(field, address)?;
        }
        self.node.check()?;
        self.membership.check()?;
        self.model.check().map_err(|invalid| {
            ConfigError::invalid(invalid.field, invalid.problem, "correct it")
        })?;
        let positive = [
            ("session.sessions_max", self.session.sessions_max > 0),
            ("session.reserve_wait_max", !self.session.reserve_wait_max.is_zero()),
        ];
        match positive.into_iter().find(|(_, ok)| !ok) {
            Some((field, _)) => Err(ConfigError::invalid(field, "must be above zero", "raise it")),
            // Else a session whose prompt was computed and fetched could be refused at the end.
            None if self.batch.waiting_max.get() < self.session.sessions_max => {
                let problem = format!(
                    "is {}, but session.sessions_max {} may come to wait",
                    self.batch.waiting_max, self.session.sessions_max
                );
                let remedy = "raise it to session.sessions_max";
                Err(ConfigError::invalid("batch.waiting_max", problem, remedy))
            }
            None => Ok(()),
        }
    }
}
