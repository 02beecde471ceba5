//! SentencePiece's BPE over scores: of all neighbours that make a piece, the pair with the highest
//! score is joined first, the leftmost of equals; what stays without a piece becomes bytes.
//!
//! Deliberately our own and not merges for the `tokenizers` crate: merges name pairs, scores name
//! results, and with equal scores no list of pairs says the same. No normalisation either: the
//! checkpoints of this kind (Llama 2, Mistral, TinyLlama, Gemma) use the identity.
//! Source: `llm_tokenizer_spm_session` of llama.cpp, `bpe_model.cc` of sentencepiece.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use ids::TokenId;

/// What stands for a space inside of pieces.
pub(crate) const META: char = '\u{2581}';

/// Pieces with scores.
#[derive(Debug)]
pub(crate) struct Spm {
    /// What may be merged: ordinary and user-defined pieces. Control tokens are left out, so that
    /// no text can spell one.
    pieces: HashMap<Box<str>, (TokenId, f32)>,
    /// Length of the longest piece in bytes.
    longest: usize,
    /// The tokens of single bytes, where the vocabulary has them.
    bytes: Box<[Option<TokenId>; 256]>,
    /// For characters without a piece in a vocabulary without bytes.
    unknown: Option<TokenId>,
}

/// A run of characters that is, or was, one piece of the text.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// 0 once it was joined to its left neighbour.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that make a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Their length together: another one when the pair is popped means that one has changed.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Takes pieces with finite scores, the ids of bytes, and the token for what has no other.
    pub(crate) fn new<'a>(
        pieces: impl Iterator<Item = (&'a str, TokenId, f32)>,
        bytes: Box<[Option<TokenId>; 256]>,
        unknown: Option<TokenId>,
    ) -> Self {
        // Adding zero makes -0 equal to 0, which the order by `total_cmp` would tell apart.
        let pieces: HashMap<Box<str>, _> =
            pieces.map(|(text, id, score)| (text.into(), (id, score + 0.0))).collect();
        let longest = pieces.keys().map(|text| text.len()).max().unwrap_or(0);
        Self { pieces, longest, bytes, unknown }
    }

    /// Appends the tokens of `text`, in which spaces are already [`META`].
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        let Some(last) = symbols.last_mut() else { return };
        last.next = None;
        self.merge(text, &mut symbols);
        let mut at = Some(0);
        while let Some(index) = at {
            let symbol = symbols[index];
            self.emit(&text[symbol.start..symbol.start + symbol.len], out);
            at = symbol.next;
        }
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let mut queue: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|right| self.pair(text, symbols, right)).collect();
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let [l, r] = [symbols[left], symbols[right]];
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[left].next = r.next;
            symbols[right].len = 0;
            if let Some(next) = r.next {
                symbols[next].previous = Some(left);
                queue.extend(self.pair(text, symbols, next));
            }
            queue.extend(self.pair(text, symbols, left));
        }
    }

    /// The piece that a symbol makes with its left neighbour.
    fn pair(&self, text: &str, symbols: &[Symbol], right: usize) -> Option<Pair> {
        let left = symbols[right].previous?;
        let [l, r] = [symbols[left], symbols[right]];
        let len = l.len + r.len;
        if len > self.longest {
            return None;
        }
        let (_, score) = self.pieces.get(&text[l.start..l.start + len])?;
        Some(Pair { score: *score, left, right, len })
    }

    fn emit(&self, piece: &str, out: &mut Vec<TokenId>) {
        if let Some((id, _)) = self.pieces.get(piece) {
            out.push(*id);
            return;
        }
        let bytes = piece.bytes().map(|byte| self.bytes[usize::from(byte)]);
        match bytes.collect::<Option<Vec<_>>>() {
            Some(ids) => out.extend(ids),
            None => out.extend(self.unknown),
        }
    }
}

/// The byte of a token such as `<0x0A>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let digits = hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use ids::TokenId;

    use super::{Spm, byte_token};

    /// Pieces get ids from 1 in their order.
    fn encode(pieces: &[(&str, f32)], text: &str) -> Vec<u32> {
        let mut bytes = Box::new([None; 256]);
        bytes[usize::from(b'!')] = Some(TokenId(100));
        let pieces = pieces.iter().zip(1..).map(|((text, score), id)| (*text, TokenId(id), *score));
        let mut out = Vec::new();
        Spm::new(pieces, bytes, Some(TokenId(0))).encode(text, &mut out);
        out.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn the_highest_score_is_joined_first_and_the_leftmost_of_equals() {
        let letters = [("a", 0.0), ("b", 0.0), ("c", 0.0)];
        let with = |more: &[(&'static str, f32)]| [&letters[..], more].concat();
        assert_eq!(encode(&with(&[("ab", -2.0), ("bc", -1.0)]), "abc"), [1, 5]);
        assert_eq!(encode(&with(&[("ab", -1.0), ("bc", -1.0)]), "abc"), [4, 3]);
        assert_eq!(encode(&with(&[("ab", 0.0), ("bc", -0.0)]), "abc"), [4, 3]);
        assert_eq!(encode(&with(&[("ab", -1.0), ("abab", -5.0), ("aba", -4.0)]), "abab"), [5]);
        assert_eq!(encode(&with(&[("aa", -1.0)]), "aaaaa"), [4, 4, 1]);
    }

    #[test]
    fn what_has_no_piece_becomes_bytes_or_the_unknown_token() {
        assert_eq!(encode(&[("a", 0.0)], "a!aé"), [1, 100, 1, 0]);
        assert_eq!(encode(&[("ab", 0.0)], "ab"), [1]);
        assert_eq!(encode(&[], ""), [0; 0]);
    }

    #[test]
    fn byte_tokens_are_two_hexadecimal_digits() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for text in ["<0xA>", "<0x+A>", "0x0A", "<0x0AB>", "<0x>", "<0xé>"] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }
}
