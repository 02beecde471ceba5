//! What a model looks like: read from the metadata of a GGUF file and checked, so that everything
//! behind it can rely on it.
//!
//! Deliberately holds numbers only: no tensor is read here, and what is not supported is refused
//! by the name of its key instead of being ignored.

use std::fmt;

use checkpoint::{Gguf, GgufError, Metadata};
use ids::BLOCK_TOKENS;
use kernels::RopeStyle;

/// The families of models that the layer loop can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM, SmolLM2 and what else is written under this name.
    Llama,
    /// Qwen2 and Qwen2.5, dense.
    Qwen2,
}

impl Architecture {
    /// All of them, for messages.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen2];

    /// The name in `general.architecture`, which is also the prefix of the family's keys.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }

    /// How GGUF stores the rows of the query and key matrices of this family: converters permute
    /// those of llama so that neighbours form a pair, and leave those of qwen2 in halves.
    fn rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Interleaved,
            Self::Qwen2 => RopeStyle::Halves,
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
    /// Which elements of a head form a pair.
    pub style: RopeStyle,
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
    /// Elements of one head, the same for queries, keys and values.
    pub head_dim: u16,
    /// Elements of the inner layer of the feed-forward part.
    pub ffn: u32,
    /// Elements of the residual stream.
    pub width: u32,
    /// Token ids, and so logits per row.
    pub vocab: u32,
    /// Positions that the model was made for.
    pub context: u32,
    /// Rotary positions.
    pub rope: Rope,
    /// Added to the mean square in every normalisation.
    pub rms_eps: f32,
    /// Whether the output matrix is the embedding: the file has no `output.weight`.
    pub tied_embeddings: bool,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
}

/// Why the metadata of a file describes no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// No layer loop for this family.
    #[error(
        "general.architecture is {found:?}, supported are \"llama\" and \"qwen2\": \
         use a model of one of these families"
    )]
    Architecture {
        /// As stored.
        found: String,
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
        remedy: &'static str,
    },
}

impl Spec {
    /// Reads and checks the shape of the model in `gguf`.
    ///
    /// # Errors
    /// [`SpecError`] names the key, what it holds and what was expected.
    pub fn try_new(gguf: &Gguf) -> Result<Self, SpecError> {
        let reader = Reader::try_new(gguf.metadata())?;
        reader.refuse_unsupported(gguf)?;
        let width = reader.at_least_one("embedding_length")?;
        let heads = narrow(&reader, "attention.head_count")?;
        let kv_heads = match reader.number_opt("attention.head_count_kv")? {
            Some(_) => narrow(&reader, "attention.head_count_kv")?,
            None => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads");
            return Err(reader.value("attention.head_count_kv", kv_heads, expected));
        }
        let rms_eps = reader.float("attention.layer_norm_rms_epsilon", None)?;
        let theta = reader.float("rope.freq_base", Some(10_000.0))?;
        Ok(Self {
            architecture: reader.architecture,
            layers: narrow(&reader, "block_count")?,
            heads,
            kv_heads,
            head_dim: reader.head_dim(width, heads)?,
            ffn: reader.at_least_one("feed_forward_length")?,
            width,
            vocab: reader.vocab(gguf)?,
            context: reader.at_least_one("context_length")?,
            rope: Rope { theta: f64::from(theta), style: reader.architecture.rope_style() },
            rms_eps,
            tied_embeddings: gguf.find_tensor("output.weight").is_none(),
            qkv_bias: match reader.architecture {
                Architecture::Llama => gguf.find_tensor("blk.0.attn_q.bias").is_some(),
                Architecture::Qwen2 => true,
            },
        })
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

/// Metadata with the family's prefix in front of every key.
struct Reader<'a> {
    metadata: &'a Metadata,
    architecture: Architecture,
}

impl<'a> Reader<'a> {
    fn try_new(metadata: &'a Metadata) -> Result<Self, SpecError> {
        let found = metadata.text("general.architecture")?;
        let known = Architecture::ALL.into_iter().find(|a| a.name() == found);
        let architecture =
            known.ok_or_else(|| SpecError::Architecture { found: found.to_owned() })?;
        Ok(Self { metadata, architecture })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn value(&self, name: &str, found: impl fmt::Display, expected: String) -> SpecError {
        SpecError::Value { key: self.key(name), found: found.to_string(), expected }
    }

    fn number_opt(&self, name: &str) -> Result<Option<u32>, SpecError> {
        Ok(self.metadata.u32_opt(&self.key(name))?)
    }

    fn at_least_one(&self, name: &str) -> Result<u32, SpecError> {
        match self.metadata.u32(&self.key(name))? {
            0 => Err(self.value(name, 0, "at least 1".to_owned())),
            number => Ok(number),
        }
    }

    /// A positive float, or `default` where there is one and the key is absent.
    fn float(&self, name: &str, default: Option<f32>) -> Result<f32, SpecError> {
        let found = self.metadata.f32_opt(&self.key(name))?;
        let number = match found.or(default) {
            Some(number) => number,
            None => self.metadata.f32(&self.key(name))?,
        };
        if number > 0.0 {
            return Ok(number);
        }
        Err(self.value(name, number, "a positive number".to_owned()))
    }

    fn head_dim(&self, width: u32, heads: u16) -> Result<u16, SpecError> {
        let dim = match self.number_opt("attention.key_length")? {
            Some(_) => narrow(self, "attention.key_length")?,
            None => {
                let dim = u16::try_from(width / u32::from(heads)).ok();
                dim.filter(|dim| *dim > 0 && u32::from(*dim) * u32::from(heads) == width)
                    .ok_or_else(|| {
                        let expected = format!("a multiple of the {heads} heads");
                        self.value("embedding_length", width, expected)
                    })?
            }
        };
        if !dim.is_multiple_of(16) || dim > 256 {
            let expected = "a multiple of 16 up to 256, the elements of a head".to_owned();
            return Err(self.value("attention.key_length", dim, expected));
        }
        for name in ["attention.value_length", "rope.dimension_count"] {
            match self.number_opt(name)? {
                Some(other) if other != u32::from(dim) => {
                    let expected = format!("{dim}, the elements of a head");
                    return Err(self.value(name, other, expected));
                }
                Some(_) | None => {}
            }
        }
        Ok(dim)
    }

    /// Rows of the embedding; the metadata must agree where it says something.
    fn vocab(&self, gguf: &Gguf) -> Result<u32, SpecError> {
        let rows = gguf.tensor("token_embd.weight")?.shape.get(1).copied();
        let vocab = rows.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(0);
        match self.number_opt("vocab_size")? {
            Some(said) if said != vocab => {
                let expected = format!("{vocab}, the rows of token_embd.weight");
                Err(self.value("vocab_size", said, expected))
            }
            Some(_) | None => Ok(vocab),
        }
    }

    /// Keys and tensors that change the arithmetic in ways that are not built.
    fn refuse_unsupported(&self, gguf: &Gguf) -> Result<(), SpecError> {
        let refuse =
            |key: String, found: String, remedy| SpecError::Unsupported { key, found, remedy };
        if let Some(scaling) = self.metadata.text_opt(&self.key("rope.scaling.type"))?
            && scaling != "none"
        {
            let remedy = "use a model without scaled rotary positions";
            return Err(refuse(self.key("rope.scaling.type"), scaling.to_owned(), remedy));
        }
        for name in ["rope.scale_linear", "rope.scaling.factor"] {
            let factor = self.metadata.f32_opt(&self.key(name))?;
            if let Some(factor) = factor.filter(|factor| *factor != 1.0 && *factor != 0.0) {
                let remedy = "use a model without scaled rotary positions";
                return Err(refuse(self.key(name), factor.to_string(), remedy));
            }
        }
        if gguf.find_tensor("rope_freqs.weight").is_some() {
            let remedy = "use a model without scaled rotary positions, such as SmolLM2 or Qwen2.5";
            return Err(refuse("rope_freqs.weight".to_owned(), "a tensor".to_owned(), remedy));
        }
        let numbers = [
            ("expert_count", "use a dense model"),
            ("attention.sliding_window", "use a model that attends to its whole context"),
        ];
        for (name, remedy) in numbers {
            if let Some(number) = self.number_opt(name)?.filter(|number| *number > 0) {
                return Err(refuse(self.key(name), number.to_string(), remedy));
            }
        }
        for name in ["attention.scale", "logit_scale", "residual_scale", "embedding_scale"] {
            if let Some(scale) = self.metadata.f32_opt(&self.key(name))? {
                let remedy = "use a model of the plain llama or qwen2 shape";
                return Err(refuse(self.key(name), scale.to_string(), remedy));
            }
        }
        Ok(())
    }
}

/// A number of at least 1 that fits 16 bits.
fn narrow(reader: &Reader<'_>, name: &str) -> Result<u16, SpecError> {
    let number = reader.at_least_one(name)?;
    u16::try_from(number).map_err(|_| reader.value(name, number, "at most 65535".to_owned()))
}
