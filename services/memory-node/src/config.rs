//! The memory node's configuration. The field docs are the manual.
//! What it deliberately does not do: read files or the environment; `daemon` does.

use std::net::{Ipv4Addr, SocketAddr};

use daemon::{
    AdminConfig, ByteSize, ConfigError, DrainConfig, Exposure, LogConfig, Settings, Span,
};
use membership::{JoinConfig, NodeConfig};
use serde::{Deserialize, Serialize};

/// Everything a memory node can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Allow addresses that other hosts can reach, without encryption.
    pub insecure: bool,
    /// Where it listens.
    pub listen: ListenConfig,
    /// What it is called and where it stands.
    pub node: NodeConfig,
    /// The memory that it lends.
    pub slab: SlabConfig,
    /// What one node serves at most.
    pub limits: LimitsConfig,
    /// Where it registers.
    pub membership: JoinConfig,
    /// The admin endpoint.
    pub admin: AdminConfig,
    /// What is logged.
    pub log: LogConfig,
    /// How long an orderly end may take.
    pub drain: DrainConfig,
}

/// Where it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenConfig {
    /// Address of the gRPC services; port 0 lets the system choose.
    pub control: SocketAddr,
    /// Address of the bulk transport; port 0 lets the system choose.
    pub bulk: SocketAddr,
}

impl Default for ListenConfig {
    fn default() -> Self {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { control: any_port, bulk: any_port }
    }
}

/// The memory that the node lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlabConfig {
    /// Memory for slices.
    pub size: ByteSize,
    /// Bytes of one slice: K and V of one (layer, KV head, block), which is 64 times the head
    /// dimension (4 KiB at 64, 8 KiB at 128). Writers of another size are refused.
    pub slice: ByteSize,
    /// Ask for huge pages; where there are none it goes on without.
    pub huge_pages: bool,
}

impl Default for SlabConfig {
    fn default() -> Self {
        Self { size: ByteSize::mib(256), slice: ByteSize::kib(4), huge_pages: true }
    }
}

/// What one node serves at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Sessions that hold a reservation at once.
    pub sessions_max: usize,
    /// Longest lease granted; a session that is not heard of for so long is freed.
    pub lease_max: Span,
    /// Slices in one bulk frame.
    pub refs_per_frame_max: u32,
    /// Bulk connections open at once; more are closed as they come.
    pub connections_max: usize,
    /// Longest time for one bulk frame, first byte to last.
    pub frame_wait_max: Span,
    /// gRPC calls in work at once on one connection; more wait.
    pub calls_per_connection_max: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            sessions_max: 1_024,
            lease_max: Span::secs(60),
            refs_per_frame_max: 4_096,
            connections_max: 256,
            frame_wait_max: Span::secs(10),
            calls_per_connection_max: 64,
        }
    }
}

impl SlabConfig {
    /// Slots that fit, checked.
    ///
    /// # Errors
    /// [`ConfigError::invalid`].
    pub(crate) fn slots(&self) -> Result<u32, ConfigError> {
        let limit = u64::from(transfer::SLICE_BYTES_LIMIT);
        if self.slice.get() == 0 || self.slice.get() > limit {
            let remedy = "use 64 times the head dimension of the model, 4KiB at 64";
            return Err(ConfigError::invalid("slab.slice", "must be 1 B to 1 MiB", remedy));
        }
        match u32::try_from(self.size.get() / self.slice.get()) {
            Ok(0) => {
                let problem = format!("holds no slice of {}", self.slice);
                Err(ConfigError::invalid("slab.size", problem, "raise it"))
            }
            Ok(slots) => Ok(slots),
            Err(_) => {
                let remedy = "lower it, or run several memory nodes";
                Err(ConfigError::invalid("slab.size", "holds more than 2^32 slices", remedy))
            }
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            insecure: false,
            listen: ListenConfig::default(),
            node: NodeConfig::first_of(ids::Role::Memory),
            slab: SlabConfig::default(),
            limits: LimitsConfig::default(),
            membership: JoinConfig::default(),
            admin: AdminConfig::default(),
            log: LogConfig::default(),
            drain: DrainConfig::default(),
        }
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
        self.slab.slots()?;
        let refs = self.limits.refs_per_frame_max;
        if refs == 0 || refs > transfer::REFS_LIMIT {
            let problem = format!("must be 1 to {}", transfer::REFS_LIMIT);
            return Err(ConfigError::invalid("limits.refs_per_frame_max", problem, "change it"));
        }
        let positive = [
            ("limits.sessions_max", self.limits.sessions_max > 0),
            ("limits.lease_max", !self.limits.lease_max.is_zero()),
            ("limits.connections_max", self.limits.connections_max > 0),
            ("limits.frame_wait_max", !self.limits.frame_wait_max.is_zero()),
            ("limits.calls_per_connection_max", self.limits.calls_per_connection_max > 0),
        ];
        for (field, ok) in positive {
            if !ok {
                return Err(ConfigError::invalid(field, "must be above zero", "raise it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use daemon::{ByteSize, Settings};

    use super::Config;

    #[test]
    fn the_defaults_are_valid_and_hold_65536_slices() {
        let config = Config::default();
        config.check().unwrap();
        assert_eq!(config.slab.slots().unwrap(), 65_536);
    }

    #[test]
    fn senseless_values_are_refused_by_field() {
        let check = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        for (field, said) in [
            ("node.id", check(&|config| config.node.id = "Über".to_owned())),
            ("slab.slice", check(&|config| config.slab.slice = ByteSize::bytes(0))),
            ("slab.size", check(&|config| config.slab.size = ByteSize::bytes(100))),
            ("limits.refs_per_frame_max", check(&|config| config.limits.refs_per_frame_max = 0)),
            ("limits.sessions_max", check(&|config| config.limits.sessions_max = 0)),
        ] {
            assert!(said.contains(field), "{said}");
        }
    }
}
