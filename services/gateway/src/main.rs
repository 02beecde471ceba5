//! `oasiskv-gateway`: the gateway as a process of its own.
//! What it deliberately does not do: anything that `gateway::Gateway` or `daemon` does.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use checkpoint::{Bar, FetchConfig};
use clap::Parser;
use daemon::{CommonArgs, ConfigError, Daemon, Overrides, Program};
use gateway::{Config, Gateway, ServedModel};

/// OasisKV's gateway: the OpenAI API in front of the cluster.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Listen here.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Serve this model: an alias, a hub id (owner/name), or the path of a .gguf file or of a
    /// directory.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Ask this coordinator for plans.
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
}

fn main() -> ExitCode {
    let args: Args = match daemon::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let mut own = Overrides::default();
    own.set("--listen", "listen", args.listen);
    own.set("--model", "model.name", args.model);
    own.set("--coordinator", "coordinator.address", args.coordinator);
    let program = Program { name: "oasiskv-gateway", env_prefix: "OASISKV_GATEWAY" };
    daemon::run(program, &args.common, own, start)
}

async fn start(config: Config, daemon: Daemon) -> anyhow::Result<()> {
    let role = daemon.role("gateway");
    let model = config.model.clone();
    let open = tokio::task::spawn_blocking(move || {
        let fetch = FetchConfig::from_environment(
            &model.cache,
            daemon::environment::cache_dir,
            model.hub_offline,
            &daemon::environment::variable,
        );
        let resolved = checkpoint::resolve(&model.name, &fetch, &mut Bar::default());
        let resolved = resolved.map_err(|error| match error.names_no_model() {
            true => ConfigError::invalid("model.name", "names no model", error).into(),
            false => anyhow::Error::new(error).context("`model.name`"),
        })?;
        anyhow::Ok(ServedModel::open(&resolved)?)
    });
    let model = Arc::new(open.await??);
    Gateway::start(&config, model, &role)?;
    Ok(())
}
