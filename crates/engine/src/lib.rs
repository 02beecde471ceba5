//! Continuous batching: the prefill loop that turns prompts into sealed blocks, and the decode loop
//! that turns sequences into tokens. Each owns a thread and a device memory of its own.
//!
//! Knows no wire, no other node and no tokio runtime: work comes in through bounded channels,
//! results leave through bounded channels, and a session that cannot take its result sits the step
//! out while the batch goes on (P4).

mod counters;
mod decode;
mod device;
mod digest;
mod fit;
mod prefill;
mod sparse;
mod trace;

pub use counters::{Counters, LoopState};
pub use decode::{
    Admission, DecodeEngine, DecodeItem, DecodeOptions, KvUsage, Probe, Probed, PromptKv,
    SequenceHandle, SparsePrompt,
};
pub use device::{DeviceKv, DeviceKvError, LoadError};
pub use digest::LogitsDigest;
pub use prefill::{
    CachedBlock, HostBlock, PrefillEngine, PrefillJob, PrefillOptions, PrefillOutput, Prefilled,
};

pub use sparse::{
    Arrival, Backing, BackingError, HostBacking, SliceAt, Slices, SummaryKv, SummaryKvError,
};

pub use trace::{Lane, TraceSpan, Tracer};

/// A loop did not take the work; nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// This model, or what was reserved, cannot carry it out: asking again is pointless.
    #[error("{field}: {problem}")]
    Unfit {
        /// Which part of the work.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// As many wait as may wait.
    #[error("{waiting} requests wait already, the configured most")]
    Full {
        /// The configured bound.
        waiting: usize,
    },
    /// The loop's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// A loop could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No thread.
    #[error("starting the loop's thread")]
    Thread(#[from] std::io::Error),
    /// No unit of summaries for prefill to work in.
    #[error("the memory for summaries has no free unit")]
    Summaries,
    /// No memory for the activations.
    #[error(transparent)]
    Scratch(#[from] model::ScratchError),
}
