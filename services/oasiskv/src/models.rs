//! `oasiskv models`: which models can be named, fetching, verifying and removing their files.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use checkpoint::{Bar, FetchConfig, Form, Held, Place, Progress, Removal, RemoveError, Resolved};
use clap::Subcommand;
use daemon::{ConfigError, Daemon, exit};
use model::ComputeConfig;

/// `model_type`s of config.json that are served; a list of the hub's cache shows no others.
const SERVED: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    /// Where aliases' files are kept; the default is the user's cache folder.
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the aliases, and the models that the hub's own tools or we fetched.
    List,
    /// Fetch a model, or the newest state of one of the hub's, and print its path.
    Fetch {
        /// An alias, a hub id (owner/name, with @revision, :quantisation or /file.gguf), or a path.
        #[arg(default_value = checkpoint::DEFAULT_ALIAS)]
        model: String,
    },
    /// Hash a model's files again and compare with what the alias or the hub says.
    Verify {
        /// An alias, a hub id or a path.
        #[arg(default_value = checkpoint::DEFAULT_ALIAS)]
        model: String,
    },
    /// Remove a fetched model's files.
    Remove {
        /// An alias or a hub id.
        model: String,
        /// Do not ask before files go that other programs may use, those in the hub's cache.
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) fn main(args: &ModelsArgs) -> ExitCode {
    let compute =
        ComputeConfig { cache: args.cache.clone().unwrap_or_default(), ..ComputeConfig::default() };
    let fetch = crate::fetch_config(&compute);
    let outcome = match &args.command {
        ModelsCommand::List => list(&fetch),
        ModelsCommand::Fetch { model } => checkpoint::refresh(model, &fetch, &mut Bar::default())
            .map_err(|error| misnamed(error.names_no_model(), error))
            .and_then(|resolved| tell(&resolved)),
        ModelsCommand::Verify { model } => checkpoint::verify(model, &fetch, &mut Bar::default())
            .map_err(|error| misnamed(error.names_no_model(), error))
            .and_then(|resolved| tell(&resolved)),
        ModelsCommand::Remove { model, yes } => remove(model, *yes, &fetch),
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

/// A wrong name is a usage error, as it is for every program that takes one.
fn misnamed(
    is_misnamed: bool,
    error: impl std::error::Error + Send + Sync + 'static,
) -> anyhow::Error {
    match is_misnamed {
        true => ConfigError::invalid("MODEL", "names no model", error).into(),
        false => error.into(),
    }
}

fn list(fetch: &FetchConfig) -> anyhow::Result<()> {
    let (held, others): (Vec<_>, Vec<_>) =
        checkpoint::inventory(fetch).into_iter().partition(|held| match &held.form {
            Form::Gguf => true,
            Form::Safetensors { model_type } => SERVED.contains(&model_type.as_str()),
        });
    let mut out = std::io::stdout().lock();
    let width = held.iter().map(|held| held.name.chars().count()).max().unwrap_or(0);
    for Held { name, bytes, form, place } in &held {
        let place = match place {
            Place::NotFetched => "not fetched",
            Place::Cache(_) => "here",
            Place::HubCache(_) => "hub cache",
        };
        let form = match form {
            Form::Gguf => "gguf".to_owned(),
            Form::Safetensors { model_type } => format!("safetensors, {model_type}"),
        };
        let bytes = bytes.to_string();
        writeln!(out, "{name:<width$}  {bytes:>10}  {place:<11}  {form}")?;
    }
    if !others.is_empty() {
        let mut note = std::io::stderr().lock();
        let (count, dir) = (others.len(), fetch.hub_cache.dir().display());
        writeln!(note, "{count} more in {dir} are of families that are not served")?;
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

fn remove(model: &str, yes: bool, fetch: &FetchConfig) -> anyhow::Result<()> {
    let plan = Removal::plan(model, fetch, &mut Bar::default());
    let plan = plan.map_err(|error| {
        let is_misnamed = match &error {
            RemoveError::Name(error) => error.names_no_model(),
            RemoveError::Own { .. } | RemoveError::Revision { .. } | RemoveError::Choice { .. } => {
                true
            }
            RemoveError::NotHere { .. } | RemoveError::Cache(_) => false,
        };
        misnamed(is_misnamed, error)
    })?;
    if plan.is_shared() && !yes && !confirmed(&plan)? {
        anyhow::bail!("nothing was removed");
    }
    let bytes = plan.bytes();
    plan.carry_out()?;
    writeln!(std::io::stdout(), "removed {model}, {bytes}")?;
    Ok(())
}

/// Asks the user on the terminal; without one there is nobody to ask.
fn confirmed(plan: &Removal) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let problem = "is needed: these files are in the hub's cache, which other programs use";
        return Err(ConfigError::invalid("--yes", problem, "give it to remove them").into());
    }
    let mut note = std::io::stderr().lock();
    for path in plan.paths() {
        writeln!(note, "{}", path.display())?;
    }
    write!(note, "other programs may use these; remove them ({})? [y/N] ", plan.bytes())?;
    note.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
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
