//! `oasiskv`: all roles in one process, and the operator's commands.

mod answer;
mod bench;
mod chat;
mod client;
mod cluster;
mod config;
mod doctor;
mod eval;
mod loops;
mod models;
mod run;
mod up;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use checkpoint::{Bar, FetchConfig};
use clap::{Parser, Subcommand};
use daemon::{ByteSize, CommonArgs, ConfigError, Daemon, Ending, Overrides, Program, exit};
use kernels::HostDevice;
use model::{ComputeConfig, Opened};

use chat::Chat;
use client::Gateway;
use cluster::Cluster;
use config::{Config, Private, Visiting};

const PROGRAM: Program = Program { name: "oasiskv", env_prefix: "OASISKV" };

/// LLM serving whose KV cache outgrows device memory. Every role in one process, for a first try
/// on one machine; the roles' own programs (oasiskv-gateway, ...) are for many.
#[derive(Debug, Parser)]
#[command(name = "oasiskv", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start gateway, coordinator, prefill, decode and memory nodes, and serve.
    Up(ServeArgs),
    /// Start the same, answer one prompt, and exit.
    Run(RunArgs),
    /// Start the same, or go to a gateway that is up, and talk with the model.
    Chat(ChatArgs),
    /// Say what this host has, and what is missing for what.
    Doctor(DoctorArgs),
    /// List, fetch, verify and remove models.
    Models(models::ModelsArgs),
    /// Measure.
    Bench(bench::BenchArgs),
    /// Compare sparse decode with dense decode, on text.
    Eval(eval::EvalArgs),
}

/// Settings of the cluster.
#[derive(Debug, clap::Args)]
struct ServeArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// An alias such as smollm2-135m, a hub id (owner/name), or the path of a .gguf file or a
    /// directory.
    #[arg(long, value_name = "NAME|ID|PATH")]
    model: Option<String>,
    /// The public address of the OpenAI API.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// What computes: host. (cuda is refused: it has kernels, but is no whole device yet.)
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Compute threads; 0 is one for each processor.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// KV memory of decode's device.
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,
    /// Memory of the prefill host for sealed blocks.
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<ByteSize>,
    /// Memory of each memory node.
    #[arg(long, value_name = "SIZE")]
    remote_memory: Option<ByteSize>,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The prompt.
    #[arg(required_unless_present_any = ["print_config", "check_config"])]
    prompt: Option<String>,
    /// Print text, usage and ledger as JSON.
    #[arg(long)]
    json: bool,
    /// Complete the prompt as it is, without the chat template.
    #[arg(long)]
    raw: bool,
    /// Most tokens to generate.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// 0 to 2; 0 always takes the most probable token.
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "T",
        allow_negative_numbers = true,
        value_parser = temperature
    )]
    temperature: f64,
    /// Seed of the draws; one is drawn and reported when none is given.
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Report a digest of every step's logits: equal digests are equal bits.
    #[arg(long)]
    logits_digest: bool,
}

#[derive(Debug, clap::Args)]
struct ChatArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Talk to this gateway, as in http://127.0.0.1:8000, instead of starting a cluster.
    #[arg(
        long,
        value_name = "URL",
        value_parser = Gateway::from_url,
        conflicts_with_all = [
            "model",
            "listen",
            "device",
            "threads",
            "device_memory",
            "host_memory",
            "remote_memory",
        ]
    )]
    url: Option<Gateway>,
    #[command(flatten)]
    dialogue: chat::DialogueArgs,
}

#[derive(Debug, clap::Args)]
struct DoctorArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// JSON has no NaN and no infinity: they would become the API's default.
fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=2.0).contains(&value) => Ok(value),
        Ok(_) | Err(_) => Err("use a number from 0 to 2".to_owned()),
    }
}

fn main() -> ExitCode {
    let args: Args = match daemon::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    match args.command {
        Command::Up(serve) => daemon::run(
            PROGRAM,
            &serve.common,
            serve.overrides(),
            |config: Config, daemon| async move {
                let opened = open(&config.model, &daemon).await?;
                let cluster = Cluster::start(&config, &opened, &daemon).await?;
                up::announce(&cluster, &opened.resolved.source.to_string())?;
                Ok(())
            },
        ),
        Command::Run(run) => {
            let ask = run.ask();
            daemon::run(
                PROGRAM,
                &run.serve.common,
                run.serve.overrides(),
                |Private(config), daemon: Daemon| async move {
                    let opened = open(&config.model, &daemon).await?;
                    let cluster = Cluster::start(&config, &opened, &daemon).await?;
                    run::run(&cluster, &ask).await?;
                    daemon.end(Ending::Finished);
                    Ok(())
                },
            )
        }
        Command::Chat(args) => talk(args),
        Command::Doctor(doctor) => examine(&doctor),
        Command::Models(models) => models::main(&models),
        Command::Bench(bench) => bench::main(&bench),
        Command::Eval(eval) => eval::main(&eval),
    }
}

fn talk(ChatArgs { serve, url, dialogue: args }: ChatArgs) -> ExitCode {
    let dialogue = match args.dialogue() {
        Ok(dialogue) => dialogue,
        Err(problem) => {
            drop(writeln!(std::io::stderr(), "{}: {problem}", PROGRAM.name));
            return ExitCode::from(exit::USAGE);
        }
    };
    let (common, own) = (serve.common.clone(), serve.overrides());
    if let Some(gateway) = url {
        return daemon::run(PROGRAM, &common, own, |Visiting(_), daemon: Daemon| async move {
            Chat::open(gateway, dialogue, &args, daemon.clone()).await?.run().await?;
            daemon.end(Ending::Finished);
            Ok(())
        });
    }
    daemon::run(PROGRAM, &common, own, |Private(config), daemon: Daemon| async move {
        let opened = open(&config.model, &daemon).await?;
        let cluster = Cluster::start(&config, &opened, &daemon).await?;
        let gateway = Gateway::at(cluster.gateway);
        Chat::open(gateway, dialogue, &args, daemon.clone()).await?.run().await?;
        daemon.end(Ending::Finished);
        Ok(())
    })
}

impl ServeArgs {
    fn overrides(&self) -> Overrides {
        let mut own = Overrides::default();
        own.set("--model", "model.name", self.model.clone());
        own.set("--listen", "listen", self.listen);
        own.set("--device", "model.device", self.device.clone());
        own.set("--threads", "model.threads", self.threads);
        own.set("--device-memory", "memory.device", self.device_memory);
        own.set("--host-memory", "memory.prefill_host", self.host_memory);
        own.set("--remote-memory", "memory.remote", self.remote_memory);
        own
    }
}

impl RunArgs {
    fn ask(&self) -> run::Ask {
        run::Ask {
            // Only where the configuration is all that was asked for.
            prompt: self.prompt.clone().unwrap_or_default(),
            json: self.json,
            raw: self.raw,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            seed: self.seed,
            logits_digest: self.logits_digest,
        }
    }
}

/// How models are fetched, from the configuration and the environment.
fn fetch_config(config: &ComputeConfig) -> FetchConfig {
    FetchConfig::from_environment(
        &config.cache,
        daemon::environment::cache_dir,
        config.hub_offline,
        &daemon::environment::variable,
    )
}

/// Loads the model once for all roles.
async fn open(config: &ComputeConfig, daemon: &Daemon) -> anyhow::Result<Opened<HostDevice>> {
    let (config, ending) = (config.clone(), daemon.clone());
    let opening = tokio::task::spawn_blocking(move || {
        let fetch = fetch_config(&config);
        let mut progress = models::Stoppable { bar: Bar::default(), daemon: ending };
        model::open(&config, &fetch, &mut progress).map_err(|error| {
            if error.names_no_model() {
                return ConfigError::invalid("model.name", "names no model", error).into();
            }
            anyhow::Error::new(error).context("cannot load the model")
        })
    });
    opening.await?
}

fn examine(args: &DoctorArgs) -> ExitCode {
    let common = &args.serve.common;
    // Not `configure`: a host that is too small is what the doctor is to report.
    let sources = common.sources(PROGRAM.env_prefix, args.serve.overrides());
    let config = match daemon::config::load::<Config>(&sources) {
        Ok(config) => config,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "{}: {error}", PROGRAM.name));
            return ExitCode::from(exit::USAGE);
        }
    };
    let fetch = fetch_config(&config.model);
    let wanted = doctor::Wanted {
        memory: ByteSize::bytes(config.memory.total().get().saturating_add(doctor::MODEL_BYTES)),
        listen: config.listen,
        model_cached: checkpoint::is_here(&config.model.name, &fetch),
        cache: fetch.cache.dir().to_owned(),
        cuda: config.model.device == "cuda",
    };
    let findings = doctor::examine(&wanted);
    if doctor::report(&findings, args.json, &mut std::io::stdout().lock()).is_err() {
        return ExitCode::from(exit::FAILURE);
    }
    let healthy = doctor::healthy(&findings);
    ExitCode::from(if healthy { exit::OK } else { exit::FAILURE })
}
