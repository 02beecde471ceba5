//! What a model looks like: read from the metadata of a checkpoint and checked, so that everything
//! behind it can rely on it.
//!
//! Deliberately holds numbers only: no tensor is read here, and what is not supported is refused
//! by the name of its key instead of being ignored.

mod config;
mod metadata;

use std::fmt;

use checkpoint::{Checkpoint, GgufError};
use ids::BLOCK_TOKENS;
use kernels::{RopeScaling, RopeStyle};

/// The families of models that the layer loop can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, `SmolLM`, `SmolLM2`, `TinyLlama`, Mistral and what else is written so.
    Llama,
    /// Qwen2 and Qwen2.5, dense.
    Qwen2,
    /// Qwen3, dense: keys and queries are normalised per head.
    Qwen3,
}

impl Architecture {
    /// All of them, for messages.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The name in `general.architecture`, which is also the prefix of the family's keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rotary positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Which elements of a head form a pair. Converters to GGUF permute the rows of llama's query
    /// and key matrices so that neighbours do; everywhere else the halves of a head do.
    pub style: RopeStyle,
    /// How the frequencies were stretched after training. A GGUF file may say more in a tensor.
    pub scaling: RopeScaling,
}

/// Which matrices have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// What attention mixed.
    pub attention_output: bool,
    /// Gate, up and down.
    pub feed_forward: bool,
}

/// The shape of a model. Only [`Spec::try_new`] makes one, so its numbers fit together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Spec {
    /// Family.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: u16,
    /// Query heads per layer, a multiple of `kv_heads`.
    pub heads: u16,
    /// Key and value heads per layer.
    pub kv_heads: u16,
    /// Elements of one head, the same for queries, keys and values; need not be `width / heads`.
    pub head_dim: u16,
    /// Elements of the inner layer of the feed-forward part.
    pub ffn: u32,
    /// Elements of the residual stream.
    pub width: u32,
    /// Token ids, and so logits per row.
    pub vocab: u32,
    /// Positions that the model was made for.
    pub context: u32,
    /// Positions that a token attends to, where that is less than the context: so many may be
    /// served and no more, because only the whole context is attended to.
    pub window: Option<u32>,
    /// Rotary positions.
    pub rope: Rope,
    /// Added to the mean square in every normalisation.
    pub rms_eps: f32,
    /// Whether the output matrix is the embedding. A hub checkpoint may nevertheless hold an
    /// output matrix; it is used where its values differ, as transformers does.
    pub tied_embeddings: bool,
    /// Which matrices have a bias.
    pub biases: Biases,
    /// Whether queries and keys are normalised per head before they are rotated.
    pub qk_norm: bool,
}

/// Why the metadata of a checkpoint describes no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A key of a GGUF file is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// No layer loop for this family.
    #[error(
        "{key} is {found}, supported are llama, mistral, qwen2 and qwen3: \
         use a model of one of these families"
    )]
    Architecture {
        /// Where the family is named.
        key: &'static str,
        /// As stored.
        found: String,
    },
    /// A key is not there and nothing stands for it.
    #[error("{key} is missing, expected {expected}; the file is incomplete")]
    Missing {
        /// Which.
        key: String,
        /// What would be right.
        expected: String,
    },
    /// A number that cannot be, alone or together with others.
    #[error("{key} is {found}, expected {expected}; the file is corrupt or was converted wrongly")]
    Value {
        /// Metadata key.
        key: String,
        /// As stored.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The file asks for something that this version does not compute.
    #[error("{key} is {found}, which is not supported: {remedy}")]
    Unsupported {
        /// Metadata key or tensor name.
        key: String,
        /// As stored.
        found: String,
        /// What the user can do.
        remedy: String,
    },
}

impl Spec {
    /// Reads and checks the shape of the model in `checkpoint`.
    ///
    /// # Errors
    /// [`SpecError`] names the key, what it holds and what was expected.
    pub fn try_new(checkpoint: &Checkpoint) -> Result<Self, SpecError> {
        match checkpoint {
            Checkpoint::Gguf(gguf) => metadata::spec(gguf),
            Checkpoint::Directory(directory) => config::spec(directory),
        }
    }

    /// Layers and KV heads, as crate `kv` counts the slices of a block.
    #[must_use]
    pub fn shape(&self) -> kv::Shape {
        kv::Shape { layers: self.layers, heads: self.kv_heads }
    }

    /// Slices (and device slots) of one block of 16 tokens.
    #[must_use]
    pub fn slices_per_block(&self) -> usize {
        self.shape().slices()
    }

    /// Bytes of K and V of one (layer, KV head, block): two times 16 tokens of 16-bit floats.
    #[must_use]
    pub fn slice_bytes(&self) -> usize {
        4 * BLOCK_TOKENS * usize::from(self.head_dim)
    }

    /// Bytes of all slices of one block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.slices_per_block() * self.slice_bytes()
    }
}

/// What kernels and the layout of KV take as the elements of a head.
fn fits_kernels(head_dim: u16) -> bool {
    head_dim > 0 && head_dim.is_multiple_of(16) && head_dim <= 256
}

const HEAD_DIM_EXPECTED: &str = "a multiple of 16 up to 256, the elements of a head";
