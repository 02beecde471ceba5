//! Token ids to text, all at once or one by one, never cutting a character.
//!
//! Deliberately works on bytes: one token can hold a part of a character (a byte-level token, or a
//! byte token such as `<0xE2>`), so text can only be given out once a character is whole. Both ways
//! give the same text.

use std::str::from_utf8;
use std::sync::Arc;

use ids::TokenId;

use crate::vocabulary::{TokenKind, Vocabulary};

/// What decoding does with control tokens such as `<|im_end|>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// Leaves them out: what a user wants to see.
    Skip,
    /// Writes their literal text.
    Show,
}

/// What decoding does with a space at the very start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// Gives it out.
    Keep,
    /// Drops one: SentencePiece puts it before every text.
    DropSpace,
}

/// Turns the tokens of one stream into text as they come; linear in the length of the stream.
///
/// The concatenation of all [`StreamDecoder::push`] and the one [`StreamDecoder::finish`] equals
/// [`crate::Tokenizer::decode`] of the same tokens.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    vocabulary: Arc<Vocabulary>,
    control: ControlTokens,
    /// `Keep` once the first visible token has come.
    lead: Lead,
    /// Bytes of a character that is not whole yet: at most three between calls.
    tail: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, control: ControlTokens, lead: Lead) -> Self {
        Self { vocabulary, control, lead, tail: Vec::new() }
    }

    /// Takes the next token and gives the text that is whole now, which may be none.
    ///
    /// Bytes that can never become UTF-8 and ids outside of the vocabulary show as U+FFFD, as
    /// one-shot decoding shows them.
    pub fn push(&mut self, token: TokenId) -> String {
        let bytes = match self.vocabulary.get(token) {
            Some((_, TokenKind::Control)) if self.control == ControlTokens::Skip => {
                return String::new();
            }
            Some((bytes, TokenKind::Normal)) => match self.lead {
                Lead::DropSpace => bytes.strip_prefix(b" ").unwrap_or(bytes),
                Lead::Keep => bytes,
            },
            // The text of a literal is its own: nothing was put before it.
            Some((bytes, _)) => bytes,
            // A model may have more rows than tokens; a byte that is never valid marks it.
            None => &[0xff],
        };
        self.lead = Lead::Keep;
        self.tail.extend(bytes);
        self.take_whole()
    }

    /// Ends the stream: a character that never became whole shows as one U+FFFD.
    pub fn finish(&mut self) -> String {
        let mut out = self.take_whole();
        if !self.tail.is_empty() {
            self.tail.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
        out
    }

    /// Moves everything but an incomplete last character from `tail` to text.
    fn take_whole(&mut self) -> String {
        let mut out = String::new();
        let mut at = 0;
        loop {
            let rest = &self.tail[at..];
            match from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    self.tail.clear();
                    return out;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    out.push_str(from_utf8(&rest[..valid]).expect("checked just above"));
                    at += valid;
                    let Some(bad) = error.error_len() else {
                        self.tail.drain(..at);
                        return out;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    at += bad;
                }
            }
        }
    }
}
