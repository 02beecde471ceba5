//! Hot path on machines without AVX2; elsewhere what the vector forms are compared with. The
//! codes of a panel times quantised rows, in plain Rust.

use super::{Codes, PASS_ROWS, Products, QuantisedRow};
use crate::{
    lanes::{LANES, Lanes, PortableLanes, widened},
    weight::{BLOCK, CodePanel},
};

pub(super) fn multiply<C: Codes>(
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>],
    products: &mut [Products],
) {
    let code_bytes = BLOCK * LANES * C::BITS / 8;
    products.fill([0.0; LANES]);
    for (block, codes) in panel.codes.chunks_exact(code_bytes).enumerate() {
        let mut sums = [[0; LANES]; PASS_ROWS];
        block_sums::<C>(codes, rows, block, &mut sums);
        let scales = panel.scales[block].map(widened);
        for ((row, sums), products) in rows.iter().zip(&sums).zip(products.iter_mut()) {
            let offset = C::OFFSET * row.sums[block];
            let values = PortableLanes::from(sums.map(|sum| (sum - offset) as f32));
            let factors = scales.map(|scale| scale * row.scales[block]);
            let mut total = values.fma(factors.into(), (*products).into());
            if C::MINIMA {
                let minima = panel.minima[block].map(widened);
                let sum = PortableLanes::splat(row.scaled_sums[block]);
                total = PortableLanes::from(minima).fma(sum, total);
            }
            total.store(products);
        }
    }
}

/// Sums of codes times activations over a block, per row and output. Written so that compilers
/// find the multiply-and-add of pairs of 16-bit values.
fn block_sums<C: Codes>(
    codes: &[u8],
    rows: &[QuantisedRow<'_>],
    block: usize,
    sums: &mut [[i32; LANES]; PASS_ROWS],
) {
    let pairs = 16 / C::BITS;
    let mask = (1_u16 << C::BITS) - 1;
    for (group, bytes) in codes.as_chunks::<{ 4 * LANES }>().0.iter().enumerate() {
        let mut words = [0; 2 * LANES];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *word = u16::from_le_bytes(*bytes);
        }
        for pair in 0..pairs {
            let unpacked = words.map(|word| ((word >> (pair * C::BITS)) & mask) as i16);
            let input = block * BLOCK + 2 * (group * pairs + pair);
            for (row, sums) in rows.iter().zip(sums.iter_mut()) {
                let (even, odd) = (i32::from(row.codes[input]), i32::from(row.codes[input + 1]));
                for (sum, [a, b]) in sums.iter_mut().zip(unpacked.as_chunks::<2>().0) {
                    *sum += i32::from(*a) * even + i32::from(*b) * odd;
                }
            }
        }
    }
}
