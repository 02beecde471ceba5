//! Hot path. The decode loop: one row per sequence and step, sampled here and nowhere else.
//!
//! A sequence comes in with its whole prompt resident and the last hidden state of prefill, so its
//! first token costs no pass. It leaves when a stop token is drawn, a limit is reached, or its
//! handle is dropped; its slots are free before the next step begins (P6).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use ids::{BlockHash, Span, TokenId};
use kernels::Device;
use kv::{BlockTable, SlotReservation};
use model::Model;
use session::{Finish, Generation};
use tokio::sync::mpsc;

use crate::counters::{Counters, LoopState};
use crate::device::DeviceKv;
use crate::{StartError, SubmitError};

mod batch;
mod sequence;

use batch::Batch;
use sequence::Sequence;

/// Bounds of the loop.
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// Sequences in one step; more than these wait.
    pub batch_max: NonZeroUsize,
    /// Sequences that may wait for a place in the batch.
    pub waiting_max: NonZeroUsize,
    /// Items that a slow reader may leave unread before its sequence sits steps out.
    pub unread_max: NonZeroUsize,
}

/// A sequence whose prompt is resident.
pub struct Admission {
    /// The prompt's blocks on this device.
    pub table: BlockTable,
    /// What is left of the slots reserved for the final length.
    pub reservation: SlotReservation,
    /// Hidden state of the last prompt token, as prefill handed it over.
    pub last_hidden: Arc<[f32]>,
    /// Hash of the prompt's last full block, or the chain's root.
    pub parent: BlockHash,
    /// How to draw and when to stop.
    pub generation: Generation,
}

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
    },
    /// The step gave numbers that cannot be sampled from.
    Failed {
        /// What was wrong, for the log.
        detail: String,
    },
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
    Admit(Box<Sequence>),
    /// Look at the cancel flags.
    Look,
    /// End the loop.
    Stop,
}

/// The loop's handle.
pub struct DecodeEngine {
    commands: SyncSender<Command>,
    counters: Arc<Counters>,
    options: DecodeOptions,
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
        options: DecodeOptions,
    ) -> Result<Self, StartError> {
        // Twice: a cancel must find room beside the sequences that wait.
        let (commands, inbox) = sync_channel(options.waiting_max.get() * 2);
        let counters = Arc::new(Counters::default());
        let mut state = Loop {
            batch: Batch::try_new(model, memory, options.batch_max.get())?,
            inbox,
            counters: Arc::clone(&counters),
        };
        let thread = std::thread::Builder::new()
            .name("decode-loop".into())
            .spawn(move || state.run())?;
        Ok(Self {
            commands,
            counters,
            options,
            thread: Some(thread),
        })
    }

    /// Hands a sequence to the loop.
    ///
    /// # Errors
    /// [`SubmitError`] when as many wait as may; nothing was done.
    pub fn admit(&self, admission: Admission) -> Result<SequenceHandle, SubmitError> {
        let waiting = self.options.waiting_max.get();
        if self.counters.read().waiting as usize >= waiting {
            return Err(SubmitError::Full { waiting });
        }
        // One place more than a step can fill: a token and the end come together.
        let (sender, items) = mpsc::channel(self.options.unread_max.get() + 2);
        let cancelled = Arc::new(AtomicBool::new(false));
        let sequence = Sequence::new(admission, sender, Arc::clone(&cancelled));
        self.counters.came();
        match self.commands.try_send(Command::Admit(Box::new(sequence))) {
            Ok(()) => Ok(SequenceHandle {
                items,
                cancelled,
                commands: self.commands.clone(),
            }),
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
        let _sent = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

struct Loop<D: Device> {
    batch: Batch<D>,
    inbox: Receiver<Command>,
    counters: Arc<Counters>,
}

impl<D: Device> Loop<D> {
    fn run(&mut self) {
        while self.take_commands() {
            self.batch.drop_cancelled();
            let rows = self.batch.step();
            if rows > 0 {
                self.counters.stepped(rows);
            }
            self.counters.set_running(self.batch.len());
        }
        self.counters.stop();
    }

    /// Takes what waits; blocks while no sequence can make a step. `false` ends the loop.
    fn take_commands(&mut self) -> bool {
        if self.batch.is_empty() {
            let Ok(command) = self.inbox.recv() else {
                return false;
            };
            if !self.obey(command) {
                return false;
            }
        } else if !self.batch.can_step() {
            // Every reader is slow: look again when one may have read something.
            let pause = std::time::Duration::from_millis(2);
            if let Ok(command) = self.inbox.recv_timeout(pause)
                && !self.obey(command)
            {
                return false;
            }
        }
        while self.batch.has_room()
            && let Ok(command) = self.inbox.try_recv()
        {
            if !self.obey(command) {
                return false;
            }
        }
        true
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Admit(sequence) => {
                self.counters.went();
                self.batch.push(*sequence);
                self.counters.set_running(self.batch.len());
                true
            }
            Command::Look => true,
            Command::Stop => false,
        }
    }
}
