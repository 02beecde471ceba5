//! The shell of every process of OasisKV: configuration, telemetry, admin endpoint, signals,
//! drain, panics. It knows no role: what a role does is in its service.
//! What it deliberately does not do: anything with models, KV or the wire between services.
//!
//! A program in twenty lines: parse its flags with [`parse`], give them to [`run`], build in the
//! start function: [`Daemon::role`], [`bind`] every port, spawn tasks, `readiness().started()`.

pub mod admin;
pub mod args;
pub mod bind;
pub mod config;
pub mod environment;
pub mod exit;
mod lifecycle;
mod listen;
pub mod memory;
pub mod metrics;
mod panics;
mod probes;
mod run;
mod serve;
pub mod telemetry;
pub mod units;

pub use admin::AdminConfig;
pub use args::{CommonArgs, parse};
pub use bind::{BindError, Endpoint, Exposure, bind};
pub use config::{ConfigError, Overrides, Sources};
pub use lifecycle::{Daemon, DrainConfig, Drained, Ending, Interrupt, OnExit, Role, TaskOutput};
pub use listen::BoundedListener;
pub use memory::available_memory;
pub use panics::abort_on_panic;
pub use probes::{Condition, Failed, Heartbeat, Liveness, Probes, Readiness, Stalled};
pub use run::{Program, Settings, configure, run};
pub use serve::{HttpServer, OpenRequests};
pub use telemetry::{LogConfig, LogFormat, LogLevel};
pub use units::{ByteSize, Span};
