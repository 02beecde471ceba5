//! The prefill loop: prompts in chunks, round robin, so that a long one does not hold up a short
//! one. Full blocks are sealed as soon as their chunk is done, gathered into host slices and
//! checksummed there; the device slots are scratch and free when the prompt is done.
//!
//! Does not sample and does not send anything over a network.

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
use crate::{StartError, SubmitError};

mod job;

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
    /// Residual stream of the last token after the last layer, before the final norm.
    pub last_hidden: Arc<[f32]>,
    /// From submission to the first chunk.
    pub queued: Span,
    /// From the first chunk on.
    pub computed: Span,
}

enum Command {
    Start(Box<Job>),
    Stop,
}

/// The loop's handle.
pub struct PrefillEngine {
    commands: SyncSender<Command>,
    counters: Arc<Counters>,
    options: PrefillOptions,
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
        options: PrefillOptions,
    ) -> Result<Self, StartError> {
        let (commands, inbox) = sync_channel(options.waiting_max.get());
        let counters = Arc::new(Counters::default());
        let shape = ScratchShape {
            rows: options.chunk_tokens.get(),
            logit_rows: 0,
        };
        let scratch = model.scratch(shape)?;
        let mut state = Loop {
            model,
            memory,
            scratch,
            options,
            inbox,
            active: Vec::new(),
            turn: 0,
            counters: Arc::clone(&counters),
        };
        let thread = std::thread::Builder::new()
            .name("prefill-loop".into())
            .spawn(move || state.run())?;
        Ok(Self {
            commands,
            counters,
            options,
            thread: Some(thread),
        })
    }

    /// How many blocks of a found prefix a prompt of `tokens` tokens may skip: all but those that
    /// the last 32 tokens touch.
    #[must_use]
    pub fn usable_prefix(tokens: usize, found_blocks: usize) -> usize {
        found_blocks.min(tokens.saturating_sub(SCORING_WINDOW) / ids::BLOCK_TOKENS)
    }

    /// Hands a prompt to the loop; the receiver has room for everything that will come.
    ///
    /// # Errors
    /// [`SubmitError`] when as many wait as may; nothing was done.
    pub fn submit(&self, job: PrefillJob) -> Result<mpsc::Receiver<PrefillOutput>, SubmitError> {
        let waiting = self.options.waiting_max.get();
        if self.counters.read().waiting as usize >= waiting {
            return Err(SubmitError::Full { waiting });
        }
        let chunks = job.tokens.len().div_ceil(self.options.chunk_tokens.get());
        let (sender, receiver) = mpsc::channel(chunks + 2);
        self.counters.came();
        match self
            .commands
            .try_send(Command::Start(Box::new(Job::new(job, sender))))
        {
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

    /// What the loop has done and is doing.
    #[must_use]
    pub fn state(&self) -> LoopState {
        self.counters.read()
    }
}

impl Drop for PrefillEngine {
    /// Ends the loop after the chunk at hand; its jobs end without a last item.
    fn drop(&mut self) {
        let _sent = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

struct Loop<D: Device> {
    model: Arc<Model<D>>,
    memory: DeviceKv<D>,
    scratch: Scratch<D>,
    options: PrefillOptions,
    inbox: Receiver<Command>,
    active: Vec<Job>,
    /// Index of the job whose chunk is next.
    turn: usize,
    counters: Arc<Counters>,
}

impl<D: Device> Loop<D> {
    fn run(&mut self) {
        while self.take_commands() {
            let index = self.turn % self.active.len();
            let job = &mut self.active[index];
            let chunk = self.options.chunk_tokens.get();
            let (rows, progress) = job.advance(&self.model, &self.memory, &mut self.scratch, chunk);
            self.counters.stepped(rows);
            match progress {
                Progress::More => self.turn = index + 1,
                // The next job slides into this place.
                Progress::Ended => {
                    self.active.remove(index);
                    self.turn = index;
                }
            }
            self.counters.set_running(self.active.len());
        }
        self.counters.stop();
    }

    /// Takes what waits; blocks while there is nothing to do. `false` ends the loop.
    fn take_commands(&mut self) -> bool {
        while self.active.len() < self.options.active_max.get() {
            let command = if self.active.is_empty() {
                match self.inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                }
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(_) => break,
                }
            };
            match command {
                Command::Start(job) => {
                    self.counters.went();
                    self.active.push(*job);
                    self.counters.set_running(self.active.len());
                }
                Command::Stop => return false,
            }
        }
        true
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Acquire)
}
