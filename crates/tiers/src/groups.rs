//! Cuts a list of blocks into groups that go over the wire as one batch.
//!
//! Only counts; a group is a range of the list, in order.

use std::ops::Range;

use proto::limits::BLOCKS_PER_MESSAGE_MAX;

/// Consecutive blocks of at most `slices_max` slices together, or one block that has more.
pub(crate) fn groups(slices: impl Iterator<Item = usize>, slices_max: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut sum, mut end) = (0, 0, 0);
    for count in slices {
        let full = sum + count > slices_max || end - start == BLOCKS_PER_MESSAGE_MAX;
        if full && end > start {
            groups.push(start..end);
            (start, sum) = (end, 0);
        }
        sum += count;
        end += 1;
    }
    if end > start {
        groups.push(start..end);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn every_block_is_in_one_group_and_only_a_lone_block_exceeds_the_bound() {
        let ends = |slices: &[usize]| -> Vec<usize> {
            let groups = groups(slices.iter().copied(), 4);
            let starts = groups.iter().map(|group| group.start);
            let ends = [0].into_iter().chain(groups.iter().map(|group| group.end));
            assert!(starts.eq(ends.take(groups.len())), "no gaps");
            groups.iter().map(|group| group.end).collect()
        };
        for (slices, expected) in [
            (&[][..], &[][..]),
            (&[9], &[1]),
            (&[2, 2, 2, 2, 2], &[2, 4, 5]),
            (&[1, 9, 1, 1], &[1, 2, 4]),
            (&[4, 4], &[1, 2]),
        ] {
            assert_eq!(ends(slices), expected, "{slices:?}");
        }
    }
}
