//! Hot path. How much of the attention of a row each block takes, estimated from key summaries, or
//! measured by the stored keys.
//!
//! A query is one (row, head). Its scores of all tokens, in ascending block, become weights
//! relative to the largest, sums by block, and shares of their total; the query heads of a KV head
//! are averaged. What is computed of a query depends on its blocks alone (P1). A pass takes up to
//! six queries over a block, so that its codes are unpacked once for them.

#[cfg(test)]
mod tests;

use std::{cell::RefCell, ops::Range};

use ids::{BLOCK_TOKENS, SummaryIdx};

use super::{HostDevice, pool::Shared};
use crate::{
    device::{HeadShape, Score, ScoreSequence},
    isa::for_each_isa,
    lanes::{LANES, Lanes, widened},
    math,
    memory::Aligned,
    slots::{SlotArena, SlotsView},
    summary::{SummaryArena, SummaryKind, Units},
};

/// How many blocks ahead lines are asked for: units may lie anywhere.
const AHEAD: usize = 4;
/// Queries of one pass.
const PASS: usize = 6;
/// Tiles per thread below which the rows of a sequence are tiles of their own.
const TILES_PER_THREAD: usize = 4;
/// Largest magnitude of a query's codes: 8 bits with a sign, and 4-bit codes times two of them
/// still fit the 16 bits of AVX2's products.
const CODE_MAX: f32 = 127.0;

/// Work of one stream; grows only.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    tiles: Vec<Tile>,
}

/// Rows of one sequence with the query heads of one KV head.
#[derive(Clone, Debug)]
struct Tile {
    sequence: usize,
    kv_head: usize,
    rows: Range<usize>,
}

thread_local! {
    /// What this thread needs for the tile that it works on.
    static DESK: RefCell<Desk> = const { RefCell::new(Desk::new()) };
}

/// Scratch memory of a thread; grows only.
struct Desk {
    queries: Queries,
    /// `[query][block][token]`.
    scores: Aligned,
    /// Of a query's blocks, and some more places.
    sums: Aligned,
}

/// The queries of a tile, in order of row and head, in the forms that kinds of summaries want.
struct Queries {
    head_dim: usize,
    /// `[query][head_dim]`, times the scale and log2 e.
    scaled: Vec<f32>,
    /// `[query][head_dim / 4]`: four codes of 8 bits with their signs.
    codes: Vec<i32>,
    /// Of each query: what a code stands for, and the sum of its codes.
    steps: Vec<[f32; 2]>,
    /// A query times the steps of a block's channels.
    spread: Vec<f32>,
}

/// The summaries of a sequence's blocks, of one layer and KV head.
#[derive(Clone, Copy)]
struct Summaries<'a> {
    units: Units<'a>,
    ids: &'a [SummaryIdx],
    column: usize,
}

/// A launch whose shapes fit.
struct Work<'a> {
    device: &'a HostDevice,
    slots: SlotsView<'a>,
    units: Units<'a>,
    shape: HeadShape,
    group: usize,
    layer: usize,
    q: &'a [f32],
    positions: &'a [u32],
    sequences: &'a [ScoreSequence<'a>],
    scale: f32,
    stride: usize,
    mass: Shared<f32>,
}

pub(super) fn launch(
    device: &HostDevice,
    scratch: &mut Scratch,
    (slots, summaries): (&SlotArena, &SummaryArena),
    launch: Score<'_, HostDevice>,
) {
    let Score { shape, layer, q, positions, sequences, scale, stride, mass } = launch;
    let (rows, width) = (positions.len(), shape.heads * shape.head_dim);
    assert!(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "heads do not share evenly");
    let own = summaries.shape();
    assert_eq!((own.kv_heads, own.head_dim), (shape.kv_heads, shape.head_dim), "other summaries");
    assert!(layer < own.layers, "layer {layer} of summaries of {}", own.layers);
    let least = TILES_PER_THREAD * device.pool.threads();
    let whole = sequences.len() * shape.kv_heads >= least;
    let tiles = &mut scratch.tiles;
    tiles.clear();
    for (index, sequence) in sequences.iter().enumerate() {
        let blocks = sequence.blocks();
        assert!(blocks <= stride, "{blocks} blocks where there is room for {stride}");
        let own = sequence.rows.clone();
        assert!(own.end <= rows, "rows {own:?} are beyond the batch");
        // A summary has no tokens that could be left out.
        let summarised = sequence.summaries.len() * BLOCK_TOKENS;
        let behind = positions[own.clone()].iter().all(|at| *at as usize >= summarised);
        assert!(behind, "a row lies in one of {} summarised blocks", sequence.summaries.len());
        let each = if whole { own.len().max(1) } else { 1 };
        for first in own.clone().step_by(each) {
            for kv_head in 0..shape.kv_heads {
                let rows = first..own.end.min(first + each);
                tiles.push(Tile { sequence: index, kv_head, rows });
            }
        }
    }
    let tiles = &*tiles;
    let read = slots.read();
    summaries.read(|units| {
        let work = Work {
            device,
            slots: read.view(),
            units,
            shape,
            group: shape.heads / shape.kv_heads,
            layer,
            q: &q.as_slice()[..rows * width],
            positions,
            sequences,
            scale: scale * std::f32::consts::LOG2_E,
            stride,
            mass: Shared::new(&mut mass.as_mut_slice()[..rows * shape.kv_heads * stride]),
        };
        device.pool.run(tiles.len(), &|tile| work.tile(&tiles[tile]));
    });
}

impl Work<'_> {
    fn tile(&self, tile: &Tile) {
        DESK.with_borrow_mut(|desk| {
            let sequence = &self.sequences[tile.sequence];
            let kind = self.units.shape().kind;
            self.prepare(&mut desk.queries, tile, kind);
            let count = tile.rows.len() * self.group;
            let each = sequence.blocks() * LANES;
            let scores = desk.scores.take(count * each);
            let summaries = Summaries {
                units: self.units,
                ids: sequence.summaries,
                column: self.layer * self.shape.kv_heads + tile.kv_head,
            };
            let active = self.device.active;
            for first in (0..count).step_by(PASS) {
                let pass = first..count.min(first + PASS);
                let scores = &mut scores[first * each..];
                match kind {
                    SummaryKind::Int4 => int4(active, summaries, &desk.queries, pass, scores, each),
                    SummaryKind::Int2 => {
                        int2(active, summaries, &mut desk.queries, pass, scores, each);
                    }
                    SummaryKind::MinMax8 => {
                        min_max_8(active, summaries, &desk.queries, pass, scores, each);
                    }
                }
            }
            for block in sequence.summaries.len()..sequence.blocks() {
                self.measure(&desk.queries, tile, block, scores);
            }
            self.share_out(tile, scores, &mut desk.sums);
        });
    }

    /// The queries of a tile.
    fn prepare(&self, queries: &mut Queries, tile: &Tile, kind: SummaryKind) {
        let d = self.shape.head_dim;
        queries.head_dim = d;
        queries.scaled.clear();
        queries.codes.clear();
        queries.steps.clear();
        for row in tile.rows.clone() {
            let first = (row * self.shape.heads + tile.kv_head * self.group) * d;
            let values = &self.q[first..first + self.group * d];
            queries.scaled.extend(values.iter().map(|value| value * self.scale));
        }
        if kind == SummaryKind::Int4 {
            for query in queries.scaled.chunks_exact(d) {
                let step = quantise(query, &mut queries.codes);
                queries.steps.push(step);
            }
        }
    }

    /// Scores by the stored keys, up to each row's own position.
    fn measure(&self, queries: &Queries, tile: &Tile, block: usize, scores: &mut [f32]) {
        let d = self.shape.head_dim;
        let sequence = &self.sequences[tile.sequence];
        let slot = sequence.exact[tile.kv_head][block - sequence.summaries.len()];
        let keys = self.slots.slot(slot)[..BLOCK_TOKENS * d].as_chunks().0;
        let each = sequence.blocks() * LANES;
        for (query, values) in queries.scaled.chunks_exact(d).enumerate() {
            let position = self.positions[tile.rows.start + query / self.group] as usize;
            let seen = (position + 1).saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS);
            let scores = &mut scores[query * each + block * LANES..][..LANES];
            by_keys(self.device.active, keys, values, scores);
            scores[seen..].fill(f32::NEG_INFINITY);
        }
    }

    /// From scores to the masses of each row: 1 in all.
    fn share_out(&self, tile: &Tile, scores: &[f32], sums: &mut Aligned) {
        let blocks = self.sequences[tile.sequence].blocks();
        let sums = sums.take(blocks.next_multiple_of(LANES));
        let share = 1.0 / self.group as f32;
        let mut queries = scores.chunks_exact((blocks * LANES).max(1));
        for row in tile.rows.clone() {
            let at = (row * self.shape.kv_heads + tile.kv_head) * self.stride;
            // SAFETY: a (row, KV head) belongs to one tile; mass is borrowed by this launch.
            let mass = unsafe { self.mass.part(at, self.stride) };
            mass.fill(0.0);
            for scores in queries.by_ref().take(self.group) {
                add_shares(self.device.active, scores.as_chunks().0, share, sums, mass);
            }
        }
    }
}

impl Desk {
    const fn new() -> Self {
        Self { queries: Queries::new(), scores: Aligned::new(), sums: Aligned::new() }
    }
}

impl Queries {
    const fn new() -> Self {
        Self {
            head_dim: 0,
            scaled: Vec::new(),
            codes: Vec::new(),
            steps: Vec::new(),
            spread: Vec::new(),
        }
    }
}

impl<'a> Summaries<'a> {
    fn len(self) -> usize {
        self.ids.len()
    }

    /// The words of a block, asking for those of a later one meanwhile.
    #[inline(always)]
    fn block(self, at: usize) -> &'a [u32] {
        if let Some(later) = self.ids.get(at + AHEAD) {
            ask_for(self.units.column(*later, self.column));
        }
        self.units.column(self.ids[at], self.column)
    }
}

/// Appends a query's codes, four to a word; returns what a code stands for and the sum of them. A
/// query that is not finite has a step that is not a number.
fn quantise(query: &[f32], codes: &mut Vec<i32>) -> [f32; 2] {
    let mut largest = 0.0f32;
    let mut spoiled = 0.0f32;
    for value in query {
        spoiled += value * 0.0;
        largest = if value.abs() > largest { value.abs() } else { largest };
    }
    let inverse = if largest > 0.0 { CODE_MAX / largest } else { 0.0 };
    let mut sum = 0;
    for four in query.as_chunks::<4>().0 {
        let four = four.map(|value| (value * inverse).round_ties_even() as i8);
        sum += four.iter().map(|code| i32::from(*code)).sum::<i32>();
        codes.push(i32::from_le_bytes(four.map(|code| code as u8)));
    }
    [largest / CODE_MAX + spoiled, sum as f32]
}

/// The words as values of half precision, sixteen to a vector.
#[inline(always)]
fn halves_of(words: &[u32]) -> &[[u16; LANES]] {
    // SAFETY: u16 has no invalid bits and a smaller alignment; the length is twice as many. Bytes
    // are little endian on every machine that this runs on, as the layout says.
    let halves =
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u16>(), words.len() * 2) };
    halves.as_chunks().0
}

for_each_isa! {
    /// Scores of all blocks for the queries of a pass: query i's stand from `i * stride` on.
    fn int4 = int4_lanes(
        summaries: Summaries<'_>,
        queries: &Queries,
        pass: Range<usize>,
        scores: &mut [f32],
        stride: usize,
    )
}

#[inline(always)]
fn int4_lanes<V: Lanes>(
    summaries: Summaries<'_>,
    queries: &Queries,
    pass: Range<usize>,
    scores: &mut [f32],
    stride: usize,
) {
    match pass.len() {
        1 => int4_pass::<V, 1>(summaries, queries, pass.start, scores, stride),
        2 => int4_pass::<V, 2>(summaries, queries, pass.start, scores, stride),
        3 => int4_pass::<V, 3>(summaries, queries, pass.start, scores, stride),
        4 => int4_pass::<V, 4>(summaries, queries, pass.start, scores, stride),
        5 => int4_pass::<V, 5>(summaries, queries, pass.start, scores, stride),
        _ => int4_pass::<V, PASS>(summaries, queries, pass.start, scores, stride),
    }
}

#[inline(always)]
fn int4_pass<V: Lanes, const Q: usize>(
    summaries: Summaries<'_>,
    queries: &Queries,
    first: usize,
    scores: &mut [f32],
    stride: usize,
) {
    let quads = queries.head_dim / 4;
    let mut own: [&[i32]; Q] = [&[]; Q];
    for (query, own) in own.iter_mut().enumerate() {
        *own = &queries.codes[(first + query) * quads..][..quads];
    }
    for block in 0..summaries.len() {
        let words = summaries.block(block);
        let (codes, tail) = words.split_at(quads / 2 * LANES);
        let mut sums = [V::no_products(); Q];
        for (group, codes) in codes.as_chunks().0.iter().enumerate() {
            let codes = V::load_codes(codes);
            let (low, high) = (V::low_nibbles(codes), V::high_nibbles(codes));
            for query in 0..Q {
                sums[query] = V::add_products(sums[query], low, own[query][2 * group]);
                sums[query] = V::add_products(sums[query], high, own[query][2 * group + 1]);
            }
        }
        let tail = halves_of(tail);
        let (scale, least) = (V::load_f16(&tail[0]), V::load_f16(&tail[1]));
        for (query, products) in sums.into_iter().enumerate() {
            let [step, sum] = queries.steps[first + query];
            let offset = least.mul(V::splat(sum));
            let score = V::products(products).fma(scale, offset).mul(V::splat(step));
            score.store(place(scores, query * stride + block * LANES));
        }
    }
}

for_each_isa! {
    /// As `int4`.
    fn int2 = int2_lanes(
        summaries: Summaries<'_>,
        queries: &mut Queries,
        pass: Range<usize>,
        scores: &mut [f32],
        stride: usize,
    )
}

#[inline(always)]
fn int2_lanes<V: Lanes>(
    summaries: Summaries<'_>,
    queries: &mut Queries,
    pass: Range<usize>,
    scores: &mut [f32],
    stride: usize,
) {
    let Queries { head_dim: d, scaled, spread, .. } = queries;
    let d = *d;
    spread.resize(d, 0.0);
    for block in 0..summaries.len() {
        let words = summaries.block(block);
        let (codes, tail) = words.split_at(d);
        let (scales, minima) = halves_of(tail).split_at(d / LANES);
        for query in pass.clone() {
            let values = &scaled[query * d..][..d];
            let mut offset = V::splat(0.0);
            let columns = values.as_chunks().0.iter().zip(spread.as_chunks_mut().0);
            for ((value, spread), (scale, least)) in columns.zip(scales.iter().zip(minima)) {
                let value = V::load(value);
                value.mul(V::load_f16(scale)).store(spread);
                offset = value.fma(V::load_f16(least), offset);
            }
            let mut score = V::splat(offset.sum());
            for (word, factor) in codes.iter().zip(&*spread) {
                score = V::pairs_of_bits(*word).fma(V::splat(*factor), score);
            }
            score.store(place(scores, (query - pass.start) * stride + block * LANES));
        }
    }
}

for_each_isa! {
    /// As `int4`; the bound of a block counts for each of its tokens.
    fn min_max_8 = min_max_8_lanes(
        summaries: Summaries<'_>,
        queries: &Queries,
        pass: Range<usize>,
        scores: &mut [f32],
        stride: usize,
    )
}

#[inline(always)]
fn min_max_8_lanes<V: Lanes>(
    summaries: Summaries<'_>,
    queries: &Queries,
    pass: Range<usize>,
    scores: &mut [f32],
    stride: usize,
) {
    let d = queries.head_dim;
    for block in 0..summaries.len() {
        let words = summaries.block(block);
        let tail = words[d / 2];
        let (offset, step) = (widened(tail as u16), widened((tail >> 16) as u16));
        let (minima, maxima) = words[..d / 2].as_chunks::<4>().0.split_at(d / LANES);
        for query in pass.clone() {
            let values = &queries.scaled[query * d..][..d];
            let (mut codes, mut all) = (V::splat(0.0), V::splat(0.0));
            for (value, (least, most)) in values.as_chunks().0.iter().zip(minima.iter().zip(maxima))
            {
                let value = V::load(value);
                all = all.add(value);
                let (above, below) = (V::splat(0.0).max(value), V::splat(0.0).min(value));
                codes = V::bytes(most).fma(above, codes);
                codes = V::bytes(least).fma(below, codes);
            }
            let bound = codes.sum() * step + all.sum() * offset;
            let at = (query - pass.start) * stride + block * LANES;
            V::splat(bound).store(place(scores, at));
        }
    }
}

for_each_isa! {
    fn by_keys = by_keys_lanes(keys: &[[u16; LANES]], query: &[f32], scores: &mut [f32])
}

#[inline(always)]
fn by_keys_lanes<V: Lanes>(keys: &[[u16; LANES]], query: &[f32], scores: &mut [f32]) {
    let mut score = V::splat(0.0);
    for (key, factor) in keys.iter().zip(query) {
        score = V::load_f16(key).fma(V::splat(*factor), score);
    }
    score.store(place(scores, 0));
}

for_each_isa! {
    /// Adds the shares of a query's blocks to the masses; `sums` has a place for each block.
    fn add_shares = add_shares_lanes(
        scores: &[[f32; LANES]],
        share: f32,
        sums: &mut [f32],
        mass: &mut [f32],
    )
}

#[inline(always)]
fn add_shares_lanes<V: Lanes>(
    scores: &[[f32; LANES]],
    share: f32,
    sums: &mut [f32],
    mass: &mut [f32],
) {
    let mut most = V::splat(f32::NEG_INFINITY);
    for block in scores {
        most = V::load(block).max(most);
    }
    let most = V::splat(most.largest());
    let mut total = V::splat(0.0);
    for (blocks, sums) in scores.chunks(LANES).zip(sums.as_chunks_mut().0) {
        // Places behind the last block weigh nothing.
        let mut weights = [V::splat(0.0); LANES];
        for (weight, block) in weights.iter_mut().zip(blocks) {
            *weight = math::exp2(V::load(block).sub(most));
        }
        let of_blocks = V::sums(weights);
        total = total.add(of_blocks);
        of_blocks.store(sums);
    }
    let factor = share / total.sum();
    for (mass, sum) in mass.iter_mut().zip(&sums[..scores.len()]) {
        *mass += sum * factor;
    }
}

/// Sixteen places from `at` on.
#[inline(always)]
fn place(values: &mut [f32], at: usize) -> &mut [f32; LANES] {
    values[at..].first_chunk_mut().expect("scores of all blocks and queries")
}

/// Asks for the lines of a block.
#[inline(always)]
fn ask_for(words: &[u32]) {
    #[cfg(target_arch = "x86_64")]
    for line in words.chunks(16) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of memory that is there; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
}
