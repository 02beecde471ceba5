//! `oasiskv bench`: figures of this machine, by the very loops that serve.

mod decode;
mod engine;
mod kernels;

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
    /// Dense decode against sparse decode, on a text.
    Decode(decode::DecodeArgs),
    /// Moves of slices and attention alone, on the host or on a GPU.
    Kernels(kernels::KernelsArgs),
}

pub(crate) fn main(args: &BenchArgs) -> ExitCode {
    match &args.command {
        BenchCommand::Engine(args) => engine::main(args),
        BenchCommand::Decode(args) => decode::main(args),
        BenchCommand::Kernels(args) => kernels::main(args),
    }
}

fn at_least_one(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("use a whole number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}
