//! The bytes behind every token id, and which ids are control tokens.
//!
//! Deliberately knows nothing of merges and regexes: this is the half that decoding needs.

use ids::TokenId;

/// What a token is to decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Ordinary text, written in the vocabulary's alphabet.
    Normal,
    /// Written as its literal text; structure, not content.
    Control,
    /// Written as its literal text; content that must not be split.
    UserDefined,
    /// An id between others that no token has.
    Absent,
}

/// Token id to bytes.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// All tokens' bytes, one after another.
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
    /// Kind of each token.
    kinds: Vec<TokenKind>,
}

/// The vocabulary's bytes pass 4 GiB.
#[derive(Debug)]
pub(crate) struct TooLarge;

impl Vocabulary {
    /// Gives the next id its bytes.
    pub(crate) fn push(&mut self, text: &[u8], kind: TokenKind) -> Result<(), TooLarge> {
        self.bytes.extend(text);
        self.ends.push(u32::try_from(self.bytes.len()).map_err(|_| TooLarge)?);
        self.kinds.push(kind);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes and kind of a token; `None` for an id that no token has.
    pub(crate) fn get(&self, token: TokenId) -> Option<(&[u8], TokenKind)> {
        let index = usize::try_from(token.0).ok()?;
        let end = *self.ends.get(index)?;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        let bytes = &self.bytes[start as usize..end as usize];
        match self.kinds[index] {
            TokenKind::Absent => None,
            kind => Some((bytes, kind)),
        }
    }

    /// All tokens of one kind, in the order of their ids.
    pub(crate) fn of_kind(&self, wanted: TokenKind) -> impl Iterator<Item = (TokenId, &[u8])> {
        let ids = (0u32..).zip(&self.kinds).filter(move |(_, kind)| **kind == wanted);
        ids.filter_map(|(id, _)| self.get(TokenId(id)).map(|(bytes, _)| (TokenId(id), bytes)))
    }
}
