//! A language model on a device: its shape, its packed weights and the layer loop.
//!
//! The order of the kernels is all that is written here. No floating-point arithmetic happens
//! outside crate `kernels` (promise P1), nothing here decides which blocks a sequence has (`kv`),
//! which rows run together (`engine`) or which token follows (sampling).

mod attended;
mod forward;
mod load;
mod logits;
mod names;
mod open;
mod scratch;
mod spec;
mod weights;

pub use attended::{Attended, Dense, LayerQueries};
pub use forward::{Row, Step, StepError};
pub use load::{LoadError, LoadOptions, LoadProgress};
pub use open::{ComputeConfig, InvalidCompute, OpenError, Opened, open};
pub use scratch::{Scratch, ScratchError, ScratchShape};
pub use spec::{Architecture, Biases, Rope, Spec, SpecError};
pub use weights::Model;
