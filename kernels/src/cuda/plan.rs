//! How one launch of attention is cut into tiles, and its slot tables as the kernels read them.
//! Plain numbers; knows neither driver nor device memory.

use ids::BLOCK_TOKENS;

use crate::device::{AttendSequence, AttendTable, HeadShape};

/// Block indices of one partial state, as on the host.
const SPLIT_BLOCKS: usize = 64;

/// Slot tables, `[sequences][kv_heads][stride]`: place `i` is block index `i`. A GPU keeps them in
/// its memory and appends; the host's nested slices would be copied for every layer of every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Slot numbers; places behind a table's end are 0 and not read.
    pub slots: Vec<u32>,
    /// Blocks that there is room for in each table.
    pub stride: usize,
}

impl Tables {
    /// Copies the tables of all sequences.
    ///
    /// # Panics
    /// When a table leaves blocks out: the kernels do not know how to, yet.
    #[must_use]
    pub fn collect(sequences: &[AttendSequence<'_>]) -> Self {
        let tables = || sequences.iter().flat_map(|sequence| sequence.tables);
        let stride = tables().map(|table| table.slots.len()).max().unwrap_or(0);
        let padded = |table: &AttendTable<'_>| {
            assert_eq!(table.absent, 0, "attention over a subset has no CUDA kernel yet");
            let padding = stride - table.slots.len();
            let slots = table.slots.iter().map(|slot| slot.0);
            slots.chain(std::iter::repeat_n(0, padding)).collect::<Vec<u32>>()
        };
        Self { slots: tables().flat_map(padded).collect(), stride }
    }
}

/// The grid of one launch of attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttendPlan {
    /// Queries of a tile: 4, or 8 where rows and heads of a group fill more than 4.
    pub queries: usize,
    /// Splits of the longest row.
    pub splits_max: usize,
    /// Sequence, its first row, first query of the tile, queries of the tile. Query `j` of a
    /// sequence is head `j % group` of its row `j / group`.
    pub tiles: Vec<[u32; 4]>,
}

impl AttendPlan {
    /// Cuts the rows of all sequences. Which rows are launched together changes the tiles and not
    /// one bit of a row's result.
    ///
    /// # Panics
    /// When shapes do not fit, positions of a sequence do not ascend, or a table is too short.
    #[must_use]
    pub fn cut(shape: HeadShape, positions: &[u32], sequences: &[AttendSequence<'_>]) -> Self {
        assert!(
            shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads),
            "heads share unevenly"
        );
        let group = shape.heads / shape.kv_heads;
        let queries_of = |sequence: &AttendSequence<'_>| sequence.rows.len() * group;
        let most = sequences.iter().map(queries_of).max().unwrap_or(0);
        let queries = if most <= 4 { 4 } else { 8 };
        let mut tiles = Vec::new();
        let mut splits_max = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            let rows = sequence.rows.clone();
            assert!(rows.end <= positions.len(), "rows {rows:?} are beyond the batch");
            assert_eq!(sequence.tables.len(), shape.kv_heads, "one table per KV head");
            let Some(&last) = positions[rows.clone()].last() else { continue };
            assert!(positions[rows.clone()].is_sorted(), "positions of a sequence ascend");
            let block = last as usize / BLOCK_TOKENS;
            let shortest = sequence.tables.iter().map(|table| table.slots.len()).min().unwrap_or(0);
            assert!(block < shortest, "block {block} of a table of {shortest} blocks");
            splits_max = splits_max.max(block / SPLIT_BLOCKS + 1);
            let all = queries_of(sequence);
            for first in (0..all).step_by(queries) {
                let count = queries.min(all - first);
                tiles.push([index, rows.start, first, count].map(number));
            }
        }
        Self { queries, splits_max, tiles }
    }

    /// Floats of the partial states of `rows` rows.
    #[must_use]
    pub fn partials_len(&self, shape: HeadShape, rows: usize) -> usize {
        rows * shape.heads * self.splits_max * (2 * BLOCK_TOKENS + shape.head_dim)
    }
}

/// A number as the kernels take it.
///
/// # Panics
/// Beyond 32 bits, which no batch and no arena comes near.
pub(super) fn number(value: usize) -> u32 {
    u32::try_from(value).expect("sizes of a launch fit 32 bits")
}

#[cfg(test)]
mod tests {
    use ids::SlotIdx;

    use super::*;

    const SHAPE: HeadShape = HeadShape { heads: 6, kv_heads: 2, head_dim: 64 };

    #[test]
    fn rows_are_cut_into_tiles_that_cover_every_query_once() {
        let slots: Vec<SlotIdx> = (0..70).map(SlotIdx).collect();
        let tables = [&slots[..], &slots[..66]].map(AttendTable::dense);
        let short = [AttendTable::dense(&slots[..1]); 2];
        let sequences = [
            AttendSequence { rows: 0..1, tables: &short },
            AttendSequence { rows: 1..6, tables: &tables },
        ];
        let positions = [3, 1020, 1021, 1022, 1023, 1024];
        let plan = AttendPlan::cut(SHAPE, &positions, &sequences);
        assert_eq!((plan.queries, plan.splits_max), (8, 2));
        assert_eq!(plan.tiles, [[0, 0, 0, 3], [1, 1, 0, 8], [1, 1, 8, 7]]);
        let tables = Tables::collect(&sequences);
        assert_eq!((tables.stride, tables.slots.len()), (70, 4 * 70));
        assert_eq!(tables.slots[3 * 70 + 65..3 * 70 + 67], [65, 0]);
        let one = AttendPlan::cut(SHAPE, &positions[..1], &sequences[..1]);
        assert_eq!((one.queries, one.splits_max), (4, 1));
    }

    #[test]
    #[should_panic(expected = "block 4 of a table of 4 blocks")]
    fn a_table_that_is_too_short_stops_the_launch() {
        let slots: Vec<SlotIdx> = (0..4).map(SlotIdx).collect();
        let tables = [AttendTable::dense(&slots); 2];
        let sequences = [AttendSequence { rows: 0..1, tables: &tables }];
        drop(AttendPlan::cut(SHAPE, &[64], &sequences));
    }
}
