//! Byte-level BPE over the arrays of a checkpoint.
//!
//! Deliberately leaves words, merges and caches to the `tokenizers` crate, and only the choice of
//! special tokens and the checks to itself. As in the reference, bytes that the vocabulary has no
//! token for are dropped without an error (SmolLM2 lacks 0x04, 0x06, 0x13, 0x14, 0x16 and 0x1d).

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use ids::TokenId;
use tokenizers::models::bpe::BPE;

use crate::pretokenize::Words;
use crate::special::{Literals, Piece};
use crate::stream::{ControlTokens, StreamDecoder};
use crate::vocabulary::{TokenKind, Vocabulary};

/// A tokenizer as a checkpoint stores it; the GGUF keys are `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default)]
pub struct TokenizerArrays {
    /// `model`; only `gpt2` (byte-level BPE) is supported.
    pub model: String,
    /// `pre`: the name of the pre-tokenizer.
    pub pre: String,
    /// `tokens`, in the order of their ids.
    pub tokens: Vec<String>,
    /// `merges`: two tokens with a space between, most important first.
    pub merges: Vec<String>,
    /// `token_type`, one per token.
    pub token_types: Vec<i32>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn, where it differs.
    pub eot: Option<u32>,
    /// `add_bos_token`; false where the key is missing.
    pub add_bos: bool,
}

/// Why a tokenizer was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// Another kind of tokenizer.
    #[error("tokenizer.ggml.model {model:?} is not supported, \"gpt2\" is")]
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
    /// Arrays that do not belong together.
    #[error("tokenizer.ggml.token_type has {types} entries for {tokens} tokens")]
    LengthMismatch {
        /// Entries of `tokens`.
        tokens: usize,
        /// Entries of `token_type`.
        types: usize,
    },
    /// A number that stands for no kind of token.
    #[error("tokenizer.ggml.token_type {index} is {value}, expected 0 to 6")]
    UnknownType {
        /// Which token.
        index: usize,
        /// As stored.
        value: i32,
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

/// Why a text has no token ids.
#[derive(Debug, thiserror::Error)]
#[error("cannot tokenize the text: {reason}")]
pub struct EncodeError {
    /// What the library said.
    reason: String,
}

/// What encoding does with text that spells a control token such as `<|im_start|>`.
///
/// A rendered chat template needs `Parse`, and then text of the user that spells a control token
/// becomes that token too. The reference implementations do the same, and token ids must equal
/// theirs; a caller who must not allow it looks for [`Tokenizer::has_control_text`] in the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// It becomes the control token.
    Parse,
    /// It stays ordinary text.
    AsText,
}

/// Most tokens of a vocabulary; the largest published ones have about 300 thousand.
const TOKENS_MAX: usize = 1 << 21;

/// Text to token ids and back. Cheap to share, not to build (a fraction of a second).
#[derive(Debug)]
pub struct Tokenizer {
    /// Words and merges, without any special token.
    bpe: tokenizers::Tokenizer,
    vocabulary: Arc<Vocabulary>,
    /// Control and user-defined tokens.
    all_literals: Literals,
    /// User-defined tokens only: never split, even where control tokens are text.
    user_literals: Literals,
    /// Control tokens only.
    control_literals: Literals,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    add_bos: bool,
}

impl Tokenizer {
    /// Builds a tokenizer and checks that its arrays fit together.
    ///
    /// # Errors
    /// See [`BuildError`]; each names the array and the entry.
    pub fn from_gguf_arrays(arrays: TokenizerArrays) -> Result<Self, BuildError> {
        if arrays.model != "gpt2" {
            return Err(BuildError::UnknownModel {
                model: arrays.model.chars().take(80).collect(),
            });
        }
        let words = Words::named(&arrays.pre)?;
        let kinds = kinds(&arrays)?;
        let special = special_ids(&arrays)?;
        let all_literals = literals(&arrays.tokens, &kinds, |kind| kind != TokenKind::Normal);
        let user_literals = literals(&arrays.tokens, &kinds, |kind| kind == TokenKind::UserDefined);
        let control_literals = literals(&arrays.tokens, &kinds, |kind| kind == TokenKind::Control);
        let vocabulary = Arc::new(Vocabulary::try_new(&arrays.tokens, kinds)?);
        let add_bos = arrays.add_bos;
        let bpe = bpe(arrays, words)?;
        let [bos, eos, eot] = special;
        Ok(Self {
            bpe,
            vocabulary,
            all_literals,
            user_literals,
            control_literals,
            bos,
            eos,
            eot,
            add_bos,
        })
    }

    /// Token ids of `text`, without a beginning-of-text token.
    ///
    /// # Errors
    /// [`EncodeError`] if the word splitter gives up; no such text is known.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<TokenId>, EncodeError> {
        let literals = match special {
            SpecialTokens::Parse => &self.all_literals,
            SpecialTokens::AsText => &self.user_literals,
        };
        let mut out = Vec::new();
        for piece in literals.split(text) {
            match piece {
                Piece::Token(id) => out.push(id),
                Piece::Text(text) => {
                    let encoded = self.bpe.encode_fast(text, false);
                    let encoded =
                        encoded.map_err(|error| EncodeError { reason: error.to_string() })?;
                    out.extend(encoded.get_ids().iter().copied().map(TokenId));
                }
            }
        }
        Ok(out)
    }

    /// Token ids of a raw prompt: as [`Tokenizer::encode`] with [`SpecialTokens::Parse`], after
    /// the beginning-of-text token where the checkpoint wants one and the text has none.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        let mut ids = self.encode(text, SpecialTokens::Parse)?;
        if let Some(bos) = self.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Text of `tokens`; see [`StreamDecoder::push`] for bytes that are no UTF-8.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId], control: ControlTokens) -> String {
        let mut decoder = self.stream_decoder(control);
        let mut out = String::new();
        for token in tokens {
            out.push_str(&decoder.push(*token));
        }
        out.push_str(&decoder.finish());
        out
    }

    /// A decoder for one stream.
    #[must_use]
    pub fn stream_decoder(&self, control: ControlTokens) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.vocabulary), control)
    }

    /// The raw bytes of one token, for `logprobs.bytes`; `None` outside of the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.vocabulary.get(token).map(|(bytes, _)| bytes)
    }

    /// Whether `text` spells a control token somewhere.
    #[must_use]
    pub fn has_control_text(&self, text: &str) -> bool {
        let pieces = self.control_literals.split(text);
        pieces.iter().any(|piece| matches!(piece, Piece::Token(_)))
    }

    /// How many token ids there are.
    #[must_use]
    pub fn vocabulary_len(&self) -> usize {
        self.vocabulary.len()
    }

    /// The beginning-of-text token, if the checkpoint names one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The end-of-text token, if the checkpoint names one.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Tokens that end an answer, without repetition.
    #[must_use]
    pub fn end_tokens(&self) -> Vec<TokenId> {
        let both = [self.eos, self.eot].into_iter().flatten();
        both.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The literal text of a token, for chat templates (`bos_token`, `eos_token`).
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> Option<String> {
        let bytes = self.token_bytes(token)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Checks lengths, types and texts of the tokens.
fn kinds(arrays: &TokenizerArrays) -> Result<Vec<TokenKind>, BuildError> {
    let count = arrays.tokens.len();
    if count == 0 || count > TOKENS_MAX {
        return Err(BuildError::TokenCount { count, max: TOKENS_MAX });
    }
    if arrays.token_types.len() != count {
        return Err(BuildError::LengthMismatch { tokens: count, types: arrays.token_types.len() });
    }
    let mut seen = BTreeSet::new();
    let mut kinds = Vec::with_capacity(count);
    for (index, (text, number)) in arrays.tokens.iter().zip(&arrays.token_types).enumerate() {
        let kind = TokenKind::from_number(*number);
        let kind = kind.ok_or(BuildError::UnknownType { index, value: *number })?;
        if text.is_empty() && kind != TokenKind::Normal {
            return Err(BuildError::EmptySpecial { index });
        }
        if !seen.insert(text.as_str()) {
            return Err(BuildError::DuplicateToken { index, text: text.clone() });
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn special_ids(arrays: &TokenizerArrays) -> Result<[Option<TokenId>; 3], BuildError> {
    let count = arrays.tokens.len();
    let check = |field: &'static str, id: Option<u32>| match id {
        Some(id) if id as usize >= count => Err(BuildError::SpecialId { field, id, count }),
        _ => Ok(id.map(TokenId)),
    };
    let bos = check("bos_token_id", arrays.bos)?;
    if arrays.add_bos && bos.is_none() {
        return Err(BuildError::NoBos);
    }
    let eos = check("eos_token_id", arrays.eos)?;
    let eot = check("eot_token_id", arrays.eot)?;
    Ok([bos, eos, eot])
}

fn literals(
    tokens: &[String],
    kinds: &[TokenKind],
    wanted: impl Fn(TokenKind) -> bool,
) -> Literals {
    let all = tokens.iter().zip(kinds).zip(0u32..);
    let wanted = all.filter(|((_, kind), _)| wanted(**kind));
    let entries = wanted.map(|((text, _), id)| (text.as_str().into(), TokenId(id)));
    Literals::new(entries.collect())
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
