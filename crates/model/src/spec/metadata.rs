//! The shape of a model from the metadata of a GGUF file.
//!
//! Keys as llama.cpp reads and its converters write them. Where the two differ on YaRN (llama.cpp
//! drops `yarn_attn_factor` and the betas of these families), the converters' meaning is taken,
//! because it is the one of the model's authors.

use std::fmt;

use checkpoint::{Gguf, Metadata};
use kernels::{RopeScaling, RopeStyle, Yarn, YarnAttention};

use super::{Architecture, Biases, HEAD_DIM_EXPECTED, Rope, Spec, SpecError, fits_kernels};
use crate::names;

pub(super) fn spec(gguf: &Gguf) -> Result<Spec, SpecError> {
    let reader = Reader::try_new(gguf.metadata())?;
    reader.refuse_unsupported()?;
    let width = reader.at_least_one("embedding_length")?;
    let heads = reader.narrow("attention.head_count")?;
    let kv_heads = match reader.number_opt("attention.head_count_kv")? {
        Some(_) => reader.narrow("attention.head_count_kv")?,
        None => heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} query heads");
        return Err(reader.value("attention.head_count_kv", kv_heads, expected));
    }
    let context = reader.at_least_one("context_length")?;
    let window = reader.number_opt("attention.sliding_window")?;
    let theta = reader.float("rope.freq_base", Some(10_000.0))?;
    let style = match reader.architecture {
        Architecture::Llama => RopeStyle::Interleaved,
        Architecture::Qwen2 | Architecture::Qwen3 => RopeStyle::Halves,
    };
    let has = |part: &str| {
        let name = names::GGUF.in_layer(0, part);
        gguf.find_tensor(&format!("{name}.bias")).is_some()
    };
    let parts = &names::GGUF.layer;
    Ok(Spec {
        architecture: reader.architecture,
        layers: reader.narrow("block_count")?,
        heads,
        kv_heads,
        head_dim: reader.head_dim(width, heads)?,
        ffn: reader.at_least_one("feed_forward_length")?,
        width,
        vocab: reader.vocab(gguf)?,
        context,
        window: window.filter(|window| *window > 0 && *window < context),
        rope: Rope { theta: f64::from(theta), style, scaling: reader.scaling(context)? },
        rms_eps: reader.float("attention.layer_norm_rms_epsilon", None)?,
        tied_embeddings: gguf.find_tensor(names::GGUF.output).is_none(),
        biases: Biases {
            qkv: reader.architecture == Architecture::Qwen2 || has(parts.query),
            attention_output: has(parts.attention_output),
            feed_forward: has(parts.gate),
        },
        qk_norm: reader.architecture == Architecture::Qwen3,
    })
}

/// Metadata with the family's prefix in front of every key.
struct Reader<'a> {
    metadata: &'a Metadata,
    architecture: Architecture,
}

impl<'a> Reader<'a> {
    fn try_new(metadata: &'a Metadata) -> Result<Self, SpecError> {
        let key = "general.architecture";
        let found = metadata.text(key)?;
        let known = Architecture::ALL.into_iter().find(|a| a.name() == found);
        let architecture =
            known.ok_or_else(|| SpecError::Architecture { key, found: format!("{found:?}") })?;
        Ok(Self { metadata, architecture })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn value(&self, name: &str, found: impl fmt::Display, expected: String) -> SpecError {
        SpecError::Value { key: self.key(name), found: found.to_string(), expected }
    }

    fn unsupported(&self, name: &str, found: impl fmt::Display, remedy: &str) -> SpecError {
        let (key, found) = (self.key(name), found.to_string());
        SpecError::Unsupported { key, found, remedy: remedy.to_owned() }
    }

    fn number_opt(&self, name: &str) -> Result<Option<u32>, SpecError> {
        Ok(self.metadata.u32_opt(&self.key(name))?)
    }

    fn float_opt(&self, name: &str) -> Result<Option<f32>, SpecError> {
        Ok(self.metadata.f32_opt(&self.key(name))?)
    }

    fn at_least_one(&self, name: &str) -> Result<u32, SpecError> {
        match self.metadata.u32(&self.key(name))? {
            0 => Err(self.value(name, 0, "at least 1".to_owned())),
            number => Ok(number),
        }
    }

    /// A number of at least 1 that fits 16 bits.
    fn narrow(&self, name: &str) -> Result<u16, SpecError> {
        let number = self.at_least_one(name)?;
        u16::try_from(number).map_err(|_| self.value(name, number, "at most 65535".to_owned()))
    }

    /// A positive float, or `default` where there is one and the key is absent.
    fn float(&self, name: &str, default: Option<f32>) -> Result<f32, SpecError> {
        let number = match self.float_opt(name)?.or(default) {
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
            Some(_) => self.narrow("attention.key_length")?,
            None => {
                let dim = u16::try_from(width / u32::from(heads)).ok();
                dim.filter(|dim| *dim > 0 && u32::from(*dim) * u32::from(heads) == width)
                    .ok_or_else(|| {
                        let expected = format!("a multiple of the {heads} heads");
                        self.value("embedding_length", width, expected)
                    })?
            }
        };
        if !fits_kernels(dim) {
            return Err(self.value("attention.key_length", dim, HEAD_DIM_EXPECTED.to_owned()));
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
        let rows = gguf.tensor(names::GGUF.embedding)?.shape.get(1).copied();
        let vocab = rows.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(0);
        match self.number_opt("vocab_size")? {
            Some(said) if said != vocab => {
                let expected = format!("{vocab}, the rows of token_embd.weight");
                Err(self.value("vocab_size", said, expected))
            }
            Some(_) | None => Ok(vocab),
        }
    }

    /// A file without a type scales linearly, and a factor of 0 is none: so llama.cpp has it.
    fn scaling(&self, context: u32) -> Result<RopeScaling, SpecError> {
        let named = self.metadata.text_opt(&self.key("rope.scaling.type"))?;
        let stored = match self.float_opt("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float_opt("rope.scale_linear")?,
        };
        let factor = stored.filter(|factor| *factor != 0.0).map_or(1.0, f64::from);
        match named {
            Some("none") => Ok(RopeScaling::None),
            None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => self.yarn(factor, context),
            Some(other) => Err(self.unsupported(
                "rope.scaling.type",
                other,
                "use a model with plain, linear, llama3 or yarn rotary positions",
            )),
        }
    }

    fn yarn(&self, factor: f64, context: u32) -> Result<RopeScaling, SpecError> {
        let given = self.float_opt("rope.scaling.yarn_attn_factor")?;
        let float = |name: &str, default: f32| -> Result<f64, SpecError> {
            Ok(f64::from(self.float(name, Some(default))?))
        };
        Ok(RopeScaling::Yarn(Yarn {
            factor,
            original_context: match self.number_opt("rope.scaling.original_context_length")? {
                Some(_) => self.at_least_one("rope.scaling.original_context_length")?,
                None => context,
            },
            beta_fast: float("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: float("rope.scaling.yarn_beta_slow", 1.0)?,
            truncate: true,
            attention: match given {
                Some(factor) => YarnAttention::Given(f64::from(factor)),
                None => YarnAttention::Paper,
            },
        }))
    }

    /// Keys that change the arithmetic in ways that are not built.
    fn refuse_unsupported(&self) -> Result<(), SpecError> {
        if let Some(count) = self.number_opt("expert_count")?.filter(|count| *count > 0) {
            return Err(self.unsupported("expert_count", count, "use a dense model"));
        }
        // The values that change nothing stand beside each; -1 is llama.cpp's "not set".
        let neutral: [(_, &[f32]); 3] = [
            ("rope.scaling.attn_factor", &[1.0]),
            ("rope.scaling.yarn_ext_factor", &[1.0, -1.0]),
            ("rope.scaling.yarn_log_multiplier", &[0.0]),
        ];
        for (name, neutral) in neutral {
            if let Some(found) = self.float_opt(name)?.filter(|found| !neutral.contains(found)) {
                let remedy = format!("use a model where it is {}, or that lacks it", neutral[0]);
                return Err(self.unsupported(name, found, &remedy));
            }
        }
        for name in ["attention.scale", "logit_scale", "residual_scale", "embedding_scale"] {
            if let Some(scale) = self.float_opt(name)? {
                let remedy = "use a model of the plain llama, qwen2 or qwen3 shape";
                return Err(self.unsupported(name, scale, remedy));
            }
        }
        Ok(())
    }
}
