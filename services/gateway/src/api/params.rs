//! The parameters that chat and completions share, read and checked once: after this a value is
//! in range. What it deliberately does not do: look at the prompt.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, name_of};

/// As OpenAI has it: more is an error there too.
const STOPS_MAX: usize = 4;

/// A stop text is searched for in every answer; longer ones are mistakes.
const STOP_BYTES_MAX: usize = 1024;

/// The salt is hashed into every block's identity.
const SALT_BYTES_MAX: usize = 256;

/// What a request asks for, beside its prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Params {
    /// The model's name as the client wrote it.
    pub(crate) model: String,
    /// From 0 (greedy) to 2.
    pub(crate) temperature: f32,
    /// Nucleus mass in (0, 1].
    pub(crate) top_p: f32,
    /// Keep the k best; 0 means all.
    pub(crate) top_k: u32,
    /// Share of the best token's probability, from 0 to 1.
    pub(crate) min_p: f32,
    /// As given; `None` lets the gateway draw one.
    pub(crate) seed: Option<i64>,
    /// Most tokens to generate; `None` is the default, cut to fit.
    pub(crate) max_tokens: Option<u32>,
    /// Texts that end the answer, none of them empty.
    pub(crate) stops: Vec<String>,
    /// Go on after the model's own end.
    pub(crate) ignore_eos: bool,
    /// Digest every step's logits (P1 audits).
    pub(crate) logits_digest: bool,
    /// Separates the cache of whoever shares the salt from everybody else's.
    pub(crate) salt: String,
    /// How the answer is sent.
    pub(crate) delivery: Delivery,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// As one JSON document.
    Whole,
    /// As server-sent events, with a last one for the usage if wanted.
    Stream { include_usage: bool },
}

/// Takes the shared parameters.
pub(crate) fn read(fields: &mut Fields) -> Result<Params, ApiError> {
    let model = fields.text("model")?.ok_or_else(|| {
        ApiError::invalid("model", "`model` is required: GET /v1/models lists the names")
    })?;
    let unit = |n: f64| (0.0..=1.0).contains(&n);
    let temperature =
        fields.number("temperature", "a number from 0 to 2", |n| (0.0..=2.0).contains(&n))?;
    let top_p = fields.number("top_p", "a number above 0, at most 1", |n| n > 0.0 && unit(n))?;
    let min_p = fields.number("min_p", "a number from 0 to 1", unit)?;
    // Both 0 and -1 are written for "all".
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0);
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    let max_tokens = max_tokens(fields)?;
    let stops = stops(fields)?;
    let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
    let logits_digest = fields.boolean("logits_digest")?.unwrap_or(false);
    let salt = fields.text("cache_salt")?.unwrap_or_default();
    if salt.len() > SALT_BYTES_MAX {
        let message = format!("`cache_salt` must have at most {SALT_BYTES_MAX} bytes");
        return Err(ApiError::invalid("cache_salt", message));
    }
    let delivery = delivery(fields)?;
    accept_without_effect(fields)?;
    Ok(Params {
        model,
        temperature: temperature.unwrap_or(1.0),
        top_p: top_p.unwrap_or(1.0),
        top_k: u32::try_from(top_k).unwrap_or(0),
        min_p: min_p.unwrap_or(0.0),
        seed,
        max_tokens,
        stops,
        ignore_eos,
        logits_digest,
        salt,
        delivery,
    })
}

/// `max_completion_tokens` is the newer name; both together must agree.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let range = 1..=i64::from(u32::MAX);
    let old = fields.integer("max_tokens", range.clone())?;
    let new = fields.integer("max_completion_tokens", range)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => Err(ApiError::invalid(
            "max_completion_tokens",
            format!("`max_completion_tokens` {new} contradicts `max_tokens` {old}: send one"),
        )),
        (old, new) => Ok(new.or(old).and_then(|n| u32::try_from(n).ok())),
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(items)) if items.len() <= STOPS_MAX => items,
        Some(Value::Array(items)) => {
            let message = format!("`stop` has {} texts: at most {STOPS_MAX}", items.len());
            return Err(ApiError::invalid("stop", message));
        }
        Some(other) => return Err(fields.wrong("stop", "a string or an array of them", &other)),
    };
    let mut stops = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match item {
            Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => stops.push(text),
            other => {
                let name = format!("stop[{index}]");
                let message = format!(
                    "`{name}` must be a string of 1 to {STOP_BYTES_MAX} bytes, not {}",
                    name_of(&other)
                );
                return Err(ApiError::invalid(&name, message));
            }
        }
    }
    Ok(stops)
}

fn delivery(fields: &mut Fields) -> Result<Delivery, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.take("stream_options") else {
        return Ok(if stream {
            Delivery::Stream { include_usage: false }
        } else {
            Delivery::Whole
        });
    };
    if !stream {
        let message = "`stream_options` needs `stream`: true";
        return Err(ApiError::invalid("stream_options", message));
    }
    let mut options = Fields::of(options, "stream_options")?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    // Obfuscation pads chunks against traffic analysis; without it the stream is as valid.
    options.boolean("include_obfuscation")?;
    options.finish()?;
    Ok(Delivery::Stream { include_usage })
}

/// Fields that are for the client's own books: they are taken and change nothing.
fn accept_without_effect(fields: &mut Fields) -> Result<(), ApiError> {
    fields.text("user")?;
    fields.text("safety_identifier")?;
    match fields.take("metadata") {
        None | Some(Value::Object(_)) => {}
        Some(other) => return Err(fields.wrong("metadata", "an object", &other)),
    }
    if fields.boolean("store")? == Some(true) {
        let message = "`store` is not supported yet: answers are not kept";
        return Err(ApiError::unsupported("store", message));
    }
    Ok(())
}
