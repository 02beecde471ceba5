//! Hot path. The arithmetic of attention: what one block does to the states of queries.

use ids::{BLOCK_TOKENS, SlotIdx};

use crate::{
    isa::for_each_isa,
    lanes::{LANES, Lanes, tree_sum},
    math,
    slots::SlotsView,
};

/// Queries that share one pass over a block, so that their sums stay in registers: with two
/// chains each that is what 16 registers of half the width, or 32 registers, hold.
const PASS: usize = 6;
const PASS_WIDE: usize = 12;

/// The blocks that a tile walks.
pub(super) struct Blocks<'a> {
    pub(super) slots: SlotsView<'a>,
    /// Index of the first of them.
    pub(super) first: usize,
    /// In ascending index, all of one split.
    pub(super) blocks: &'a [SlotIdx],
    /// Query heads of a row.
    pub(super) group: usize,
}

/// Layout of a query's state in f32: the maximum, whether a block was seen, padding (16 in all);
/// the lane sums (16); the accumulator (head_dim); the scaled query itself (head_dim).
pub(super) struct State;

impl State {
    const SEEN: usize = 1;
    const SUMS: usize = LANES;
    const ACCUMULATOR: usize = 2 * LANES;

    pub(super) const fn len(head_dim: usize) -> usize {
        2 * LANES + 2 * head_dim
    }

    /// Before the first block.
    pub(super) fn begin(state: &mut [f32], query: &[f32], scale: f32) {
        let (state, scaled) = state.split_at_mut(Self::ACCUMULATOR + query.len());
        state.fill(0.0);
        state[0] = f32::NEG_INFINITY;
        for (scaled, value) in scaled.iter_mut().zip(query) {
            *scaled = value * scale;
        }
    }
}

for_each_isa! {
    /// Walks all blocks; rows have ascending positions.
    pub(super) fn walk = walk_lanes(blocks: Blocks<'_>, positions: &[u32], states: &mut [f32])
}

#[inline(always)]
fn walk_lanes<V: Lanes>(blocks: Blocks<'_>, positions: &[u32], states: &mut [f32]) {
    let head_dim = blocks.slots.head_dim();
    let len = State::len(head_dim);
    for (at, &id) in blocks.blocks.iter().enumerate() {
        let slot = blocks.slots.slot(id);
        if let Some(&next) = blocks.blocks.get(at + 1) {
            prefetch(blocks.slots.slot(next));
        }
        let first = ((blocks.first + at) * BLOCK_TOKENS) as u32;
        let last = first + (BLOCK_TOKENS as u32 - 1);
        // Rows that see none of it, part of it, all of it: positions ascend.
        let partly = positions.partition_point(|&position| position < first);
        let fully = positions.partition_point(|&position| position < last);
        for row in partly..fully {
            let tokens = (positions[row] - first) as usize + 1;
            let states = &mut states[row * blocks.group * len..][..blocks.group * len];
            attend::<V>(slot, head_dim, tokens, states);
        }
        attend::<V>(slot, head_dim, BLOCK_TOKENS, &mut states[fully * blocks.group * len..]);
    }
}

/// Asks for the slot that comes next; slots lie anywhere, so the hardware cannot know.
#[inline(always)]
fn prefetch(slot: &[u16]) {
    #[cfg(target_arch = "x86_64")]
    for line in slot.chunks(32) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of memory that is there; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
}

/// The first `tokens` lanes of a block for every query in `states`.
#[inline(always)]
fn attend<V: Lanes>(slot: &[u16], head_dim: usize, tokens: usize, states: &mut [f32]) {
    let len = State::len(head_dim);
    let mut rest = states;
    while !rest.is_empty() {
        let count = match rest.len() / len {
            PASS_WIDE.. if V::WIDE => PASS_WIDE,
            8.. if V::WIDE => 8,
            count => PASS.min(count),
        };
        let (now, later) = rest.split_at_mut(count * len);
        match count {
            PASS_WIDE => pass::<V, PASS_WIDE>(slot, head_dim, tokens, now),
            8 => pass::<V, 8>(slot, head_dim, tokens, now),
            1 => pass::<V, 1>(slot, head_dim, tokens, now),
            2 => pass::<V, 2>(slot, head_dim, tokens, now),
            3 => pass::<V, 3>(slot, head_dim, tokens, now),
            4 => pass::<V, 4>(slot, head_dim, tokens, now),
            5 => pass::<V, 5>(slot, head_dim, tokens, now),
            _ => pass::<V, PASS>(slot, head_dim, tokens, now),
        }
        rest = later;
    }
}

#[inline(always)]
fn pass<V: Lanes, const Q: usize>(
    slot: &[u16],
    head_dim: usize,
    tokens: usize,
    states: &mut [f32],
) {
    let len = State::len(head_dim);
    let (keys, values) = slot.split_at(BLOCK_TOKENS * head_dim);
    let scores = scores::<V, Q>(keys.as_chunks().0, states, len);
    let mut weights = [[0.0; LANES]; Q];
    let mut decays = [V::splat(1.0); Q];
    for query in 0..Q {
        let state = &mut states[query * len..][..len];
        let score = if tokens < LANES { scores[query].keep_first(tokens) } else { scores[query] };
        let old = state[0];
        let largest = score.largest();
        let new = if old > largest { old } else { largest };
        let weight = math::exp2(score.sub(V::splat(new)));
        // Most blocks bring no new maximum, and exp2(0) is exactly 1. Before the first block the
        // exponent is minus infinity, so the decay is 0.
        let decay =
            if new == old { V::splat(1.0) } else { math::exp2(V::splat(old).sub(V::splat(new))) };
        let sums = state[State::SUMS..].first_chunk_mut().expect("16 lane sums");
        V::load(sums).fma(decay, weight).store(sums);
        state[0] = new;
        state[State::SEEN] = 1.0;
        weight.store(&mut weights[query]);
        decays[query] = decay;
    }
    let columns = head_dim / LANES;
    let values = values.as_chunks().0;
    let mut column = 0;
    // Wider tiles of columns give more independent chains; registers bound them.
    while V::WIDE && Q <= 4 && column + 4 <= columns {
        accumulate::<V, Q, 4>(values, columns, column, tokens, &weights, &decays, states);
        column += 4;
    }
    while (V::WIDE || Q <= 3) && column + 2 <= columns {
        accumulate::<V, Q, 2>(values, columns, column, tokens, &weights, &decays, states);
        column += 2;
    }
    while column < columns {
        accumulate::<V, Q, 1>(values, columns, column, tokens, &weights, &decays, states);
        column += 1;
    }
}

/// Scores of a block's 16 tokens: two chains of FMA, over even and odd dimensions.
#[inline(always)]
fn scores<V: Lanes, const Q: usize>(keys: &[[u16; LANES]], states: &[f32], len: usize) -> [V; Q] {
    let head_dim = keys.len();
    let queries: [&[[f32; 2]]; Q] = std::array::from_fn(|query| {
        let state = &states[query * len..][..len];
        state[State::ACCUMULATOR + head_dim..].as_chunks().0
    });
    let mut even = [V::splat(0.0); Q];
    let mut odd = [V::splat(0.0); Q];
    for (pair, [low, high]) in keys.as_chunks::<2>().0.iter().enumerate() {
        let (low, high) = (V::load_f16(low), V::load_f16(high));
        for query in 0..Q {
            let [x, y] = queries[query][pair];
            even[query] = low.fma(V::splat(x), even[query]);
            odd[query] = high.fma(V::splat(y), odd[query]);
        }
    }
    std::array::from_fn(|query| even[query].add(odd[query]))
}

/// Decays the accumulators and adds the weighted values, token after token, for `C` columns of
/// 16 dimensions.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one inlined piece of a pass, no interface")]
fn accumulate<V: Lanes, const Q: usize, const C: usize>(
    values: &[[u16; LANES]],
    columns: usize,
    first: usize,
    tokens: usize,
    weights: &[[f32; LANES]; Q],
    decays: &[V; Q],
    states: &mut [f32],
) {
    let len = State::len(columns * LANES);
    let mut sums = [[V::splat(0.0); C]; Q];
    for query in 0..Q {
        let state = &states[query * len..][..len];
        let columns = state[State::ACCUMULATOR + first * LANES..].as_chunks().0;
        for column in 0..C {
            sums[query][column] = V::load(&columns[column]).mul(decays[query]);
        }
    }
    for (token, row) in values.chunks_exact(columns).take(tokens).enumerate() {
        let row: &[[u16; LANES]; C] = row[first..].first_chunk().expect("columns of this tile");
        let row: [V; C] = std::array::from_fn(|column| V::load_f16(&row[column]));
        for query in 0..Q {
            let weight = V::splat(weights[query][token]);
            for column in 0..C {
                sums[query][column] = row[column].fma(weight, sums[query][column]);
            }
        }
    }
    for query in 0..Q {
        let state = &mut states[query * len..][..len];
        let columns = state[State::ACCUMULATOR + first * LANES..].as_chunks_mut().0;
        for column in 0..C {
            sums[query][column].store(&mut columns[column]);
        }
    }
}

for_each_isa! {
    /// Merges the partial state of later blocks into that of earlier ones. A state that saw no
    /// block changes nothing.
    pub(super) fn merge = merge_lanes(total: &mut [f32], partial: &[f32])
}

#[inline(always)]
fn merge_lanes<V: Lanes>(total: &mut [f32], partial: &[f32]) {
    let (a, b) = (total[0], partial[0]);
    if partial[State::SEEN] == 0.0 {
        return;
    }
    total[State::SEEN] = 1.0;
    let new = if a > b { a } else { b };
    let decay_a = math::exp2(V::splat(a).sub(V::splat(new)));
    let decay_b = math::exp2(V::splat(b).sub(V::splat(new)));
    total[0] = new;
    let head_dim = (total.len() - State::ACCUMULATOR) / 2;
    let range = State::SUMS..State::ACCUMULATOR + head_dim;
    let totals = total[range.clone()].as_chunks_mut::<LANES>().0;
    for (total, partial) in totals.iter_mut().zip(partial[range].as_chunks::<LANES>().0) {
        let decayed = V::load(total).mul(decay_a);
        V::load(partial).fma(decay_b, decayed).store(total);
    }
}

for_each_isa! {
    /// Divides the accumulator by the sum.
    pub(super) fn finish = finish_lanes(state: &[f32], out: &mut [f32])
}

#[inline(always)]
fn finish_lanes<V: Lanes>(state: &[f32], out: &mut [f32]) {
    let sums = state[State::SUMS..].first_chunk().expect("16 lane sums");
    let sum = tree_sum(*sums);
    assert!(state[State::SEEN] != 0.0, "a row attends to no block of its table");
    let inverse = V::splat(1.0 / sum);
    let accumulated = state[State::ACCUMULATOR..].as_chunks::<LANES>().0;
    for (out, value) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(accumulated) {
        V::load(value).mul(inverse).store(out);
    }
}
