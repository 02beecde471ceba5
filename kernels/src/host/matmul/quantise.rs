//! Hot path. Activations of a launch in 16 bits, in the order in which the kernels read them.
//!
//! Each block of 32 inputs of a row has a scale of its own: `amax / 32767`. Rows are cut into
//! passes; a pass is laid out `[block][row]`, so that a kernel walks one stretch of memory. What
//! a row's numbers are depends on that row alone.

use super::super::{HostDevice, pool::Shared};
#[cfg(target_arch = "x86_64")]
use super::avx512;
use crate::{
    isa::{Isa, for_each_isa},
    lanes::{LANES, Lanes},
    weight::BLOCK,
};

/// Blocks with no magnitude above this are taken as zero, so that the inverse scale is finite.
const TINY: f32 = 1e-30;
/// The largest code.
const CODE_MAX: f32 = 32767.0;
/// Values that are worth a tile of their own: a few microseconds of work.
const TILE_VALUES: usize = 1 << 14;

/// Bytes of activations that are handed to all outputs at once.
pub(super) const WORD: usize = 4;

/// How the 32 codes of a block are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they are, 16 bits each: for products of 16-bit codes.
    Words,
    /// The upper bytes of all, which are signed, then the lower ones, which are not, each four
    /// inputs in the order 0, 2, 1, 3 of a quad of packed codes: for products of 8-bit codes.
    Bytes,
}

/// How the rows of a launch are cut into passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Rows of the launch.
    pub(super) rows: usize,
    /// Rows of a pass; the last one may have less.
    pub(super) pass_rows: usize,
    /// Blocks of a row.
    pub(super) blocks: usize,
}

impl Cut {
    pub(super) fn pass_count(self, pass: usize) -> usize {
        self.pass_rows.min(self.rows - pass * self.pass_rows)
    }
}

/// The codes of a block of a row.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct BlockCodes([u8; 2 * BLOCK]);

impl BlockCodes {
    pub(super) fn bytes(&self) -> &[u8; 2 * BLOCK] {
        &self.0
    }

    /// Four words of two codes of 16 bits, or four of 8.
    #[inline(always)]
    pub(super) fn words(&self, quarter: usize) -> &[u8; 4 * WORD] {
        &self.0.as_chunks().0[quarter]
    }
}

/// What the sums of a block of a row are multiplied with or corrected by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockFactors {
    /// What one unit of the codes stands for; NaN where an input is infinite or NaN.
    pub(super) scale: f32,
    /// The sum of the codes in that unit, for formats with minima.
    pub(super) scaled_sum: f32,
    /// -8 times the sum of the codes: what an offset of 8 in the weight's codes adds too much.
    pub(super) offset: i32,
    /// The same for either half of the block.
    pub(super) half_offsets: [i32; 2],
    /// -128 times the sum of the upper bytes; only in the order of bytes.
    pub(super) high_offset: i32,
}

/// The rows of a launch; the vectors only grow.
#[derive(Debug, Default)]
pub(crate) struct QuantisedRows {
    codes: Vec<BlockCodes>,
    factors: Vec<BlockFactors>,
}

/// Some blocks of the rows of a pass, `[block][row]`.
#[derive(Clone, Copy)]
pub(super) struct PassRows<'a> {
    pub(super) codes: &'a [BlockCodes],
    pub(super) factors: &'a [BlockFactors],
    /// Rows of the pass.
    pub(super) count: usize,
}

impl QuantisedRows {
    /// Blocks from `first_block` on of a pass.
    pub(super) fn pass(
        &self,
        cut: Cut,
        pass: usize,
        blocks: std::ops::Range<usize>,
    ) -> PassRows<'_> {
        let count = cut.pass_count(pass);
        let first = pass * cut.pass_rows * cut.blocks;
        let range = first + blocks.start * count..first + blocks.end * count;
        PassRows { codes: &self.codes[range.clone()], factors: &self.factors[range], count }
    }

    /// Quantises all rows.
    pub(super) fn fill(&mut self, device: &HostDevice, x: &[f32], cut: Cut, order: Order) {
        let Cut { rows, pass_rows, blocks } = cut;
        let total = rows * blocks;
        if self.codes.len() < total {
            self.codes.resize(total, BlockCodes([0; 2 * BLOCK]));
            self.factors.resize(total, BlockFactors::default());
        }
        let codes = Shared::new(&mut self.codes);
        let factors = Shared::new(&mut self.factors);
        let each = (TILE_VALUES / (pass_rows * BLOCK)).clamp(1, blocks);
        let tiles = blocks.div_ceil(each);
        device.pool.run(rows.div_ceil(pass_rows) * tiles, &|tile| {
            let (pass, first_block) = (tile / tiles, tile % tiles * each);
            let (count, len) = (cut.pass_count(pass), each.min(blocks - first_block));
            let at = pass * pass_rows * blocks + first_block * count;
            // SAFETY: tiles have different blocks or passes; the vectors are borrowed here.
            let codes = unsafe { codes.part(at, len * count) };
            // SAFETY: as above.
            let factors = unsafe { factors.part(at, len * count) };
            for row in 0..count {
                let from = ((pass * pass_rows + row) * blocks + first_block) * BLOCK;
                let to = RowMut { codes, factors, row, count };
                let x = &x[from..][..len * BLOCK];
                match (device.active.isa(), order) {
                    #[cfg(target_arch = "x86_64")]
                    (Isa::Avx512, _) => avx512::quantise(device.active, x, order, to),
                    (_, Order::Words) => quantise(device.active, x, to),
                    (isa, Order::Bytes) => unreachable!("{isa} multiplies no bytes"),
                }
            }
        });
    }
}

/// Where the blocks of one row of a pass go.
pub(super) struct RowMut<'a> {
    codes: &'a mut [BlockCodes],
    factors: &'a mut [BlockFactors],
    row: usize,
    count: usize,
}

impl RowMut<'_> {
    #[inline(always)]
    pub(super) fn block(&mut self, block: usize) -> (&mut [u8; 2 * BLOCK], &mut BlockFactors) {
        let at = block * self.count + self.row;
        (&mut self.codes[at].0, &mut self.factors[at])
    }
}

/// The scale of a block and its inverse, which is 0 for blocks whose codes are all 0: those with
/// no magnitude above `TINY`, and those with a value that is not finite, whose scale is NaN so
/// that every product of the row is.
#[inline(always)]
pub(super) fn scale_of(largest: f32, finite: bool) -> (f32, f32) {
    if !finite {
        (f32::NAN, 0.0)
    } else if largest > TINY {
        (largest / CODE_MAX, CODE_MAX / largest)
    } else {
        (0.0, 0.0)
    }
}

for_each_isa! {
    fn quantise = quantise_lanes(x: &[f32], to: RowMut<'_>)
}

/// code = x * (32767 / amax) to the nearest even. Plain loops over arrays: closures would not be
/// inlined into the functions that have the instruction set.
#[inline(always)]
fn quantise_lanes<V: Lanes>(x: &[f32], mut to: RowMut<'_>) {
    for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let (bytes, factors) = to.block(block);
        let (halves, _) = x.as_chunks::<LANES>();
        let (low, high) = (V::load(&halves[0]), V::load(&halves[1]));
        let largest = low.abs().max(high.abs()).largest();
        let (scale, inverse) = scale_of(largest, low.all_finite() & high.all_finite());
        let mut codes = [[0; LANES]; 2];
        if inverse != 0.0 {
            let inverse = V::splat(inverse);
            low.mul(inverse).store_i16(&mut codes[0]);
            high.mul(inverse).store_i16(&mut codes[1]);
        }
        let mut sums = [0; 2];
        for half in 0..2 {
            for (lane, &code) in codes[half].iter().enumerate() {
                sums[half] += i32::from(code);
                let at = 2 * (half * LANES + lane);
                [bytes[at], bytes[at + 1]] = code.to_le_bytes();
            }
        }
        let sum = sums[0] + sums[1];
        *factors = BlockFactors {
            scale,
            scaled_sum: sum as f32 * scale,
            offset: -8 * sum,
            half_offsets: [-8 * sums[0], -8 * sums[1]],
            high_offset: 0,
        };
    }
}
