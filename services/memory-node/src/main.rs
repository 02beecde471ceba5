//! The memory node as a process of its own: flags, configuration, start. Nothing else.

use std::process::ExitCode;

use daemon::{CommonArgs, Daemon, Overrides, Program};
use memory_node::Config;

/// Lends host memory to sessions and keeps copies of sealed KV blocks.
#[derive(clap::Parser)]
#[command(name = "oasiskv-memory-node", version, about)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> ExitCode {
    let args: Args = match daemon::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let program = Program { name: "oasiskv-memory-node", env_prefix: "OASISKV_MEMORY_NODE" };
    let start = |config: Config, daemon: Daemon| async move {
        let running = memory_node::start(config, &daemon.role("memory"))?;
        tracing::info!(
            control = running.record.control,
            bulk = running.record.bulk,
            admin = %running.admin,
            "serving"
        );
        Ok(())
    };
    daemon::run(program, &args.common, Overrides::default(), start)
}
