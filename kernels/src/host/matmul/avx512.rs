//! Hot path. The codes of a panel times quantised rows with AVX-512 VNNI: one register holds the
//! 16 outputs, up to 8 rows share the unpacked codes.

use std::arch::x86_64::*;

use super::{Codes, PASS_ROWS, Products, QuantisedRow};
use crate::{
    isa::{Active, Isa},
    weight::{CodePanel, PanelFactors},
};

/// How far ahead of its use a panel is asked for: a page, which the hardware does not cross.
const AHEAD_BYTES: usize = 4096;

pub(super) fn multiply<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>],
    products: &mut [Products],
) {
    assert_eq!(active.isa(), Isa::Avx512, "only for machines that have it");
    macro_rules! tile {
        ($count:literal) => {{
            let rows: &[QuantisedRow<'_>; $count] = rows.first_chunk().expect("that many rows");
            let to: &mut [Products; $count] = products.first_chunk_mut().expect("as many products");
            // SAFETY: the features were detected; the caller has checked the lengths.
            unsafe { tile::<C, $count>(panel, rows, to) }
        }};
    }
    match rows.len() {
        1 => tile!(1),
        2 => tile!(2),
        3 => tile!(3),
        4 => tile!(4),
        5 => tile!(5),
        6 => tile!(6),
        7 => tile!(7),
        PASS_ROWS => tile!(8),
        count => unreachable!("a pass has 1 to {PASS_ROWS} rows, not {count}"),
    }
}

/// # Safety
/// The codes, scales, minima and rows have as many blocks as `panel.parts` says.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tile<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>; R],
    products: &mut [Products; R],
) {
    let code_bytes = C::FORM.part_bytes();
    let groups = code_bytes / 64;
    let mut sums = [_mm512_setzero_ps(); R];
    for part in 0..panel.parts {
        let mut whole = [_mm512_setzero_si512(); R];
        for group in 0..groups {
            // SAFETY: inside the codes of this part.
            let at = unsafe { panel.codes.as_ptr().add(part * code_bytes + group * 64) };
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD_BYTES).cast());
            // SAFETY: 64 bytes of this group.
            let codes = unsafe { _mm512_loadu_si512(at.cast()) };
            let input = part * C::FORM.part_inputs() + group * 32 / C::FORM.bits;
            if C::FORM.bits == 4 {
                let mask = _mm512_set1_epi16(0x0f);
                let unpacked = [
                    _mm512_and_si512(codes, mask),
                    _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask),
                    _mm512_and_si512(_mm512_srli_epi16::<8>(codes), mask),
                    _mm512_srli_epi16::<12>(codes),
                ];
                // SAFETY: `input` and the 7 after it are inputs of this part.
                unsafe { accumulate(&mut whole, unpacked, rows, input) };
            } else {
                let unpacked = if C::FORM.signed {
                    let low = _mm512_slli_epi16::<8>(codes);
                    [_mm512_srai_epi16::<8>(low), _mm512_srai_epi16::<8>(codes)]
                } else {
                    let mask = _mm512_set1_epi16(0xff);
                    [_mm512_and_si512(codes, mask), _mm512_srli_epi16::<8>(codes)]
                };
                // SAFETY: `input` and the 3 after it are inputs of this part.
                unsafe { accumulate(&mut whole, unpacked, rows, input) };
            }
        }
        // SAFETY: `part` is below the number of parts.
        unsafe { scale::<C, R>(panel, rows, part, whole, &mut sums) };
    }
    for (sum, product) in sums.iter().zip(products) {
        // SAFETY: a product has 16 values.
        unsafe { _mm512_storeu_ps(product.as_mut_ptr(), *sum) };
    }
}

/// Adds the products of unpacked pairs of codes with the rows' pairs of activations.
///
/// # Safety
/// The rows have `2 * PAIRS` codes from `input` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn accumulate<const R: usize, const PAIRS: usize>(
    whole: &mut [__m512i; R],
    unpacked: [__m512i; PAIRS],
    rows: &[QuantisedRow<'_>; R],
    input: usize,
) {
    for (pair, codes) in unpacked.into_iter().enumerate() {
        for (sum, row) in whole.iter_mut().zip(rows) {
            // SAFETY: as promised by the caller.
            let at = unsafe { row.codes.as_ptr().add(input + 2 * pair) };
            // SAFETY: two codes, at any alignment.
            let x = unsafe { at.cast::<i32>().read_unaligned() };
            *sum = _mm512_dpwssd_epi32(*sum, codes, _mm512_set1_epi32(x));
        }
    }
}

/// Brings the integer sums of a part into the accumulators.
///
/// # Safety
/// `part` is below the number of parts; panel and rows have as many blocks as that says.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn scale<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    rows: &[QuantisedRow<'_>; R],
    part: usize,
    whole: [__m512i; R],
    sums: &mut [__m512; R],
) {
    let block = part / C::FORM.parts;
    // SAFETY: as promised by the caller.
    let scales = unsafe { factors::<C>(panel.scales, part) };
    let minima = if C::FORM.minima {
        // SAFETY: as above.
        unsafe { factors::<C>(panel.minima, block) }
    } else {
        _mm512_setzero_ps()
    };
    for row in 0..R {
        let mut integer = whole[row];
        if C::FORM.offset != 0 {
            // SAFETY: as above.
            let sum = unsafe { *rows[row].sums.get_unchecked(block) };
            integer = _mm512_sub_epi32(integer, _mm512_set1_epi32(C::FORM.offset * sum));
        }
        // SAFETY: as above.
        let activation = unsafe { *rows[row].scales.get_unchecked(block) };
        let factor = _mm512_mul_ps(scales, _mm512_set1_ps(activation));
        sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integer), factor, sums[row]);
        if C::FORM.minima {
            // SAFETY: as above.
            let sum = unsafe { *rows[row].scaled_sums.get_unchecked(block) };
            sums[row] = _mm512_fmadd_ps(minima, _mm512_set1_ps(sum), sums[row]);
        }
    }
}

/// Scales or minima.
///
/// # Safety
/// `at` is below the number of those in the precision of the form.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn factors<C: Codes>(of: PanelFactors<'_>, at: usize) -> __m512 {
    if C::FORM.full {
        // SAFETY: as promised by the caller.
        let values = unsafe { of.full.get_unchecked(at) };
        // SAFETY: 64 bytes of an array of that size.
        return unsafe { _mm512_loadu_ps(values.as_ptr()) };
    }
    // SAFETY: as promised by the caller.
    let values = unsafe { of.half.get_unchecked(at) };
    // SAFETY: 32 bytes of an array of that size.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(values.as_ptr().cast()) })
}
