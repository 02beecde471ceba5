//! Hot path. What the blocks of a sequence do to the states of queries.
//!
//! A step is four blocks, 64 tokens, fixed by their place in the list. Its scores and its weighted
//! values are the same product: sums over rows of vectors, each row times one factor per query, and
//! a pass of up to six queries keeps 24 sums in registers. A row of queries that sees a part of a
//! step sums that part alone, so nothing behind its position can reach it.
//!
//! What a state is and how states are merged is not here: `state`.

use std::ops::Range;

use ids::{BLOCK_TOKENS, SlotIdx};

use super::{
    rows::{Rows, StoredKeys, StoredValues, WideRows, widen_keys, widen_values},
    state::State,
};
use crate::{
    isa::for_each_isa,
    lanes::{LANES, Lanes},
    math,
    slots::SlotsView,
};

/// Blocks of one step. A state changes once a step, not once a block: the horizontal maximum, the
/// decay and the way of the sums to memory and back cost a quarter.
pub(super) const STEP_BLOCKS: usize = 4;
pub(super) const STEP_TOKENS: usize = STEP_BLOCKS * BLOCK_TOKENS;
/// Queries of one pass: with four vectors each they fill 24 of 32 registers.
const PASS: usize = 6;
/// Passes up to which K and V are widened from half precision in each of them; with more of them
/// a step's K or V is widened once, into memory that stays in the first-level cache.
const PASSES_AS_STORED: usize = 2;

/// The blocks that a tile walks.
pub(super) struct Blocks<'a> {
    pub(super) slots: SlotsView<'a>,
    /// Place of the first of them in the list: a multiple of [`STEP_BLOCKS`].
    pub(super) first: usize,
    /// In ascending index, all of one split, none behind the last position.
    pub(super) blocks: &'a [SlotIdx],
}

/// The queries of a tile, in order of row and head.
pub(super) struct Queries<'a> {
    /// `[query][head_dim]`, scaled.
    pub(super) values: &'a [f32],
    /// One for each row, ascending.
    pub(super) positions: &'a [u32],
    /// What a position is ahead of its token's place among those of the blocks.
    pub(super) skipped: u32,
    /// Query heads of a row.
    pub(super) group: usize,
}

/// Memory for one step of a tile.
pub(super) struct Desk<'a> {
    /// Scores, then weights: `[query][STEP_TOKENS]`.
    pub(super) weights: &'a mut [f32],
    /// What the step does to the sums of each query.
    pub(super) decays: &'a mut [f32],
    /// K, then V, of a step in f32: `STEP_TOKENS * head_dim`.
    pub(super) wide: &'a mut [f32],
}

for_each_isa! {
    /// Walks all blocks. A row that sees none of them keeps its state.
    pub(super) fn walk = walk_lanes(
        blocks: Blocks<'_>,
        queries: Queries<'_>,
        states: &mut [f32],
        desk: Desk<'_>,
    )
}

/// A step of one tile: the queries that see a part of it, and its slots.
struct Step<'a> {
    slots: [&'a [u16]; STEP_BLOCKS],
    /// Those of the next step, to be asked for in time; the same ones in the last.
    ahead: [&'a [u16]; STEP_BLOCKS],
    /// Place of its first token among those of the blocks.
    first: u32,
    queries: Queries<'a>,
    head_dim: usize,
}

#[inline(always)]
fn walk_lanes<V: Lanes>(
    blocks: Blocks<'_>,
    queries: Queries<'_>,
    states: &mut [f32],
    mut desk: Desk<'_>,
) {
    let head_dim = blocks.slots.head_dim();
    let len = State::len(head_dim);
    let steps = blocks.blocks.len().div_ceil(STEP_BLOCKS);
    for at in 0..steps {
        let first = ((blocks.first + at * STEP_BLOCKS) * BLOCK_TOKENS) as u32;
        let rows =
            queries.positions.partition_point(|&position| position - queries.skipped < first);
        let unseeing = rows * queries.group;
        let step = Step {
            slots: blocks.step(at),
            ahead: blocks.step((at + 1).min(steps - 1)),
            first,
            queries: Queries {
                values: &queries.values[unseeing * head_dim..],
                positions: &queries.positions[rows..],
                skipped: queries.skipped,
                group: queries.group,
            },
            head_dim,
        };
        step.take::<V>(&mut states[unseeing * len..], &mut desk);
    }
}

impl<'a> Blocks<'a> {
    /// The slots of a step. Where the sequence ends before it, the last one stands in for those
    /// that are missing: no row sees their tokens.
    #[inline(always)]
    fn step(&self, step: usize) -> [&'a [u16]; STEP_BLOCKS] {
        std::array::from_fn(|at| {
            let at = (step * STEP_BLOCKS + at).min(self.blocks.len() - 1);
            self.slots.slot(self.blocks[at])
        })
    }
}

impl Step<'_> {
    #[inline(always)]
    fn take<V: Lanes>(&self, states: &mut [f32], desk: &mut Desk<'_>) {
        let key_values = BLOCK_TOKENS * self.head_dim;
        let keys = self.slots.map(|slot| slot[..key_values].as_chunks().0);
        let values = self.slots.map(|slot| slot[key_values..].as_chunks().0);
        let columns = self.head_dim / LANES;
        let [a, b, c, d] = self.ahead;
        if self.count() <= PASSES_AS_STORED * PASS {
            self.score::<V, _>(StoredKeys { blocks: keys, ahead: [a, b] }, desk.weights);
            self.soften::<V>(states, desk);
            let values = StoredValues { blocks: values, columns, ahead: [c, d] };
            self.accumulate::<V, _>(values, desk.weights, desk.decays, states);
        } else {
            let wide = desk.wide[..STEP_TOKENS * self.head_dim].as_chunks_mut().0;
            widen_keys::<V>(keys, self.ahead, wide);
            self.score::<V, _>(WideRows { rows: wide, columns: STEP_BLOCKS }, desk.weights);
            self.soften::<V>(states, desk);
            let wide = desk.wide[..STEP_TOKENS * self.head_dim].as_chunks_mut().0;
            widen_values::<V>(values, wide);
            let values = WideRows { rows: wide, columns };
            self.accumulate::<V, _>(values, desk.weights, desk.decays, states);
        }
    }

    fn count(&self) -> usize {
        self.queries.values.len() / self.head_dim
    }

    /// Tokens of the step that a query sees: from 1 to all.
    #[inline(always)]
    fn seen(&self, query: usize) -> usize {
        let position = self.queries.positions[query / self.queries.group] - self.queries.skipped;
        ((position - self.first) as usize + 1).min(STEP_TOKENS)
    }

    /// All queries in passes of about the same size: the first query of each and their number.
    #[inline(always)]
    fn passes(&self) -> impl Iterator<Item = (usize, usize)> {
        let count = self.count();
        let passes = count.div_ceil(PASS);
        (0..passes).map(move |pass| {
            let first = pass * count / passes;
            (first, (pass + 1) * count / passes - first)
        })
    }

    /// The scores of all tokens of the step for all queries.
    #[inline(always)]
    fn score<V: Lanes, R: Rows<V>>(&self, keys: R, scores: &mut [f32]) {
        let width = self.head_dim;
        for (first, size) in self.passes() {
            let queries = &self.queries.values[first * width..][..size * width];
            let scores = &mut scores[first * STEP_TOKENS..][..size * STEP_TOKENS];
            match size {
                1 => score::<V, R, 1>(keys, queries, scores),
                2 => score::<V, R, 2>(keys, queries, scores),
                3 => score::<V, R, 3>(keys, queries, scores),
                4 => score::<V, R, 4>(keys, queries, scores),
                5 => score::<V, R, 5>(keys, queries, scores),
                _ => score::<V, R, PASS>(keys, queries, scores),
            }
        }
    }

    /// Scores to weights: powers of two relative to the largest score so far.
    #[inline(always)]
    fn soften<V: Lanes>(&self, states: &mut [f32], desk: &mut Desk<'_>) {
        let states = states.chunks_exact_mut(State::len(self.head_dim));
        let weights = desk.weights.as_chunks_mut().0;
        let queries = states.zip(weights).zip(desk.decays.iter_mut());
        for (query, ((state, weights), decay)) in queries.enumerate() {
            *decay = soften::<V>(weights, self.seen(query), state);
        }
    }

    /// Adds the weighted values to the accumulators of all queries.
    #[inline(always)]
    fn accumulate<V: Lanes, R: Rows<V>>(
        &self,
        values: R,
        weights: &[f32],
        decays: &[f32],
        states: &mut [f32],
    ) {
        let len = State::len(self.head_dim);
        for (first, size) in self.passes() {
            // Positions ascend, so all queries of the pass see what the first one does.
            let shared = self.seen(first);
            let weights = &weights[first * STEP_TOKENS..][..size * STEP_TOKENS];
            let decays = &decays[first..][..size];
            let states = &mut states[first * len..][..size * len];
            match size {
                1 => accumulate::<V, R, 1>(values, 0..shared, weights, decays, states),
                2 => accumulate::<V, R, 2>(values, 0..shared, weights, decays, states),
                3 => accumulate::<V, R, 3>(values, 0..shared, weights, decays, states),
                4 => accumulate::<V, R, 4>(values, 0..shared, weights, decays, states),
                5 => accumulate::<V, R, 5>(values, 0..shared, weights, decays, states),
                _ => accumulate::<V, R, PASS>(values, 0..shared, weights, decays, states),
            }
            for query in 0..size {
                let seen = self.seen(first + query);
                if seen > shared {
                    let weights = &weights[query * STEP_TOKENS..][..STEP_TOKENS];
                    let state = &mut states[query * len..][..len];
                    accumulate::<V, R, 1>(values, shared..seen, weights, &[1.0], state);
                }
            }
        }
    }
}

#[inline(always)]
fn score<V: Lanes, R: Rows<V>, const Q: usize>(keys: R, queries: &[f32], scores: &mut [f32]) {
    let head_dim = queries.len() / Q;
    let product = Product {
        rows: keys,
        range: 0..head_dim,
        columns: STEP_BLOCKS,
        factors: rows_of::<Q>(queries, head_dim),
        decays: None,
    };
    product.add_to::<V>(scores, STEP_TOKENS);
}

/// The tokens behind the `seen` first ones get no weight.
#[inline(always)]
fn soften<V: Lanes>(scores: &mut [f32; STEP_TOKENS], seen: usize, state: &mut [f32]) -> f32 {
    scores[seen..].fill(f32::NEG_INFINITY);
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut weights = [V::splat(0.0); STEP_BLOCKS];
    for (score, vector) in weights.iter_mut().zip(&*vectors) {
        *score = V::load(vector);
    }
    let [a, b, c, d] = weights;
    let largest = a.max(b).max(c.max(d)).largest();
    let old = state[State::MAXIMUM];
    let new = if old > largest { old } else { largest };
    for (weight, vector) in weights.iter_mut().zip(vectors) {
        *weight = math::exp2(weight.sub(V::splat(new)));
        weight.store(vector);
    }
    // Most steps bring no new maximum, and exp2(0) is exactly 1. Before the first step the
    // exponent is minus infinity, so the decay is 0.
    let decay = if new == old { 1.0 } else { math::exp2(V::splat(old - new)).first() };
    let sums = state[State::SUMS..].first_chunk_mut().expect("16 lane sums");
    let [a, b, c, d] = weights;
    V::load(sums).fma(V::splat(decay), a).add(b).add(c).add(d).store(sums);
    state[State::MAXIMUM] = new;
    state[State::SEEN] = 1.0;
    decay
}

#[inline(always)]
fn accumulate<V: Lanes, R: Rows<V>, const Q: usize>(
    values: R,
    tokens: Range<usize>,
    weights: &[f32],
    decays: &[f32],
    states: &mut [f32],
) {
    let len = states.len() / Q;
    let product = Product {
        rows: values,
        range: tokens,
        columns: (len - State::ACCUMULATOR) / LANES,
        factors: rows_of::<Q>(weights, STEP_TOKENS),
        decays: decays.first_chunk::<Q>(),
    };
    product.add_to::<V>(&mut states[State::ACCUMULATOR..], len);
}

#[inline(always)]
fn rows_of<const Q: usize>(values: &[f32], width: usize) -> [&[f32]; Q] {
    let mut rows: [&[f32]; Q] = [&[]; Q];
    for row in 0..Q {
        rows[row] = &values[row * width..][..width];
    }
    rows
}

/// Sums of rows for `Q` queries.
#[derive(Clone)]
struct Product<'a, R, const Q: usize> {
    rows: R,
    /// Which of the rows.
    range: Range<usize>,
    /// Vectors of a row.
    columns: usize,
    factors: [&'a [f32]; Q],
    /// What the old sums are multiplied with; without it sums begin at zero.
    decays: Option<&'a [f32; Q]>,
}

impl<R, const Q: usize> Product<'_, R, Q> {
    /// The sums of query i stand from `i * stride` on. Columns are taken in tiles whose sums are
    /// independent chains that fill the registers.
    #[inline(always)]
    fn add_to<V: Lanes>(&self, sums: &mut [f32], stride: usize)
    where
        R: Rows<V>,
    {
        let mut column = 0;
        while V::WIDE && column + 4 <= self.columns {
            self.tile::<V, 4>(column, sums, stride);
            column += 4;
        }
        while (V::WIDE || Q <= 3) && column + 2 <= self.columns {
            self.tile::<V, 2>(column, sums, stride);
            column += 2;
        }
        while column < self.columns {
            self.tile::<V, 1>(column, sums, stride);
            column += 1;
        }
    }

    #[inline(always)]
    fn tile<V: Lanes, const C: usize>(&self, first: usize, sums: &mut [f32], stride: usize)
    where
        R: Rows<V>,
    {
        let mut tile = [[V::splat(0.0); C]; Q];
        if let Some(decays) = self.decays {
            for query in 0..Q {
                let sums = sums[query * stride + first * LANES..].as_chunks().0;
                for column in 0..C {
                    tile[query][column] = V::load(&sums[column]).mul(V::splat(decays[query]));
                }
            }
        }
        self.rows.add::<Q, C>(self.range.clone(), first, self.factors, &mut tile);
        for query in 0..Q {
            let sums = sums[query * stride + first * LANES..].as_chunks_mut().0;
            for column in 0..C {
                tile[query][column].store(&mut sums[column]);
            }
        }
    }
}
