//! Logs: people's text or JSON lines on standard error, levels by module.
//! What it deliberately does not do: metrics (see `metrics`) and trace export.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use serde::{Deserialize, Serialize};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// What is logged, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The lowest level that is logged.
    pub level: LogLevel,
    /// How a record is written.
    pub format: LogFormat,
    /// Other levels for single modules, as in `"gateway::stream" = "debug"`.
    pub modules: BTreeMap<String, LogLevel>,
}

/// A level, from the least to the most words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing at all.
    Off,
    /// A human must look.
    Error,
    /// It went on despite.
    Warn,
    /// State changed.
    #[default]
    Info,
    /// Why.
    Debug,
    /// Every step.
    Trace,
}

/// How a record is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text for people, coloured on a terminal.
    #[default]
    Human,
    /// One JSON object a line, with the fields of all spans around it.
    Json,
}

/// The process has telemetry already.
#[derive(Debug, thiserror::Error)]
#[error("cannot start logging")]
pub struct TelemetryError(#[from] TryInitError);

/// Starts logging for the whole process. Once only.
///
/// # Errors
/// [`TelemetryError`] if another part of the process installed a subscriber before.
pub fn start(config: &LogConfig) -> Result<(), TelemetryError> {
    let records = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let filter = targets(config);
    let registry = tracing_subscriber::registry();
    match config.format {
        LogFormat::Human => {
            let records = records.with_ansi(io::stderr().is_terminal());
            registry.with(records.with_filter(filter)).try_init()?;
        }
        LogFormat::Json => {
            let records = records.json().flatten_event(true).with_current_span(false);
            registry.with(records.with_filter(filter)).try_init()?;
        }
    }
    Ok(())
}

fn targets(config: &LogConfig) -> Targets {
    let modules = config.modules.iter().map(|(name, level)| (name.as_str(), level.filter()));
    Targets::new().with_default(config.level.filter()).with_targets(modules)
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tracing_subscriber::filter::LevelFilter;

    use super::{LogConfig, LogLevel, targets};

    #[test]
    fn a_module_may_have_its_own_level() {
        let modules = BTreeMap::from([
            ("gateway::stream".to_owned(), LogLevel::Debug),
            ("h2".to_owned(), LogLevel::Off),
        ]);
        let targets = targets(&LogConfig { modules, ..LogConfig::default() });
        assert!(targets.would_enable("gateway::stream", &tracing::Level::DEBUG));
        assert!(!targets.would_enable("gateway", &tracing::Level::DEBUG));
        assert!(targets.would_enable("gateway", &tracing::Level::INFO));
        assert!(!targets.would_enable("h2", &tracing::Level::ERROR));
        assert_eq!(LogLevel::default().filter(), LevelFilter::INFO);
    }
}
