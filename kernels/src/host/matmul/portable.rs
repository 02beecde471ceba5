//! Hot path on machines without AVX2; elsewhere what the vector forms are compared with. The
//! codes of a panel times quantised rows, in plain Rust.

use half::f16;

use super::{Codes, Products, QuantisedRow};
use crate::{
    lanes::LANES,
    weight::{BLOCK, CodePanel},
};

pub(super) fn multiply<C: Codes>(
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>],
    products: &mut [Products],
) {
    let code_bytes = BLOCK * LANES * C::BITS / 8;
    for (row, products) in rows.iter().zip(products) {
        *products = [0.0; LANES];
        for (block, codes) in panel.codes.chunks_exact(code_bytes).enumerate() {
            let x = &row.codes[block * BLOCK..][..BLOCK];
            let sums = block_sums::<C>(codes, x);
            for (lane, product) in products.iter_mut().enumerate() {
                let sum = sums[lane] - C::OFFSET * row.sums[block];
                let scale = f16::from_bits(panel.scales[block][lane]).to_f32() * row.scales[block];
                *product = (sum as f32).mul_add(scale, *product);
                if C::MINIMA {
                    let minimum = f16::from_bits(panel.minima[block][lane]).to_f32();
                    *product = minimum.mul_add(row.scaled_sums[block], *product);
                }
            }
        }
    }
}

/// Sums of codes times activations over a block, per output.
fn block_sums<C: Codes>(codes: &[u8], x: &[i16]) -> [i32; LANES] {
    let mut sums = [0; LANES];
    let pairs = 16 / C::BITS;
    let mask = (1_u16 << C::BITS) - 1;
    for (group, x) in codes.chunks_exact(4 * LANES).zip(x.chunks_exact(2 * pairs)) {
        for (sum, [a, b, c, d]) in sums.iter_mut().zip(group.as_chunks::<4>().0) {
            let (even, odd) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
            for (pair, x) in x.as_chunks::<2>().0.iter().enumerate() {
                let shift = pair * C::BITS;
                *sum += i32::from((even >> shift) & mask) * i32::from(x[0]);
                *sum += i32::from((odd >> shift) & mask) * i32::from(x[1]);
            }
        }
    }
    sums
}
