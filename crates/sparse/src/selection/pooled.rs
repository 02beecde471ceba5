//! Budgets of columns: equal, or moved from columns that miss little to columns that miss much.
//!
//! The total is K times the columns, whatever moves, so that a reservation stays what it was.

use super::Selection;

/// Steps between two moves; a move is at most one block per column, so that a fetch follows it.
const MOVE_EVERY: u32 = 16;

impl Selection {
    /// Moves blocks every 16 steps: the column that misses the most mass gets one from the column
    /// that misses the least, and so on inward while one misses more than 1.5 times the other.
    /// Shares stay between K/2 (and what is pinned, with one more) and 2K. Ties: lower column.
    pub(super) fn rebalance(&mut self) {
        if !self.step.is_multiple_of(MOVE_EVERY) {
            return;
        }
        let [least, most] = self.share_bounds();
        let key = |column: usize| u64::from(self.columns[column].need.to_bits()) << 32;
        let all = 0..self.columns.len();
        let mut givers: Vec<u64> = all
            .clone()
            .filter(|c| self.columns[*c].cap > least)
            .map(|c| key(c) | c as u64)
            .collect();
        let mut takers: Vec<u64> = all
            .filter(|c| self.columns[*c].cap < most)
            .map(|c| key(c) | (u64::from(u32::MAX) - c as u64))
            .collect();
        givers.sort_unstable();
        takers.sort_unstable_by(|a, b| b.cmp(a));
        let index = |key: u64| (key & u64::from(u32::MAX)) as usize;
        for (taker, giver) in takers.into_iter().zip(givers) {
            let (taker, giver) = (u32::MAX as usize - index(taker), index(giver));
            if self.columns[taker].need * 2.0 <= self.columns[giver].need * 3.0 {
                break;
            }
            self.columns[taker].cap += 1;
            self.columns[giver].cap -= 1;
        }
    }

    /// Follows a changed K: every column by the difference, then block by block from the lowest
    /// column on until the total is K times the columns again.
    pub(super) fn move_budgets(&mut self, before: u32) {
        let [least, most] = self.share_bounds();
        let now = self.limits.budget_blocks;
        for column in &mut self.columns {
            let moved = (column.cap + now).saturating_sub(before);
            column.cap = moved.clamp(least, most);
        }
        let goal = u64::from(now) * self.columns.len() as u64;
        let mut total: u64 = self.columns.iter().map(|column| u64::from(column.cap)).sum();
        while total != goal {
            for column in &mut self.columns {
                if total < goal && column.cap < most {
                    column.cap += 1;
                    total += 1;
                } else if total > goal && column.cap > least {
                    column.cap -= 1;
                    total -= 1;
                }
            }
        }
    }

    /// The least and the most that a column may have.
    pub(crate) fn share_bounds(&self) -> [u32; 2] {
        let k = self.limits.budget_blocks;
        [(k / 2).max(self.policy.pinned_blocks() + 1), k.saturating_mul(2)]
    }
}
