//! `oasiskv bench engine`: prefill and decode as the loops run them, at several contexts and
//! numbers of sequences. Medians over runs; nothing is asserted.

use std::io::Write;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use checkpoint::Bar;
use daemon::exit;
use engine::{
    Admission, DecodeEngine, DecodeItem, DecodeOptions, DeviceKv, HostBlock, PrefillEngine,
    PrefillJob, PrefillOptions, PrefillOutput, SequenceHandle,
};
use ids::{BLOCK_TOKENS, BlockHash, BlockKey, ByteCount, TokenId};
use kernels::HostDevice;
use kv::BlockTable;
use model::{ComputeConfig, Opened};
use serde::Serialize;
use session::{Generation, Sampling};
use tokio::time::Instant;
use transfer::{HugePages, Slab};

use super::at_least_one;

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
    let prefill = Prefill::start(&opened, longest.max(1))?;
    for tokens in &args.prefill {
        let mut seconds = Vec::new();
        for _ in 0..args.runs {
            seconds.push(prefill.run(*tokens).await?.seconds);
        }
        rows.push(row("prefill", 1, *tokens, f64::from(*tokens), &seconds));
        show(args, rows.last())?;
    }
    for context in &args.contexts {
        // At context 0 a sequence still has its first token.
        let prompt = prefill.run((*context).max(1)).await?;
        for sequences in args.sequences.iter().map(|count| *count as usize) {
            let decode = Decode::start(&opened, sequences, *context + DECODE_TOKENS + 1)?;
            let mut seconds = Vec::new();
            for _ in 0..args.runs {
                seconds.push(decode.run(&prompt, sequences).await?);
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

/// A prompt that was computed.
struct Prompt {
    tokens: Arc<[TokenId]>,
    blocks: Vec<HostBlock>,
    tail: Option<HostBlock>,
    last_hidden: Arc<[f32]>,
    seconds: f64,
}

/// The prefill loop, with memory for one prompt.
struct Prefill {
    engine: PrefillEngine,
    memory: DeviceKv<HostDevice>,
    slab: Slab,
    vocab: u32,
}

const ROOT: BlockHash = BlockHash([0; 32]);

fn memory(
    opened: &Opened<HostDevice>,
    tokens: u32,
    sequences: usize,
) -> anyhow::Result<DeviceKv<HostDevice>> {
    let spec = opened.model.spec();
    let blocks = kv::blocks_for(tokens as usize) * sequences;
    let bytes = ByteCount((blocks * spec.shape().slices() * spec.slice_bytes()) as u64);
    DeviceKv::try_new(&opened.device, spec.shape(), usize::from(spec.head_dim), bytes)
        .context("device memory")
}

impl Prefill {
    fn start(opened: &Opened<HostDevice>, tokens_max: u32) -> anyhow::Result<Self> {
        let spec = opened.model.spec();
        let memory = memory(opened, tokens_max, 1)?;
        let one = NonZeroUsize::MIN;
        let chunk_tokens = NonZeroUsize::new(256).expect("not zero");
        let options = PrefillOptions { chunk_tokens, active_max: one, waiting_max: one };
        let engine = PrefillEngine::start(Arc::clone(&opened.model), memory.clone(), options)?;
        // Two prompts: one is kept for decode while the next is computed.
        let slots = memory.slots_for(tokens_max).saturating_mul(2);
        let slab = Slab::try_new(slots, spec.slice_bytes(), HugePages::Auto)?;
        Ok(Self { engine, memory, slab, vocab: spec.vocab })
    }

    async fn run(&self, count: u32) -> anyhow::Result<Prompt> {
        // Any text will do for the time it takes; a fixed one makes runs comparable.
        let tokens: Arc<[TokenId]> =
            (0..count).map(|i| TokenId(i.wrapping_mul(2_654_435_761) % self.vocab)).collect();
        let slots = self.memory.slots_for(count);
        let job = PrefillJob {
            tokens: Arc::clone(&tokens),
            root: ROOT,
            cached: Vec::new(),
            reservation: self.memory.pool().try_reserve(slots)?,
            host: self.slab.try_alloc_many(slots)?,
            cancelled: Arc::default(),
        };
        let began = Instant::now();
        let mut outputs = self.engine.submit(job)?;
        let mut blocks = Vec::new();
        while let Some(output) = outputs.recv().await {
            match output {
                PrefillOutput::Sealed(sealed) => blocks.extend(sealed),
                PrefillOutput::Done(done) => {
                    return Ok(Prompt {
                        tokens,
                        blocks,
                        tail: done.tail,
                        last_hidden: done.last_hidden,
                        seconds: began.elapsed().as_secs_f64(),
                    });
                }
                PrefillOutput::Cancelled => anyhow::bail!("the prefill loop gave up"),
                PrefillOutput::Failed { detail } => anyhow::bail!(detail),
            }
        }
        anyhow::bail!("the prefill loop has ended")
    }
}

/// The decode loop, with memory for its sequences.
struct Decode {
    engine: DecodeEngine,
    memory: DeviceKv<HostDevice>,
}

impl Decode {
    fn start(
        opened: &Opened<HostDevice>,
        sequences: usize,
        tokens_max: u32,
    ) -> anyhow::Result<Self> {
        let memory = memory(opened, tokens_max, sequences)?;
        let number = |n| NonZeroUsize::new(n).context("--sequences must be at least 1");
        let options = DecodeOptions {
            batch_max: number(sequences)?,
            waiting_max: number(sequences)?,
            unread_max: number(DECODE_TOKENS as usize + 2)?,
        };
        let engine = DecodeEngine::start(Arc::clone(&opened.model), memory.clone(), options)?;
        Ok(Self { engine, memory })
    }

    /// Seconds for [`DECODE_TOKENS`] steps of all sequences together, from the step after the
    /// last sequence's first token.
    async fn run(&self, prompt: &Prompt, sequences: usize) -> anyhow::Result<f64> {
        let mut admissions = Vec::new();
        for _ in 0..sequences {
            admissions.push(self.admission(prompt)?);
        }
        let admitted: Result<Vec<SequenceHandle>, _> =
            admissions.into_iter().map(|admission| self.engine.admit(admission)).collect();
        let mut handles = admitted?;
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

    fn admission(&self, prompt: &Prompt) -> anyhow::Result<Admission> {
        let final_tokens = prompt.tokens.len() + DECODE_TOKENS as usize + 1;
        let slots = self.memory.slots_for(u32::try_from(final_tokens)?);
        let mut reservation = self.memory.pool().try_reserve(slots)?;
        let mut table = BlockTable::new(self.memory.shape());
        let chunks = prompt.tokens.chunks_exact(BLOCK_TOKENS);
        let rest = chunks.remainder();
        for (block, tokens) in prompt.blocks.iter().zip(chunks) {
            let key: BlockKey = block.receipt.key;
            let identity = (key, tokens.try_into()?);
            self.memory.load_sealed(&mut table, &mut reservation, identity, &block.slices)?;
        }
        if let Some(tail) = &prompt.tail {
            self.memory.load_open(&mut table, &mut reservation, rest, &tail.slices)?;
        }
        let parent = prompt.blocks.last().map_or(ROOT, |block| block.receipt.key.hash);
        let sampling =
            Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, choice: 0 };
        Ok(Admission {
            table,
            reservation,
            last_hidden: Arc::clone(&prompt.last_hidden),
            parent,
            generation: Generation {
                sampling,
                max_tokens: DECODE_TOKENS + 1,
                stop_tokens: Arc::new([]),
                digest_logits: false,
            },
        })
    }
}

async fn expect_token(handle: &mut SequenceHandle) -> anyhow::Result<()> {
    match handle.next().await {
        Some(DecodeItem::Token { .. }) => Ok(()),
        other => anyhow::bail!("expected a token, got {other:?}"),
    }
}
