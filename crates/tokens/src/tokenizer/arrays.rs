//! From the arrays of a GGUF's `tokenizer.ggml.*` keys to a tokenizer: byte-level BPE ("gpt2") and
//! SentencePiece with scores ("llama").
//!
//! Deliberately checks all that the `tokenizers` crate only asserts, and reads no file: the caller
//! hands over what it found.

use std::collections::BTreeSet;
use std::sync::Arc;

use ids::TokenId;
use tokenizers::models::bpe::BPE;

use super::{Cuts, Encoder, Special, TOKENS_MAX, Tokenizer, literals};
use crate::bytelevel::byte_of;
use crate::pretokenize::Words;
use crate::special::{LITERAL_BYTES_MAX, Unusable};
use crate::spm::{META, Spm, byte_token};
use crate::stream::Lead;
use crate::vocabulary::{TokenKind, TooLarge, Vocabulary};

/// A tokenizer as a checkpoint stores it; the GGUF keys are `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default)]
pub struct TokenizerArrays {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `pre`: the name of the pre-tokenizer; for `gpt2` only.
    pub pre: String,
    /// `tokens`, in the order of their ids.
    pub tokens: Vec<String>,
    /// `merges`: two tokens with a space between, most important first; for `gpt2` only.
    pub merges: Vec<String>,
    /// `scores`, one per token; for `llama` only.
    pub scores: Vec<f32>,
    /// `token_type`, one per token.
    pub token_types: Vec<i32>,
    /// `bos_token_id`; 1 for `llama` where the key is missing.
    pub bos: Option<u32>,
    /// `eos_token_id`; 2 for `llama` where the key is missing.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn, where it differs.
    pub eot: Option<u32>,
    /// `unknown_token_id`; 0 for `llama` where the key is missing.
    pub unknown: Option<u32>,
    /// `padding_token_id`: only its text matters, to chat templates.
    pub padding: Option<u32>,
    /// `add_bos_token`; where the key is missing, true for `llama` and the words of Llama 3.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`; true where the key is missing. For `llama` only.
    pub add_space_prefix: Option<bool>,
}

/// Why a tokenizer was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// Another kind of tokenizer.
    #[error("tokenizer.ggml.model {model:?} is not supported, \"gpt2\" and \"llama\" are")]
    UnknownModel {
        /// As stored, cut to 80 characters.
        model: String,
    },
    /// A pre-tokenizer whose rules are not known.
    #[error("tokenizer.ggml.pre {name:?} is not supported, these are: {known}")]
    UnknownPreTokenizer {
        /// As stored, cut to 80 characters.
        name: String,
        /// The supported names.
        known: &'static str,
    },
    /// No tokens, or more than an id can count.
    #[error("tokenizer.ggml.tokens has {count} entries, expected 1 to {max}")]
    TokenCount {
        /// As stored.
        count: usize,
        /// The most that is supported.
        max: usize,
    },
    /// The vocabulary's bytes pass 4 GiB.
    #[error("tokenizer.ggml.tokens is larger than 4 GiB")]
    TooLarge,
    /// The special tokens are too many to search for.
    #[error("the special tokens of tokenizer.ggml.tokens have more than {max} bytes together")]
    SpecialBytes {
        /// The most that is supported.
        max: usize,
    },
    /// Arrays that do not belong together.
    #[error("tokenizer.ggml.{field} has {count} entries for {tokens} tokens")]
    LengthMismatch {
        /// Which array.
        field: &'static str,
        /// Its entries.
        count: usize,
        /// Entries of `tokens`.
        tokens: usize,
    },
    /// A number that stands for no kind of token.
    #[error("tokenizer.ggml.token_type {index} is {value}, expected 0 to 6")]
    UnknownType {
        /// Which token.
        index: usize,
        /// As stored.
        value: i32,
    },
    /// A score without an order.
    #[error("tokenizer.ggml.scores {index} is not a finite number")]
    Score {
        /// Which token.
        index: usize,
    },
    /// The same text twice.
    #[error("tokenizer.ggml.tokens {index} is {text:?}, which occurs before")]
    DuplicateToken {
        /// The later one.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A control token without text would match everywhere.
    #[error("tokenizer.ggml.tokens {index} is a special token without text")]
    EmptySpecial {
        /// Which token.
        index: usize,
    },
    /// Text outside of the alphabet for bytes.
    #[error("tokenizer.ggml.tokens {index} is {text:?}, which is no byte-level text")]
    NotByteLevel {
        /// Which token.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A byte token that names no byte.
    #[error("tokenizer.ggml.tokens {index} is {text:?}, expected a byte as in <0x0A>")]
    NotByte {
        /// Which token.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A merge that is not two known tokens that give a third.
    #[error("tokenizer.ggml.merges {index} is {text:?}: {why}")]
    Merge {
        /// Which.
        index: usize,
        /// As stored.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A special id outside of the vocabulary.
    #[error("tokenizer.ggml.{field} is {id}, but there are {count} tokens")]
    SpecialId {
        /// Which key.
        field: &'static str,
        /// As stored.
        id: u32,
        /// Size of the vocabulary.
        count: usize,
    },
    /// `add_bos_token` without a token to add.
    #[error("tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing")]
    NoBos,
    /// The library refused what passed all of the checks above.
    #[error("the tokenizer was rejected: {reason}")]
    Rejected {
        /// Why.
        reason: String,
    },
}

impl From<TooLarge> for BuildError {
    fn from(TooLarge: TooLarge) -> Self {
        Self::TooLarge
    }
}

impl From<Unusable> for BuildError {
    fn from(Unusable: Unusable) -> Self {
        Self::SpecialBytes { max: LITERAL_BYTES_MAX }
    }
}

/// Control tokens that end an answer by their names, whatever `eos_token_id` says: most files name
/// one end, and many models write another. Source: `special_eog_ids` of llama.cpp, without the
/// names of families that are not supported.
const ENDS: [&str; 11] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// What a token is, by its number in `token_type` (`LLAMA_TOKEN_TYPE_*` of llama.cpp).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// Also the undefined and the unused, which are plain vocabulary here.
    Normal,
    /// Also the unknown token.
    Control,
    UserDefined,
    Byte,
}

impl Stored {
    fn from_number(number: i32) -> Option<Self> {
        match number {
            0 | 1 | 5 => Some(Self::Normal),
            2 | 3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            6 => Some(Self::Byte),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    ByteLevel,
    Scores,
}

/// Checks the arrays and builds a tokenizer of them.
pub(super) fn build(arrays: TokenizerArrays) -> Result<Tokenizer, BuildError> {
    let model = match arrays.model.as_str() {
        "gpt2" => Model::ByteLevel,
        "llama" => Model::Scores,
        other => {
            return Err(BuildError::UnknownModel { model: other.chars().take(80).collect() });
        }
    };
    let kinds = kinds(&arrays)?;
    let vocabulary = vocabulary(model, &arrays.tokens, &kinds)?;
    let cuts = Cuts {
        all: literals(&vocabulary, &[TokenKind::Control, TokenKind::UserDefined])?,
        user: literals(&vocabulary, &[TokenKind::UserDefined])?,
    };
    let special = special(model, &arrays, &kinds)?;
    let (encoder, add_bos, lead) = match model {
        Model::ByteLevel => {
            let words = Words::named(&arrays.pre)?;
            let add_bos = arrays.add_bos.unwrap_or(words.add_bos);
            let bpe = Box::new(bpe(arrays, words)?);
            (Encoder::Words { literals: cuts, bpe }, add_bos, Lead::Keep)
        }
        Model::Scores => {
            let space_prefix = arrays.add_space_prefix.unwrap_or(true);
            let spm = spm(&arrays, &kinds)?;
            let lead = if space_prefix { Lead::DropSpace } else { Lead::Keep };
            let add_bos = arrays.add_bos.unwrap_or(true);
            (Encoder::Scores { literals: cuts, spm, space_prefix }, add_bos, lead)
        }
    };
    let prefix = match (add_bos, special.bos) {
        (true, Some(bos)) => vec![bos],
        (true, None) => return Err(BuildError::NoBos),
        (false, _) => Vec::new(),
    };
    let control_literals = literals(&vocabulary, &[TokenKind::Control])?;
    let vocabulary = Arc::new(vocabulary);
    Ok(Tokenizer { encoder, vocabulary, control_literals, prefix, lead, special })
}

/// Checks lengths, types and texts of the tokens.
fn kinds(arrays: &TokenizerArrays) -> Result<Vec<Stored>, BuildError> {
    let count = arrays.tokens.len();
    if count == 0 || count > TOKENS_MAX {
        return Err(BuildError::TokenCount { count, max: TOKENS_MAX });
    }
    let types = arrays.token_types.len();
    if types != count {
        return Err(BuildError::LengthMismatch {
            field: "token_type",
            count: types,
            tokens: count,
        });
    }
    let mut seen = BTreeSet::new();
    let mut kinds = Vec::with_capacity(count);
    for (index, (text, number)) in arrays.tokens.iter().zip(&arrays.token_types).enumerate() {
        let kind = Stored::from_number(*number);
        let mut kind = kind.ok_or(BuildError::UnknownType { index, value: *number })?;
        // Older converters wrote all added tokens as user-defined. `</s>` can be that: it is HTML.
        if kind == Stored::UserDefined && text != "</s>" && ENDS.contains(&text.as_str()) {
            kind = Stored::Control;
        }
        if text.is_empty() && matches!(kind, Stored::Control | Stored::UserDefined) {
            return Err(BuildError::EmptySpecial { index });
        }
        if !seen.insert(text.as_str()) {
            return Err(BuildError::DuplicateToken { index, text: text.clone() });
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn vocabulary(model: Model, tokens: &[String], kinds: &[Stored]) -> Result<Vocabulary, BuildError> {
    let mut vocabulary = Vocabulary::default();
    for (index, (text, kind)) in tokens.iter().zip(kinds).enumerate() {
        match (kind, model) {
            (Stored::Control, _) => vocabulary.push(text.as_bytes(), TokenKind::Control)?,
            (Stored::UserDefined, _) => vocabulary.push(text.as_bytes(), TokenKind::UserDefined)?,
            (Stored::Normal, Model::Scores) => {
                vocabulary.push(text.replace(META, " ").as_bytes(), TokenKind::Normal)?;
            }
            (Stored::Byte, Model::Scores) => {
                let byte = byte_token(text)
                    .ok_or_else(|| BuildError::NotByte { index, text: text.clone() })?;
                vocabulary.push(&[byte], TokenKind::Normal)?;
            }
            (Stored::Normal | Stored::Byte, Model::ByteLevel) => {
                let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
                let bytes =
                    bytes.ok_or_else(|| BuildError::NotByteLevel { index, text: text.clone() })?;
                vocabulary.push(&bytes, TokenKind::Normal)?;
            }
        }
    }
    Ok(vocabulary)
}

fn special(
    model: Model,
    arrays: &TokenizerArrays,
    kinds: &[Stored],
) -> Result<Special, BuildError> {
    let count = arrays.tokens.len();
    let check = |field: &'static str, id: Option<u32>| match id {
        Some(id) if id as usize >= count => Err(BuildError::SpecialId { field, id, count }),
        _ => Ok(id.map(TokenId)),
    };
    // llama.cpp's defaults of this model, in so far as there are such tokens.
    let default = |id: u32| (model == Model::Scores && (id as usize) < count).then_some(id);
    let bos = check("bos_token_id", arrays.bos.or(default(1)))?;
    let eos = check("eos_token_id", arrays.eos.or(default(2)))?;
    let eot = check("eot_token_id", arrays.eot)?;
    let unknown = check("unknown_token_id", arrays.unknown.or(default(0)))?;
    let padding = check("padding_token_id", arrays.padding)?;
    let ids = (0u32..).zip(&arrays.tokens).zip(kinds);
    let by_name = ids.filter_map(|((id, text), kind)| {
        (*kind == Stored::Control && ENDS.contains(&text.as_str())).then_some(TokenId(id))
    });
    let ends: BTreeSet<TokenId> = by_name.chain(eos).chain(eot).collect();
    let roles =
        [("bos_token", bos), ("eos_token", eos), ("unk_token", unknown), ("pad_token", padding)];
    let named = roles
        .into_iter()
        .filter_map(|(name, id)| id.map(|id| (name, arrays.tokens[id.0 as usize].clone())));
    Ok(Special { bos, eos, ends: ends.into_iter().collect(), named: named.collect() })
}

fn spm(arrays: &TokenizerArrays, kinds: &[Stored]) -> Result<Spm, BuildError> {
    let count = arrays.scores.len();
    if count != kinds.len() {
        return Err(BuildError::LengthMismatch { field: "scores", count, tokens: kinds.len() });
    }
    if let Some(index) = arrays.scores.iter().position(|score| !score.is_finite()) {
        return Err(BuildError::Score { index });
    }
    let mut bytes = Box::new([None; 256]);
    for ((id, text), kind) in (0u32..).zip(&arrays.tokens).zip(kinds) {
        if *kind == Stored::Byte
            && let Some(byte) = byte_token(text)
        {
            bytes[usize::from(byte)] = Some(TokenId(id));
        }
    }
    let pieces = (0u32..).zip(&arrays.tokens).zip(&arrays.scores).zip(kinds);
    let pieces = pieces.filter_map(|(((id, text), score), kind)| match kind {
        Stored::Normal | Stored::UserDefined => Some((text.as_str(), TokenId(id), *score)),
        Stored::Control | Stored::Byte => None,
    });
    let unknown = arrays.unknown.unwrap_or(0);
    let unknown = ((unknown as usize) < kinds.len()).then_some(TokenId(unknown));
    Ok(Spm::new(pieces, bytes, unknown))
}

fn bpe(arrays: TokenizerArrays, words: Words) -> Result<tokenizers::Tokenizer, BuildError> {
    let vocabulary: tokenizers::models::bpe::Vocab = arrays.tokens.into_iter().zip(0..).collect();
    let mut merges = Vec::with_capacity(arrays.merges.len());
    for (index, text) in arrays.merges.into_iter().enumerate() {
        // Checked here because the library panics on a merge that is longer than every token.
        let checked = match text.split_once(' ') {
            None => Err("expected two tokens with a space between"),
            Some((left, right)) if !known(&vocabulary, &[left, right]) => {
                Err("one side is no token")
            }
            Some((left, right)) if !known(&vocabulary, &[&format!("{left}{right}")]) => {
                Err("the result is no token")
            }
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        };
        match checked {
            Ok(merge) => merges.push(merge),
            Err(why) => return Err(BuildError::Merge { index, text, why }),
        }
    }
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(words.ignore_merges)
        .build()
        .map_err(|error| BuildError::Rejected { reason: error.to_string() })?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(words.splitter));
    let normalized = tokenizer.with_normalizer(words.normalizer);
    normalized.map_err(|error| BuildError::Rejected { reason: error.to_string() })?;
    Ok(tokenizer)
}

fn known(vocabulary: &tokenizers::models::bpe::Vocab, texts: &[&str]) -> bool {
    texts.iter().all(|text| vocabulary.contains_key(*text))
}
