//! Both loops on one model, each with its own device memory, and a host slab between them.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use engine::{
    Admission, DecodeEngine, DecodeItem, DecodeOptions, DeviceKv, HostBlock, KvUsage,
    PrefillEngine, PrefillJob, PrefillOptions, PrefillOutput, Prefilled, PromptKv, SequenceHandle,
    SubmitError, SummaryKv,
};
use ids::{BLOCK_TOKENS, BlockHash, ByteCount, TokenId};
use kernels::{HostDevice, HostOptions, SummaryKind};
use kv::BlockTable;
use model::{LoadOptions, Model};
use session::{Finish, Generation, Sampling};
use tokio::sync::mpsc;
use transfer::{HugePages, Slab, SlotMut};

use super::tiny::Tiny;
use super::writer::{Random, Stored};

pub(crate) const ROOT: BlockHash = BlockHash([7; 32]);

/// Longer than any test takes: a loop that hangs is told from one that works.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the loops of a test are given.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) chunk: usize,
    pub(crate) active: usize,
    pub(crate) batch: usize,
    pub(crate) waiting: usize,
    pub(crate) unread: usize,
    /// Tokens that each device memory has slots for.
    pub(crate) tokens: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { chunk: 64, active: 2, batch: 8, waiting: 16, unread: 8, tokens: 4096 }
    }
}

pub(crate) struct World {
    pub(crate) prefill: PrefillEngine,
    pub(crate) decode: DecodeEngine,
    pub(crate) prefill_memory: DeviceKv<HostDevice>,
    pub(crate) decode_memory: DeviceKv<HostDevice>,
    pub(crate) summaries: SummaryKv<HostDevice>,
    pub(crate) slab: Slab,
}

/// A prompt that was computed.
pub(crate) struct Computed {
    pub(crate) tokens: Arc<[TokenId]>,
    pub(crate) sealed: Vec<HostBlock>,
    pub(crate) end: Prefilled,
}

/// What came out of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) tokens: Vec<u32>,
    pub(crate) finish: Finish,
    pub(crate) sampled: u32,
    pub(crate) digest: Option<[u8; 32]>,
    pub(crate) usage: KvUsage,
}

pub(crate) fn device() -> HostDevice {
    let options =
        HostOptions { isa: None, threads: NonZeroUsize::MIN, huge_pages: kernels::HugePages::Off };
    HostDevice::open(options).unwrap()
}

/// Two layers of random weights.
pub(crate) fn tiny() -> Arc<Model<HostDevice>> {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    Tiny::llama(Stored::Q4_1, Stored::Q8_0).file().write(&path);
    let checkpoint = checkpoint::Checkpoint::open(&path).unwrap();
    Arc::new(Model::load(&checkpoint, &device(), LoadOptions::default()).unwrap())
}

/// Random tokens of the tiny model.
pub(crate) fn prompt(seed: u64, length: usize) -> Arc<[TokenId]> {
    let mut random = Random(seed);
    let token = |_| TokenId(u32::try_from(random.next() % 96).unwrap());
    (0..length).map(token).collect()
}

pub(crate) fn greedy(max_tokens: u32) -> Generation {
    Generation {
        sampling: Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            choice: 0,
        },
        max_tokens,
        stop_tokens: Arc::new([]),
        digest_logits: true,
    }
}

/// Waits for something that another thread does soon.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("never came: {what}"));
}

impl World {
    pub(crate) fn new(model: &Arc<Model<HostDevice>>, bounds: Bounds) -> Self {
        let spec = *model.spec();
        let slots = kv::blocks_for(bounds.tokens as usize) * spec.shape().slices();
        let bytes = ByteCount((slots * spec.slice_bytes()) as u64);
        let memory = || {
            let head_dim = usize::from(spec.head_dim);
            DeviceKv::try_new(model.device(), spec.shape(), head_dim, bytes).unwrap()
        };
        let (prefill_memory, decode_memory) = (memory(), memory());
        let units = |count: u32| {
            let place = (spec.shape(), usize::from(spec.head_dim));
            let unit = SummaryKind::Int4.bytes(place.1) * spec.shape().slices();
            let bytes = ByteCount(u64::from(count) * unit as u64);
            SummaryKv::try_new(model.device(), SummaryKind::Int4, place, bytes).unwrap()
        };
        let summaries = units(bounds.tokens / 16);
        let number = |n| NonZeroUsize::new(n).unwrap();
        let options = PrefillOptions {
            chunk_tokens: number(bounds.chunk),
            active_max: number(bounds.active),
            waiting_max: number(bounds.waiting),
        };
        let prefill = PrefillEngine::start(
            Arc::clone(model),
            prefill_memory.clone(),
            Some(units(1)),
            options,
        )
        .unwrap();
        let options = DecodeOptions {
            batch_max: number(bounds.batch),
            waiting_max: number(bounds.waiting),
            unread_max: number(bounds.unread),
            drafts_max: 4,
            trace: None,
        };
        let own = (decode_memory.clone(), Some(summaries.clone()));
        let decode = DecodeEngine::start(Arc::clone(model), own.0, own.1, options).unwrap();
        let slots = u32::try_from(slots).unwrap();
        Self {
            prefill,
            decode,
            prefill_memory,
            decode_memory,
            summaries,
            slab: Slab::try_new(slots, spec.slice_bytes(), HugePages::Off).unwrap(),
        }
    }

    pub(crate) fn job(&self, tokens: &Arc<[TokenId]>, cached: &[HostBlock]) -> PrefillJob {
        let length = u32::try_from(tokens.len()).unwrap();
        let slots = self.prefill_memory.slots_for(length);
        let per_block = self.prefill_memory.shape().slices();
        let host = slots - u32::try_from(cached.len() * per_block).unwrap();
        PrefillJob {
            tokens: Arc::clone(tokens),
            root: ROOT,
            cached: cached.to_vec(),
            reservation: self.prefill_memory.pool().try_reserve(slots).unwrap(),
            host: self.slab.try_alloc_many(host).unwrap(),
            score: true,
            cancelled: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Computes a prompt, with as much of the prefix as may be used.
    pub(crate) async fn compute(&self, tokens: &Arc<[TokenId]>, prefix: &[HostBlock]) -> Computed {
        let usable = PrefillEngine::usable_prefix(tokens.len(), prefix.len());
        let prefix = &prefix[..usable];
        let job = self.job(tokens, prefix);
        let outputs = self.prefill.submit(job).unwrap();
        let (newly, end) = outputs_of(outputs).await;
        let sealed = prefix.iter().cloned().chain(newly).collect();
        Computed { tokens: Arc::clone(tokens), sealed, end: end.expect("the prompt is computed") }
    }

    pub(crate) fn admission(&self, prompt: &Computed, generation: Generation) -> Admission {
        let length = u32::try_from(prompt.tokens.len()).unwrap();
        let memory = &self.decode_memory;
        let slots = memory.slots_for(length + generation.max_tokens);
        let mut reservation = memory.pool().try_reserve(slots).unwrap();
        let mut table = BlockTable::new(memory.shape());
        let (blocks, rest) = prompt.tokens.as_chunks::<BLOCK_TOKENS>();
        for (block, tokens) in prompt.sealed.iter().zip(blocks) {
            let identity = (block.receipt.key, tokens);
            memory.load_sealed(&mut table, &mut reservation, identity, &block.slices).unwrap();
        }
        if let Some(tail) = &prompt.end.tail {
            memory.load_open(&mut table, &mut reservation, rest, &tail.slices).unwrap();
        }
        let last = prompt.sealed.last();
        Admission {
            kv: PromptKv::Dense { table, reservation },
            tokens: Arc::clone(&prompt.tokens),
            policy: sparse::Policy::dense(),
            last_hidden: Arc::clone(&prompt.end.last_hidden),
            parent: last.map_or(ROOT, |block| block.receipt.key.hash),
            generation,
            probe: None,
        }
    }

    pub(crate) fn admit(
        &self,
        prompt: &Computed,
        generation: Generation,
    ) -> Result<SequenceHandle, SubmitError> {
        self.decode.admit(self.admission(prompt, generation))
    }

    /// Decodes to the end.
    pub(crate) async fn draw(&self, prompt: &Computed, generation: Generation) -> Drawn {
        drawn(&mut self.admit(prompt, generation).unwrap()).await
    }

    /// Until nothing is held on any device and nothing waits or runs.
    pub(crate) async fn quiet(&self) {
        let free = |memory: &DeviceKv<HostDevice>| {
            let slots = memory.pool().occupancy();
            slots.free == slots.total
        };
        let idle = |state: engine::LoopState| state.waiting == 0 && state.running == 0;
        until("all slots free, both loops idle", || {
            let host = self.slab.occupancy();
            let units = self.summaries.pool().occupancy();
            free(&self.prefill_memory)
                && free(&self.decode_memory)
                && units.free == units.total
                && host.free == host.total
                && idle(self.prefill.state())
                && idle(self.decode.state())
        })
        .await;
    }
}

/// Everything until the end; `None` for an end without a result.
pub(crate) async fn outputs_of(
    mut outputs: mpsc::Receiver<PrefillOutput>,
) -> (Vec<HostBlock>, Option<Prefilled>) {
    let mut sealed = Vec::new();
    let waiting = async {
        while let Some(output) = outputs.recv().await {
            match output {
                PrefillOutput::Sealed(blocks) => sealed.extend(blocks),
                PrefillOutput::Done(end) => return Some(*end),
                PrefillOutput::Cancelled => return None,
                PrefillOutput::Failed { detail } => panic!("{detail}"),
            }
        }
        None
    };
    let end = tokio::time::timeout(PATIENCE, waiting).await;
    let end = end.expect("the prefill loop goes on");
    (sealed, end)
}

pub(crate) async fn next(handle: &mut SequenceHandle) -> Option<DecodeItem> {
    let item = tokio::time::timeout(PATIENCE, handle.next()).await;
    item.expect("the decode loop goes on")
}

pub(crate) async fn drawn(handle: &mut SequenceHandle) -> Drawn {
    let mut tokens = Vec::new();
    loop {
        match next(handle).await {
            Some(DecodeItem::Token { token, .. }) => tokens.push(token.0),
            Some(DecodeItem::Finished { finish, sampled, logits_digest, usage, .. }) => {
                return Drawn { tokens, finish, sampled, digest: logits_digest, usage: *usage };
            }
            other => panic!("after {} tokens: {other:?}", tokens.len()),
        }
    }
}

/// Empty host slots, for a job that is to be wrong.
pub(crate) fn none() -> Vec<SlotMut> {
    Vec::new()
}
