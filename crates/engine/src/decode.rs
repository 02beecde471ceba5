//! Hot path. The decode loop: per step the newest token of each sequence and the drafted ones
//! behind it, sampled here and nowhere else.
//!
//! A sequence comes in with what it attends to first and the last hidden state of prefill, so its
//! first token costs no pass. It leaves when a stop token is drawn, a limit is reached, or its
//! handle is dropped; its slots are free before the next step begins (P6).

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ids::{BlockHash, Span, TokenId};
use kernels::Device;
use kv::{BlockTable, SlotLease, SlotReservation};
use model::Model;
use session::{Finish, Generation};
use sparse::{Policy, Predictor, Sparse};
use tokio::sync::mpsc;
use transfer::Slot;

use crate::counters::{Counters, LoopState};
use crate::device::DeviceKv;
use crate::fit::Fit;
use crate::sparse::{Backing, SummaryKv, Waker};
use crate::trace::Tracer;
use crate::{StartError, SubmitError};

mod batch;
mod draft;
mod held;
mod probe;
mod reading;
mod sequence;

pub use probe::{Probe, Probed};

use batch::Batch;
use sequence::Sequence;

/// While every reader is slow, how long the loop sleeps before it looks at them again.
const READERS_PAUSE: Duration = Duration::from_millis(2);

/// Bounds of the loop.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Sequences in one step; more than these wait.
    pub batch_max: NonZeroUsize,
    /// Sequences that may wait for a place in the batch.
    pub waiting_max: NonZeroUsize,
    /// Items that a slow reader may leave unread before its sequence sits steps out.
    pub unread_max: NonZeroUsize,
    /// Drafted rows of a sequence and step; a policy with more is refused.
    pub drafts_max: usize,
    /// Collects what happens when, if anybody wants to know.
    pub trace: Option<Tracer>,
}

/// Where the KV of a prompt is.
pub enum PromptKv {
    /// All of it on this device.
    Dense {
        /// The prompt's blocks.
        table: BlockTable,
        /// What is left of the slots reserved for the final length.
        reservation: SlotReservation,
    },
    /// In tiers below; what is attended to first is fetched when the sequence is admitted.
    Sparse(Box<SparsePrompt>),
}

/// A prompt in tiers below the device.
pub struct SparsePrompt {
    /// Slots for every column (layer and KV head): [`Admission::slots_per_column`] each.
    pub slots: SlotReservation,
    /// The units that hold the summaries of the prompt's sealed blocks, in order.
    pub summaries: Vec<SlotLease>,
    /// Units for the blocks up to the final length.
    pub more_summaries: SlotReservation,
    /// Masses of all blocks by the prompt's last 32 queries, `[layers][kv_heads][blocks]`.
    pub first: Arc<[f32]>,
    /// The slices of the open block in the shape's order; none when the prompt ends with a block.
    pub tail: Vec<Slot>,
    /// Where all sealed blocks are, and where further ones go.
    pub backing: Arc<dyn Backing>,
}

/// A sequence whose prompt was computed.
pub struct Admission {
    /// Its KV.
    pub kv: PromptKv,
    /// The prompt.
    pub tokens: Arc<[TokenId]>,
    /// What it attends to, and what it drafts.
    pub policy: Policy,
    /// Hidden state of the last prompt token, as prefill handed it over.
    pub last_hidden: Arc<[f32]>,
    /// Hash of the prompt's last full block, or the chain's root.
    pub parent: BlockHash,
    /// How to draw and when to stop.
    pub generation: Generation,
    /// Leads it through a text instead of through what it draws.
    pub probe: Option<Probe>,
}

impl Admission {
    /// Slots that a sparse sequence needs for each (layer, KV head): what may be attended to at
    /// once, what enters with the next step, and up to three blocks that are being written.
    #[must_use]
    pub fn slots_per_column(policy: &Sparse, prompt_tokens: u32, final_tokens: u32) -> u32 {
        let blocks_of =
            |tokens: u32| u32::try_from(kv::blocks_for(tokens as usize)).unwrap_or(u32::MAX);
        let blocks = blocks_of(final_tokens);
        if policy.predictor == Predictor::Oracle {
            return blocks + BEING_WRITTEN;
        }
        let chosen = policy.budget_blocks_max() + policy.prefetch_blocks;
        // Everything is attended to while it is little; a long prompt never is.
        let whole = policy.budget_blocks_max() + policy.slack_blocks();
        let most = if blocks_of(prompt_tokens) <= whole { whole.max(chosen) } else { chosen };
        blocks.min(most) + BEING_WRITTEN
    }
}

/// Blocks of a sparse sequence that are written at once: the open one, and one behind it for
/// drafted tokens; a third while the first is sealed.
const BEING_WRITTEN: u32 = 3;

/// What a sequence yields.
#[derive(Clone, Debug, PartialEq)]
pub enum DecodeItem {
    /// One sampled token that is part of the text.
    Token {
        /// Which.
        token: TokenId,
        /// Natural logarithm of its probability.
        logprob: f32,
    },
    /// The last item.
    Finished {
        /// Why.
        finish: Finish,
        /// Tokens sampled, a stop token included.
        sampled: u32,
        /// From admission to the last token.
        elapsed: Span,
        /// When it was asked for.
        logits_digest: Option<[u8; 32]>,
        /// What its drafts and its sparse decode came to.
        usage: Box<KvUsage>,
    },
    /// The step gave numbers that cannot be sampled from.
    Failed {
        /// What was wrong, for the log.
        detail: String,
    },
}

/// What drafting and sparse decode came to, of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvUsage {
    /// Passes that it was part of.
    pub steps: u64,
    /// Drafted rows that were run.
    pub drafted: u64,
    /// Of those, committed ones: tokens that cost no pass of their own.
    pub committed: u64,
    /// Passes whose token had not helped to choose the set.
    pub uncovered: u64,
    /// Slices fetched ahead of a step.
    pub prefetched: u64,
    /// Slices fetched within a step, for its own query.
    pub repaired: u64,
    /// What the meter counted; zero under dense decode.
    pub quality: sparse::Totals,
}

/// The right to a sequence's items; dropping it cancels the sequence.
pub struct SequenceHandle {
    items: mpsc::Receiver<DecodeItem>,
    cancelled: Arc<AtomicBool>,
    commands: SyncSender<Command>,
}

impl SequenceHandle {
    /// The next item; `None` after the last one, or when the loop has ended.
    pub async fn next(&mut self) -> Option<DecodeItem> {
        self.items.recv().await
    }
}

impl Drop for SequenceHandle {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
        // A full queue means that the loop is about to look anyway.
        let _woken = self.commands.try_send(Command::Look);
    }
}

enum Command {
    Admit(Box<Entry>),
    /// Look at the flags, and at what has arrived.
    Look,
}

/// A sequence on its way into the loop.
struct Entry {
    admission: Admission,
    items: mpsc::Sender<DecodeItem>,
    cancelled: Arc<AtomicBool>,
}

/// The loop's handle.
pub struct DecodeEngine {
    commands: SyncSender<Command>,
    counters: Arc<Counters>,
    options: DecodeOptions,
    fit: Fit,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DecodeEngine {
    /// Starts the loop on a thread of its own.
    ///
    /// # Errors
    /// When the thread or the memory for activations cannot be had.
    pub fn start<D: Device>(
        model: Arc<Model<D>>,
        memory: DeviceKv<D>,
        summaries: Option<SummaryKv<D>>,
        options: DecodeOptions,
    ) -> Result<Self, StartError> {
        // Twice: a cancel must find room beside the sequences that wait.
        let (commands, inbox) = sync_channel(options.waiting_max.get() * 2);
        let counters = Arc::new(Counters::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let fit = Fit::of(&model).with_drafts(options.drafts_max, summaries.as_ref());
        let waking = commands.clone();
        let mut state = Loop {
            // A full queue means that the loop is about to look anyway.
            waker: Waker {
                wake: Arc::new(move || drop(waking.try_send(Command::Look))),
                trace: options.trace.clone(),
            },
            batch: Batch::try_new(model, memory, summaries, (&options, &counters))?,
            waiting: VecDeque::new(),
            inbox,
            counters: Arc::clone(&counters),
            stopping: Arc::clone(&stopping),
        };
        let thread =
            std::thread::Builder::new().name("decode-loop".into()).spawn(move || state.run())?;
        Ok(Self { commands, counters, options, fit, stopping, thread: Some(thread) })
    }

    /// Hands a sequence to the loop.
    ///
    /// # Errors
    /// [`SubmitError`] when the admission contradicts itself or as many wait as may; nothing was
    /// done.
    pub fn admit(&self, admission: Admission) -> Result<SequenceHandle, SubmitError> {
        self.fit.sequence(&admission)?;
        let waiting = self.options.waiting_max.get();
        if !self.counters.try_come(waiting) {
            return Err(SubmitError::Full { waiting });
        }
        // What one step can fill beside: a token for each row, and the end.
        let room = self.options.unread_max.get() + self.options.drafts_max + 2;
        let (sender, items) = mpsc::channel(room);
        let cancelled = Arc::new(AtomicBool::new(false));
        let entry = Entry { admission, items: sender, cancelled: Arc::clone(&cancelled) };
        match self.commands.try_send(Command::Admit(Box::new(entry))) {
            Ok(()) => Ok(SequenceHandle { items, cancelled, commands: self.commands.clone() }),
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

impl Drop for DecodeEngine {
    /// Ends the loop after the step at hand; sequences in it end without a last item.
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
    batch: Batch<D>,
    /// Called by whatever brings slices.
    waker: Waker,
    /// Sequences without a place in the batch, in the order of their turn.
    waiting: VecDeque<Sequence<D>>,
    inbox: Receiver<Command>,
    counters: Arc<Counters>,
    /// Set by the handle's Drop.
    stopping: Arc<AtomicBool>,
}

impl<D: Device> Loop<D> {
    fn run(&mut self) {
        while self.take_commands() {
            let rows = self.batch.step();
            if rows > 0 {
                self.counters.stepped(rows);
            }
            self.counters.set_running(self.batch.len());
        }
        self.counters.stop();
    }

    /// Takes what has come; blocks while no sequence can make a step. `false` ends the loop.
    fn take_commands(&mut self) -> bool {
        self.counters.turned();
        if self.batch.is_empty() && self.waiting.is_empty() {
            match self.inbox.recv() {
                Ok(command) => self.obey(command),
                Err(_) => return false,
            }
        } else if !self.batch.can_step() && !self.waiting.iter().any(Sequence::can_step) {
            // Every reader is slow: look again when one may have read something.
            if let Ok(command) = self.inbox.recv_timeout(READERS_PAUSE) {
                self.obey(command);
            }
        }
        while let Ok(command) = self.inbox.try_recv() {
            self.obey(command);
        }
        self.drop_cancelled();
        self.fill_up();
        !self.stopping.load(Ordering::Acquire)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Admit(entry) => self.enter(*entry),
            Command::Look => {}
        }
    }

    fn enter(&mut self, entry: Entry) {
        let Entry { admission, items, cancelled } = entry;
        let place = (self.batch.memory(), &self.waker);
        match Sequence::new(admission, place, items.clone(), cancelled) {
            Ok(sequence) => self.waiting.push_back(sequence),
            Err(error) => {
                self.counters.went();
                // The reader has room: nothing was sent before.
                drop(items.try_send(DecodeItem::Failed { detail: error.to_string() }));
            }
        }
    }

    /// Frees the slots of every sequence that nobody waits for, in the batch or not (P6).
    fn drop_cancelled(&mut self) {
        self.batch.drop_cancelled();
        let before = self.waiting.len();
        self.waiting.retain(|sequence| !sequence.is_cancelled());
        for _ in self.waiting.len()..before {
            self.counters.went();
        }
    }

    /// Gives places to those that wait; one whose reader is slow gives up its own for that.
    fn fill_up(&mut self) {
        while let Some(next) = self.waiting.iter().position(Sequence::can_step) {
            if !self.batch.has_room() {
                let Some(slow) = self.batch.take_slow() else {
                    break;
                };
                self.counters.came_back();
                self.waiting.push_back(slow);
            }
            let Some(sequence) = self.waiting.remove(next) else {
                break;
            };
            self.counters.went();
            self.batch.push(sequence);
        }
        self.counters.set_running(self.batch.len());
    }
}
