//! The prefill loop: prompts in chunks, round robin, so that a long one does not hold up a short
//! one. Full blocks are sealed as soon as their chunk is done, gathered into host slices and
//! checksummed there; the device slots are scratch and free when the prompt is done.
//!
//! Does not sample and does not send anything over a network.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use ids::{BlockHash, Span, TokenId};
use kernels::Device;
use kv::SlotReservation;
use model::{Model, Scratch, ScratchShape};
use remote::BlockReceipt;
use tokio::sync::mpsc;
use transfer::{Slot, SlotMut};

use crate::counters::{Counters, LoopState};
use crate::device::DeviceKv;
use crate::fit::Fit;
use crate::sparse::{Summariser, SummaryKv};
use crate::{StartError, SubmitError};

mod job;
mod window;

use job::{Job, Progress};

/// Queries of the last prompt tokens choose the first working set, so these are always computed,
/// prefix hit or not (P1).
pub(crate) const SCORING_WINDOW: usize = 32;

/// Bounds of the loop.
#[derive(Clone, Copy, Debug)]
pub struct PrefillOptions {
    /// Tokens computed in one pass.
    pub chunk_tokens: NonZeroUsize,
    /// Prompts worked on in turn; more than these wait.
    pub active_max: NonZeroUsize,
    /// Prompts that may wait.
    pub waiting_max: NonZeroUsize,
}

/// A block in host memory: what its bytes hash to, and the bytes.
#[derive(Clone)]
pub struct HostBlock {
    /// Made when it was sealed.
    pub receipt: BlockReceipt,
    /// In the receipt's order.
    pub slices: Arc<[Slot]>,
    /// The summaries of its keys, for all layers and heads, of a sealed block where the loop makes
    /// them.
    pub summary: Option<Arc<[u8]>>,
}

/// A sealed block of an earlier prompt with the same prefix.
pub type CachedBlock = HostBlock;

/// One prompt to compute.
pub struct PrefillJob {
    /// The whole prompt, never empty.
    pub tokens: Arc<[TokenId]>,
    /// Root of its hash chain.
    pub root: BlockHash,
    /// Sealed blocks of its prefix, from block 0 on; as many as [`PrefillEngine::usable_prefix`]
    /// allows.
    pub cached: Vec<CachedBlock>,
    /// Device slots for the whole prompt.
    pub reservation: SlotReservation,
    /// Host slots for every block that is not cached, the open one included.
    pub host: Vec<SlotMut>,
    /// Whether the first working set is to be scored; the loop must make summaries for that.
    pub score: bool,
    /// Set by whoever loses interest; looked at between layers.
    pub cancelled: Arc<AtomicBool>,
}

/// What the loop yields for a job.
pub enum PrefillOutput {
    /// Blocks that became immutable, in order.
    Sealed(Vec<HostBlock>),
    /// The last item.
    Done(Box<Prefilled>),
    /// The last item when the job was cancelled.
    Cancelled,
    /// The last item when a pass gave no result.
    Failed {
        /// What was wrong, for the log.
        detail: String,
    },
}

/// The end of a prompt.
pub struct Prefilled {
    /// Blocks that were not computed.
    pub cached_blocks: usize,
    /// The open block, if the prompt's length is no multiple of 16; unused lanes are zero.
    pub tail: Option<HostBlock>,
    /// Masses of all blocks by the queries of the last 32 tokens, `[layers][kv_heads][blocks]`,
    /// where they were asked for: they choose the first working set.
    pub first: Option<Arc<[f32]>>,
    /// Residual stream of the last token after the last layer, before the final norm.
    pub last_hidden: Arc<[f32]>,
    /// From submission to the first chunk.
    pub queued: Span,
    /// From the first chunk on.
    pub computed: Span,
}

enum Command {
    Start(Box<Job>),
    /// Look at the stop flag.
    Look,
}

/// The loop's handle.
pub struct PrefillEngine {
    commands: SyncSender<Command>,
    counters: Arc<Counters>,
    options: PrefillOptions,
    fit: Fit,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PrefillEngine {
    /// Starts the loop on a thread of its own.
    ///
    /// # Errors
    /// When the thread or the memory for activations cannot be had.
    pub fn start<D: Device>(
        model: Arc<Model<D>>,
        memory: DeviceKv<D>,
        summaries: Option<SummaryKv<D>>,
        options: PrefillOptions,
    ) -> Result<Self, StartError> {
        let (commands, inbox) = sync_channel(options.waiting_max.get());
        let counters = Arc::new(Counters::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let shape = ScratchShape { rows: options.chunk_tokens.get(), logit_rows: 0 };
        let scratch = model.scratch(shape)?;
        let fit = Fit::of(&model).with_drafts(0, summaries.as_ref());
        let summariser = match summaries {
            None => None,
            Some(summaries) => Some(Summariser::try_new(&model, &memory, summaries)?),
        };
        let mut state = Loop {
            runner: Runner {
                model,
                memory,
                scratch,
                summariser,
                chunk_tokens: options.chunk_tokens.get(),
            },
            inbox,
            jobs: Jobs {
                active_max: options.active_max.get(),
                active: VecDeque::new(),
                waiting: VecDeque::new(),
                counters: Arc::clone(&counters),
            },
            stopping: Arc::clone(&stopping),
        };
        let thread =
            std::thread::Builder::new().name("prefill-loop".into()).spawn(move || state.run())?;
        Ok(Self { commands, counters, options, fit, stopping, thread: Some(thread) })
    }

    /// How many blocks of a found prefix a prompt of `tokens` tokens may skip: all but those that
    /// the last 32 tokens touch.
    #[must_use]
    pub fn usable_prefix(tokens: usize, found_blocks: usize) -> usize {
        found_blocks.min(tokens.saturating_sub(SCORING_WINDOW) / ids::BLOCK_TOKENS)
    }

    /// Hands a prompt to the loop; the receiver has room for everything that will come. Dropping it
    /// cancels the prompt.
    ///
    /// # Errors
    /// [`SubmitError`] when the job contradicts itself or as many wait as may; nothing was done.
    pub fn submit(&self, job: PrefillJob) -> Result<mpsc::Receiver<PrefillOutput>, SubmitError> {
        self.fit.prompt(&job)?;
        let waiting = self.options.waiting_max.get();
        if !self.counters.try_come(waiting) {
            return Err(SubmitError::Full { waiting });
        }
        let chunks = job.tokens.len().div_ceil(self.options.chunk_tokens.get());
        let (sender, receiver) = mpsc::channel(chunks + 2);
        let job = Box::new(Job::new(job, self.fit.shape(), sender));
        match self.commands.try_send(Command::Start(job)) {
            Ok(()) => Ok(receiver),
            Err(error) => {
                self.counters.went();
                Err(match error {
                    TrySendError::Full(_) => SubmitError::Full { waiting },
                    TrySendError::Disconnected(_) => SubmitError::Stopped,
                })
            }
        }
    }

    /// Whether another prompt may wait. Whoever is the only one to submit can count on it.
    #[must_use]
    pub fn has_room(&self) -> bool {
        (self.counters.read().waiting as usize) < self.options.waiting_max.get()
    }

    /// What the loop has done and is doing.
    #[must_use]
    pub fn state(&self) -> LoopState {
        self.counters.read()
    }
}

impl Drop for PrefillEngine {
    /// Ends the loop after the layer at hand; its jobs end without a last item.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // A full queue means that the loop is about to look anyway.
        let _woken = self.commands.try_send(Command::Look);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

struct Loop<D: Device> {
    runner: Runner<D>,
    inbox: Receiver<Command>,
    jobs: Jobs,
    /// Set by the handle's Drop.
    stopping: Arc<AtomicBool>,
}

/// What chunks run on.
struct Runner<D: Device> {
    model: Arc<Model<D>>,
    memory: DeviceKv<D>,
    scratch: Scratch<D>,
    summariser: Option<Summariser<D>>,
    chunk_tokens: usize,
}

/// The prompts that are not being computed at this moment.
struct Jobs {
    active_max: usize,
    /// In the order of their next chunks.
    active: VecDeque<Job>,
    /// In the order of submission.
    waiting: VecDeque<Job>,
    counters: Arc<Counters>,
}

impl<D: Device> Loop<D> {
    fn run(&mut self) {
        while self.take_commands() {
            let Some(mut job) = self.jobs.active.pop_front() else {
                continue;
            };
            let others = RefCell::new(&mut self.jobs);
            let stop = || {
                // What the others hold is free within a layer too, not only within a chunk (P6).
                others.borrow_mut().drop_cancelled();
                is_set(&self.stopping)
            };
            let (rows, progress) = job.advance(&mut self.runner, &stop);
            let counters = &self.jobs.counters;
            if rows > 0 {
                counters.stepped(rows);
            }
            match progress {
                Progress::More => self.jobs.active.push_back(job),
                Progress::Ended => drop(job),
            }
            counters.set_running(self.jobs.active.len());
        }
        self.jobs.counters.stop();
    }

    /// Takes what has come; blocks while there is nothing to do. `false` ends the loop.
    fn take_commands(&mut self) -> bool {
        self.jobs.counters.turned();
        if self.jobs.is_empty() {
            match self.inbox.recv() {
                Ok(command) => self.obey(command),
                Err(_) => return false,
            }
        }
        while let Ok(command) = self.inbox.try_recv() {
            self.obey(command);
        }
        self.jobs.drop_cancelled();
        self.jobs.fill_up();
        !is_set(&self.stopping)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start(job) => self.jobs.waiting.push_back(*job),
            Command::Look => {}
        }
    }
}

impl Jobs {
    fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// Frees what cancelled prompts hold, computed in part or not at all (P6).
    fn drop_cancelled(&mut self) {
        let goes_on = |job: &Job| {
            let cancelled = job.is_cancelled();
            if cancelled {
                job.give_up();
            }
            !cancelled
        };
        self.active.retain(goes_on);
        let before = self.waiting.len();
        self.waiting.retain(goes_on);
        for _ in self.waiting.len()..before {
            self.counters.went();
        }
    }

    fn fill_up(&mut self) {
        while self.active.len() < self.active_max
            && let Some(job) = self.waiting.pop_front()
        {
            self.counters.went();
            self.active.push_back(job);
        }
        self.counters.set_running(self.active.len());
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Acquire)
}
