//! The shape of a model from the config.json of a hub checkpoint.
//!
//! Keys, defaults and precedence as in transformers' configuration classes; keys of other tools
//! are passed over. Rotary positions are in `rotary`.

mod rotary;

use std::fmt;

use checkpoint::Directory;
use kernels::RopeStyle;
use serde_json::{Map, Value};

use super::{Architecture, Biases, HEAD_DIM_EXPECTED, Spec, SpecError, fits_kernels};

pub(super) fn spec(directory: &Directory) -> Result<Spec, SpecError> {
    let json = directory.config().as_object().ok_or_else(|| SpecError::Value {
        key: "config.json".to_owned(),
        found: kind(directory.config()),
        expected: "an object".to_owned(),
    })?;
    from_object(&Section { path: "config.json: ".to_owned(), json })
}

fn from_object(config: &Section<'_>) -> Result<Spec, SpecError> {
    let family = Family::read(config)?;
    refuse_unsupported(config)?;
    let architecture = family.architecture();
    let width = config.at_least_one("hidden_size")?;
    let heads = config.narrow("num_attention_heads")?;
    let kv_heads = match config.number_opt("num_key_value_heads")? {
        Some(_) => config.narrow("num_key_value_heads")?,
        None => heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} query heads");
        return Err(config.value("num_key_value_heads", kv_heads, expected));
    }
    let context = config.at_least_one("max_position_embeddings")?;
    let layers = config.narrow("num_hidden_layers")?;
    let bias = |name: &str| config.flag(name, false);
    Ok(Spec {
        architecture,
        layers,
        heads,
        kv_heads,
        head_dim: head_dim(config, architecture, width, heads)?,
        ffn: config.at_least_one("intermediate_size")?,
        width,
        vocab: config.at_least_one("vocab_size")?,
        context,
        window: window(config, family, layers)?.filter(|window| *window < context),
        // Hub checkpoints of all families keep a head's halves apart.
        rope: rotary::rope(config, context, RopeStyle::Halves)?,
        rms_eps: config.positive("rms_norm_eps", 1e-6)? as f32,
        tied_embeddings: config.flag("tie_word_embeddings", false)?,
        biases: match family {
            Family::Llama => Biases {
                qkv: bias("attention_bias")?,
                attention_output: bias("attention_bias")?,
                feed_forward: bias("mlp_bias")?,
            },
            Family::Mistral => Biases { qkv: false, attention_output: false, feed_forward: false },
            Family::Qwen2 => Biases { qkv: true, attention_output: false, feed_forward: false },
            Family::Qwen3 => Biases {
                qkv: bias("attention_bias")?,
                attention_output: bias("attention_bias")?,
                feed_forward: false,
            },
        },
        qk_norm: architecture == Architecture::Qwen3,
    })
}

/// What `model_type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    fn read(config: &Section<'_>) -> Result<Self, SpecError> {
        let refused =
            |found: String| Err(SpecError::Architecture { key: "config.json: model_type", found });
        let classes = config.json.get("architectures").map(Value::to_string);
        let family = match config.text_opt("model_type")? {
            Some("llama") => Self::Llama,
            Some("mistral") => Self::Mistral,
            Some("qwen2") => Self::Qwen2,
            Some("qwen3") => Self::Qwen3,
            Some(other) => {
                let classes = classes.unwrap_or_else(|| "not named".to_owned());
                return refused(format!("{other:?} (architectures {})", short(&classes)));
            }
            None => return refused("missing".to_owned()),
        };
        // A classifier or an encoder of a known family has other layers behind the last one.
        if let Some(classes) = classes.filter(|classes| !classes.contains("ForCausalLM")) {
            let remedy = "use a checkpoint that generates text";
            return Err(config.unsupported("architectures", short(&classes), remedy));
        }
        Ok(family)
    }

    fn architecture(self) -> Architecture {
        match self {
            // The layers are the same; what differs is the window.
            Self::Llama | Self::Mistral => Architecture::Llama,
            Self::Qwen2 => Architecture::Qwen2,
            Self::Qwen3 => Architecture::Qwen3,
        }
    }
}

fn head_dim(
    config: &Section<'_>,
    architecture: Architecture,
    width: u32,
    heads: u16,
) -> Result<u16, SpecError> {
    let dim = match (config.number_opt("head_dim")?, architecture) {
        (Some(_), _) => config.narrow("head_dim")?,
        (None, Architecture::Qwen3) => 128,
        (None, Architecture::Llama | Architecture::Qwen2) => {
            if !width.is_multiple_of(u32::from(heads)) {
                let expected = format!("a multiple of the {heads} heads");
                return Err(config.value("hidden_size", width, expected));
            }
            u16::try_from(width / u32::from(heads)).unwrap_or(u16::MAX)
        }
    };
    match fits_kernels(dim) {
        true => Ok(dim),
        false => Err(config.value("head_dim", dim, HEAD_DIM_EXPECTED.to_owned())),
    }
}

/// Positions that a token attends to, where a window is in use at all.
fn window(config: &Section<'_>, family: Family, layers: u16) -> Result<Option<u32>, SpecError> {
    let used = match family {
        Family::Llama => false,
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => {
            let listed = config.json.get("layer_types").and_then(Value::as_array);
            match listed {
                Some(types) => types.iter().any(|ty| ty.as_str() != Some("full_attention")),
                // The layers below this one attend to everything.
                None => {
                    let first = config.number_opt("max_window_layers")?.unwrap_or(28);
                    config.flag("use_sliding_window", false)? && first < u32::from(layers)
                }
            }
        }
    };
    match used {
        true => config.number_opt("sliding_window"),
        false => Ok(None),
    }
}

fn refuse_unsupported(config: &Section<'_>) -> Result<(), SpecError> {
    match config.text_opt("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => {
            let remedy = "use a model with silu";
            return Err(config.unsupported("hidden_act", format!("{other:?}"), remedy));
        }
    }
    if let Some(quantisation) = config.json.get("quantization_config").filter(|v| !v.is_null()) {
        let method = quantisation.get("quant_method").and_then(Value::as_str);
        let found = format!("of method {:?}", short(method.unwrap_or("unknown")));
        let remedy = "use the model as it was before quantisation, or a quantised GGUF file of it";
        return Err(config.unsupported("quantization_config", found, remedy));
    }
    for name in ["num_local_experts", "num_experts", "n_routed_experts"] {
        if let Some(count) = config.number_opt(name)?.filter(|count| *count > 1) {
            return Err(config.unsupported(name, count, "use a dense model"));
        }
    }
    Ok(())
}

/// An object of config.json with where it stands, for messages. `null` counts as absent.
struct Section<'a> {
    path: String,
    json: &'a Map<String, Value>,
}

impl Section<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn value(&self, name: &str, found: impl fmt::Display, expected: String) -> SpecError {
        SpecError::Value { key: self.key(name), found: found.to_string(), expected }
    }

    fn unsupported(&self, name: &str, found: impl fmt::Display, remedy: &str) -> SpecError {
        let (key, found) = (self.key(name), found.to_string());
        SpecError::Unsupported { key, found, remedy: remedy.to_owned() }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.json.get(name).filter(|value| !value.is_null())
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(self.value(name, kind(value), expected.to_owned())),
        }
    }

    fn text_opt(&self, name: &str) -> Result<Option<&str>, SpecError> {
        self.read(name, "a string", Value::as_str)
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, SpecError> {
        Ok(self.read(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A whole number; some tools write one as a float.
    fn number_opt(&self, name: &str) -> Result<Option<u32>, SpecError> {
        self.read(name, "a whole number of 0 to 4294967295", |value| {
            let whole = value.as_u64().and_then(|number| u32::try_from(number).ok());
            whole.or_else(|| {
                let float = value.as_f64()?;
                let fits = (0.0..=f64::from(u32::MAX)).contains(&float) && float.fract() == 0.0;
                fits.then_some(float as u32)
            })
        })
    }

    fn at_least_one(&self, name: &str) -> Result<u32, SpecError> {
        match self.number_opt(name)? {
            Some(0) => Err(self.value(name, 0, "at least 1".to_owned())),
            Some(number) => Ok(number),
            None => {
                let expected = "a whole number of at least 1".to_owned();
                Err(SpecError::Missing { key: self.key(name), expected })
            }
        }
    }

    /// A number of at least 1 that fits 16 bits.
    fn narrow(&self, name: &str) -> Result<u16, SpecError> {
        let number = self.at_least_one(name)?;
        u16::try_from(number).map_err(|_| self.value(name, number, "at most 65535".to_owned()))
    }

    fn float_opt(&self, name: &str) -> Result<Option<f64>, SpecError> {
        self.read(name, "a number", Value::as_f64)
    }

    fn positive(&self, name: &str, default: f64) -> Result<f64, SpecError> {
        let number = self.float_opt(name)?.unwrap_or(default);
        // As a single-precision number, which is what becomes of it.
        if number as f32 > 0.0 && (number as f32).is_finite() {
            return Ok(number);
        }
        Err(self.value(name, number, "a positive number".to_owned()))
    }
}

/// What a value is, for messages, without its content where that may be long.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("{:?}", short(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The start of a text that someone else wrote.
fn short(text: &str) -> &str {
    match text.char_indices().nth(80) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests;
