//! The coordinator's configuration. The field docs are the manual.
//! What it deliberately does not do: read files or the environment; `daemon` does.

use std::net::{Ipv4Addr, SocketAddr};

use daemon::{AdminConfig, ConfigError, DrainConfig, Exposure, LogConfig, Settings, Span};
use membership::RegistryConfig;
use placement::ViewConfig;
use proto::ChannelOptions;
use serde::{Deserialize, Serialize};

/// Everything the coordinator can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address of its gRPC services; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Allow addresses that other hosts can reach, without encryption.
    pub insecure: bool,
    /// Who keeps the list of nodes.
    pub membership: MembershipConfig,
    /// How nodes are watched.
    pub observe: ObserveConfig,
    /// How requests are placed.
    pub placement: PlacementConfig,
    /// What it serves at most.
    pub limits: LimitsConfig,
    /// The admin endpoint.
    pub admin: AdminConfig,
    /// What is logged.
    pub log: LogConfig,
    /// How long an orderly end may take.
    pub drain: DrainConfig,
}

/// Who keeps the list of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MembershipMode {
    /// This coordinator, in memory; the nodes register again when it restarts.
    Embedded,
}

/// Who keeps the list of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MembershipConfig {
    /// `embedded` is the one mode there is.
    pub mode: MembershipMode,
    /// Shortest time to live of a listing that a node is granted.
    pub ttl_min: Span,
    /// Longest time to live of a listing that a node is granted.
    pub ttl_max: Span,
    /// Most nodes listed at once; one more is refused.
    pub nodes_max: usize,
    /// Changes that a watcher may fall behind before it must begin anew.
    pub events_max: usize,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self {
            mode: MembershipMode::Embedded,
            ttl_min: Span::secs(2),
            ttl_max: Span::secs(60),
            nodes_max: 1_024,
            events_max: 1_024,
        }
    }
}

/// How nodes are watched: one stream of reports from each that holds KV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveConfig {
    /// How long connecting to a node may take.
    pub connect_timeout: Span,
    /// How often a connection is pinged.
    pub keepalive_interval: Span,
    /// How long the answer to a ping may take.
    pub keepalive_timeout: Span,
    /// A node that sends no report for so long gets no new work until it does.
    pub silence_max: Span,
    /// Longest pause before a node is tried again; it starts at a tenth and doubles.
    pub retry_max: Span,
}

impl Default for ObserveConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Span::secs(1),
            keepalive_interval: Span::secs(2),
            keepalive_timeout: Span::secs(2),
            silence_max: Span::secs(5),
            retry_max: Span::secs(1),
        }
    }
}

/// How requests are placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlacementConfig {
    /// What a plan takes counts at least so long, even if a report does not show it.
    pub settle: Span,
    /// How many blocks the coordinator remembers the prefill node of, for prefix hits.
    pub affinity_blocks_max: usize,
    /// Blocks of a prompt that go to one memory node; longer prompts are spread.
    pub blocks_per_home_max: u32,
    /// When a client that found no room should ask again.
    pub retry_capacity: Span,
    /// When a client that found a role missing should ask again.
    pub retry_no_node: Span,
}

impl Default for PlacementConfig {
    fn default() -> Self {
        Self {
            settle: Span::millis(200),
            affinity_blocks_max: 1 << 18,
            blocks_per_home_max: 256,
            retry_capacity: Span::millis(250),
            retry_no_node: Span::secs(1),
        }
    }
}

/// What it serves at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Most calls and streams of one connection at once; more wait at the client.
    pub calls_per_connection_max: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self { calls_per_connection_max: 1_024 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7400)),
            insecure: false,
            membership: MembershipConfig::default(),
            observe: ObserveConfig::default(),
            placement: PlacementConfig::default(),
            limits: LimitsConfig::default(),
            admin: AdminConfig::at_port(7401),
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
        let sockets = [("listen", self.listen), ("admin.listen", self.admin.listen)];
        for (field, address) in sockets {
            exposure.check(field, address)?;
        }
        let positive = [
            ("membership.ttl_min", !self.membership.ttl_min.is_zero()),
            ("membership.nodes_max", self.membership.nodes_max > 0),
            ("membership.events_max", self.membership.events_max > 0),
            ("observe.connect_timeout", !self.observe.connect_timeout.is_zero()),
            ("observe.keepalive_interval", !self.observe.keepalive_interval.is_zero()),
            ("observe.keepalive_timeout", !self.observe.keepalive_timeout.is_zero()),
            ("observe.silence_max", !self.observe.silence_max.is_zero()),
            ("observe.retry_max", !self.observe.retry_max.is_zero()),
            ("placement.affinity_blocks_max", self.placement.affinity_blocks_max > 0),
            ("placement.blocks_per_home_max", self.placement.blocks_per_home_max > 0),
            ("limits.calls_per_connection_max", self.limits.calls_per_connection_max > 0),
        ];
        for (field, ok) in positive {
            if !ok {
                return Err(ConfigError::invalid(field, "must be above zero", "raise it"));
            }
        }
        let MembershipConfig { ttl_min, ttl_max, nodes_max, .. } = self.membership;
        if ttl_min > ttl_max {
            let problem = format!("{ttl_max} is below membership.ttl_min, {ttl_min}");
            return Err(ConfigError::invalid("membership.ttl_max", problem, "raise it"));
        }
        let most = Span::millis(proto::limits::LEASE_MS_MAX);
        if ttl_max > most {
            let problem = format!("{ttl_max} is above {most}");
            return Err(ConfigError::invalid("membership.ttl_max", problem, "lower it"));
        }
        if nodes_max > proto::limits::NODES_MAX {
            let problem = format!("{nodes_max} is above {}", proto::limits::NODES_MAX);
            return Err(ConfigError::invalid("membership.nodes_max", problem, "lower it"));
        }
        Ok(())
    }
}

impl Config {
    /// Limits of the embedded registry.
    pub(crate) fn registry(&self) -> RegistryConfig {
        RegistryConfig {
            ttl_min: self.membership.ttl_min.duration().into(),
            ttl_max: self.membership.ttl_max.duration().into(),
            nodes_max: self.membership.nodes_max,
            events_max: self.membership.events_max,
        }
    }

    /// Bounds of the view.
    pub(crate) fn view(&self) -> ViewConfig {
        ViewConfig {
            report_age_max: self.observe.silence_max.duration().into(),
            settle: self.placement.settle.duration().into(),
            affinity_blocks_max: self.placement.affinity_blocks_max,
            retry_capacity: self.placement.retry_capacity.duration().into(),
            retry_no_node: self.placement.retry_no_node.duration().into(),
            blocks_per_home_max: self.placement.blocks_per_home_max,
        }
    }

    /// Of the channels to the nodes.
    pub(crate) fn channels(&self) -> ChannelOptions {
        ChannelOptions {
            connect_timeout: self.observe.connect_timeout.duration().into(),
            keepalive_interval: self.observe.keepalive_interval.duration().into(),
            keepalive_timeout: self.observe.keepalive_timeout.duration().into(),
            request_deadline: self.observe.silence_max.duration().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Config;
    use daemon::Settings;

    #[test]
    fn the_defaults_are_valid_and_contradictions_are_named() {
        Config::default().check().expect("defaults");
        let mut config = Config::default();
        config.membership.ttl_min = daemon::Span::secs(90);
        let error = config.check().expect_err("above ttl_max").to_string();
        assert!(error.contains("membership.ttl_max"), "{error}");
        config = Config::default();
        config.observe.silence_max = daemon::Span::secs(0);
        let error = config.check().expect_err("zero").to_string();
        assert!(error.contains("observe.silence_max"), "{error}");
    }
}
