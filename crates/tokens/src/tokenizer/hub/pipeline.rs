//! The components of a tokenizer.json: normalizer, pre-tokenizer, post-processor, decoder.
//!
//! Deliberately a closed list, each with its bounds: what is not on it would be applied wrongly or
//! not at all, and that gives other token ids without any error.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ids::TokenId;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::{NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::sequence::Sequence as Splitters;
use tokenizers::{
    DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

use super::HubError;
use super::model::{AddedTokens, Entry, File};
use crate::bytelevel::byte_of;
use crate::spm::{META, byte_token};
use crate::stream::Lead;
use crate::tokenizer::{EncodeError, SpecialTokens};
use crate::vocabulary::{TokenKind, Vocabulary};

/// Longest text of one component; the longest known, DeepSeek's words, has 3 KB.
const COMPONENT_BYTES_MAX: usize = 64 << 10;
/// Most components of one sequence.
const SEQUENCE_MAX: usize = 16;
/// How many times longer all replacements together may make a text; `▁` for a space is 4.
const GROWTH_MAX: usize = 32;
/// Longest text that a prompt may begin with.
const PREFIX_MAX: usize = 8;

/// All components, checked.
pub(super) struct Components {
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) splitter: Option<PreTokenizerWrapper>,
    /// What the post-processor puts before a text.
    pub(super) prefix: Vec<TokenId>,
    pub(super) decoding: Decoding,
}

/// How tokens become bytes again.
#[derive(Clone, Copy)]
pub(super) struct Decoding {
    alphabet: Alphabet,
    pub(super) lead: Lead,
}

#[derive(Clone, Copy)]
enum Alphabet {
    /// GPT-2's alphabet for bytes.
    ByteLevel,
    /// `▁` for a space; with or without tokens for bytes.
    Meta { bytes: bool },
}

impl Decoding {
    /// The bytes of all ids.
    pub(super) fn vocabulary(self, entries: &[Entry]) -> Result<Vocabulary, HubError> {
        let mut vocabulary = Vocabulary::default();
        for entry in entries {
            let pushed = match entry {
                Entry::Absent => vocabulary.push(&[], TokenKind::Absent),
                Entry::Special(text) => vocabulary.push(text.as_bytes(), TokenKind::Control),
                Entry::Added(text) => vocabulary.push(&self.literal(text), TokenKind::UserDefined),
                Entry::Piece(text) => vocabulary.push(&self.piece(text), TokenKind::Normal),
            };
            pushed.map_err(|_| HubError::invalid("tokenizer.json: model.vocab", "over 4 GiB"))?;
        }
        Ok(vocabulary)
    }

    fn piece(self, text: &str) -> Vec<u8> {
        match self.alphabet {
            // As the reference has it: what is not of the alphabet stands for itself.
            Alphabet::ByteLevel => {
                let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| text.as_bytes().to_vec())
            }
            Alphabet::Meta { bytes } => match byte_token(text).filter(|_| bytes) {
                Some(byte) => vec![byte],
                None => self.literal(text),
            },
        }
    }

    fn literal(self, text: &str) -> Vec<u8> {
        match self.alphabet {
            Alphabet::ByteLevel => text.as_bytes().to_vec(),
            Alphabet::Meta { .. } => text.replace(META, " ").into_bytes(),
        }
    }
}

/// A component as read, with its place for errors.
struct Part<'a> {
    field: &'a str,
    value: &'a Value,
}

impl<'a> Part<'a> {
    fn kind(&self) -> &'a str {
        self.value.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    fn unsupported(&self, supported: &'static str) -> HubError {
        let found = match self.kind() {
            "" => "without a type".to_owned(),
            kind => format!("{:?}", kind.chars().take(80).collect::<String>()),
        };
        HubError::Unsupported { field: self.field.to_owned(), found, supported }
    }

    fn invalid(&self, why: impl Into<String>) -> HubError {
        HubError::invalid(format!("tokenizer.json: {}", self.field), why)
    }

    fn text(&self, key: &str) -> Result<&'a str, HubError> {
        let text = self.value.get(key).and_then(Value::as_str);
        text.ok_or_else(|| self.invalid(format!("{key} is missing or no text")))
    }

    /// Lets the library read a component whose fields all have harmless values.
    fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, HubError> {
        T::deserialize(self.value).map_err(|error| self.invalid(error.to_string()))
    }

    /// The components of a sequence.
    fn parts(&self, key: &str) -> Result<Vec<Part<'a>>, HubError> {
        match self.value.get(key) {
            Some(Value::Array(items)) if items.len() <= SEQUENCE_MAX => {
                Ok(items.iter().map(|value| Part { field: self.field, value }).collect())
            }
            _ => Err(self.invalid(format!("{key} is no list of at most {SEQUENCE_MAX}"))),
        }
    }
}

/// Reads and checks all components.
pub(super) fn components(file: &File<'_>) -> Result<Components, HubError> {
    let normalizer = parsed("normalizer", file.normalizer)?;
    let pre_tokenizer = parsed("pre_tokenizer", file.pre_tokenizer)?;
    let post_processor = parsed("post_processor", file.post_processor)?;
    let decoder = parsed("decoder", file.decoder)?;
    let part = |field, value| Part { field, value };
    let mut growth = 1;
    Ok(Components {
        normalizer: normalizer
            .as_ref()
            .map(|value| normalize(&part("normalizer", value), &mut growth, 0))
            .transpose()?,
        splitter: pre_tokenizer
            .as_ref()
            .map(|value| pre_tokenize(&part("pre_tokenizer", value), 0))
            .transpose()?,
        prefix: post_processor
            .as_ref()
            .map_or(Ok(Vec::new()), |value| prefix(&part("post_processor", value), 0))?,
        decoding: decoding(&part("decoder", decoder.as_ref().unwrap_or(&Value::Null)))?,
    })
}

fn parsed(field: &str, raw: Option<&RawValue>) -> Result<Option<Value>, HubError> {
    let Some(text) = raw.map(RawValue::get).filter(|text| *text != "null") else {
        return Ok(None);
    };
    let place = format!("tokenizer.json: {field}");
    if text.len() > COMPONENT_BYTES_MAX {
        let why = format!("{} bytes, more than the limit of {COMPONENT_BYTES_MAX}", text.len());
        return Err(HubError::invalid(place, why));
    }
    // The parser bounds the depth.
    let value = serde_json::from_str(text);
    value.map(Some).map_err(|error| HubError::invalid(place, error.to_string()))
}

/// Sequences may be nested, as some writers do, but not for long.
const DEPTH_MAX: usize = 4;

fn normalize(
    part: &Part<'_>,
    growth: &mut usize,
    depth: usize,
) -> Result<NormalizerWrapper, HubError> {
    let mut grow = |by: usize| {
        *growth = growth.saturating_mul(by);
        match *growth <= GROWTH_MAX {
            true => Ok(()),
            false => Err(part.invalid(format!("it makes a text over {GROWTH_MAX} times longer"))),
        }
    };
    match part.kind() {
        "Sequence" if depth < DEPTH_MAX => {
            let parts = part.parts("normalizers")?;
            let each = parts.iter().map(|part| normalize(part, growth, depth + 1));
            Ok(Normalizers::new(each.collect::<Result<_, _>>()?).into())
        }
        "NFC" => Ok(NFC.into()),
        "NFD" => Ok(NFD.into()),
        "NFKC" => Ok(NFKC.into()),
        "NFKD" => Ok(NFKD.into()),
        "Prepend" => {
            let text = part.text("prepend")?;
            if text.len() > GROWTH_MAX {
                return Err(part.invalid(format!("prepend is longer than {GROWTH_MAX} bytes")));
            }
            Ok(Prepend::new(text.to_owned()).into())
        }
        "Replace" => {
            // One more than its length, because a pattern can match between characters.
            grow(part.text("content")?.len() + 1)?;
            Ok(part.read::<Replace>()?.into())
        }
        _ => Err(part.unsupported("Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace")),
    }
}

fn pre_tokenize(part: &Part<'_>, depth: usize) -> Result<PreTokenizerWrapper, HubError> {
    match part.kind() {
        "Sequence" if depth < DEPTH_MAX => {
            let parts = part.parts("pretokenizers")?;
            let each = parts.iter().map(|part| pre_tokenize(part, depth + 1));
            Ok(Splitters::new(each.collect::<Result<_, _>>()?).into())
        }
        "ByteLevel" | "Digits" | "Split" => part.read::<PreTokenizerWrapper>(),
        "Metaspace" if part.text("replacement")? == "\u{2581}" => part.read(),
        _ => Err(part.unsupported("Sequence, ByteLevel, Digits, Split, Metaspace with \"▁\"")),
    }
}

/// What stands before a text. What would stand after it is left out: see `tokenizer`.
fn prefix(part: &Part<'_>, depth: usize) -> Result<Vec<TokenId>, HubError> {
    match part.kind() {
        "Sequence" if depth < DEPTH_MAX => {
            let mut all = Vec::new();
            // A later processor's tokens stand before an earlier one's.
            for part in part.parts("processors")? {
                all.splice(0..0, prefix(&part, depth + 1)?);
            }
            Ok(all)
        }
        "ByteLevel" => Ok(Vec::new()),
        "TemplateProcessing" => {
            let mut all = Vec::new();
            for item in part.parts("single")? {
                if item.value.get("Sequence").is_some() {
                    break;
                }
                let name = item.value.pointer("/SpecialToken/id").and_then(Value::as_str);
                let name = name.ok_or_else(|| item.invalid("single has an unknown item"))?;
                let tokens = part.value.get("special_tokens").and_then(|map| map.get(name));
                let ids = tokens.and_then(|token| token.get("ids")).and_then(Value::as_array);
                let ids = ids.ok_or_else(|| part.invalid(format!("{name:?} has no ids")))?;
                let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
                for found in ids.iter().map(id) {
                    all.push(TokenId(found.ok_or_else(|| part.invalid("an id is no number"))?));
                }
            }
            match all.len() <= PREFIX_MAX {
                true => Ok(all),
                false => Err(part.invalid(format!("single begins with over {PREFIX_MAX} tokens"))),
            }
        }
        _ => Err(part.unsupported("null, Sequence, ByteLevel, TemplateProcessing")),
    }
}

fn decoding(part: &Part<'_>) -> Result<Decoding, HubError> {
    const SUPPORTED: &str = "ByteLevel, Metaspace, or a Sequence of Replace (\"▁\" by \" \"), \
                             ByteFallback, Fuse and Strip (one space at the start)";
    let parts = match part.kind() {
        "Sequence" => part.parts("decoders")?,
        _ => vec![Part { field: part.field, value: part.value }],
    };
    let (mut meta, mut bytes, mut lead) = (false, false, Lead::Keep);
    for part in &parts {
        let value = |key: &str| part.value.get(key);
        match part.kind() {
            "ByteLevel" => {
                return Ok(Decoding { alphabet: Alphabet::ByteLevel, lead: Lead::Keep });
            }
            "Metaspace" if part.text("replacement")? == "\u{2581}" => {
                meta = true;
                let scheme = value("prepend_scheme").and_then(Value::as_str);
                let prefix = value("add_prefix_space").and_then(Value::as_bool);
                if scheme != Some("never") && prefix != Some(false) {
                    lead = Lead::DropSpace;
                }
            }
            "Replace" => {
                let pattern = part.value.pointer("/pattern/String").and_then(Value::as_str);
                if pattern != Some("\u{2581}") || part.text("content")? != " " {
                    return Err(part.unsupported(SUPPORTED));
                }
                meta = true;
            }
            "ByteFallback" => bytes = true,
            "Fuse" => {}
            "Strip" => {
                let number = |key| value(key).and_then(Value::as_u64);
                if part.text("content")? != " " || number("stop") != Some(0) {
                    return Err(part.unsupported(SUPPORTED));
                }
                match number("start") {
                    Some(0) => {}
                    Some(1) => lead = Lead::DropSpace,
                    _ => return Err(part.unsupported(SUPPORTED)),
                }
            }
            _ => return Err(part.unsupported(SUPPORTED)),
        }
    }
    match meta {
        true => Ok(Decoding { alphabet: Alphabet::Meta { bytes }, lead }),
        false => Err(part.unsupported(SUPPORTED)),
    }
}

type Library = TokenizerImpl<
    Shared,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// The library's tokenizer, once with and once without the control tokens; both share the model.
#[derive(Debug)]
pub(in crate::tokenizer) struct Pipeline {
    parse: Library,
    as_text: Library,
}

impl Pipeline {
    pub(super) fn try_new(
        bpe: BPE,
        added: AddedTokens,
        normalizer: Option<NormalizerWrapper>,
        splitter: Option<PreTokenizerWrapper>,
    ) -> Result<Self, HubError> {
        let model = Shared { bpe: Arc::new(bpe), added: added.ids };
        let library = || {
            let mut library = Library::new(model.clone());
            library.with_pre_tokenizer(splitter.clone());
            library.with_normalizer(normalizer.clone()).map_err(HubError::rejected)?;
            library.add_tokens(added.tokens.iter().cloned()).map_err(HubError::rejected)?;
            Ok(library)
        };
        let parse = library()?;
        let mut as_text = library()?;
        as_text.set_encode_special_tokens(true);
        Ok(Self { parse, as_text })
    }

    pub(in crate::tokenizer) fn encode(
        &self,
        text: &str,
        special: SpecialTokens,
        out: &mut Vec<TokenId>,
    ) -> Result<(), EncodeError> {
        let library = match special {
            SpecialTokens::Parse => &self.parse,
            SpecialTokens::AsText => &self.as_text,
        };
        let encoded = library.encode_fast(text, false).map_err(EncodeError::of)?;
        out.extend(encoded.get_ids().iter().copied().map(TokenId));
        Ok(())
    }
}

/// A model that two tokenizers use, and that gives added tokens the ids of the file: the library
/// would count on from the vocabulary's size, which is wrong where ids have holes.
#[derive(Clone, Debug)]
struct Shared {
    bpe: Arc<BPE>,
    added: Arc<HashMap<String, u32>>,
}

impl Model for Shared {
    type Trainer = BpeTrainer;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.bpe.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.added.get(token).copied().or_else(|| self.bpe.token_to_id(token))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.bpe.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.bpe.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.bpe.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.bpe.save(folder, prefix)
    }

    fn get_trainer(&self) -> BpeTrainer {
        self.bpe.get_trainer()
    }
}
