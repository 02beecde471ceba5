//! The bytes behind every token id, and which ids are control tokens.
//!
//! Deliberately knows nothing of merges and regexes: this is the half that decoding needs.

use ids::TokenId;

use crate::bytelevel::byte_of;
use crate::tokenizer::BuildError;

/// ggml's token types (`LLAMA_TOKEN_TYPE_*` of llama.cpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Written in the byte-level alphabet.
    Normal,
    /// Written as its literal text; structure, not content.
    Control,
    /// Written as its literal text; content that must not be split.
    UserDefined,
}

impl TokenKind {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        match number {
            // Undefined, normal, unknown, unused and byte tokens are all plain vocabulary here.
            0 | 1 | 2 | 5 | 6 => Some(Self::Normal),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            _ => None,
        }
    }
}

/// Token id to bytes.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// All tokens' bytes, one after another.
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
    /// Kind of each token.
    kinds: Vec<TokenKind>,
}

impl Vocabulary {
    pub(crate) fn try_new(tokens: &[String], kinds: Vec<TokenKind>) -> Result<Self, BuildError> {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for (index, (text, kind)) in tokens.iter().zip(&kinds).enumerate() {
            match kind {
                TokenKind::Control | TokenKind::UserDefined => bytes.extend(text.as_bytes()),
                TokenKind::Normal => {
                    for c in text.chars() {
                        bytes.push(byte_of(c).ok_or_else(|| BuildError::NotByteLevel {
                            index,
                            text: text.clone(),
                        })?);
                    }
                }
            }
            let end = u32::try_from(bytes.len());
            ends.push(end.map_err(|_| BuildError::TooLarge)?);
        }
        Ok(Self { bytes, ends, kinds })
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes and kind of a token; `None` for an id outside of the vocabulary.
    pub(crate) fn get(&self, token: TokenId) -> Option<(&[u8], TokenKind)> {
        let index = usize::try_from(token.0).ok()?;
        let end = *self.ends.get(index)?;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        let bytes = &self.bytes[start as usize..end as usize];
        Some((bytes, self.kinds[index]))
    }
}
