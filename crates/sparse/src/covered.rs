//! Whether a token's query helped to choose the set that it now attends with.
//!
//! Without this rule acceptance attends with sets that nobody chose for the token, and repair fires
//! on nearly every step (evidence.md: KL 3 to 15 times worse).

use ids::{Position, TokenId};

/// Rows of the last step that lie on the accepted prefix, from the position of the actual token on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// Position of the first row; means nothing while there are no rows.
    pub(crate) first: u32,
    /// Rows at `first`, `first + 1`, ..; the first one is the actual token of the coming step.
    pub(crate) rows: Vec<TokenId>,
}

impl Covered {
    /// Of a step that had `rows` (the actual token at `first`, then the drafted ones), committed
    /// the first `committed` of them, and goes on with `next` as the actual token.
    ///
    /// When `next` was not the row in its place, all later rows had a wrong token before them and
    /// cover nothing.
    pub fn turn(&mut self, first: Position, rows: &[TokenId], committed: usize, next: TokenId) {
        self.rows.clear();
        let rest = rows.get(committed..).unwrap_or_default();
        if rest.first() == Some(&next) {
            self.first = first.0.saturating_add(committed as u32);
            self.rows.extend_from_slice(rest);
        }
    }

    /// Whether this token at this position was a row of the last step with the accepted tokens
    /// before it. Drafted rows are asked about in order: behind one that was not covered, or was
    /// not accepted, the answer means nothing.
    #[must_use]
    pub fn is_covered(&self, position: Position, token: TokenId) -> bool {
        let place = position.0.checked_sub(self.first);
        place.is_some_and(|place| self.rows.get(place as usize) == Some(&token))
    }
}

#[cfg(test)]
mod tests {
    use ids::{Position, TokenId};

    use super::Covered;

    fn after(rows: &[u32], committed: usize, next: u32) -> Covered {
        let rows: Vec<TokenId> = rows.iter().copied().map(TokenId).collect();
        let mut covered = Covered::default();
        covered.turn(Position(10), &rows, committed, TokenId(next));
        covered
    }

    fn covers(covered: &Covered, position: u32, token: u32) -> bool {
        covered.is_covered(Position(position), TokenId(token))
    }

    #[test]
    fn a_right_draft_covers_its_position_and_the_rows_behind_it() {
        let covered = after(&[7, 8, 9], 1, 8);
        assert!(covers(&covered, 11, 8), "the actual token was drafted");
        assert!(covers(&covered, 12, 9), "and so was the one behind it");
        assert!(!covers(&covered, 12, 8), "another token");
        assert!(!covers(&covered, 13, 9), "nobody drafted that far");
        assert!(!covers(&covered, 10, 7), "the last actual token is past");
    }

    #[test]
    fn a_wrong_draft_covers_nothing_behind_it() {
        let covered = after(&[7, 8, 9], 1, 5);
        assert!(!covers(&covered, 11, 5));
        assert!(!covers(&covered, 12, 9), "its query had the wrong 8 before it");
    }

    #[test]
    fn committed_rows_are_past() {
        let covered = after(&[7, 8, 9], 2, 9);
        assert!(covers(&covered, 12, 9) && !covers(&covered, 11, 8));
        let all = after(&[7, 8, 9], 3, 9);
        assert!(!covers(&all, 13, 9), "no row stood there");
        assert!(!covers(&Covered::default(), 0, 0), "before the first step");
    }
}
