//! The gateway's configuration. The field docs are the manual.
//! What it deliberately does not do: read files or the environment; `daemon` does.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use daemon::{
    AdminConfig, ByteSize, ConfigError, DrainConfig, Exposure, LogConfig, Settings, Span,
};
use serde::{Deserialize, Serialize};

/// Everything the gateway can be told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The public address of the OpenAI API.
    pub listen: SocketAddr,
    /// Allow addresses that other hosts can reach, without encryption.
    pub insecure: bool,
    /// Which model is served.
    pub model: ModelConfig,
    /// Where requests are planned.
    pub coordinator: CoordinatorConfig,
    /// How long a request may wait for room.
    pub queue: QueueConfig,
    /// What a client may ask for at most.
    pub limits: LimitsConfig,
    /// How answers are streamed.
    pub stream: StreamConfig,
    /// The admin endpoint; the same paths answer on the public address.
    pub admin: AdminConfig,
    /// What is logged.
    pub log: LogConfig,
    /// How long an orderly end may take.
    pub drain: DrainConfig,
}

/// Which model is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// An alias such as `smollm2-135m`, the path of a .gguf file or of a directory with config.json
    /// and safetensors, or a hub id: `owner/name`, with `@revision`, `:quantisation` or
    /// `/file.gguf`.
    pub name: String,
    /// Where aliases' files and the proofs of digests are kept; empty is the user's cache folder.
    /// Models of the hub are kept in the cache that its own tools use.
    pub cache: PathBuf,
    /// Never ask the model hub: its models must be in its cache, aliases come from the Python
    /// package index.
    pub hub_offline: bool,
}

impl Default for ModelConfig {
    fn default() -> Self {
        let name = checkpoint::DEFAULT_ALIAS.to_owned();
        Self { name, cache: PathBuf::new(), hub_offline: false }
    }
}

/// Where requests are planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoordinatorConfig {
    /// Its gRPC address, `host:port`.
    pub address: String,
    /// How long one question to it may take.
    pub deadline: Span,
    /// How often it is asked which nodes there are, for readiness.
    pub refresh: Span,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:7400".to_owned(),
            deadline: Span::secs(2),
            refresh: Span::secs(1),
        }
    }
}

/// How long a request may wait for room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Longest wait of one request; then 429, or 503 if a part of the cluster is missing.
    pub wait_max: Span,
    /// How long a waiting request may be overtaken by younger ones that fit where it does not;
    /// then they wait until it is through or gives up, so that large requests do not starve.
    pub overtake_max: Span,
    /// Most requests that wait at once; one more gets 429 at once.
    pub waiting_max: usize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { wait_max: Span::secs(10), overtake_max: Span::secs(1), waiting_max: 256 }
    }
}

/// What a client may ask for at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Largest request body.
    pub body_max: ByteSize,
    /// Longest time for the head of a request to arrive, counted from the connection's start or
    /// the answer before it: slow, silent and idle connections are closed.
    pub head_wait_max: Span,
    /// Longest time for a body to arrive.
    pub body_wait_max: Span,
    /// Most requests in work at once, waiting ones included; one more gets 429.
    pub requests_max: usize,
    /// Most connections open at once; more wait in the system's backlog.
    pub connections_max: usize,
    /// Tokens generated when a request names no limit, cut to what fits the context.
    pub max_tokens_default: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            // A prompt of 262,144 tokens of five bytes fits.
            body_max: ByteSize::mib(2),
            head_wait_max: Span::secs(10),
            body_wait_max: Span::secs(30),
            requests_max: 512,
            connections_max: 1_024,
            max_tokens_default: 4_096,
        }
    }
}

/// How answers are streamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamConfig {
    /// A comment is sent when nothing else was for so long, so that proxies keep the connection.
    pub keepalive: Span,
    /// How long the first token may take, once planned, before the headers are sent without it;
    /// until then an error still has its own HTTP status.
    pub headers_wait_max: Span,
    /// Pieces of text that wait for a slow client, per answer.
    pub buffer: usize,
    /// How long a client may leave that buffer full before its request is cancelled.
    pub stall_max: Span,
    /// Longest silence of a decode node before its answer counts as lost.
    pub silence_max: Span,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            keepalive: Span::secs(15),
            headers_wait_max: Span::secs(1),
            buffer: 64,
            stall_max: Span::secs(60),
            // The first token waits for the whole prefill; 8,192 tokens take a minute on one slow
            // core.
            silence_max: Span::secs(600),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            insecure: false,
            model: ModelConfig::default(),
            coordinator: CoordinatorConfig::default(),
            queue: QueueConfig::default(),
            limits: LimitsConfig::default(),
            stream: StreamConfig::default(),
            admin: AdminConfig::at_port(8001),
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
        let positive = [
            ("queue.waiting_max", self.queue.waiting_max > 0),
            ("limits.requests_max", self.limits.requests_max > 0),
            ("limits.connections_max", self.limits.connections_max > 0),
            ("limits.max_tokens_default", self.limits.max_tokens_default > 0),
            ("limits.body_max", self.limits.body_max.get() > 0),
            ("limits.head_wait_max", !self.limits.head_wait_max.is_zero()),
            ("limits.body_wait_max", !self.limits.body_wait_max.is_zero()),
            ("coordinator.deadline", !self.coordinator.deadline.is_zero()),
            ("coordinator.refresh", !self.coordinator.refresh.is_zero()),
            ("stream.keepalive", !self.stream.keepalive.is_zero()),
            ("stream.buffer", self.stream.buffer > 0),
            ("stream.stall_max", !self.stream.stall_max.is_zero()),
            ("stream.silence_max", !self.stream.silence_max.is_zero()),
        ];
        for (field, ok) in positive {
            if !ok {
                return Err(ConfigError::invalid(field, "must be above zero", "raise it"));
            }
        }
        let exposure = Exposure::from_insecure(self.insecure);
        exposure.check("listen", self.listen)?;
        exposure.check("admin.listen", self.admin.listen)?;
        if self.model.name.is_empty() {
            let remedy =
                "name an alias such as smollm2-135m, a hub id such as owner/name, or a path";
            return Err(ConfigError::invalid("model.name", "is empty", remedy));
        }
        Ok(())
    }
}
