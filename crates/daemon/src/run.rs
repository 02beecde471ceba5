//! How a program starts and ends: flags, configuration, telemetry, runtime, start, drain, exit
//! code. What it deliberately does not do: know what a program does in between.

use std::future::Future;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::CommonArgs;
use crate::config::{self, ConfigError, Overrides};
use crate::exit;
use crate::lifecycle::{Daemon, DrainConfig, Drained, Ending};
use crate::panics;
use crate::telemetry::{self, LogConfig, LogFormat};

/// The configuration of a program: what [`run`] must know of it.
///
/// Every program's has the keys `log` ([`LogConfig`]), `drain` ([`DrainConfig`]) and `insecure`
/// (bool); the common flags set them.
pub trait Settings: Serialize + DeserializeOwned + Default {
    /// What is logged.
    fn log(&self) -> &LogConfig;

    /// How long an orderly end may take.
    fn drain(&self) -> DrainConfig;

    /// Checks what a single value cannot tell: values that contradict each other or the host.
    ///
    /// # Errors
    /// [`ConfigError::invalid`], which names the field and the remedy.
    fn check(&self) -> Result<(), ConfigError>;
}

/// A program's names.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// As it is called, as in `oasiskv-gateway`.
    pub name: &'static str,
    /// The prefix of its environment variables, as in `OASISKV_GATEWAY`.
    pub env_prefix: &'static str,
}

/// Loads and checks the configuration, and does what `--print-config` and `--check-config` ask.
///
/// # Errors
/// The exit code to end with at once: after those two flags, and 64 when the configuration is
/// wrong (said on standard error).
pub fn configure<C: Settings>(
    program: Program,
    common: &CommonArgs,
    own: Overrides,
) -> Result<C, ExitCode> {
    match load(program, common, own) {
        Ok((config, None)) => Ok(config),
        Ok((_, Some(text))) => {
            // A closed pipe is the reader's choice.
            drop(io::stdout().write_all(text.as_bytes()));
            Err(ExitCode::from(exit::OK))
        }
        Err(error) => {
            complain(program, &error.into());
            Err(ExitCode::from(exit::USAGE))
        }
    }
}

/// The configuration, and what is to be printed instead of running.
fn load<C: Settings>(
    program: Program,
    common: &CommonArgs,
    own: Overrides,
) -> Result<(C, Option<String>), ConfigError> {
    let config: C = config::load(&common.sources(program.env_prefix, own))?;
    config.check()?;
    let text = match (common.print_config, common.check_config) {
        (true, _) => Some(config::print(&config)?),
        (false, true) => Some(String::new()),
        (false, false) => None,
    };
    Ok((config, text))
}

/// Runs a program to its end. `start` builds everything and returns when the program serves (or,
/// for a program with an end of its own, when it is done, after `daemon.end`); then the process
/// waits for a signal or a failure, drains, and answers its exit code. A signal during `start`
/// drops it and drains what stands.
pub fn run<C, S, F>(program: Program, common: &CommonArgs, own: Overrides, start: S) -> ExitCode
where
    C: Settings,
    S: FnOnce(C, Daemon) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    let config = match configure::<C>(program, common, own) {
        Ok(config) => config,
        Err(code) => return code,
    };
    panics::abort_on_panic();
    if let Err(error) = telemetry::start(config.log()) {
        complain(program, &error.into());
        return ExitCode::from(exit::FAILURE);
    }
    let format = config.log().format;
    let (code, error) = match serve(config, start) {
        Ok(Drained { ending: Ending::Signal(_) | Ending::Finished, .. }) => (exit::OK, None),
        Ok(Drained { ending: Ending::Failed(why), .. }) => {
            (exit::FAILURE, Some(anyhow::anyhow!(why)))
        }
        Err(error) => (exit::code_of(&error), Some(error)),
    };
    match (error, format) {
        (None, _) => {}
        (Some(error), LogFormat::Human) => complain(program, &error),
        // Whoever reads JSON reads nothing else.
        (Some(error), LogFormat::Json) => {
            tracing::error!(error = format!("{error:#}"), program = program.name, "failed");
        }
    }
    ExitCode::from(code)
}

fn serve<C, S, F>(config: C, start: S) -> anyhow::Result<Drained>
where
    C: Settings,
    S: FnOnce(C, Daemon) -> F,
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let daemon = Daemon::new(config.drain());
    daemon.watch_signals()?;
    let outcome = runtime.block_on(async {
        let started = tokio::select! {
            started = start(config, daemon.clone()) => started,
            () = daemon.ended() => Ok(()),
        };
        if let Err(error) = &started {
            daemon.end(Ending::Failed(format!("{error:#}")));
        }
        let drained = daemon.finish().await;
        started.map(|()| drained)
    });
    // Blocking work that the drain cut off must not hold the exit.
    runtime.shutdown_background();
    outcome
}

fn complain(program: Program, error: &anyhow::Error) {
    let line = format!("{}: {error:#}\n", program.name);
    // If standard error is gone the exit code is all that is left to say.
    drop(io::stderr().write_all(line.as_bytes()));
}
