//! `oasiskv eval`: how far sparse decode is from dense decode by the same engine, led through the
//! same text. Asserts no figure.

mod distance;
mod texts;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::Context;
use checkpoint::Bar;
use clap::ValueEnum;
use daemon::exit;
use engine::{DecodeItem, KvUsage, Probe, Probed};
use gateway::ServedModel;
use ids::TokenId;
use kernels::{HostDevice, SummaryKind};
use model::{ComputeConfig, Opened};
use serde::Serialize;
use sparse::Policy;

use crate::loops::{Decode, Prefill, Prompt, Room};
use distance::{Distances, LogProbabilities};
pub(crate) use texts::Text;

/// Logits that may wait to be looked at.
const PROBED_MAX: usize = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct EvalArgs {
    /// An alias such as smollm2-135m, a hub id (owner/name), or the path of a .gguf file or a
    /// directory.
    #[arg(long, default_value = checkpoint::DEFAULT_ALIAS)]
    model: String,
    /// What is measured.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kl")]
    task: Vec<Task>,
    /// How the next step's blocks are predicted: lookahead, previous, history, ondemand, window,
    /// oracle.
    #[arg(long, value_delimiter = ',', default_value = "lookahead,ondemand,oracle,window")]
    predictor: Vec<String>,
    /// What stands for the keys of a block: int4, int2, minmax8.
    #[arg(long, value_delimiter = ',', default_value = "int4")]
    summary: Vec<SummaryKind>,
    /// Tokens attended to per KV head.
    #[arg(long, value_delimiter = ',', default_value = "512")]
    budget: Vec<u32>,
    /// Tokens of the prompt.
    #[arg(long, value_delimiter = ',', default_value = "4096")]
    context: Vec<u32>,
    /// Tokens of the text that are decoded behind it.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    steps: u32,
    /// Texts: docs and code (this version's own), or NAME=FILE. A text is read from its beginning.
    #[arg(long, value_delimiter = ',', default_value = "docs,code")]
    text: Vec<Text>,
    /// Blocks that may enter ahead of a step, per KV head.
    #[arg(long, default_value_t = 4, value_name = "BLOCKS")]
    prefetch: u32,
    /// Blocks that a step's own query may bring in, per KV head.
    #[arg(long, value_delimiter = ',', default_value = "4", value_name = "BLOCKS")]
    repair: Vec<u32>,
    /// Where drafted tokens come from, how many, and when they are committed: `none`, or as in
    /// `both:1:covered` (ngram, self, both; 1 to 4; never, covered, always).
    #[arg(long, value_delimiter = ',', default_value = "both:1:covered")]
    drafts: Vec<DraftsArg>,
    /// How blocks are shared by layers and heads: equal or pooled.
    #[arg(long, default_value = "equal")]
    budgets: String,
    /// Compute threads; 0 is one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    /// Mean distance of the next token's distribution to dense decode, in nats.
    Kl,
}

/// The drafting part of a policy's text.
#[derive(Clone, Debug)]
pub(crate) struct DraftsArg(pub(crate) String);

impl std::str::FromStr for DraftsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            ["none"] => Ok(Self("drafts=none".to_owned())),
            [source, k, accept] => Ok(Self(format!("drafts={source},k={k},accept={accept}"))),
            _ => Err("use none, or source:count:acceptance as in both:1:covered".to_owned()),
        }
    }
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    task: &'static str,
    predictor: String,
    summary: SummaryName,
    budget: u32,
    context: u32,
    text: String,
    drafts: String,
    prefetch_blocks: u32,
    repair_blocks: u32,
    /// Mean distance in nats.
    value: f64,
    p99: f64,
    /// Share of positions at which both choose the same token.
    agreement: f64,
    /// Of the text, under this policy and under dense decode.
    perplexity: f64,
    dense_perplexity: f64,
    /// Tokens for each pass.
    tokens_per_step: f64,
    /// Share of steps whose token had not helped to choose the set.
    uncovered: f64,
    /// Share of the mass that was not attended, as estimated.
    missed: f64,
    /// Slices that entered ahead of a step and within it, per step, layer and KV head.
    prefetched: f64,
    repaired: f64,
}

#[derive(Debug)]
struct SummaryName(SummaryKind);

impl Serialize for SummaryName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

pub(crate) fn main(args: &EvalArgs) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(measure(args)));
    match outcome {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            // If standard error is gone the exit code is all that is left to say.
            drop(std::io::stderr().write_fmt(format_args!("oasiskv: {error:#}\n")));
            ExitCode::from(exit::code_of(&error))
        }
    }
}

/// A text at one context, computed, with what dense decode says of it.
struct Case<'a> {
    name: &'a str,
    context: u32,
    kind: SummaryKind,
    prompt: Prompt,
    text: Arc<[TokenId]>,
    dense: &'a LogProbabilities,
}

async fn measure(args: &EvalArgs) -> anyhow::Result<()> {
    let compute = ComputeConfig {
        name: args.model.clone(),
        threads: args.threads,
        ..ComputeConfig::default()
    };
    let fetch = crate::fetch_config(&compute);
    let opened = model::open(&compute, &fetch, &mut Bar::default())?;
    let served = ServedModel::open(&opened.resolved)?;
    let longest = args.context.iter().max().copied().unwrap_or(0) + args.steps;
    anyhow::ensure!(
        longest <= opened.model.spec().context,
        "--context and --steps: {longest} tokens exceed the model's context of {}",
        opened.model.spec().context
    );
    let mut rows = Vec::new();
    for text in &args.text {
        let tokens = served.tokens_of(&text.read()?).context(text.name().to_owned())?;
        for context in &args.context {
            let wanted = (*context + args.steps) as usize;
            anyhow::ensure!(
                tokens.len() >= wanted,
                "--text {}: has {} tokens, {wanted} are wanted; give a longer one",
                text.name(),
                tokens.len()
            );
            let (prompt, rest) = tokens[..wanted].split_at(*context as usize);
            let rest: Arc<[TokenId]> = rest.into();
            let mut dense = None;
            for kind in &args.summary {
                let prefill = Prefill::start(&opened, *context, Some(*kind))?;
                let prompt = prefill.run(prompt.into()).await?;
                let dense = match &mut dense {
                    Some(dense) => dense,
                    none => {
                        none.insert(led(&opened, &prompt, &rest, Policy::dense(), None).await?.0)
                    }
                };
                let case = Case {
                    name: text.name(),
                    context: *context,
                    kind: *kind,
                    prompt,
                    text: Arc::clone(&rest),
                    dense,
                };
                evaluate(args, &opened, &case, &mut rows).await?;
            }
        }
    }
    if args.json {
        let document = serde_json::json!({
            "model": opened.resolved.name,
            "device": kernels::Device::describe(&opened.device),
            "steps": args.steps,
            "rows": rows,
        });
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&document)?)?;
    }
    Ok(())
}

/// All policies on one prompt.
async fn evaluate(
    args: &EvalArgs,
    opened: &Opened<HostDevice>,
    case: &Case<'_>,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    for predictor in &args.predictor {
        for budget in &args.budget {
            for repair in &args.repair {
                for DraftsArg(drafts) in &args.drafts {
                    let text = format!(
                        "sparse:v1,predictor={predictor},summary={},budget={budget},\
                         budget_max={budget},prefetch={},repair={repair},slack=0,budgets={},\
                         guard=off,{drafts}",
                        case.kind, args.prefetch, args.budgets
                    );
                    let policy: Policy = text.parse().context("--predictor and its settings")?;
                    let (seen, usage) =
                        led(opened, &case.prompt, &case.text, policy, Some(case.kind)).await?;
                    let distances = Distances::between(case.dense, &seen, &case.text);
                    let columns = opened.model.spec().shape().slices() as f64;
                    let steps = usage.steps.max(1) as f64;
                    let row = Row {
                        task: "kl",
                        predictor: predictor.clone(),
                        summary: SummaryName(case.kind),
                        budget: *budget,
                        context: case.context,
                        text: case.name.to_owned(),
                        drafts: drafts.clone(),
                        prefetch_blocks: args.prefetch,
                        repair_blocks: *repair,
                        value: distances.mean(),
                        p99: distances.percentile(99),
                        agreement: distances.agreement(),
                        perplexity: distances.perplexity(),
                        dense_perplexity: distances.dense_perplexity(),
                        tokens_per_step: 1.0 + usage.committed as f64 / steps,
                        uncovered: usage.uncovered as f64 / steps,
                        missed: 1.0 - usage.quality.recall(),
                        prefetched: usage.prefetched as f64 / steps / columns,
                        repaired: usage.repaired as f64 / steps / columns,
                    };
                    show(args, &row)?;
                    rows.push(row);
                }
            }
        }
    }
    Ok(())
}

/// Leads a prompt through its text under a policy: the distributions in front of each token behind
/// the first, whose distribution is prefill's.
async fn led(
    opened: &Opened<HostDevice>,
    prompt: &Prompt,
    text: &Arc<[TokenId]>,
    policy: Policy,
    kind: Option<SummaryKind>,
) -> anyhow::Result<(LogProbabilities, KvUsage)> {
    let steps = u32::try_from(text.len())?;
    let prompt_tokens = u32::try_from(prompt.tokens.len())?;
    let tokens = prompt_tokens + steps;
    let room = Room { sequences: 1, prompt_tokens, tokens, policy, kind, trace: None };
    let decode = Decode::start(opened, room)?;
    let (sink, probed) = sync_channel(PROBED_MAX);
    // The loop blocks on it, so it cannot be a task beside the handle's.
    let reader = std::thread::Builder::new().name("logits".into()).spawn(move || read(&probed))?;
    let probe = Probe { text: Arc::clone(text), sink };
    let mut handle = decode.admit(decode.prepare(prompt, steps, Some(probe))?)?;
    let usage = loop {
        match handle.next().await {
            Some(DecodeItem::Token { .. }) => {}
            Some(DecodeItem::Finished { usage, .. }) => break *usage,
            Some(DecodeItem::Failed { detail }) => anyhow::bail!(detail),
            None => anyhow::bail!("the decode loop has ended"),
        }
    };
    let seen = reader.join().map_err(|_| anyhow::anyhow!("reading logits failed"))?;
    Ok((seen, usage))
}

fn read(probed: &Receiver<Probed>) -> LogProbabilities {
    let mut seen = LogProbabilities::default();
    for Probed { logits, .. } in probed.iter() {
        seen.push(&logits);
    }
    seen
}

fn show(args: &EvalArgs, row: &Row) -> std::io::Result<()> {
    if args.json {
        return Ok(());
    }
    writeln!(
        std::io::stdout(),
        "{:<9} {:<7} budget {:>4} context {:>5} {:<8} {:<30} R {}: kl {:.5} p99 {:.4} agree {:.3} \
         tokens/step {:.2} uncovered {:.2} missed {:.3} in {:.2} + {:.2}",
        row.predictor,
        row.summary.0.name(),
        row.budget,
        row.context,
        row.text,
        row.drafts,
        row.repair_blocks,
        row.value,
        row.p99,
        row.agreement,
        row.tokens_per_step,
        row.uncovered,
        row.missed,
        row.prefetched,
        row.repaired,
    )
}
