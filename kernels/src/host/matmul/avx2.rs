//! Hot path. The codes of a panel times quantised rows with AVX2: a register holds 8 outputs,
//! so a panel is walked twice; up to 4 rows share the unpacked codes and nothing spills.

use std::arch::x86_64::*;

use super::{Codes, Products, QuantisedRow};
use crate::{
    isa::{Active, Isa},
    weight::{CodePanel, PanelFactors},
};

/// How far ahead of its use a panel is asked for: a page, which the hardware does not cross.
const AHEAD_BYTES: usize = 4096;
/// Rows of one tile: more would not leave registers for the codes.
const ROWS: usize = 4;

pub(super) fn multiply<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>],
    products: &mut [Products],
) {
    assert_eq!(active.isa(), Isa::Avx2, "only for machines that have it");
    macro_rules! tile {
        ($count:literal, $rows:ident, $to:ident) => {{
            let rows: &[QuantisedRow<'_>; $count] = $rows.first_chunk().expect("that many rows");
            let to: &mut [Products; $count] = $to.first_chunk_mut().expect("as many products");
            // SAFETY: the features were detected; the caller has checked the lengths.
            unsafe { tile::<C, $count>(panel, 0, rows, to) };
            // SAFETY: as above.
            unsafe { tile::<C, $count>(panel, 1, rows, to) };
        }};
    }
    for (rows, to) in rows.chunks(ROWS).zip(products.chunks_mut(ROWS)) {
        match rows.len() {
            1 => tile!(1, rows, to),
            2 => tile!(2, rows, to),
            3 => tile!(3, rows, to),
            _ => tile!(4, rows, to),
        }
    }
}

/// The first (`half` 0) or last 8 outputs of a panel.
///
/// # Safety
/// The codes, scales, minima and rows have as many blocks as `panel.parts` says.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    half: usize,
    rows: &[QuantisedRow<'_>; R],
    products: &mut [Products; R],
) {
    let code_bytes = C::FORM.part_bytes();
    let groups = code_bytes / 64;
    let mut sums = [_mm256_setzero_ps(); R];
    for part in 0..panel.parts {
        let mut whole = [_mm256_setzero_si256(); R];
        for group in 0..groups {
            let at = part * code_bytes + group * 64 + half * 32;
            // SAFETY: inside the codes of this part.
            let at = unsafe { panel.codes.as_ptr().add(at) };
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES).cast());
            // SAFETY: 32 bytes of this group.
            let codes = unsafe { _mm256_loadu_si256(at.cast()) };
            let input = part * C::FORM.part_inputs() + group * 32 / C::FORM.bits;
            if C::FORM.bits == 4 {
                let mask = _mm256_set1_epi16(0x0f);
                let unpacked = [
                    _mm256_and_si256(codes, mask),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask),
                    _mm256_and_si256(_mm256_srli_epi16::<8>(codes), mask),
                    _mm256_srli_epi16::<12>(codes),
                ];
                // SAFETY: `input` and the 7 after it are inputs of this part.
                unsafe { accumulate(&mut whole, unpacked, rows, input) };
            } else {
                let unpacked = if C::FORM.signed {
                    let low = _mm256_slli_epi16::<8>(codes);
                    [_mm256_srai_epi16::<8>(low), _mm256_srai_epi16::<8>(codes)]
                } else {
                    let mask = _mm256_set1_epi16(0xff);
                    [_mm256_and_si256(codes, mask), _mm256_srli_epi16::<8>(codes)]
                };
                // SAFETY: `input` and the 3 after it are inputs of this part.
                unsafe { accumulate(&mut whole, unpacked, rows, input) };
            }
        }
        // SAFETY: `part` is below the number of parts.
        unsafe { scale::<C, R>(panel, half, rows, part, whole, &mut sums) };
    }
    for (sum, product) in sums.iter().zip(products) {
        // SAFETY: a product has 16 values, 8 in each half.
        unsafe { _mm256_storeu_ps(product[8 * half..8 * half + 8].as_mut_ptr(), *sum) };
    }
}

/// Adds the products of unpacked pairs of codes with the rows' pairs of activations.
///
/// # Safety
/// The rows have `2 * PAIRS` codes from `input` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn accumulate<const R: usize, const PAIRS: usize>(
    whole: &mut [__m256i; R],
    unpacked: [__m256i; PAIRS],
    rows: &[QuantisedRow<'_>; R],
    input: usize,
) {
    for (pair, codes) in unpacked.into_iter().enumerate() {
        for (sum, row) in whole.iter_mut().zip(rows) {
            // SAFETY: as promised by the caller.
            let at = unsafe { row.codes.as_ptr().add(input + 2 * pair) };
            // SAFETY: two codes, at any alignment.
            let x = unsafe { at.cast::<i32>().read_unaligned() };
            let products = _mm256_madd_epi16(codes, _mm256_set1_epi32(x));
            *sum = _mm256_add_epi32(*sum, products);
        }
    }
}

/// Brings the integer sums of a part into the accumulators.
///
/// # Safety
/// `part` is below the number of parts; panel and rows have as many blocks as that says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    half: usize,
    rows: &[QuantisedRow<'_>; R],
    part: usize,
    whole: [__m256i; R],
    sums: &mut [__m256; R],
) {
    let block = part / C::FORM.parts;
    // SAFETY: as promised by the caller.
    let scales = unsafe { factors::<C>(panel.scales, part, half) };
    let minima = if C::FORM.minima {
        // SAFETY: as above.
        unsafe { factors::<C>(panel.minima, block, half) }
    } else {
        _mm256_setzero_ps()
    };
    for row in 0..R {
        let mut integer = whole[row];
        if C::FORM.offset != 0 {
            // SAFETY: as above.
            let sum = unsafe { *rows[row].sums.get_unchecked(block) };
            integer = _mm256_sub_epi32(integer, _mm256_set1_epi32(C::FORM.offset * sum));
        }
        // SAFETY: as above.
        let activation = unsafe { *rows[row].scales.get_unchecked(block) };
        let factor = _mm256_mul_ps(scales, _mm256_set1_ps(activation));
        sums[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integer), factor, sums[row]);
        if C::FORM.minima {
            // SAFETY: as above.
            let sum = unsafe { *rows[row].scaled_sums.get_unchecked(block) };
            sums[row] = _mm256_fmadd_ps(minima, _mm256_set1_ps(sum), sums[row]);
        }
    }
}

/// Scales or minima of the first (`half` 0) or last 8 outputs.
///
/// # Safety
/// `at` is below the number of those in the precision of the form.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn factors<C: Codes>(of: PanelFactors<'_>, at: usize, half: usize) -> __m256 {
    if C::FORM.full {
        // SAFETY: as promised by the caller.
        let values = &unsafe { of.full.get_unchecked(at) }[8 * half..8 * half + 8];
        // SAFETY: 32 bytes of a slice of that size.
        return unsafe { _mm256_loadu_ps(values.as_ptr()) };
    }
    // SAFETY: as promised by the caller.
    let values = &unsafe { of.half.get_unchecked(at) }[8 * half..8 * half + 8];
    // SAFETY: 16 bytes of a slice of that size.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
}
