//! Hot path. From masses to wanted blocks and swaps: 90 times per step and sequence.
//!
//! Works in buffers that are kept, so that a step allocates nothing once they have grown. A block
//! is ranked by one 64-bit key, score above index, because the bits of scores that are not negative
//! are ordered like the scores; the best K of them are split off without sorting the rest.

use super::column::{Column, usefulness};
use super::{Change, HISTORY_DECAY, Observed, Pinned, Rows};
use crate::policy::Ratio;

/// Partial sums that are added side by side, in an order that no compiler may change.
const LANES: usize = 8;

const MEMBER: u8 = 1;
const WANTED: u8 = 2;

/// Buffers of one request, reused by all columns. Holds nothing between two calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// Score of every block of the sequence; neither negative nor NaN.
    pub(crate) scores: Vec<f32>,
    /// Keys of wanted blocks, best first only as far as was asked.
    keys: Vec<u64>,
    /// MEMBER and WANTED of every block.
    marks: Vec<u8>,
    /// Keys of wanted blocks that are not in the set.
    newcomers: Vec<u64>,
    /// Members that may leave: how useful, which block.
    pub(crate) victims: Vec<(u64, u32)>,
    /// Wanted blocks that a bound kept out, ascending.
    pub(crate) held: Vec<u32>,
    /// What was decided.
    pub(crate) swaps: Swaps,
}

/// Blocks that enter, with their scores, and blocks that leave; both ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Swaps {
    pub(crate) enter: Vec<(u32, f32)>,
    pub(crate) leave: Vec<u32>,
}

impl Swaps {
    pub(crate) fn write(&self, change: &mut Change) {
        change.clear();
        change.enter.extend(self.enter.iter().map(|(block, _)| *block));
        change.leave.extend_from_slice(&self.leave);
    }
}

/// What may enter a set at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// At most so many.
    pub(crate) blocks: u32,
    /// A newcomer's score over that of the one that leaves, at least.
    pub(crate) ratio: Ratio,
    /// Who may take free room.
    pub(crate) room: Room,
}

/// Who may take the room of a set that has fewer than K members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Any wanted block.
    OfVictimsOrFree,
    /// Wanted blocks with some mass: nobody waits for a fetch of nothing.
    OfVictimsOrFreeWithMass,
}

/// A mass as it counts: NaN, negative and infinite ones are nothing, and no share is above 1.
fn clean(mass: f32) -> f32 {
    if mass > 0.0 && mass <= f32::MAX { mass.min(1.0) } else { 0.0 }
}

fn key(score: f32, block: u32) -> u64 {
    u64::from(score.to_bits()) << 32 | u64::from(u32::MAX - block)
}

fn block_of(key: u64) -> u32 {
    u32::MAX - (key & u64::from(u32::MAX)) as u32
}

fn score_of(key: u64) -> f32 {
    f32::from_bits((key >> 32) as u32)
}

/// Whether a newcomer is worth the place of a member.
fn displaces(new: f32, old: f32, ratio: Ratio) -> bool {
    new > 0.0 && new * ratio.den as f32 >= old * ratio.num as f32
}

impl Scratch {
    /// One row's masses become the scores.
    pub(crate) fn load(&mut self, mass: &[f32], pinned: Pinned) {
        let blocks = pinned.blocks as usize;
        self.scores.clear();
        self.scores.extend(mass.iter().take(blocks).map(|mass| clean(*mass)));
        self.scores.resize(blocks, 0.0);
    }

    /// Adds drafted rows of `len` masses each to the scores.
    pub(crate) fn add_rows(&mut self, rows: &[f32], len: usize) {
        for row in rows.chunks_exact(len.max(1)) {
            for (score, mass) in self.scores.iter_mut().zip(row) {
                *score += clean(*mass);
            }
        }
    }

    /// The scores become decayed sums with those of before, which they replace.
    pub(crate) fn add_history(&mut self, history: &mut Vec<f32>) {
        history.resize(self.scores.len(), 0.0);
        for (score, sum) in self.scores.iter_mut().zip(history) {
            *sum = HISTORY_DECAY * *sum + *score;
            *score = *sum;
        }
    }

    /// Loads the actual row and tells where its mass was.
    pub(crate) fn measure(&mut self, column: &Column, rows: &Rows<'_>, pinned: Pinned) -> Observed {
        self.load(rows.actual, pinned);
        self.mark_members(column);
        let mut late = 0.0;
        for block in rows.late {
            let mark = self.marks.get_mut(*block as usize);
            // Named twice, or not in the set at all: not late.
            if let Some(mark) = mark.filter(|mark| **mark == MEMBER) {
                *mark = 0;
                late += self.scores[*block as usize];
            }
        }
        let of_held = |block: &&u32| self.marks.get(**block as usize) == Some(&0);
        let of_mass = |block: &u32| self.scores[*block as usize];
        let capped: f32 = column.held.iter().filter(of_held).map(of_mass).sum();
        let [total, missed] = shares(&self.scores, &self.marks);
        let all = if total > 0.0 { total } else { 1.0 };
        let share = |mass: f32| (mass / all).min(1.0);
        let (missed, capped, late) = (share(missed), share(capped), share(late));
        // Sums in different orders may differ in the last bit: no cause is below nothing.
        let unpredicted = (missed - capped - late).max(0.0);
        Observed { exact: false, total, missed, unpredicted, capped, late }
    }

    /// Keys of the best `count` blocks that are not pinned, in no order.
    pub(crate) fn rank(&mut self, pinned: Pinned, count: u32) {
        let others = pinned.sinks..pinned.recent;
        let scores = &self.scores[others.start as usize..others.end as usize];
        self.keys.clear();
        self.keys.extend(others.zip(scores).map(|(block, score)| key(*score, block)));
        keep_best(&mut self.keys, count as usize);
    }

    /// The blocks that [`Scratch::rank`] left.
    pub(crate) fn ranked(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.iter().map(|key| block_of(*key))
    }

    /// Wants by the scores: brings the column's memory of its members up to date, and finds the
    /// newcomers and the members that may leave.
    pub(crate) fn judge(&mut self, column: &mut Column, pinned: Pinned, step: u32) {
        self.rank(pinned, column.cap.saturating_sub(pinned.count()));
        self.mark_members(column);
        self.newcomers.clear();
        for key in &self.keys {
            let mark = &mut self.marks[block_of(*key) as usize];
            if *mark & MEMBER == 0 {
                self.newcomers.push(*key);
            }
            *mark |= WANTED;
        }
        self.victims.clear();
        for (place, block) in column.blocks.iter().enumerate() {
            let score = self.scores[*block as usize];
            column.scores[place] = score;
            if pinned.holds(*block) || self.marks[*block as usize] & WANTED != 0 {
                column.selected[place] = step;
            } else {
                self.victims.push((usefulness(column.selected[place], score), *block));
            }
        }
    }

    /// Pairs newcomers, best first, with free room and then with victims, least useful first. A
    /// victim that the newcomer does not displace stays, and the next one is asked.
    pub(crate) fn swap(&mut self, column: &Column, bound: Bound) {
        self.swaps.enter.clear();
        self.swaps.leave.clear();
        self.held.clear();
        let count = self.newcomers.len().min(bound.blocks as usize);
        if count > 0 {
            split_best(&mut self.newcomers, count);
            self.newcomers[..count].sort_unstable_by(|a, b| b.cmp(a));
            self.victims.sort_unstable();
        }
        let mut room = (column.cap as usize).saturating_sub(column.blocks.len());
        let mut victims = self.victims.iter();
        for (place, key) in self.newcomers.iter().enumerate() {
            let (block, score) = (block_of(*key), score_of(*key));
            let empty = bound.room == Room::OfVictimsOrFreeWithMass && score <= 0.0;
            if place >= count || empty {
                self.held.push(block);
            } else if room > 0 {
                room -= 1;
                self.swaps.enter.push((block, score));
            } else {
                let scores = &self.scores;
                let leaves = victims
                    .by_ref()
                    .find(|(_, old)| displaces(score, scores[*old as usize], bound.ratio));
                match leaves {
                    Some((_, old)) => {
                        self.swaps.enter.push((block, score));
                        self.swaps.leave.push(*old);
                    }
                    None => self.held.push(block),
                }
            }
        }
        self.swaps.enter.sort_unstable_by_key(|(block, _)| *block);
        self.swaps.leave.sort_unstable();
        self.held.sort_unstable();
    }

    fn mark_members(&mut self, column: &Column) {
        self.marks.clear();
        self.marks.resize(self.scores.len(), 0);
        for block in &column.blocks {
            self.marks[*block as usize] = MEMBER;
        }
    }
}

/// All mass, and that of blocks without a mark.
fn shares(scores: &[f32], marks: &[u8]) -> [f32; 2] {
    let mut total = [0.0_f32; LANES];
    let mut missed = [0.0_f32; LANES];
    let (scores, last_scores) = scores.as_chunks::<LANES>();
    let (marks, last_marks) = marks.as_chunks::<LANES>();
    for (scores, marks) in scores.iter().zip(marks) {
        for lane in 0..LANES {
            total[lane] += scores[lane];
            missed[lane] += if marks[lane] == 0 { scores[lane] } else { 0.0 };
        }
    }
    for (lane, (score, mark)) in last_scores.iter().zip(last_marks).enumerate() {
        total[lane] += score;
        missed[lane] += if *mark == 0 { *score } else { 0.0 };
    }
    [total, missed].map(|lanes| lanes.iter().sum())
}

/// Moves the `count` greatest keys to the front, in no order.
fn split_best(keys: &mut [u64], count: usize) {
    if count > 0 && count < keys.len() {
        keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
    }
}

fn keep_best(keys: &mut Vec<u64>, count: usize) {
    split_best(keys, count);
    keys.truncate(count);
}
