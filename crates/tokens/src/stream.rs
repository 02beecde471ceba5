//! Token ids to text, all at once or one by one, never cutting a character.
//!
//! Deliberately works on bytes: one token can hold a part of a character, so text can only be
//! given out once a character is whole. Both ways give the same text.

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

/// Turns the tokens of one stream into text as they come; linear in the length of the stream.
///
/// The concatenation of all [`StreamDecoder::push`] and the one [`StreamDecoder::finish`] equals
/// [`crate::Tokenizer::decode`] of the same tokens.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    vocabulary: Arc<Vocabulary>,
    control: ControlTokens,
    /// Bytes of a character that is not whole yet: at most three between calls.
    tail: Vec<u8>,
}

impl StreamDecoder {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, control: ControlTokens) -> Self {
        Self { vocabulary, control, tail: Vec::new() }
    }

    /// Takes the next token and gives the text that is whole now, which may be none.
    ///
    /// Bytes that can never become UTF-8 and ids outside of the vocabulary show as U+FFFD, as
    /// one-shot decoding shows them.
    pub fn push(&mut self, token: TokenId) -> String {
        match self.vocabulary.get(token) {
            Some((_, TokenKind::Control)) if self.control == ControlTokens::Skip => {}
            Some((bytes, _)) => self.tail.extend(bytes),
            // A model may have more rows than tokens; a byte that is never valid marks it.
            None => self.tail.push(0xff),
        }
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
