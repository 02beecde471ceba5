//! Finds literal special tokens in text, leftmost first, longest first.
//!
//! Deliberately our own and not `tokenizers`' added vocabulary: which tokens count is chosen per
//! call here, there it is a state of the tokenizer. The order of matches is the same.

use aho_corasick::{AhoCorasick, MatchKind};
use ids::TokenId;

/// Most bytes of all literals together; real vocabularies have a few hundred kilobytes at most
/// (Gemma's 6,414 literals take 80), and the automaton takes about fifty times as much.
pub(crate) const LITERAL_BYTES_MAX: usize = 2 << 20;

/// Literal texts that stand for one token.
#[derive(Debug)]
pub(crate) struct Literals {
    /// Finds the texts; `None` if there are none. Linear in the text, however many literals.
    automaton: Option<AhoCorasick>,
    /// Ids in the order of the automaton's patterns.
    ids: Vec<TokenId>,
}

/// A piece of text, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// A literal token.
    Token(TokenId),
}

/// The literals are too many, or the automaton cannot be built of them.
#[derive(Debug)]
pub(crate) struct Unusable;

impl Literals {
    /// Takes non-empty texts, each once.
    pub(crate) fn try_new(entries: &[(&[u8], TokenId)]) -> Result<Self, Unusable> {
        let bytes: usize = entries.iter().map(|(text, _)| text.len()).sum();
        if bytes > LITERAL_BYTES_MAX {
            return Err(Unusable);
        }
        let ids = entries.iter().map(|(_, id)| *id).collect();
        if entries.is_empty() {
            return Ok(Self { automaton: None, ids });
        }
        let texts = entries.iter().map(|(text, _)| *text);
        let mut builder = AhoCorasick::builder();
        let built = builder.match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { automaton: Some(built.map_err(|_| Unusable)?), ids })
    }

    /// Whether `text` holds a literal.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.automaton.as_ref().is_some_and(|automaton| automaton.is_match(text))
    }

    /// Cuts `text` at its literals.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut start = 0;
        // A literal is whole characters, so a match begins and ends at a character boundary.
        let found = self.automaton.iter().flat_map(|automaton| automaton.find_iter(text));
        for literal in found {
            if start < literal.start() {
                pieces.push(Piece::Text(&text[start..literal.start()]));
            }
            pieces.push(Piece::Token(self.ids[literal.pattern().as_usize()]));
            start = literal.end();
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

    use super::{LITERAL_BYTES_MAX, Literals, Piece};

    fn literals(texts: &[&str]) -> Literals {
        let entries = texts.iter().zip(0..).map(|(text, id)| (text.as_bytes(), TokenId(id)));
        Literals::try_new(&entries.collect::<Vec<_>>()).unwrap()
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
        assert!(special.is_in("a<") && !special.is_in("a>") && !literals(&[]).is_in("<"));
    }

    #[test]
    fn more_literals_than_any_vocabulary_has_are_refused() {
        let long = "x".repeat(LITERAL_BYTES_MAX + 1);
        assert!(Literals::try_new(&[(long.as_bytes(), TokenId(0))]).is_err());
    }
}
