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
mod prefill;

pub use counters::{Counters, LoopState};
pub use decode::{Admission, DecodeEngine, DecodeItem, DecodeOptions, SequenceHandle};
pub use device::{DeviceKv, DeviceKvError, LoadError};
pub use digest::LogitsDigest;
pub use prefill::{
    CachedBlock, HostBlock, PrefillEngine, PrefillJob, PrefillOptions, PrefillOutput, Prefilled,
};

/// A loop's queue is full, or the loop has ended; nothing was done, so asking again is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
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
    /// No memory for the activations.
    #[error(transparent)]
    Scratch(#[from] model::ScratchError),
}
