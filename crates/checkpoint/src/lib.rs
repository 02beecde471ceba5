//! Where a model's files come from, and the containers they are stored in: GGUF, and the hub's
//! directories with safetensors.
//!
//! Deliberately does not know what the tensors mean: no dequantisation, no architecture, no
//! tokenizer. Reads no environment variable: what the caller found there is passed in.

pub mod gguf;
pub mod safetensors;

mod directory;
mod mapped;
mod open;

mod cache;
mod digest;
mod fetch;
mod progress;
mod space;

pub use cache::hub::{CachedRepository, HubCache};
pub use cache::{CacheError, ModelCache};
pub use digest::sha256_file;
pub use directory::{Directory, DirectoryError};
pub use fetch::{
    ALIASES, Alias, Attempt, DEFAULT_ALIAS, FetchConfig, Form, Held, HubSettings, Origin,
    PipSettings, Place, Removal, RemoveError, ResolveError, Resolved, Source, SourceError, Token,
    inventory, is_here, refresh, resolve, verify,
};
pub use gguf::{GgmlType, Gguf, GgufError, Metadata, TensorInfo};
pub use open::{Checkpoint, CheckpointError};
pub use progress::{Bar, Progress, Silent};
pub use space::free_space;
