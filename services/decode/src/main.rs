//! `oasiskv-decode`: one decode node as a process of its own.

use std::process::ExitCode;

use checkpoint::{Bar, FetchConfig};
use daemon::{CommonArgs, ConfigError, Daemon, Overrides, Program};
use decode::Config;

/// Owns sessions: fetches their KV, decodes in one batch, samples.
#[derive(Debug, clap::Parser)]
#[command(name = "oasiskv-decode", version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// An alias such as smollm2-135m, a hub id (owner/name), or the path of a .gguf file or a
    /// directory.
    #[arg(long, value_name = "NAME|ID|PATH")]
    model: Option<String>,
    /// gRPC address of the coordinator.
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
}

fn main() -> ExitCode {
    let args: Args = match daemon::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let mut own = Overrides::default();
    own.set("--model", "model.name", args.model);
    own.set("--coordinator", "membership.coordinator", args.coordinator);
    let program = Program { name: "oasiskv-decode", env_prefix: "OASISKV_DECODE" };
    daemon::run(program, &args.common, own, start)
}

async fn start(config: Config, daemon: Daemon) -> anyhow::Result<()> {
    let role = daemon.role("decode");
    let compute = config.model.clone();
    let open = tokio::task::spawn_blocking(move || {
        let fetch = FetchConfig::from_environment(
            &compute.cache,
            daemon::environment::cache_dir,
            compute.hub_offline,
            &daemon::environment::variable,
        );
        model::open(&compute, &fetch, &mut Bar::default()).map_err(|error| {
            if error.names_no_model() {
                return ConfigError::invalid("model.name", "names no model", error).into();
            }
            anyhow::Error::new(error).context("model")
        })
    });
    let opened = open.await??;
    let running = decode::start(&config, &opened, &role)?;
    tracing::info!(
        control = running.record.control,
        admin = %running.admin,
        "serving"
    );
    Ok(())
}
