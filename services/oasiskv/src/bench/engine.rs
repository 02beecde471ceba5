//! `oasiskv bench engine`: prefill and decode as the loops run them, at several contexts and
//! numbers of sequences. Medians over runs; nothing is asserted.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use checkpoint::Bar;
use daemon::exit;
use engine::SequenceHandle;
use ids::TokenId;
use model::ComputeConfig;
use serde::Serialize;
use sparse::Policy;
use tokio::time::Instant;

use super::at_least_one;
use crate::loops::{Decode, Prefill, Prompt, Room, expect_token};

/// Tokens decoded and timed in one run.
const DECODE_TOKENS: u32 = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// An alias such as smollm2-135m, a hub id (owner/name), or the path of a .gguf file or a
    /// directory.
    #[arg(long, default_value = checkpoint::DEFAULT_ALIAS)]
    model: String,
    /// Compute threads; 0 is one for each processor.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Contexts to decode at, in tokens.
    #[arg(long, value_delimiter = ',', default_value = "0,2048,4096,7168")]
    contexts: Vec<u32>,
    /// Numbers of sequences to decode.
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = at_least_one)]
    sequences: Vec<u32>,
    /// Prompts to prefill, in tokens.
    #[arg(long, value_delimiter = ',', default_value = "512,4096", value_parser = at_least_one)]
    prefill: Vec<u32>,
    /// Runs of each; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    runs: u32,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
}

/// One figure.
#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    sequences: usize,
    context: u32,
    tokens_per_s: f64,
    /// The lowest and the highest run.
    tokens_per_s_min: f64,
    tokens_per_s_max: f64,
}

pub(crate) fn main(args: &EngineArgs) -> ExitCode {
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

async fn measure(args: &EngineArgs) -> anyhow::Result<()> {
    let compute = ComputeConfig {
        name: args.model.clone(),
        threads: args.threads,
        ..ComputeConfig::default()
    };
    let fetch = crate::fetch_config(&compute);
    let opened = model::open(&compute, &fetch, &mut Bar::default())?;
    let mut rows = Vec::new();
    let longest = args.contexts.iter().chain(&args.prefill).max().copied().unwrap_or(0);
    anyhow::ensure!(
        longest + DECODE_TOKENS <= opened.model.spec().context,
        "--contexts and --prefill: {longest} tokens exceed the model's context of {}",
        opened.model.spec().context
    );
    let vocab = opened.model.spec().vocab;
    let prefill = Prefill::start(&opened, longest.max(1), None)?;
    for tokens in &args.prefill {
        let mut seconds = Vec::new();
        for _ in 0..args.runs {
            seconds.push(prefill.run(some_text(*tokens, vocab)).await?.seconds);
        }
        rows.push(row("prefill", 1, *tokens, f64::from(*tokens), &seconds));
        show(args, rows.last())?;
    }
    for context in &args.contexts {
        // At context 0 a sequence still has its first token.
        let prompt = prefill.run(some_text((*context).max(1), vocab)).await?;
        for sequences in args.sequences.iter().map(|count| *count as usize) {
            let room = Room {
                sequences,
                prompt_tokens: (*context).max(1),
                tokens: (*context).max(1) + DECODE_TOKENS + 1,
                policy: Policy::dense(),
                kind: None,
                trace: None,
            };
            let decode = Decode::start(&opened, room)?;
            let mut seconds = Vec::new();
            for _ in 0..args.runs {
                seconds.push(run(&decode, &prompt, sequences).await?);
            }
            let tokens = sequences as f64 * f64::from(DECODE_TOKENS);
            rows.push(row("decode", sequences, *context, tokens, &seconds));
            show(args, rows.last())?;
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

fn row(phase: &'static str, sequences: usize, context: u32, tokens: f64, seconds: &[f64]) -> Row {
    let mut rates: Vec<f64> = seconds.iter().map(|seconds| tokens / seconds).collect();
    rates.sort_by(f64::total_cmp);
    Row {
        phase,
        sequences,
        context,
        // The mean of the two middle runs where their number is even.
        tokens_per_s: f64::midpoint(rates[(rates.len() - 1) / 2], rates[rates.len() / 2]),
        tokens_per_s_min: rates[0],
        tokens_per_s_max: rates[rates.len() - 1],
    }
}

fn show(args: &EngineArgs, row: Option<&Row>) -> std::io::Result<()> {
    let Some(row) = row.filter(|_| !args.json) else {
        return Ok(());
    };
    let Row { phase, sequences, context, .. } = row;
    writeln!(
        std::io::stdout(),
        "{phase:<8} {sequences:>2} sequences, context {context:>5}: {:>8.1} tokens/s \
         ({:.1} to {:.1})",
        row.tokens_per_s,
        row.tokens_per_s_min,
        row.tokens_per_s_max
    )
}

/// Any text will do for the time it takes; a fixed one makes runs comparable.
fn some_text(count: u32, vocab: u32) -> Arc<[TokenId]> {
    (0..count).map(|i| TokenId(i.wrapping_mul(2_654_435_761) % vocab)).collect()
}

/// Seconds for [`DECODE_TOKENS`] steps of all sequences together, from the step after the last
/// sequence's first token.
async fn run(decode: &Decode, prompt: &Prompt, sequences: usize) -> anyhow::Result<f64> {
    let mut handles: Vec<SequenceHandle> = Vec::new();
    // All are loaded before the first one runs.
    let prompts: anyhow::Result<Vec<_>> =
        (0..sequences).map(|_| decode.prepare(prompt, DECODE_TOKENS + 1, None)).collect();
    for prepared in prompts? {
        handles.push(decode.admit(prepared)?);
    }
    let mut began = None;
    for handle in &mut handles {
        expect_token(handle).await?;
        began = Some(Instant::now());
    }
    for handle in &mut handles {
        for _ in 0..DECODE_TOKENS {
            expect_token(handle).await?;
        }
    }
    let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    for handle in &mut handles {
        while handle.next().await.is_some() {}
    }
    Ok(seconds)
}
