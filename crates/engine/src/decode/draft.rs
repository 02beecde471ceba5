//! Tokens that may come next, found without a pass of their own: they look ahead for the choice of
//! blocks, and may be committed when they turn out right.
//!
//! `ngram` is prompt lookup (Saxena 2023): what followed the last time that the newest tokens stood
//! there. `self` is what the model itself said behind a drafted row one step ago: stale where that
//! row was wrong, right more often than not all the same. A draft is a pure function of the
//! request's tokens and of what its own rows gave (P1).

use std::collections::HashMap;

use ids::TokenId;
use sparse::{Drafts, Source};

/// Longest run of newest tokens that is looked up.
const NGRAM_MAX: usize = 3;
/// In `both`, shorter runs than this are looked up behind the model's own answers.
const NGRAM_SURE: usize = 2;

/// Where the drafts of one request come from.
#[derive(Debug)]
pub(crate) struct Drafter {
    /// `None` drafts nothing.
    source: Option<Source>,
    /// Drafts of a step.
    most: usize,
    /// Where each run of one to three tokens last ended, but for those that end at the newest
    /// token: the index behind it.
    seen: HashMap<[u32; NGRAM_MAX], usize>,
    /// Tokens that `seen` knows as ends.
    indexed: usize,
    /// What the model said behind the drafted rows of the last step that were not committed.
    own: Vec<TokenId>,
}

impl Drafter {
    pub(crate) fn new(drafts: Drafts) -> Self {
        let (source, most) = match drafts {
            Drafts::None => (None, 0),
            Drafts::From { source, k, .. } => (Some(source), usize::from(k)),
        };
        Self { source, most, seen: HashMap::new(), indexed: 0, own: Vec::new() }
    }

    /// Up to `most` (and what the request was given) tokens that may follow `history`, which is
    /// never empty. The same request must ask in the order of its steps.
    pub(crate) fn propose(&mut self, history: &[TokenId], most: usize) -> Vec<TokenId> {
        let most = self.most.min(most);
        if most == 0 {
            return Vec::new();
        }
        let mut drafts = match self.source {
            None => Vec::new(),
            Some(Source::NGram) => self.looked_up(history, 1).to_vec(),
            Some(Source::Own) => self.own(history),
            Some(Source::Both) => match self.looked_up(history, NGRAM_SURE) {
                [] => self.own(history),
                found => found.to_vec(),
            },
        };
        drafts.truncate(most);
        drafts
    }

    /// What the step gave: the model's choices behind each of its drafted rows, and how many of
    /// those rows were committed.
    pub(crate) fn stepped(&mut self, behind_drafts: &[TokenId], committed: usize) {
        self.own.clear();
        self.own.extend(behind_drafts.iter().skip(committed));
    }

    /// The model's own stale answers. Before there are any, the newest token once more: a row to
    /// get an answer behind.
    fn own(&self, history: &[TokenId]) -> Vec<TokenId> {
        if self.own.is_empty() {
            history.last().copied().into_iter().collect()
        } else {
            self.own.clone()
        }
    }

    /// What followed the longest run of newest tokens, of at least `least`, that stood before.
    fn looked_up<'a>(&mut self, history: &'a [TokenId], least: usize) -> &'a [TokenId] {
        self.index(history);
        let lengths = (least..=NGRAM_MAX.min(history.len())).rev();
        let mut ends = lengths.filter_map(|length| self.seen.get(&run(history, length)));
        ends.next().map_or(&[], |&end| &history[end..])
    }

    /// Notes every run that ends before the newest token.
    fn index(&mut self, history: &[TokenId]) {
        let last = history.len() - 1;
        for end in self.indexed + 1..=last {
            for length in 1..=NGRAM_MAX.min(end) {
                self.seen.insert(run(&history[..end], length), end);
            }
        }
        self.indexed = self.indexed.max(last);
    }
}

/// The newest `length` tokens as a key; tokens are below 2^32 - 1, so shorter runs are told apart.
fn run(history: &[TokenId], length: usize) -> [u32; NGRAM_MAX] {
    let mut key = [u32::MAX; NGRAM_MAX];
    for (place, token) in key.iter_mut().zip(&history[history.len() - length..]) {
        *place = token.0;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafter(source: Source, k: u8) -> Drafter {
        Drafter::new(Drafts::From { source, k, accept: sparse::Accept::Covered })
    }

    fn tokens(text: &str) -> Vec<TokenId> {
        text.bytes().map(|byte| TokenId(u32::from(byte))).collect()
    }

    #[test]
    fn the_longest_run_that_stood_before_says_what_follows() {
        let history = tokens("abcd-xbcy-abc");
        let mut drafting = drafter(Source::NGram, 4);
        assert_eq!(drafting.propose(&history, 4), tokens("d-xb"), "abc, not the later bc");
        assert_eq!(drafting.propose(&history, 2), tokens("d-"), "no more than may be");
        let history = tokens("abcd-xbcy-bc");
        assert_eq!(drafter(Source::NGram, 1).propose(&history, 4), tokens("y"));
        let mut drafting = drafter(Source::Both, 4);
        assert_eq!(
            drafting.propose(&tokens("a-b-c-"), 1),
            tokens("-"),
            "one token alone is not sure"
        );
        assert!(drafter(Source::NGram, 4).propose(&tokens("abc"), 4).is_empty());
    }

    #[test]
    fn a_run_that_grows_is_looked_up_as_if_it_had_been_there_at_once() {
        let history = tokens("the cat sat on the mat, the cat sat on the mat, the c");
        let mut grown = drafter(Source::NGram, 4);
        for end in 1..history.len() {
            let mut fresh = drafter(Source::NGram, 4);
            assert_eq!(grown.propose(&history[..end], 4), fresh.propose(&history[..end], 4));
        }
    }

    #[test]
    fn own_answers_move_up_by_what_was_committed() {
        let history = tokens("ab");
        let mut drafting = drafter(Source::Own, 3);
        assert_eq!(drafting.propose(&history, 3), tokens("b"), "a row to get an answer behind");
        drafting.stepped(&tokens("xyz"), 0);
        assert_eq!(drafting.propose(&history, 3), tokens("xyz"));
        drafting.stepped(&tokens("pqr"), 2);
        assert_eq!(drafting.propose(&history, 3), tokens("r"));
    }
}
