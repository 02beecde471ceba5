//! Hot path. Paged attention: softmax(q k) v over the slots of a sequence, online, block by block
//! in ascending block index.
//!
//! A query is one (row, head). Its state is a maximum, 16 lane sums and an accumulator, and what
//! happens to it depends on its blocks alone; tiles let queries share a block that is in the
//! first-level cache. Every 64 block indices a new partial state begins, and partials are merged
//! in ascending order, whether one thread walks a row or several do.

mod block;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, ops::Range};

use ids::BLOCK_TOKENS;

use super::{HostDevice, pool::Shared};
use crate::{
    device::{Attend, AttendSequence, HeadShape},
    slots::{SlotArena, SlotsView},
};
use block::{Blocks, State};

/// Block indices of one partial state: 1,024 tokens.
const SPLIT_BLOCKS: usize = 64;
/// Queries of one tile: their states stay in the first-level cache beside a block.
const TILE_QUERIES: usize = 24;
/// Tiles per thread below which long rows are spread over threads, split by split.
const TILES_PER_THREAD: usize = 4;

/// Work of one stream: what the tiles are and the partial states of spread rows. Grows only.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    tiles: Vec<Tile>,
    partials: Vec<f32>,
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
    /// States and queries of the tile that this thread works on.
    static STATES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
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
        device.pool.run(tiles.len(), &|tile| work.whole(&tiles[tile]));
        return;
    }
    let stride = TILE_QUERIES * State::len(shape.head_dim);
    if scratch.partials.len() < jobs * stride {
        scratch.partials.resize(jobs * stride, 0.0);
    }
    let partials = Shared::new(&mut scratch.partials);
    device.pool.run(jobs, &|job| {
        let at = tiles.partition_point(|tile| tile.first_job <= job) - 1;
        let split = job - tiles[at].first_job;
        // SAFETY: each job has its own part; the vector is borrowed by this launch.
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
        let each = (TILE_QUERIES / self.group).max(1);
        assert!(self.group <= TILE_QUERIES, "a KV head serves at most {TILE_QUERIES} heads");
        for (sequence, rows) in self.sequences.iter().enumerate() {
            let AttendSequence { rows, tables } = rows;
            assert_eq!(tables.len(), self.shape.kv_heads, "one table per KV head");
            assert!(rows.end <= self.positions.len(), "rows {rows:?} are beyond the batch");
            for first in rows.clone().step_by(each) {
                let rows = first..rows.end.min(first + each);
                let last = self.positions[rows.end - 1];
                for kv_head in 0..self.shape.kv_heads {
                    let splits = last as usize / (SPLIT_BLOCKS * BLOCK_TOKENS) + 1;
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
        let len = TILE_QUERIES * State::len(self.shape.head_dim);
        STATES.with_borrow_mut(|scratch| {
            if scratch.len() < 2 * len {
                scratch.resize(2 * len, 0.0);
            }
            let (total, partial) = scratch.split_at_mut(len);
            let partial = &mut partial[..len];
            self.partial(tile, 0, total);
            for split in 1..tile.splits {
                self.partial(tile, split, partial);
                self.merge(tile, total, partial);
            }
            self.finish(tile, total);
        });
    }

    /// The state of every query of a tile after one split's blocks.
    fn partial(&self, tile: &Tile, split: usize, states: &mut [f32]) {
        let table = self.sequences[tile.sequence].tables[tile.kv_head];
        let first = split * SPLIT_BLOCKS;
        let last = self.positions[tile.rows.end - 1] as usize / BLOCK_TOKENS;
        assert!(last < table.len(), "block {last} of a table of {} blocks", table.len());
        let blocks = &table[first..(last + 1).min(first + SPLIT_BLOCKS)];
        let head_dim = self.shape.head_dim;
        let queries = self.queries(tile);
        let states = &mut states[..queries * State::len(head_dim)];
        for (at, state) in states.chunks_exact_mut(State::len(head_dim)).enumerate() {
            State::begin(state, self.query(tile, at), self.scale);
        }
        block::walk(
            self.device.active,
            Blocks { slots: self.slots, first, blocks, group: self.group },
            &self.positions[tile.rows.clone()],
            states,
        );
    }

    fn merge(&self, tile: &Tile, total: &mut [f32], partial: &[f32]) {
        let len = State::len(self.shape.head_dim);
        let states = total.chunks_exact_mut(len).zip(partial.chunks_exact(len));
        for (total, partial) in states.take(self.queries(tile)) {
            block::merge(self.device.active, total, partial);
        }
    }

    fn finish(&self, tile: &Tile, total: &[f32]) {
        let head_dim = self.shape.head_dim;
        let states = total.chunks_exact(State::len(head_dim));
        for (at, state) in states.take(self.queries(tile)).enumerate() {
            // SAFETY: a query belongs to one tile; out is borrowed by the launch.
            let out = unsafe { self.out.part(self.offset(tile, at), head_dim) };
            block::finish(self.device.active, state, out);
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
