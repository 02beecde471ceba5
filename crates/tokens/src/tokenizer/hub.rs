//! From the files of a hub directory (tokenizer.json and the configs beside it) to a tokenizer.
//!
//! Deliberately not `tokenizers`' own loader: it trusts the file (a merge longer than every token
//! panics, a run of normalizers can multiply a text without end), so what a file may ask for is a
//! closed list here, with bounds, and the library gets only what passed. It then does all the work
//! on text, added tokens included, so that the ids are those of the reference.

mod model;
mod pipeline;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use ids::TokenId;
use serde_json::Value;

use super::{Encoder, Special, Tokenizer, literals};
use crate::special::LITERAL_BYTES_MAX;
use crate::vocabulary::TokenKind;

pub(super) use pipeline::Pipeline;

/// Longest tokenizer.json. Gemma's, the longest of the common ones, has 33 MB.
const JSON_BYTES_MAX: usize = 128 << 20;

/// The files that say how a directory's checkpoint tokenizes, as the hub lays them out.
#[derive(Clone, Copy, Debug)]
pub struct HubFiles<'a> {
    /// The text of tokenizer.json.
    pub tokenizer: &'a str,
    /// tokenizer_config.json: names special tokens, `add_bos_token`.
    pub tokenizer_config: Option<&'a Value>,
    /// config.json: `bos_token_id`, `eos_token_id`.
    pub config: Option<&'a Value>,
    /// generation_config.json: `eos_token_id`, often a list.
    pub generation_config: Option<&'a Value>,
}

/// Why the tokenizer of a directory was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HubError {
    /// Longer than any published one.
    #[error("tokenizer.json has {bytes} bytes, more than the limit of {max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Not JSON, or not of the expected form.
    #[error("tokenizer.json: {reason}")]
    Json {
        /// What, and where.
        reason: String,
    },
    /// A part that is well known but not supported.
    #[error("tokenizer.json: {field} is {found}, supported: {supported}")]
    Unsupported {
        /// Which part, as a path.
        field: String,
        /// What it is, cut to 80 characters.
        found: String,
        /// What it may be.
        supported: &'static str,
    },
    /// A part that contradicts another or passes a bound.
    #[error("{field}: {why}")]
    Invalid {
        /// File and path.
        field: String,
        /// What is wrong and what would be right.
        why: String,
    },
    /// The library refused what passed all of the checks.
    #[error("tokenizer.json: the tokenizer was rejected: {reason}")]
    Rejected {
        /// Why.
        reason: String,
    },
}

impl HubError {
    fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }

    fn rejected(error: impl std::fmt::Display) -> Self {
        Self::Rejected { reason: error.to_string() }
    }
}

/// Checks the files and builds a tokenizer of them.
pub(super) fn build(files: &HubFiles<'_>) -> Result<Tokenizer, HubError> {
    let bytes = files.tokenizer.len();
    if bytes > JSON_BYTES_MAX {
        return Err(HubError::TooLarge { bytes, max: JSON_BYTES_MAX });
    }
    let file = model::read(files.tokenizer)?;
    let components = pipeline::components(&file)?;
    let (bpe, added, entries) = model::build(file)?;
    let vocabulary = components.decoding.vocabulary(&entries)?;
    let lead = components.decoding.lead;
    let find = |text: &str| entries.iter().position(|entry| entry.text() == Some(text));
    let special = special(files, entries.len(), &|text| {
        find(text).and_then(|index| u32::try_from(index).ok()).map(TokenId)
    })?;
    let prefix = prefix(files, &special, components.prefix)?;
    if let Some(id) = prefix.iter().find(|id| vocabulary.get(**id).is_none()) {
        let why = format!("{} is no token of model.vocab or added_tokens", id.0);
        return Err(HubError::invalid("tokenizer.json: post_processor", why));
    }
    let pipeline = Pipeline::try_new(bpe, added, components.normalizer, components.splitter)?;
    let too_many = |_| {
        let why = format!("more than {LITERAL_BYTES_MAX} bytes of special tokens");
        HubError::invalid("tokenizer.json: added_tokens", why)
    };
    Ok(Tokenizer {
        encoder: Encoder::Hub(Box::new(pipeline)),
        control_literals: literals(&vocabulary, &[TokenKind::Control]).map_err(too_many)?,
        vocabulary: Arc::new(vocabulary),
        prefix,
        lead,
        special,
    })
}

/// What stands before a raw prompt: what `add_bos_token` says, else what the post-processor does.
fn prefix(
    files: &HubFiles<'_>,
    special: &Special,
    template: Vec<TokenId>,
) -> Result<Vec<TokenId>, HubError> {
    let asked = files.tokenizer_config.and_then(|config| config.get("add_bos_token"));
    match (asked.and_then(Value::as_bool), special.bos) {
        (None, _) => Ok(template),
        (Some(true), Some(bos)) => Ok(vec![bos]),
        (Some(true), None) => Err(HubError::invalid(
            "tokenizer_config.json: add_bos_token",
            "it is true, but bos_token is missing: name the token or set it to false",
        )),
        (Some(false), bos) => Ok(template.into_iter().filter(|id| Some(*id) != bos).collect()),
    }
}

/// The names of special tokens that transformers hands to chat templates.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

fn special(
    files: &HubFiles<'_>,
    count: usize,
    find: &dyn Fn(&str) -> Option<TokenId>,
) -> Result<Special, HubError> {
    let mut named = Vec::new();
    for name in NAMES {
        let value = files.tokenizer_config.and_then(|config| config.get(name));
        if let Some(text) = value.and_then(token_text) {
            named.push((name, text.to_owned()));
        }
    }
    let by_name = |name: &str| match named.iter().find(|(known, _)| *known == name) {
        None => Ok(None),
        Some((_, text)) => find(text).map(Some).ok_or_else(|| {
            let why = format!("{text:?} is no token of tokenizer.json");
            HubError::invalid(format!("tokenizer_config.json: {name}"), why)
        }),
    };
    let (bos_named, eos_named) = (by_name("bos_token")?, by_name("eos_token")?);
    let read = |file: &'static str, config: Option<&Value>, field: &'static str| {
        let value = config.and_then(|config| config.get(field));
        ids(value, count).map_err(|why| HubError::invalid(format!("{file}: {field}"), why))
    };
    let bos_ids = read("config.json", files.config, "bos_token_id")?;
    let mut ends = read("config.json", files.config, "eos_token_id")?;
    ends.extend(read("generation_config.json", files.generation_config, "eos_token_id")?);
    let eos = eos_named.or(ends.first().copied());
    let ends: BTreeSet<TokenId> = ends.into_iter().chain(eos_named).collect();
    Ok(Special {
        bos: bos_named.or(bos_ids.first().copied()),
        eos,
        ends: ends.into_iter().collect(),
        named,
    })
}

/// The text of a token as configs write it: itself, or an object that holds it.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// One id, a list of ids, or none. Ids beyond the tokens are the padding rows that some models
/// name; they cannot be text, so they are left out.
fn ids(value: Option<&Value>, count: usize) -> Result<Vec<TokenId>, String> {
    const MOST: usize = 64;
    let items = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MOST => items.as_slice(),
        Some(Value::Array(items)) => {
            return Err(format!("{} entries, more than the limit of {MOST}", items.len()));
        }
        Some(one) => std::slice::from_ref(one),
    };
    let id = |item: &Value| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| "expected a token id, a list of token ids, or null".to_owned())
    };
    let ids = items.iter().map(id).collect::<Result<Vec<u32>, _>>()?;
    Ok(ids.into_iter().filter(|id| (*id as usize) < count).map(TokenId).collect())
}
