//! `oasiskv bench`: figures of this machine, by the very loops that serve.

mod engine;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Tokens per second of prefill and decode, without network and gateway.
    Engine(engine::EngineArgs),
}

pub(crate) fn main(args: &BenchArgs) -> ExitCode {
    match &args.command {
        BenchCommand::Engine(args) => engine::main(args),
    }
}
