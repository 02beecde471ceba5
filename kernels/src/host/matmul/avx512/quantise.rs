//! Hot path. Activations to 16 bits with AVX-512: the same numbers as `quantise_lanes`, which it
//! spares the way of every block through memory.

use std::arch::x86_64::*;

use crate::{
    host::matmul::quantise::{BlockFactors, Order, RowMut, scale_of},
    isa::{Active, Isa},
    lanes::LANES,
    weight::BLOCK,
};

/// Quantises the blocks of a row.
pub(in crate::host::matmul) fn quantise(active: Active, x: &[f32], order: Order, to: RowMut<'_>) {
    assert_eq!(active.isa(), Isa::Avx512, "only for machines that have it");
    // SAFETY: an `Active` of this kind exists only where the features were detected.
    unsafe { row(x, order, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn row(x: &[f32], order: Order, mut to: RowMut<'_>) {
    for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
        let (bytes, factors) = to.block(block);
        let halves = x.as_chunks::<LANES>().0;
        let (first, second) = (load(&halves[0]), load(&halves[1]));
        // A NaN is lost in the maximum, so each half is looked at.
        let limit = _mm512_set1_ps(f32::MAX);
        let (a, b) = (_mm512_abs_ps(first), _mm512_abs_ps(second));
        let inside =
            _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, limit) & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(b, limit);
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
        let (scale, inverse) = scale_of(largest, inside == 0xffff);
        let mut codes = [_mm512_setzero_si512(); 2];
        if inverse != 0.0 {
            let inverse = _mm512_set1_ps(inverse);
            codes[0] = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
            codes[1] = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
        }
        let high = [_mm512_srai_epi32::<8>(codes[0]), _mm512_srai_epi32::<8>(codes[1])];
        let sums = sums([codes[0], codes[1], _mm512_add_epi32(high[0], high[1])]);
        let sum = sums[0] + sums[1];
        *factors = BlockFactors {
            scale,
            scaled_sum: sum as f32 * scale,
            offset: -8 * sum,
            half_offsets: [-8 * sums[0], -8 * sums[1]],
            high_offset: -128 * sums[2],
        };
        match order {
            Order::Words => {
                let (halves, _) = bytes.as_chunks_mut::<BLOCK>();
                store_32(_mm512_cvtsepi32_epi16(codes[0]), &mut halves[0]);
                store_32(_mm512_cvtsepi32_epi16(codes[1]), &mut halves[1]);
            }
            Order::Bytes => {
                let (parts, _) = bytes.as_chunks_mut::<LANES>();
                for half in 0..2 {
                    store_16(lowest_bytes(high[half]), &mut parts[half]);
                    store_16(lowest_bytes(codes[half]), &mut parts[2 + half]);
                }
            }
        }
    }
}

/// The lowest byte of each, every four in the order 0, 2, 1, 3.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn lowest_bytes(of: __m512i) -> __m128i {
    _mm512_cvtepi32_epi8(_mm512_shuffle_epi32::<0b11_01_10_00>(of))
}

/// Sums over the lanes of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn sums([a, b, c]: [__m512i; 3]) -> [i32; 3] {
    let (a, b, c) = (quarter(a), quarter(b), quarter(c));
    let four = _mm_hadd_epi32(_mm_hadd_epi32(a, b), _mm_hadd_epi32(c, c));
    [_mm_extract_epi32::<0>(four), _mm_extract_epi32::<1>(four), _mm_extract_epi32::<2>(four)]
}

/// Sums of every fourth lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn quarter(lanes: __m512i) -> __m128i {
    let upper = _mm512_extracti64x4_epi64::<1>(lanes);
    let eight = _mm256_add_epi32(_mm512_castsi512_si256(lanes), upper);
    _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 values of 4 bytes.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn store_32(value: __m256i, to: &mut [u8; BLOCK]) {
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn store_16(value: __m128i, to: &mut [u8; LANES]) {
    // SAFETY: 16 bytes.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
}
