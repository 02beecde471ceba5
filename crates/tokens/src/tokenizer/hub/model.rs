//! The vocabulary, the merges and the added tokens of a tokenizer.json, read with bounds.
//!
//! Deliberately only BPE: no model of the supported families has another kind.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokenizers::AddedToken;
use tokenizers::models::bpe::BPE;

use super::HubError;
use crate::special::LITERAL_BYTES_MAX;
use crate::tokenizer::TOKENS_MAX;

/// Most merges; the longest published list has about 500 thousand.
const MERGES_MAX: usize = 1 << 22;

/// The parts of a tokenizer.json that matter here. Truncation and padding do not: a prompt that is
/// too long is refused, not cut.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    added_tokens: Option<Vec<Added>>,
    #[serde(default, borrow)]
    pub(super) normalizer: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) pre_tokenizer: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) post_processor: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(deserialize_with = "vocab")]
    vocab: Vec<(String, u32)>,
    merges: Bounded<Merge>,
}

/// A merge, as newer files (a pair) and older ones (a text with a space) write it.
struct Merge(String, String);

/// A list that stops being read at its limit.
struct Bounded<T>(Vec<T>);

/// What an id stands for.
pub(super) enum Entry {
    /// No token has it.
    Absent,
    /// Of the model's vocabulary.
    Piece(String),
    /// An added token that is content.
    Added(String),
    /// An added token that is structure.
    Special(String),
}

impl Entry {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Absent => None,
            Self::Piece(text) | Self::Added(text) | Self::Special(text) => Some(text),
        }
    }
}

/// The added tokens with the ids that the file gives them.
pub(super) struct AddedTokens {
    pub(super) tokens: Vec<AddedToken>,
    pub(super) ids: Arc<HashMap<String, u32>>,
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, as a list or with a space between")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.to_owned(), right.to_owned()))
                    }
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let mut next = || pair.next_element::<String>();
                match (next()?, next()?) {
                    (Some(left), Some(right)) => match pair.next_element::<String>()? {
                        None => Ok(Merge(left, right)),
                        Some(_) => Err(A::Error::invalid_length(3, &self)),
                    },
                    _ => Err(A::Error::invalid_length(1, &self)),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = Bounded<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MERGES_MAX} merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MERGES_MAX {
                        return Err(A::Error::invalid_length(MERGES_MAX + 1, &self));
                    }
                    items.push(item);
                }
                Ok(Bounded(items))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

fn vocab<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, u32)>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, u32)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a map of at most {TOKENS_MAX} tokens to their ids")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = map.next_entry()? {
                if entries.len() == TOKENS_MAX {
                    return Err(A::Error::invalid_length(TOKENS_MAX + 1, &self));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }
    deserializer.deserialize_map(Entries)
}

fn json(error: &serde_json::Error) -> HubError {
    // The library repeats a wrong text whole.
    HubError::Json { reason: error.to_string().chars().take(200).collect() }
}

/// Reads the outer form; the components stay text until their sizes are known.
pub(super) fn read(text: &str) -> Result<File<'_>, HubError> {
    serde_json::from_str(text).map_err(|error| json(&error))
}

/// Checks the model and the added tokens; also gives what every id stands for.
pub(super) fn build(file: File<'_>) -> Result<(BPE, AddedTokens, Vec<Entry>), HubError> {
    let Kind { kind } = serde_json::from_str(file.model.get()).map_err(|error| json(&error))?;
    if let Some(kind) = kind.filter(|kind| kind != "BPE") {
        return Err(HubError::Unsupported {
            field: "model.type".to_owned(),
            found: format!("{:?}", kind.chars().take(80).collect::<String>()),
            supported: "\"BPE\"",
        });
    }
    let model: Model = serde_json::from_str(file.model.get()).map_err(|error| json(&error))?;
    let mut entries = entries(&model.vocab)?;
    let added = added(file.added_tokens.unwrap_or_default(), &model.vocab, &mut entries)?;
    Ok((bpe(model)?, added, entries))
}

/// What the ids of the model's vocabulary stand for.
fn entries(vocab: &[(String, u32)]) -> Result<Vec<Entry>, HubError> {
    let mut entries = Vec::new();
    for (text, id) in vocab {
        place(&mut entries, *id, Entry::Piece(text.clone()), || format!("model.vocab: {text:?}"))?;
    }
    Ok(entries)
}

fn place(
    entries: &mut Vec<Entry>,
    id: u32,
    entry: Entry,
    who: impl Fn() -> String,
) -> Result<(), HubError> {
    let index = id as usize;
    if index >= TOKENS_MAX {
        let why = format!("the id {id} is not below the limit of {TOKENS_MAX}");
        return Err(HubError::invalid(format!("tokenizer.json: {}", who()), why));
    }
    if entries.len() <= index {
        entries.resize_with(index + 1, || Entry::Absent);
    }
    match &entries[index] {
        Entry::Absent => {}
        Entry::Piece(text)
            if entry.text() == Some(text.as_str()) && !matches!(entry, Entry::Piece(_)) => {}
        Entry::Piece(text) | Entry::Added(text) | Entry::Special(text) => {
            let why = format!("the id {id} is also that of {text:?}");
            return Err(HubError::invalid(format!("tokenizer.json: {}", who()), why));
        }
    }
    entries[index] = entry;
    Ok(())
}

fn added(
    added: Vec<Added>,
    vocab: &[(String, u32)],
    entries: &mut Vec<Entry>,
) -> Result<AddedTokens, HubError> {
    let bytes: usize = added.iter().map(|token| token.content.len()).sum();
    if bytes > LITERAL_BYTES_MAX {
        let why = format!("{bytes} bytes of text, more than the limit of {LITERAL_BYTES_MAX}");
        return Err(HubError::invalid("tokenizer.json: added_tokens", why));
    }
    let vocab: HashMap<&str, u32> = vocab.iter().map(|(text, id)| (text.as_str(), *id)).collect();
    let mut tokens = Vec::with_capacity(added.len());
    let mut ids = HashMap::new();
    for (index, token) in added.into_iter().enumerate() {
        let who = || format!("added_tokens[{index}]");
        let invalid = |why: String| HubError::invalid(format!("tokenizer.json: {}", who()), why);
        if token.content.is_empty() {
            return Err(invalid("a token without text would match everywhere".to_owned()));
        }
        if let Some(id) = vocab.get(token.content.as_str())
            && *id != token.id
        {
            let why = format!("{:?} has the id {}, in model.vocab {id}", token.content, token.id);
            return Err(invalid(why));
        }
        let entry = match token.special {
            true => Entry::Special(token.content.clone()),
            false => Entry::Added(token.content.clone()),
        };
        place(entries, token.id, entry, who)?;
        if ids.insert(token.content.clone(), token.id).is_some() {
            return Err(invalid(format!("{:?} occurs before", token.content)));
        }
        let made = AddedToken::from(token.content, token.special)
            .single_word(token.single_word)
            .lstrip(token.lstrip)
            .rstrip(token.rstrip)
            .normalized(token.normalized);
        tokens.push(made);
    }
    Ok(AddedTokens { tokens, ids: Arc::new(ids) })
}

fn bpe(model: Model) -> Result<BPE, HubError> {
    let unsupported = |field: &str, found: String, supported| HubError::Unsupported {
        field: field.to_owned(),
        found,
        supported,
    };
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(unsupported("model.dropout", dropout.to_string(), "null: ids must not vary"));
    }
    let affixes = [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (field, affix) in affixes {
        if let Some(text) = affix.as_ref().filter(|text| !text.is_empty()) {
            let found = format!("{:?}", text.chars().take(80).collect::<String>());
            return Err(unsupported(field, found, "null"));
        }
    }
    let count = model.vocab.len();
    let vocab: tokenizers::models::bpe::Vocab = model.vocab.into_iter().collect();
    if vocab.len() != count {
        return Err(HubError::invalid("tokenizer.json: model.vocab", "a token occurs twice"));
    }
    // The library panics on a merge that is longer than every token, and fails on every text with
    // an unknown character if the token for those is missing.
    if let Some(unknown) = model.unk_token.as_ref().filter(|text| !vocab.contains_key(*text)) {
        let why = format!("{unknown:?} is no token of model.vocab");
        return Err(HubError::invalid("tokenizer.json: model.unk_token", why));
    }
    let mut joined = String::new();
    for (index, Merge(left, right)) in model.merges.0.iter().enumerate() {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if let Some(text) = [left, right, &joined].into_iter().find(|t| !vocab.contains_key(*t)) {
            let why = format!("{text:?} is no token of model.vocab");
            return Err(HubError::invalid(format!("tokenizer.json: model.merges[{index}]"), why));
        }
    }
    let merges = model.merges.0.into_iter().map(|Merge(left, right)| (left, right)).collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(model.fuse_unk.unwrap_or(false))
        .byte_fallback(model.byte_fallback.unwrap_or(false))
        .ignore_merges(model.ignore_merges.unwrap_or(false));
    if let Some(unknown) = model.unk_token {
        builder = builder.unk_token(unknown);
    }
    builder.build().map_err(HubError::rejected)
}
