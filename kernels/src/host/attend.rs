//! Hot path. Paged attention: softmax(q k) v over the slots of a sequence, online, block by block
//! in ascending block index.
//!
//! A query is one (row, head). Its state is a maximum, 16 lane sums and an accumulator, and what
//! happens to it depends on its blocks alone; tiles let queries share the blocks of a step that
//! are in the first-level cache. Every 64 block indices a new partial state begins, and partials
//! are merged in ascending order, whether one thread walks a row or several do.

mod rows;
mod state;
#[cfg(test)]
mod tests;
mod walk;

use std::{cell::RefCell, ops::Range};

use ids::BLOCK_TOKENS;

use super::{HostDevice, pool::Shared};
use crate::{
    device::{Attend, AttendSequence, AttendTable, HeadShape},
    memory::Aligned,
    slots::{SlotArena, SlotsView},
};
use state::State;
use walk::{Blocks, Desk, Queries, STEP_TOKENS};

/// Block indices of one partial state: 1,024 tokens.
const SPLIT_BLOCKS: usize = 64;
/// Most queries of one tile: for so many a step's K and V are widened once. Their states are in
/// the second-level cache.
const TILE_QUERIES_MAX: usize = 96;
/// Tiles are smaller, down to this, where there would be too few of them for all threads.
const TILE_QUERIES_MIN: usize = 24;
/// Tiles per thread below which long rows are spread over threads, split by split.
const TILES_PER_THREAD: usize = 4;

/// Work of one stream: what the tiles are and the partial states of spread rows. Grows only.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    tiles: Vec<Tile>,
    partials: Aligned,
}

/// Rows of one sequence with the query heads of one KV head, and where its partials go.
#[derive(Clone, Debug)]
struct Tile {
    sequence: usize,
    kv_head: usize,
    rows: Range<usize>,
    /// First job of this tile, when it is spread: one job per split.
    first_job: usize,
    splits: usize,
}

thread_local! {
    /// What this thread needs for the tile that it works on.
    static TABLE: RefCell<Table> = const { RefCell::new(Table::new()) };
}

/// Scratch memory of a thread; grows only.
struct Table {
    /// States of a whole tile: the total, and the split that is walked.
    states: [Aligned; 2],
    /// Scaled queries.
    queries: Aligned,
    weights: Aligned,
    decays: Aligned,
    wide: Aligned,
}

impl Table {
    const fn new() -> Self {
        Self {
            states: [Aligned::new(), Aligned::new()],
            queries: Aligned::new(),
            weights: Aligned::new(),
            decays: Aligned::new(),
            wide: Aligned::new(),
        }
    }
}

/// A launch whose shapes fit.
struct Work<'a> {
    device: &'a HostDevice,
    slots: SlotsView<'a>,
    shape: HeadShape,
    group: usize,
    q: &'a [f32],
    positions: &'a [u32],
    sequences: &'a [AttendSequence<'a>],
    /// The caller's scale times log2 e: the kernel works with powers of two.
    scale: f32,
    out: Shared<f32>,
}

/// Tokens of the blocks that are left out.
fn skipped(table: &AttendTable<'_>) -> u32 {
    table.absent * BLOCK_TOKENS as u32
}

pub(super) fn launch(
    device: &HostDevice,
    scratch: &mut Scratch,
    slots: &SlotArena,
    launch: Attend<'_, HostDevice>,
) {
    let Attend { shape, q, positions, sequences, scale, out } = launch;
    let width = shape.heads * shape.head_dim;
    let rows = positions.len();
    let read = slots.read();
    let slots = read.view();
    assert_eq!(slots.head_dim(), shape.head_dim, "the slots hold heads of another width");
    assert!(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "heads do not share evenly");
    let work = Work {
        device,
        slots,
        shape,
        group: shape.heads / shape.kv_heads,
        q: &q.as_slice()[..rows * width],
        positions,
        sequences,
        scale: scale * std::f32::consts::LOG2_E,
        out: Shared::new(&mut out.as_mut_slice()[..rows * width]),
    };
    let jobs = work.cut(&mut scratch.tiles);
    let tiles = &scratch.tiles;
    if tiles.len() >= TILES_PER_THREAD * device.pool.threads() || jobs == tiles.len() {
        // From the last one: it has seen most tokens, and what takes longest should not end last.
        let last = tiles.len().saturating_sub(1);
        device.pool.run(tiles.len(), &|tile| work.whole(&tiles[last - tile]));
        return;
    }
    let most = tiles.iter().map(|tile| work.queries(tile)).max().unwrap_or(0);
    let stride = most * State::len(shape.head_dim);
    let partials = Shared::new(scratch.partials.take(jobs * stride));
    device.pool.run(jobs, &|job| {
        let at = tiles.partition_point(|tile| tile.first_job <= job) - 1;
        let split = job - tiles[at].first_job;
        // SAFETY: each job has its own part; the scratch is borrowed by this launch.
        let states = unsafe { partials.part(job * stride, stride) };
        work.partial(&tiles[at], split, states);
    });
    device.pool.run(tiles.len(), &|at| {
        let tile = &tiles[at];
        let len = tile.splits * stride;
        // SAFETY: the jobs of a tile are its own, and the run above is over.
        let states = unsafe { partials.part(tile.first_job * stride, len) };
        let (total, later) = states.split_at_mut(stride);
        for partial in later.chunks_exact(stride) {
            work.merge(tile, total, partial);
        }
        work.finish(tile, total);
    });
}

impl Work<'_> {
    /// Fills in the tiles and returns the number of jobs, were all of them spread.
    fn cut(&self, tiles: &mut Vec<Tile>) -> usize {
        tiles.clear();
        let mut jobs = 0;
        let most = TILE_QUERIES_MAX;
        assert!(self.group <= most, "a KV head serves at most {most} heads");
        let queries = self.positions.len() * self.shape.heads;
        let share = queries.div_ceil(TILES_PER_THREAD * self.device.pool.threads());
        let each = (share.clamp(TILE_QUERIES_MIN, most) / self.group).max(1);
        for (sequence, rows) in self.sequences.iter().enumerate() {
            let AttendSequence { rows, tables } = rows;
            assert_eq!(tables.len(), self.shape.kv_heads, "one table per KV head");
            assert!(rows.end <= self.positions.len(), "rows {rows:?} are beyond the batch");
            for first in rows.clone().step_by(each) {
                let rows = first..rows.end.min(first + each);
                let last = self.positions[rows.end - 1];
                for (kv_head, table) in tables.iter().enumerate() {
                    let last = (last - skipped(table)) as usize;
                    let splits = last / (SPLIT_BLOCKS * BLOCK_TOKENS) + 1;
                    let rows = rows.clone();
                    tiles.push(Tile { sequence, kv_head, rows, first_job: jobs, splits });
                    jobs += splits;
                }
            }
        }
        jobs
    }

    /// All splits of a tile, one after the other.
    fn whole(&self, tile: &Tile) {
        let len = self.queries(tile) * State::len(self.shape.head_dim);
        TABLE.with_borrow_mut(|table| {
            let [mut total, mut partial] = std::mem::take(&mut table.states);
            self.split(tile, 0, total.take(len), table);
            for split in 1..tile.splits {
                self.split(tile, split, partial.take(len), table);
                self.merge(tile, total.take(len), partial.take(len));
            }
            self.finish(tile, total.take(len));
            table.states = [total, partial];
        });
    }

    /// One split of a tile.
    fn partial(&self, tile: &Tile, split: usize, states: &mut [f32]) {
        let len = self.queries(tile) * State::len(self.shape.head_dim);
        TABLE.with_borrow_mut(|table| self.split(tile, split, &mut states[..len], table));
    }

    /// The state of every query of a tile after one split's blocks.
    fn split(&self, tile: &Tile, split: usize, states: &mut [f32], table: &mut Table) {
        let own = &self.sequences[tile.sequence].tables[tile.kv_head];
        let (slots, skipped) = (own.slots, skipped(own));
        let first = split * SPLIT_BLOCKS;
        let positions = &self.positions[tile.rows.clone()];
        let last = (positions[positions.len() - 1] - skipped) as usize / BLOCK_TOKENS;
        assert!(last < slots.len(), "block {last} of a table of {} blocks", slots.len());
        let blocks = &slots[first..(last + 1).min(first + SPLIT_BLOCKS)];
        let head_dim = self.shape.head_dim;
        let count = self.queries(tile);
        let values = table.queries.take(count * head_dim);
        for (at, scaled) in values.chunks_exact_mut(head_dim).enumerate() {
            for (scaled, value) in scaled.iter_mut().zip(self.query(tile, at)) {
                *scaled = value * self.scale;
            }
        }
        states.chunks_exact_mut(State::len(head_dim)).for_each(State::begin);
        walk::walk(
            self.device.active,
            Blocks { slots: self.slots, first, blocks },
            Queries { values, positions, skipped, group: self.group },
            states,
            Desk {
                weights: table.weights.take(count * STEP_TOKENS),
                decays: table.decays.take(count),
                wide: table.wide.take(STEP_TOKENS * head_dim),
            },
        );
    }

    fn merge(&self, tile: &Tile, total: &mut [f32], partial: &[f32]) {
        let len = State::len(self.shape.head_dim);
        let states = total.chunks_exact_mut(len).zip(partial.chunks_exact(len));
        for (total, partial) in states.take(self.queries(tile)) {
            state::merge(self.device.active, total, partial);
        }
    }

    fn finish(&self, tile: &Tile, total: &[f32]) {
        let head_dim = self.shape.head_dim;
        let states = total.chunks_exact(State::len(head_dim));
        for (at, state) in states.take(self.queries(tile)).enumerate() {
            // SAFETY: a query belongs to one tile; out is borrowed by the launch.
            let out = unsafe { self.out.part(self.offset(tile, at), head_dim) };
            state::finish(self.device.active, state, out);
        }
    }

    fn queries(&self, tile: &Tile) -> usize {
        tile.rows.len() * self.group
    }

    /// Where the query's values lie in q and out.
    fn offset(&self, tile: &Tile, query: usize) -> usize {
        let row = tile.rows.start + query / self.group;
        let head = tile.kv_head * self.group + query % self.group;
        (row * self.shape.heads + head) * self.shape.head_dim
    }

    fn query(&self, tile: &Tile, query: usize) -> &[f32] {
        &self.q[self.offset(tile, query)..][..self.shape.head_dim]
    }
}
