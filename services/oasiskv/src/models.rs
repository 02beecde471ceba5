//! `oasiskv models`: which models can be named, fetching and verifying their files.

use std::io::Write;
use std::process::ExitCode;

use checkpoint::{ALIASES, Bar, FetchConfig, Progress, Resolved};
use clap::Subcommand;
use daemon::{Daemon, exit};
use model::ComputeConfig;

#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    /// Where fetched models are kept; the default is the user's cache folder.
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the aliases, and which of them are here.
    List,
    /// Fetch a model's file, unless it is here, and print its path.
    Fetch {
        /// An alias, or the path of a .gguf file.
        #[arg(default_value = checkpoint::DEFAULT_ALIAS)]
        model: String,
    },
    /// Hash a model's file again and compare with the pinned digest.
    Verify {
        /// An alias, or the path of a .gguf file.
        #[arg(default_value = checkpoint::DEFAULT_ALIAS)]
        model: String,
    },
}

pub(crate) fn main(args: &ModelsArgs) -> ExitCode {
    let compute =
        ComputeConfig { cache: args.cache.clone().unwrap_or_default(), ..ComputeConfig::default() };
    let fetch = crate::fetch_config(&compute);
    let outcome = match &args.command {
        ModelsCommand::List => list(&fetch),
        ModelsCommand::Fetch { model } => checkpoint::resolve(model, &fetch, &mut Bar::default())
            .map_err(anyhow::Error::from)
            .and_then(|resolved| tell(&resolved)),
        ModelsCommand::Verify { model } => checkpoint::verify(model, &fetch, &mut Bar::default())
            .map_err(anyhow::Error::from)
            .and_then(|resolved| tell(&resolved)),
    };
    match outcome {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            // If standard error is gone the exit code is all that is left to say.
            drop(std::io::stderr().write_fmt(format_args!("oasiskv: {error:#}\n")));
            ExitCode::from(exit::code_of(&error))
        }
    }
}

fn list(fetch: &FetchConfig) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for alias in ALIASES {
        let here = if is_cached(alias.name, fetch) { "here" } else { "not fetched" };
        let bytes = ids::ByteCount(alias.bytes);
        writeln!(out, "{:<16} {bytes:>10}  {here:<12} {}", alias.name, alias.file)?;
    }
    Ok(())
}

fn tell(resolved: &Resolved) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", resolved.path.display())?;
    let mut note = std::io::stderr().lock();
    writeln!(note, "{}, sha256 {}, from {}", resolved.name, resolved.digest, resolved.source)?;
    Ok(())
}

/// Whether the file is here already.
pub(crate) fn is_cached(name: &str, fetch: &FetchConfig) -> bool {
    match ALIASES.iter().find(|alias| alias.name == name) {
        Some(alias) => fetch.cache.model_dir(alias.name).join(alias.file).exists(),
        None => std::path::Path::new(name).exists(),
    }
}

/// A progress bar whose fetch ends with the process.
pub(crate) struct Stoppable {
    pub(crate) bar: Bar,
    pub(crate) daemon: Daemon,
}

impl Progress for Stoppable {
    fn started(&mut self, what: &str, total_bytes: Option<u64>) {
        self.bar.started(what, total_bytes);
    }

    fn advanced(&mut self, bytes: u64) {
        self.bar.advanced(bytes);
    }

    fn finished(&mut self) {
        self.bar.finished();
    }

    fn cancelled(&self) -> bool {
        self.daemon.is_ending()
    }
}
