//! Finds the earliest stop text in an answer that arrives in pieces, and never lets out a part of
//! one: the longest tail that could still become a stop text is held back.
//! What it deliberately does not do: know tokens; an end of the model's own is not a stop text.

/// The state of one answer.
#[derive(Debug, Clone)]
pub(crate) struct StopMatcher {
    /// None of them empty.
    stops: Vec<String>,
    /// Text not let out yet: shorter than the longest stop text, between calls.
    held: String,
    /// Set when a stop text was found; nothing is let out after.
    matched: bool,
}

/// What a piece of text leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Released {
    /// Text that can no longer be part of a stop text.
    pub(crate) text: String,
    /// Whether a stop text followed it: the answer is over.
    pub(crate) matched: bool,
}

impl StopMatcher {
    /// A matcher for these texts; empty ones, which would match anywhere, are left out.
    pub(crate) fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), matched: false }
    }

    /// Takes the next piece.
    pub(crate) fn push(&mut self, piece: &str) -> Released {
        if self.matched {
            return Released { text: String::new(), matched: true };
        }
        self.held.push_str(piece);
        // The earliest begin wins, as if the whole answer were searched for all texts at once.
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop)).min();
        let keep_from = match found {
            Some(begin) => begin,
            None => self.open_from(),
        };
        // A stop text that begins earlier than the one found may still be open: wait for it.
        let open = self.open_from();
        if found.is_some_and(|begin| open < begin) {
            let text = self.let_out(open);
            return Released { text, matched: false };
        }
        let text = self.let_out(keep_from);
        if found.is_some() {
            self.matched = true;
            self.held.clear();
        }
        Released { text, matched: self.matched }
    }

    /// The answer is over: what was held back was no stop text, unless one is complete in it.
    pub(crate) fn finish(&mut self) -> Released {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop)).min();
        let end = found.unwrap_or(self.held.len());
        let matched = self.matched || found.is_some();
        let text = self.let_out(end);
        self.held.clear();
        Released { text, matched }
    }

    /// Where the longest tail begins that is a proper beginning of a stop text; the length of the
    /// held text if there is none.
    fn open_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest.saturating_sub(1));
        let begins = (first..self.held.len()).filter(|at| self.held.is_char_boundary(*at));
        let mut open =
            begins.filter(|at| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..])));
        open.next().unwrap_or(self.held.len())
    }

    fn let_out(&mut self, end: usize) -> String {
        self.held.drain(..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StopMatcher;

    /// What is let out of an answer in these pieces, and whether a stop text ended it.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let released = matcher.push(piece);
            out.push_str(&released.text);
            if released.matched {
                return (out, true);
            }
        }
        let rest = matcher.finish();
        (out + &rest.text, rest.matched)
    }

    #[test]
    fn the_earliest_match_wins() {
        // dynamo#14848: the right answer is "t".
        assert_eq!(run(&["re", "he"], &["there"]), ("t".into(), true));
        assert_eq!(run(&["re", "he"], &["t", "h", "e", "r", "e"]), ("t".into(), true));
        assert_eq!(run(&["b"], &["abc"]), ("a".into(), true));
        assert_eq!(run(&[], &["abc"]), ("abc".into(), false));
        assert_eq!(run(&["", "x"], &["abc"]), ("abc".into(), false));
    }

    #[test]
    fn no_part_of_a_stop_text_leaks() {
        let mut matcher = StopMatcher::new(vec!["END".into()]);
        assert_eq!(matcher.push("an E").text, "an ");
        assert_eq!(matcher.push("N").text, "");
        assert_eq!(matcher.push("ds").text, "ENds");
        assert_eq!(matcher.push(" EN").text, " ");
        let end = matcher.push("D and more");
        assert_eq!((end.text.as_str(), end.matched), ("", true));
        assert_eq!(matcher.push("late").text, "", "nothing after the end");
    }

    #[test]
    fn what_was_held_back_comes_out_at_the_end() {
        assert_eq!(run(&["END"], &["no EN"]), ("no EN".into(), false));
        assert_eq!(run(&["\u{1f468}!"], &["a\u{1f468}"]), ("a\u{1f468}".into(), false));
    }

    #[test]
    fn an_earlier_stop_text_that_is_still_open_is_waited_for() {
        assert_eq!(run(&["abcd", "bc"], &["abc", "d"]), (String::new(), true));
        assert_eq!(run(&["abcd", "bc"], &["abc", "x"]), ("a".into(), true));
        assert_eq!(run(&["abcd", "bc"], &["abc"]), ("a".into(), true));
    }

    proptest! {
        #[test]
        fn pieces_and_whole_agree(
            text in "[ab\u{e9}]{0,24}",
            stops in prop::collection::vec("[ab\u{e9}]{1,4}", 0..4),
            cuts in prop::collection::vec(0_usize..24, 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts = cuts;
            cuts.retain(|at| text.is_char_boundary(*at));
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let first = stops.iter().filter_map(|stop| text.find(stop)).min();
            let expected = (text[..first.unwrap_or(text.len())].to_owned(), first.is_some());
            prop_assert_eq!(run(&stops, &[&text]), expected.clone());
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
