//! Text to token ids and back, whatever form the checkpoint's tokenizer has.
//!
//! Deliberately leaves words, merges and caches to the `tokenizers` crate (and scores to `spm`),
//! and only the choice of special tokens and the checks to itself. As in the reference, bytes that
//! the vocabulary has no token for are dropped without an error (SmolLM2 lacks 0x04, 0x06, 0x13,
//! 0x14, 0x16 and 0x1d). An end-of-text token is never appended, even where `add_eos_token` asks
//! for it: every prompt here is there to be continued.

mod arrays;
mod hub;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ids::TokenId;

use crate::special::{Literals, Piece, Unusable};
use crate::spm::{META, Spm};
use crate::stream::{ControlTokens, Lead, StreamDecoder};
use crate::vocabulary::{TokenKind, Vocabulary};

pub use arrays::{BuildError, TokenizerArrays};
pub use hub::{HubError, HubFiles};

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
    encoder: Encoder,
    vocabulary: Arc<Vocabulary>,
    /// Control tokens only.
    control_literals: Literals,
    /// Tokens before a raw prompt: the beginning of text where the checkpoint wants one.
    prefix: Vec<TokenId>,
    /// Whether encoding puts a space before a text, which decoding takes away again.
    lead: Lead,
    special: Special,
}

/// Ids and texts with a meaning.
#[derive(Debug, Default)]
struct Special {
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    /// Ascending, each once.
    ends: Vec<TokenId>,
    /// Texts for chat templates by their names there, such as `pad_token`.
    named: Vec<(&'static str, String)>,
}

#[derive(Debug)]
enum Encoder {
    /// Literals are cut out here, the rest is the library's; from a GGUF's arrays.
    Words { literals: Cuts, bpe: Box<tokenizers::Tokenizer> },
    /// Literals are cut out here, the rest is merged by score; from a GGUF's arrays.
    Scores { literals: Cuts, spm: Spm, space_prefix: bool },
    /// All of it is the library's; from a tokenizer.json.
    Hub(Box<hub::Pipeline>),
}

/// Literals to cut out of a text.
#[derive(Debug)]
struct Cuts {
    /// Control and user-defined tokens.
    all: Literals,
    /// User-defined tokens only: never split, even where control tokens are text.
    user: Literals,
}

impl Cuts {
    fn split<'a>(&self, text: &'a str, special: SpecialTokens) -> Vec<Piece<'a>> {
        match special {
            SpecialTokens::Parse => self.all.split(text),
            SpecialTokens::AsText => self.user.split(text),
        }
    }
}

impl Tokenizer {
    /// Builds a tokenizer from a GGUF's arrays and checks that they fit together.
    ///
    /// # Errors
    /// See [`BuildError`]; each names the array and the entry.
    pub fn from_gguf_arrays(arrays: TokenizerArrays) -> Result<Self, BuildError> {
        arrays::build(arrays)
    }

    /// Builds a tokenizer from the files of a directory in the hub's layout.
    ///
    /// # Errors
    /// See [`HubError`]; each names the file, the field and the remedy.
    pub fn from_hub_files(files: &HubFiles<'_>) -> Result<Self, HubError> {
        hub::build(files)
    }

    /// Token ids of `text`, without a beginning-of-text token.
    ///
    /// # Errors
    /// [`EncodeError`] if the word splitter gives up; no such text is known.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<TokenId>, EncodeError> {
        let mut out = Vec::new();
        match &self.encoder {
            Encoder::Words { literals, bpe } => {
                for piece in literals.split(text, special) {
                    match piece {
                        Piece::Token(id) => out.push(id),
                        Piece::Text(text) => {
                            let encoded = bpe.encode_fast(text, false);
                            let encoded = encoded.map_err(EncodeError::of)?;
                            out.extend(encoded.get_ids().iter().copied().map(TokenId));
                        }
                    }
                }
            }
            Encoder::Scores { literals, spm, space_prefix } => {
                // At the start and after every literal, as llama.cpp has it.
                let mut prefix = *space_prefix;
                for piece in literals.split(text, special) {
                    match piece {
                        Piece::Token(id) => {
                            out.push(id);
                            prefix = *space_prefix;
                        }
                        Piece::Text(text) => {
                            spm.encode(&escaped(text, prefix), &mut out);
                            prefix = false;
                        }
                    }
                }
            }
            Encoder::Hub(pipeline) => pipeline.encode(text, special, &mut out)?,
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
        if !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }

    /// Text of `tokens`; see [`StreamDecoder::push`] for bytes that are no UTF-8. The space that
    /// encoding puts before a text is taken away.
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

    /// A decoder for one stream that begins a text, such as an answer in a dialogue.
    #[must_use]
    pub fn stream_decoder(&self, control: ControlTokens) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.vocabulary), control, self.lead)
    }

    /// A decoder for one stream that goes on from a text: its first space is kept.
    #[must_use]
    pub fn continuing_decoder(&self, control: ControlTokens) -> StreamDecoder {
        StreamDecoder::new(Arc::clone(&self.vocabulary), control, Lead::Keep)
    }

    /// The raw bytes of one token, for `logprobs.bytes`; `None` outside of the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.vocabulary.get(token).map(|(bytes, _)| bytes)
    }

    /// Whether `text` spells a control token somewhere.
    #[must_use]
    pub fn has_control_text(&self, text: &str) -> bool {
        self.control_literals.is_in(text)
    }

    /// How many token ids there are.
    #[must_use]
    pub fn vocabulary_len(&self) -> usize {
        self.vocabulary.len()
    }

    /// The beginning-of-text token, if the checkpoint names one.
    #[must_use]
    pub fn bos(&self) -> Option<TokenId> {
        self.special.bos
    }

    /// The end-of-text token, if the checkpoint names one.
    #[must_use]
    pub fn eos(&self) -> Option<TokenId> {
        self.special.eos
    }

    /// Tokens that end an answer, ascending and without repetition.
    #[must_use]
    pub fn end_tokens(&self) -> Vec<TokenId> {
        self.special.ends.clone()
    }

    /// The texts of special tokens by the names that chat templates use (`bos_token`, `pad_token`,
    /// ..); only those that the checkpoint names.
    #[must_use]
    pub fn named_tokens(&self) -> &[(&'static str, String)] {
        &self.special.named
    }

    /// The literal text of a token.
    #[must_use]
    pub fn token_text(&self, token: TokenId) -> Option<String> {
        let bytes = self.token_bytes(token)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

impl EncodeError {
    fn of(error: tokenizers::Error) -> Self {
        Self { reason: error.to_string() }
    }
}

/// The text with its spaces as pieces have them.
fn escaped(text: &str, prefix: bool) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    out.extend(prefix.then_some(META));
    out.extend(text.chars().map(|c| if c == ' ' { META } else { c }));
    out
}

/// The literal texts of the tokens of some kinds.
fn literals(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> Result<Literals, Unusable> {
    let all = kinds.iter().flat_map(|kind| vocabulary.of_kind(*kind));
    let entries: Vec<(&[u8], TokenId)> = all.map(|(id, text)| (text, id)).collect();
    Literals::try_new(&entries)
}
