//! Hot path on machines without AVX2; elsewhere what the vector forms are compared with. Unpacked
//! panels times quantised rows, in plain Rust.

use super::{
    Kind, RowSums,
    quantise::{BlockCodes, BlockFactors, PassRows},
    unpack::{PAIRS, Unpacked, UnpackedBlock},
};
use crate::lanes::{LANES, Lanes, PortableLanes};

/// Some blocks of two unpacked panels times the rows of a pass, added to `sums`.
pub(super) fn many(kind: Kind, panels: &[Unpacked; 2], rows: PassRows<'_>, sums: &mut [RowSums]) {
    let blocks = rows.codes.chunks_exact(rows.count).zip(rows.factors.chunks_exact(rows.count));
    for (block, (x, factors)) in blocks.enumerate() {
        for ((x, factors), sums) in x.iter().zip(factors).zip(&mut *sums) {
            for (panel, sums) in panels.iter().zip(sums) {
                row(kind, &panel.blocks[block], x, factors, sums);
            }
        }
    }
}

/// One block of one row.
fn row(
    kind: Kind,
    block: &UnpackedBlock,
    x: &BlockCodes,
    factors: &BlockFactors,
    sums: &mut [f32; LANES],
) {
    let mut total = PortableLanes::from(*sums);
    let parts = kind.parts();
    for part in 0..parts {
        let whole = integers(block, x, part * PAIRS / parts..(part + 1) * PAIRS / parts);
        let factor = PortableLanes::from(block.scales[part].map(|scale| scale * factors.scale));
        total = PortableLanes::from(whole.map(|sum| sum as f32)).fma(factor, total);
    }
    if kind == Kind::Minima {
        let sum = PortableLanes::splat(factors.scaled_sum);
        total = PortableLanes::from(block.minima).fma(sum, total);
    }
    total.store(sums);
}

/// Written so that compilers find the multiply-and-add of pairs of 16-bit values.
#[inline(always)]
fn integers(block: &UnpackedBlock, x: &BlockCodes, pairs: std::ops::Range<usize>) -> [i32; LANES] {
    let mut sums = [0; LANES];
    for pair in pairs {
        let [a, b, c, d] = x.bytes().as_chunks().0[pair];
        let even = i32::from(i16::from_le_bytes([a, b]));
        let odd = i32::from(i16::from_le_bytes([c, d]));
        for (sum, [a, b]) in sums.iter_mut().zip(block.codes[pair].as_chunks::<2>().0) {
            *sum += i32::from(*a) * even + i32::from(*b) * odd;
        }
    }
    sums
}
