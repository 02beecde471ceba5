//! The coordinator as a process of its own: flags, configuration, start. Nothing else.

use std::process::ExitCode;

use coordinator::Config;
use daemon::{CommonArgs, Daemon, Overrides, Program};

/// Knows the nodes of a cluster and plans each request.
#[derive(clap::Parser)]
#[command(name = "oasiskv-coordinator", version, about)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> ExitCode {
    let args: Args = match daemon::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let program = Program { name: "oasiskv-coordinator", env_prefix: "OASISKV_COORDINATOR" };
    let start = |config: Config, daemon: Daemon| async move {
        let running = coordinator::start(&config, &daemon.role("coordinator"))?;
        tracing::info!(address = %running.address, admin = %running.admin, "serving");
        Ok(())
    };
    daemon::run(program, &args.common, Overrides::default(), start)
}
