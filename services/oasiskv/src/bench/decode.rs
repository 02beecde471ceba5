//! `oasiskv bench decode`: dense against sparse decode of the same text by the loop that serves.
//! Nothing is asserted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use checkpoint::Bar;
use clap::ValueEnum;
use daemon::exit;
use engine::{DecodeItem, KvUsage, Lane, LoopState, SequenceHandle, TraceSpan, Tracer};
use gateway::ServedModel;
use kernels::{HostDevice, SummaryKind};
use model::{ComputeConfig, Opened};
use serde::Serialize;
use sparse::Policy;
use tokio::time::Instant;

use super::at_least_one;
use crate::eval::{DraftsArg, Text};
use crate::loops::{Decode, Prefill, Prompt, Room, expect_token};

#[derive(Debug, clap::Args)]
pub(crate) struct DecodeArgs {
    /// An alias such as smollm2-135m, a hub id (owner/name), or the path of a .gguf file or a
    /// directory.
    #[arg(long, default_value = checkpoint::DEFAULT_ALIAS)]
    model: String,
    /// What is attended to: everything, or a chosen set.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "dense,sparse")]
    policy: Vec<Kind>,
    /// Sequences that decode together.
    #[arg(long, value_delimiter = ',', default_value = "8", value_parser = at_least_one)]
    sequences: Vec<u32>,
    /// Tokens of the prompt that each of them has.
    #[arg(long, value_delimiter = ',', default_value = "7000", value_parser = at_least_one)]
    context: Vec<u32>,
    /// Tokens that sparse decode attends to, per KV head.
    #[arg(long, value_delimiter = ',', default_value = "512")]
    budget: Vec<u32>,
    /// How the next step's blocks are predicted.
    #[arg(long, default_value = "lookahead")]
    predictor: String,
    /// What stands for the keys of a block: int4, int2, minmax8.
    #[arg(long, default_value = "int4")]
    summary: SummaryKind,
    /// Blocks that may enter ahead of a step, per KV head.
    #[arg(long, default_value_t = 4, value_name = "BLOCKS")]
    prefetch: u32,
    /// Blocks that a step's own query may bring in, per KV head.
    #[arg(long, default_value_t = 4, value_name = "BLOCKS")]
    repair: u32,
    /// Drafts: `none`, or source:count:acceptance.
    #[arg(long, default_value = "both:1:covered")]
    drafts: DraftsArg,
    /// Drafts of dense decode.
    #[arg(long, default_value = "none", value_name = "DRAFTS")]
    dense_drafts: DraftsArg,
    /// The text that prompts begin: docs, code or NAME=FILE.
    #[arg(long, default_value = "docs")]
    text: Text,
    /// Tokens that each sequence draws in a run, behind the first.
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    tokens: u32,
    /// Runs of each, the policies in turn; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    runs: u32,
    /// Compute threads; 0 is one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Write what happened when in the last run, as a Chrome trace (chrome://tracing, Perfetto).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Everything.
    Dense,
    /// A chosen set for each layer and KV head.
    Sparse,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
struct Row {
    policy: String,
    sequences: u32,
    context: u32,
    /// The median run.
    tokens_per_s: f64,
    tokens_per_s_min: f64,
    tokens_per_s_max: f64,
    step_ms_p50: f64,
    /// Share of the time that steps stood still for slices and for the choice of blocks.
    wait_share: f64,
    /// Share of the time that the background spent with masses, and with choosing and fetching.
    score_share: f64,
    choose_share: f64,
    /// Of slots and summaries together, for all sequences.
    device_kv_bytes: u64,
    tokens_per_step: f64,
    /// Slices that entered per step, layer and KV head.
    fetched: f64,
}

pub(crate) fn main(args: &DecodeArgs) -> ExitCode {
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

async fn measure(args: &DecodeArgs) -> anyhow::Result<()> {
    let compute = ComputeConfig {
        name: args.model.clone(),
        threads: args.threads,
        ..ComputeConfig::default()
    };
    let opened = model::open(&compute, &crate::fetch_config(&compute), &mut Bar::default())?;
    let longest = args.context.iter().max().copied().unwrap_or(1);
    anyhow::ensure!(
        longest + args.tokens < opened.model.spec().context,
        "--context and --tokens: {} tokens exceed the model's context of {}",
        longest + args.tokens + 1,
        opened.model.spec().context
    );
    let text = ServedModel::open(&opened.resolved)?.tokens_of(&args.text.read()?)?;
    anyhow::ensure!(
        text.len() >= longest as usize,
        "--text: has {} tokens, {longest} are wanted; give a longer one",
        text.len()
    );
    let prefill = Prefill::start(&opened, longest, Some(args.summary))?;
    let mut rows = Vec::new();
    for context in &args.context {
        let prompt = prefill.run(text[..*context as usize].into()).await?;
        for sequences in &args.sequences {
            let policies = policies(args)?;
            let mut runs: Vec<Vec<Row>> = policies.iter().map(|_| Vec::new()).collect();
            for _ in 0..args.runs {
                for (policy, runs) in policies.iter().zip(&mut runs) {
                    runs.push(run(args, &opened, &prompt, (*sequences, policy)).await?);
                }
            }
            for runs in runs {
                let row = median(runs);
                show(args, &row)?;
                rows.push(row);
            }
        }
    }
    if args.json {
        let document = serde_json::json!({
            "model": opened.resolved.name,
            "device": kernels::Device::describe(&opened.device),
            "rows": rows,
        });
        writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&document)?)?;
    }
    Ok(())
}

fn policies(args: &DecodeArgs) -> anyhow::Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for kind in &args.policy {
        match kind {
            Kind::Dense => policies.push(format!("dense:v1,{}", args.dense_drafts.0).parse()),
            Kind::Sparse => policies.extend(args.budget.iter().map(|budget| {
                format!(
                    "sparse:v1,predictor={},summary={},budget={budget},budget_max={budget},\
                     prefetch={},repair={},guard=off,{}",
                    args.predictor, args.summary, args.prefetch, args.repair, args.drafts.0
                )
                .parse()
            })),
        }
    }
    policies.into_iter().collect::<Result<_, _>>().context("--policy and its settings")
}

async fn run(
    args: &DecodeArgs,
    opened: &Opened<HostDevice>,
    prompt: &Prompt,
    (sequences, policy): (u32, &Policy),
) -> anyhow::Result<Row> {
    let context = u32::try_from(prompt.tokens.len())?;
    let room = Room {
        sequences: sequences as usize,
        prompt_tokens: context,
        tokens: context + args.tokens + 1,
        policy: policy.clone(),
        kind: Some(args.summary),
        trace: args.trace.as_ref().map(|_| Tracer::default()),
    };
    let trace = room.trace.clone();
    let decode = Decode::start(opened, room)?;
    // All are loaded before the first one runs.
    let prepared: anyhow::Result<Vec<_>> =
        (0..sequences).map(|_| decode.prepare(prompt, args.tokens + 1, None)).collect();
    let mut handles: Vec<SequenceHandle> = Vec::new();
    for admission in prepared? {
        handles.push(decode.admit(admission)?);
    }
    for handle in &mut handles {
        expect_token(handle).await?;
    }
    let (began, before) = (Instant::now(), decode.state());
    let mut arrivals = Vec::new();
    let mut usage = Vec::new();
    for (index, handle) in handles.iter_mut().enumerate() {
        loop {
            match handle.next().await {
                Some(DecodeItem::Token { .. }) if index == 0 => arrivals.push(Instant::now()),
                Some(DecodeItem::Token { .. }) => {}
                Some(DecodeItem::Finished { usage: own, .. }) => break usage.push(*own),
                Some(DecodeItem::Failed { detail }) => anyhow::bail!(detail),
                None => anyhow::bail!("the decode loop has ended"),
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if let (Some(path), Some(trace)) = (&args.trace, trace) {
        write_trace(path, &trace.take(), began)?;
    }
    let columns = opened.model.spec().shape().slices() as f64;
    let shares = Shares::between(&before, &decode.state(), seconds);
    let steps = usage.iter().map(|usage| usage.steps).sum::<u64>().max(1) as f64;
    let sum = |of: fn(&KvUsage) -> u64| usage.iter().map(of).sum::<u64>() as f64;
    let tokens_per_s = f64::from(sequences * args.tokens) / seconds;
    Ok(Row {
        policy: policy.to_string(),
        sequences,
        context,
        tokens_per_s,
        tokens_per_s_min: tokens_per_s,
        tokens_per_s_max: tokens_per_s,
        step_ms_p50: step_ms(&arrivals),
        wait_share: shares.awaited,
        score_share: shares.scored,
        choose_share: shares.chosen,
        device_kv_bytes: decode.device_bytes(),
        tokens_per_step: 1.0 + sum(|usage| usage.committed) / steps,
        fetched: sum(|usage| usage.prefetched + usage.repaired) / steps / columns,
    })
}

/// In the Trace Event Format: complete events, microseconds since the run began.
fn write_trace(path: &Path, spans: &[TraceSpan], began: Instant) -> anyhow::Result<()> {
    let events: Vec<serde_json::Value> = spans
        .iter()
        .filter(|span| span.begin >= began)
        .map(|span| {
            let lane = match span.lane {
                Lane::Loop => "decode loop",
                Lane::Scorer => "scorer",
                Lane::Fetch => "slices",
            };
            serde_json::json!({
                "name": format!("{} {}", span.name, span.layer),
                "cat": span.name,
                "ph": "X",
                "pid": 1,
                "tid": lane,
                "ts": (span.begin - began).as_secs_f64() * 1e6,
                "dur": (span.end - span.begin).as_secs_f64() * 1e6,
            })
        })
        .collect();
    let document = serde_json::json!({ "traceEvents": events });
    std::fs::write(path, document.to_string())
        .with_context(|| format!("writing {}", path.display()))
}

struct Shares {
    awaited: f64,
    scored: f64,
    chosen: f64,
}

impl Shares {
    fn between(before: &LoopState, after: &LoopState, seconds: f64) -> Self {
        let share =
            |of: fn(&LoopState) -> ids::Span| (of(after).0 - of(before).0) as f64 / 1e9 / seconds;
        Self {
            awaited: share(|state| state.awaited),
            scored: share(|state| state.scored),
            chosen: share(|state| state.chosen),
        }
    }
}

/// The median time between two steps: tokens of one step come together.
fn step_ms(arrivals: &[Instant]) -> f64 {
    const TOGETHER_MS: f64 = 0.2;
    let apart = arrivals.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
    let mut steps: Vec<f64> = apart.filter(|ms| *ms > TOGETHER_MS).collect();
    steps.sort_by(f64::total_cmp);
    steps.get(steps.len() / 2).copied().unwrap_or(0.0)
}

/// The middle run (of an even number the slower one), with the range of all.
fn median(mut runs: Vec<Row>) -> Row {
    runs.sort_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s));
    let (slowest, fastest) = (runs[0].tokens_per_s, runs[runs.len() - 1].tokens_per_s);
    let middle = (runs.len() - 1) / 2;
    Row { tokens_per_s_min: slowest, tokens_per_s_max: fastest, ..runs.swap_remove(middle) }
}

fn show(args: &DecodeArgs, row: &Row) -> std::io::Result<()> {
    if args.json {
        return Ok(());
    }
    writeln!(
        std::io::stdout(),
        "{}\n  {:>2} sequences, context {:>5}: {:>7.1} tokens/s ({:.1} to {:.1}), step {:.1} ms, \
         {:.2} tokens a step\n  device KV {:.1} MiB, fetched {:.2} slices a step and column; \
         shares: waited {:.3}, scoring {:.3}, choosing {:.3}",
        row.policy,
        row.sequences,
        row.context,
        row.tokens_per_s,
        row.tokens_per_s_min,
        row.tokens_per_s_max,
        row.step_ms_p50,
        row.tokens_per_step,
        row.device_kv_bytes as f64 / f64::from(1 << 20),
        row.fetched,
        row.wait_share,
        row.score_share,
        row.choose_share,
    )
}
