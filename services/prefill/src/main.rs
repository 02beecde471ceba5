//! `oasiskv-prefill`: one prefill node as a process of its own.

use std::process::ExitCode;

use checkpoint::{Bar, FetchConfig};
use daemon::{CommonArgs, ConfigError, Daemon, Overrides, Program};
use prefill::Config;

/// Computes prompts and keeps their sealed KV blocks in host memory.
#[derive(Debug, clap::Parser)]
#[command(name = "oasiskv-prefill", version)]
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
    let program = Program { name: "oasiskv-prefill", env_prefix: "OASISKV_PREFILL" };
    daemon::run(program, &args.common, own, start)
}

async fn start(config: Config, daemon: Daemon) -> anyhow::Result<()> {
    let role = daemon.role("prefill");
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
    let running = prefill::start(&config, &opened, &role)?;
    tracing::info!(
        control = running.record.control,
        bulk = running.record.bulk,
        admin = %running.admin,
        "serving"
    );
    Ok(())
}
