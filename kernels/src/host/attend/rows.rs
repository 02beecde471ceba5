//! Hot path. Rows of vectors that are summed up with a factor per row and query: the keys of a
//! step over its dimensions, its values over its tokens. A row is the same vectors whether it is
//! read as stored (half precision, in slots) or was widened before, so both give the same bits.
//!
//! What the sums mean is not known here. Arrays are made in plain loops: a closure that the
//! compiler leaves out of line has no target features, and costs a call for each instruction.

use std::ops::Range;

use ids::BLOCK_TOKENS;

use super::walk::STEP_BLOCKS;
use crate::lanes::{LANES, Lanes};

/// Values of half precision in a line of the caches.
const LINE: usize = 32;

pub(super) trait Rows<V: Lanes>: Copy {
    /// `sums[query][column] += row[first + column] * factors[query][row]` for the rows of
    /// `range`, in ascending order.
    fn add<const Q: usize, const C: usize>(
        self,
        range: Range<usize>,
        first: usize,
        factors: [&[f32]; Q],
        sums: &mut [[V; C]; Q],
    );
}

/// K of a step as it lies in its slots: a row is a dimension, its vectors are the blocks.
#[derive(Clone, Copy)]
pub(super) struct StoredKeys<'a> {
    /// `[head_dim]` of each block.
    pub(super) blocks: [&'a [[u16; LANES]]; STEP_BLOCKS],
    /// Slots of the next step that are asked for meanwhile, a line of each for a row.
    pub(super) ahead: [&'a [u16]; 2],
}

/// V of a step as it lies in its slots: a row is a token, its vectors are 16 dimensions each.
#[derive(Clone, Copy)]
pub(super) struct StoredValues<'a> {
    /// `[token][columns]` of each block.
    pub(super) blocks: [&'a [[u16; LANES]]; STEP_BLOCKS],
    /// head_dim / 16.
    pub(super) columns: usize,
    /// Slots of the next step that are asked for meanwhile, a line of each for a row.
    pub(super) ahead: [&'a [u16]; 2],
}

/// K or V of a step, widened.
#[derive(Clone, Copy)]
pub(super) struct WideRows<'a> {
    /// `[row][columns]`.
    pub(super) rows: &'a [[f32; LANES]],
    pub(super) columns: usize,
}

impl<V: Lanes> Rows<V> for StoredKeys<'_> {
    #[inline(always)]
    fn add<const Q: usize, const C: usize>(
        self,
        range: Range<usize>,
        first: usize,
        factors: [&[f32]; Q],
        sums: &mut [[V; C]; Q],
    ) {
        let mut blocks: [&[[u16; LANES]]; C] = [&[]; C];
        for (part, block) in blocks.iter_mut().zip(&self.blocks[first..]) {
            *part = &block[range.clone()];
        }
        let factors = part(factors, range.clone());
        for row in 0..range.len() {
            if first == 0 {
                prefetch(self.ahead, row);
            }
            let mut vectors = [V::splat(0.0); C];
            for (vector, block) in vectors.iter_mut().zip(blocks) {
                *vector = V::load_f16(&block[row]);
            }
            add(vectors, factors, row, sums);
        }
    }
}

impl<V: Lanes> Rows<V> for StoredValues<'_> {
    #[inline(always)]
    fn add<const Q: usize, const C: usize>(
        self,
        range: Range<usize>,
        first: usize,
        factors: [&[f32]; Q],
        sums: &mut [[V; C]; Q],
    ) {
        for (block, values) in self.blocks.into_iter().enumerate() {
            let tokens =
                range.start.max(block * BLOCK_TOKENS)..range.end.min((block + 1) * BLOCK_TOKENS);
            if tokens.is_empty() {
                continue;
            }
            let factors = part(factors, tokens.clone());
            let values = &values[(tokens.start - block * BLOCK_TOKENS) * self.columns..];
            let rows = values.chunks_exact(self.columns);
            for (token, row) in (0..tokens.len()).zip(rows) {
                if first.is_multiple_of(STEP_BLOCKS) {
                    prefetch(self.ahead, first * LANES + block * BLOCK_TOKENS + token);
                }
                let row: &[_; C] = row[first..].first_chunk().expect("columns of this tile");
                let mut vectors = [V::splat(0.0); C];
                for at in 0..C {
                    vectors[at] = V::load_f16(&row[at]);
                }
                add(vectors, factors, token, sums);
            }
        }
    }
}

impl<V: Lanes> Rows<V> for WideRows<'_> {
    #[inline(always)]
    fn add<const Q: usize, const C: usize>(
        self,
        range: Range<usize>,
        first: usize,
        factors: [&[f32]; Q],
        sums: &mut [[V; C]; Q],
    ) {
        let factors = part(factors, range.clone());
        let rows = self.rows[range.start * self.columns..].chunks_exact(self.columns);
        for (at, row) in (0..range.len()).zip(rows) {
            let row: &[_; C] = row[first..].first_chunk().expect("columns of this tile");
            let mut vectors = [V::splat(0.0); C];
            for column in 0..C {
                vectors[column] = V::load(&row[column]);
            }
            add(vectors, factors, at, sums);
        }
    }
}

/// The factors of some rows.
#[inline(always)]
fn part<const Q: usize>(factors: [&[f32]; Q], rows: Range<usize>) -> [&[f32]; Q] {
    let mut part: [&[f32]; Q] = [&[]; Q];
    for query in 0..Q {
        part[query] = &factors[query][rows.clone()];
    }
    part
}

/// One row times the factor of each query.
#[inline(always)]
fn add<V: Lanes, const Q: usize, const C: usize>(
    row: [V; C],
    factors: [&[f32]; Q],
    at: usize,
    sums: &mut [[V; C]; Q],
) {
    for query in 0..Q {
        let factor = V::splat(factors[query][at]);
        for column in 0..C {
            sums[query][column] = row[column].fma(factor, sums[query][column]);
        }
    }
}

/// K of a step, `[head_dim][block]`, asking for the slots of the next one meanwhile.
#[inline(always)]
pub(super) fn widen_keys<V: Lanes>(
    blocks: [&[[u16; LANES]]; STEP_BLOCKS],
    ahead: [&[u16]; STEP_BLOCKS],
    wide: &mut [[f32; LANES]],
) {
    for (row, wide) in wide.as_chunks_mut::<STEP_BLOCKS>().0.iter_mut().enumerate() {
        prefetch(ahead, row);
        for (wide, block) in wide.iter_mut().zip(blocks) {
            V::load_f16(&block[row]).store(wide);
        }
    }
}

/// V of a step, `[token][columns]`.
#[inline(always)]
pub(super) fn widen_values<V: Lanes>(
    blocks: [&[[u16; LANES]]; STEP_BLOCKS],
    wide: &mut [[f32; LANES]],
) {
    let each = wide.len() / STEP_BLOCKS;
    for (wide, block) in wide.chunks_exact_mut(each).zip(blocks) {
        for (wide, halves) in wide.iter_mut().zip(block) {
            V::load_f16(halves).store(wide);
        }
    }
}

/// Asks for one line of each slot, for the second-level cache. Slots lie anywhere, so the hardware
/// cannot know; asked for all at once they would wait for each other in the line fill buffers.
#[inline(always)]
fn prefetch<const N: usize>(slots: [&[u16]; N], line: usize) {
    for slot in slots {
        if let Some(line) = slot.as_chunks::<LINE>().0.get(line) {
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                // SAFETY: a prefetch of memory that is there; SSE is part of x86-64.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }
}
