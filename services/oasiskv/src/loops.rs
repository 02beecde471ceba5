//! The very loops that serve, without network and gateway: what `bench` and `eval` drive.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context;
use engine::{
    Admission, DecodeEngine, DecodeItem, DecodeOptions, DeviceKv, HostBacking, HostBlock,
    LoopState, PrefillEngine, PrefillJob, PrefillOptions, PrefillOutput, Probe, PromptKv,
    SequenceHandle, SparsePrompt, SummaryKv, Tracer,
};
use ids::{BLOCK_TOKENS, BlockHash, ByteCount, TokenId};
use kernels::{HostDevice, SummaryKind};
use kv::BlockTable;
use model::Opened;
use session::{Generation, Sampling};
use sparse::Policy;
use tokio::time::Instant;
use transfer::{HugePages, Slab, Slot};

const ROOT: BlockHash = BlockHash([0; 32]);

/// A prompt that was computed.
pub(crate) struct Prompt {
    pub(crate) tokens: Arc<[TokenId]>,
    blocks: Vec<HostBlock>,
    tail: Option<HostBlock>,
    first: Option<Arc<[f32]>>,
    last_hidden: Arc<[f32]>,
    pub(crate) seconds: f64,
}

fn slots(opened: &Opened<HostDevice>, count: usize) -> anyhow::Result<DeviceKv<HostDevice>> {
    let spec = opened.model.spec();
    let bytes = ByteCount((count * spec.slice_bytes()) as u64);
    DeviceKv::try_new(&opened.device, spec.shape(), usize::from(spec.head_dim), bytes)
        .context("device memory")
}

fn units(
    opened: &Opened<HostDevice>,
    kind: SummaryKind,
    count: usize,
) -> anyhow::Result<SummaryKv<HostDevice>> {
    let spec = opened.model.spec();
    let (shape, head_dim) = (spec.shape(), usize::from(spec.head_dim));
    let bytes = ByteCount((count * kind.bytes(head_dim) * shape.slices()) as u64);
    SummaryKv::try_new(&opened.device, kind, (shape, head_dim), bytes).context("summary memory")
}

/// The prefill loop, with memory for two prompts, of which one is kept.
pub(crate) struct Prefill {
    engine: PrefillEngine,
    memory: DeviceKv<HostDevice>,
    slab: Slab,
    scores: bool,
}

impl Prefill {
    /// For prompts of up to so many tokens; with summaries of a kind where sparse decode follows.
    pub(crate) fn start(
        opened: &Opened<HostDevice>,
        tokens_max: u32,
        kind: Option<SummaryKind>,
    ) -> anyhow::Result<Self> {
        let spec = opened.model.spec();
        let blocks = kv::blocks_for(tokens_max as usize);
        let memory = slots(opened, blocks * spec.shape().slices())?;
        let summaries = kind.map(|kind| units(opened, kind, 1)).transpose()?;
        let one = NonZeroUsize::MIN;
        let chunk_tokens = NonZeroUsize::new(256).expect("not zero");
        let options = PrefillOptions { chunk_tokens, active_max: one, waiting_max: one };
        let model = Arc::clone(&opened.model);
        let engine = PrefillEngine::start(model, memory.clone(), summaries, options)?;
        // Two prompts: one is kept for decode while the next is computed.
        let slots = memory.slots_for(tokens_max).saturating_mul(2);
        let slab = Slab::try_new(slots, spec.slice_bytes(), HugePages::Auto)?;
        Ok(Self { engine, memory, slab, scores: kind.is_some() })
    }

    pub(crate) async fn run(&self, tokens: Arc<[TokenId]>) -> anyhow::Result<Prompt> {
        let slots = self.memory.slots_for(u32::try_from(tokens.len())?);
        let job = PrefillJob {
            tokens: Arc::clone(&tokens),
            root: ROOT,
            cached: Vec::new(),
            reservation: self.memory.pool().try_reserve(slots)?,
            host: self.slab.try_alloc_many(slots)?,
            score: self.scores,
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
                        first: done.first,
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

/// What a decode loop is to have room for.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub(crate) sequences: usize,
    /// Of each, in the prompt.
    pub(crate) prompt_tokens: u32,
    /// Of each, to the end.
    pub(crate) tokens: u32,
    pub(crate) policy: Policy,
    /// Of a sparse policy.
    pub(crate) kind: Option<SummaryKind>,
    /// Collects what happens when.
    pub(crate) trace: Option<Tracer>,
}

/// The decode loop, with memory for its sequences.
pub(crate) struct Decode {
    engine: DecodeEngine,
    memory: DeviceKv<HostDevice>,
    summaries: Option<SummaryKv<HostDevice>>,
    device: HostDevice,
    /// For the blocks that sparse sequences seal.
    slab: Slab,
    room: Room,
}

impl Decode {
    pub(crate) fn start(opened: &Opened<HostDevice>, room: Room) -> anyhow::Result<Self> {
        let spec = opened.model.spec();
        let (slices, blocks) = (spec.shape().slices(), kv::blocks_for(room.tokens as usize));
        let columns = match room.policy.sparse() {
            None => blocks,
            Some(sparse) => {
                Admission::slots_per_column(sparse, room.prompt_tokens, room.tokens) as usize
            }
        };
        let memory = slots(opened, columns * slices * room.sequences)?;
        let kind = room.kind.filter(|_| room.policy.sparse().is_some());
        let summaries =
            kind.map(|kind| units(opened, kind, blocks * room.sequences)).transpose()?;
        let number = |n| NonZeroUsize::new(n).context("--sequences must be at least 1");
        let options = DecodeOptions {
            batch_max: number(room.sequences)?,
            waiting_max: number(room.sequences)?,
            unread_max: number(room.tokens as usize)?,
            drafts_max: room.policy.drafted_rows_max(),
            trace: room.trace.clone(),
        };
        let model = Arc::clone(&opened.model);
        let engine = DecodeEngine::start(model, memory.clone(), summaries.clone(), options)?;
        let kept = u32::try_from(blocks * slices * room.sequences)?;
        let slab = Slab::try_new(kept, spec.slice_bytes(), HugePages::Auto)?;
        Ok(Self { engine, memory, summaries, device: opened.device.clone(), slab, room })
    }

    /// Bytes of device memory for KV, summaries included.
    pub(crate) fn device_bytes(&self) -> u64 {
        let slots = u64::from(self.memory.pool().occupancy().total);
        let summaries = self.summaries.as_ref().map_or(0, |summaries| {
            u64::from(summaries.pool().occupancy().total) * summaries.unit_bytes() as u64
        });
        slots * self.memory.slot_bytes() as u64 + summaries
    }

    pub(crate) fn state(&self) -> LoopState {
        self.engine.state()
    }

    /// Hands a sequence to the loop.
    pub(crate) fn admit(&self, admission: Admission) -> anyhow::Result<SequenceHandle> {
        Ok(self.engine.admit(admission)?)
    }

    /// Brings a prompt to the device, to draw `max_tokens` behind it.
    pub(crate) fn prepare(
        &self,
        prompt: &Prompt,
        max_tokens: u32,
        probe: Option<Probe>,
    ) -> anyhow::Result<Admission> {
        let final_tokens = u32::try_from(prompt.tokens.len())? + max_tokens;
        let kv = match self.room.policy.sparse() {
            None => self.dense(prompt, final_tokens)?,
            Some(sparse) => {
                let prompt_tokens = u32::try_from(prompt.tokens.len())?;
                let each = Admission::slots_per_column(sparse, prompt_tokens, final_tokens);
                self.sparse(prompt, each, final_tokens)?
            }
        };
        let parent = prompt.blocks.last().map_or(ROOT, |block| block.receipt.key.hash);
        let sampling =
            Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0, choice: 0 };
        Ok(Admission {
            kv,
            tokens: Arc::clone(&prompt.tokens),
            policy: self.room.policy.clone(),
            last_hidden: Arc::clone(&prompt.last_hidden),
            parent,
            generation: Generation {
                sampling,
                max_tokens,
                stop_tokens: Arc::new([]),
                digest_logits: false,
            },
            probe,
        })
    }

    fn dense(&self, prompt: &Prompt, final_tokens: u32) -> anyhow::Result<PromptKv> {
        let slots = self.memory.slots_for(final_tokens);
        let mut reservation = self.memory.pool().try_reserve(slots)?;
        let mut table = BlockTable::new(self.memory.shape());
        let (chunks, rest) = prompt.tokens.as_chunks::<BLOCK_TOKENS>();
        for (block, tokens) in prompt.blocks.iter().zip(chunks) {
            let identity = (block.receipt.key, tokens);
            self.memory.load_sealed(&mut table, &mut reservation, identity, &block.slices)?;
        }
        if let Some(tail) = &prompt.tail {
            self.memory.load_open(&mut table, &mut reservation, rest, &tail.slices)?;
        }
        Ok(PromptKv::Dense { table, reservation })
    }

    fn sparse(&self, prompt: &Prompt, each: u32, final_tokens: u32) -> anyhow::Result<PromptKv> {
        let shape = self.memory.shape();
        let memory = self.summaries.as_ref().context("a sparse policy needs summaries")?;
        let slots = each * u32::try_from(shape.slices())?;
        let blocks = u32::try_from(kv::blocks_for(final_tokens as usize))?;
        let mut more_summaries = memory.pool().try_reserve(blocks)?;
        let mut summaries = Vec::with_capacity(prompt.blocks.len());
        for block in &prompt.blocks {
            let bytes = block.summary.as_ref().context("prefill made no summaries")?;
            let lease = memory.load(&self.device, &mut more_summaries, bytes)?;
            summaries.push(lease.context("units for all blocks were reserved")?);
        }
        let blocks: Vec<Arc<[Slot]>> =
            prompt.blocks.iter().map(|block| Arc::clone(&block.slices)).collect();
        Ok(PromptKv::Sparse(Box::new(SparsePrompt {
            slots: self.memory.pool().try_reserve(slots)?,
            summaries,
            more_summaries,
            first: prompt.first.clone().context("prefill scored nothing")?,
            tail: prompt.tail.iter().flat_map(|tail| tail.slices.iter().cloned()).collect(),
            backing: Arc::new(HostBacking::new(shape, self.slab.clone(), blocks)),
        })))
    }
}

/// The next token of a sequence that has not come to its end.
pub(crate) async fn expect_token(handle: &mut SequenceHandle) -> anyhow::Result<TokenId> {
    match handle.next().await {
        Some(DecodeItem::Token { token, .. }) => Ok(token),
        other => anyhow::bail!("expected a token, got {other:?}"),
    }
}
