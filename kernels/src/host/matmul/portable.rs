//! Hot path on machines without AVX2; elsewhere what the vector forms are compared with. The
//! codes of a panel times quantised rows, in plain Rust.

use super::{Codes, PASS_ROWS, Products, QuantisedRow};
use crate::{
    lanes::{LANES, Lanes, PortableLanes, widened},
    weight::{CodePanel, PanelFactors},
};

pub(super) fn multiply<C: Codes>(
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>],
    products: &mut [Products],
) {
    products.fill([0.0; LANES]);
    let parts = panel.codes.chunks_exact(C::FORM.part_bytes());
    for (part, codes) in parts.enumerate() {
        let block = part / C::FORM.parts;
        let mut sums = [[0; LANES]; PASS_ROWS];
        part_sums::<C>(codes, rows, part * C::FORM.part_inputs(), &mut sums);
        let scales = factors::<C>(panel.scales, part);
        for ((row, sums), products) in rows.iter().zip(&sums).zip(products.iter_mut()) {
            let offset = match C::FORM.offset {
                0 => 0,
                offset => offset * row.sums[block],
            };
            let values = PortableLanes::from(sums.map(|sum| (sum - offset) as f32));
            let factors = scales.map(|scale| scale * row.scales[block]);
            let mut total = values.fma(factors.into(), (*products).into());
            if C::FORM.minima {
                let minima = PortableLanes::from(self::factors::<C>(panel.minima, block));
                let sum = PortableLanes::splat(row.scaled_sums[block]);
                total = minima.fma(sum, total);
            }
            total.store(products);
        }
    }
}

#[inline(always)]
fn factors<C: Codes>(of: PanelFactors<'_>, at: usize) -> [f32; LANES] {
    if C::FORM.full { of.full[at] } else { of.half[at].map(widened) }
}

/// Sums of codes times activations over a part of a block, per row and output. Written so that
/// compilers find the multiply-and-add of pairs of 16-bit values.
fn part_sums<C: Codes>(
    codes: &[u8],
    rows: &[QuantisedRow<'_>],
    first_input: usize,
    sums: &mut [[i32; LANES]; PASS_ROWS],
) {
    let bits = C::FORM.bits;
    let pairs = 16 / bits;
    let mask = (1_u16 << bits) - 1;
    for (group, bytes) in codes.as_chunks::<{ 4 * LANES }>().0.iter().enumerate() {
        let mut words = [0; 2 * LANES];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *word = u16::from_le_bytes(*bytes);
        }
        for pair in 0..pairs {
            let unpacked = words.map(|word: u16| {
                if C::FORM.signed {
                    let top = word << (16 - (pair + 1) * bits);
                    top.cast_signed() >> (16 - bits)
                } else {
                    ((word >> (pair * bits)) & mask) as i16
                }
            });
            let input = first_input + 2 * (group * pairs + pair);
            for (row, sums) in rows.iter().zip(sums.iter_mut()) {
                let (even, odd) = (i32::from(row.codes[input]), i32::from(row.codes[input + 1]));
                for (sum, [a, b]) in sums.iter_mut().zip(unpacked.as_chunks::<2>().0) {
                    *sum += i32::from(*a) * even + i32::from(*b) * odd;
                }
            }
        }
    }
}
