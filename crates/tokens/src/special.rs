//! Finds literal special tokens in text, leftmost first, longest first.
//!
//! Deliberately our own and not `tokenizers`' added vocabulary: which tokens count is chosen per
//! call here, there it is a state of the tokenizer. The order of matches is the same.

use ids::TokenId;

/// Literal texts that stand for one token.
#[derive(Debug, Default)]
pub(crate) struct Literals {
    /// Texts and ids, longest first, equal lengths by id.
    entries: Vec<(Box<str>, TokenId)>,
    /// Which bytes a text can begin with: most text positions are passed by this alone.
    begins: Vec<bool>,
}

/// A piece of text, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// A literal token.
    Token(TokenId),
}

impl Literals {
    /// Takes non-empty texts.
    pub(crate) fn new(mut entries: Vec<(Box<str>, TokenId)>) -> Self {
        entries.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        let mut begins = vec![false; 256];
        for (text, _) in &entries {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        Self { entries, begins }
    }

    fn at(&self, rest: &[u8]) -> Option<(usize, TokenId)> {
        if !self.begins[usize::from(*rest.first()?)] {
            return None;
        }
        let mut matching = self.entries.iter();
        let found = matching.find(|(text, _)| rest.starts_with(text.as_bytes()));
        found.map(|(text, id)| (text.len(), *id))
    }

    /// Cuts `text` at its literals.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            // A literal starts with a whole character, so a match is at a character boundary.
            let Some((len, id)) = self.at(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            if start < at {
                pieces.push(Piece::Text(&text[start..at]));
            }
            pieces.push(Piece::Token(id));
            at += len;
            start = at;
        }
        if start < text.len() {
            pieces.push(Piece::Text(&text[start..]));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use ids::TokenId;

    use super::{Literals, Piece};

    fn literals(texts: &[&str]) -> Literals {
        let entries = texts.iter().zip(0..);
        Literals::new(entries.map(|(t, i)| ((*t).into(), TokenId(i))).collect())
    }

    #[test]
    fn leftmost_then_longest_wins_and_text_between_is_kept() {
        let special = literals(&["<a>", "<a>b", "é", "<"]);
        let expected = [
            Piece::Text("x"),
            Piece::Token(TokenId(1)),
            Piece::Token(TokenId(0)),
            Piece::Text("è"),
            Piece::Token(TokenId(2)),
            Piece::Token(TokenId(3)),
            Piece::Text("a"),
        ];
        assert_eq!(special.split("x<a>b<a>èé<a"), expected);
        assert_eq!(special.split(""), []);
        assert_eq!(literals(&[]).split("<a>"), [Piece::Text("<a>")]);
    }
}
