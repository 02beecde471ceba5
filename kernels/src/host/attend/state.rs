//! Hot path. What attention knows of a query after some of its blocks, and how that of later
//! blocks joins that of earlier ones. How a block changes it is not here: `walk`.

use crate::{
    isa::for_each_isa,
    lanes::{LANES, Lanes, tree_sum},
    math,
};

/// Layout of a query's state in f32: the maximum, whether a step was seen, padding (16 in all);
/// the lane sums (16); the accumulator (head_dim).
pub(super) struct State;

impl State {
    pub(super) const MAXIMUM: usize = 0;
    pub(super) const SEEN: usize = 1;
    pub(super) const SUMS: usize = LANES;
    pub(super) const ACCUMULATOR: usize = 2 * LANES;

    pub(super) const fn len(head_dim: usize) -> usize {
        2 * LANES + head_dim
    }

    /// Before the first step.
    pub(super) fn begin(state: &mut [f32]) {
        state.fill(0.0);
        state[Self::MAXIMUM] = f32::NEG_INFINITY;
    }
}

for_each_isa! {
    /// Merges the partial state of later blocks into that of earlier ones. A state that saw no
    /// block changes nothing.
    pub(super) fn merge = merge_lanes(total: &mut [f32], partial: &[f32])
}

#[inline(always)]
fn merge_lanes<V: Lanes>(total: &mut [f32], partial: &[f32]) {
    if partial[State::SEEN] == 0.0 {
        return;
    }
    let (a, b) = (total[State::MAXIMUM], partial[State::MAXIMUM]);
    let new = if a > b { a } else { b };
    let decay_a = math::exp2(V::splat(a).sub(V::splat(new)));
    let decay_b = math::exp2(V::splat(b).sub(V::splat(new)));
    total[State::MAXIMUM] = new;
    total[State::SEEN] = 1.0;
    let totals = total[State::SUMS..].as_chunks_mut::<LANES>().0;
    for (total, partial) in totals.iter_mut().zip(partial[State::SUMS..].as_chunks().0) {
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
