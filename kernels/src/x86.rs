//! The x86 forms of the sixteen lanes: two AVX2 registers or one of AVX-512. Lane for lane the
//! same operations as `PortableLanes`; no kernel is written here.

use std::arch::x86_64::*;

use crate::lanes::{LANES, Lanes};

/// One intrinsic. Its features are there because the lane types below are named only inside the
/// functions that `for_each_isa!` makes, which have them and are entered only when detected.
macro_rules! op {
    ($call:expr) => {{
        // SAFETY: the features are enabled in the caller, see the macro's comment; pointers come
        // from references to arrays of exactly the size that is read or written.
        unsafe { $call }
    }};
}

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes(__m256, __m256);

/// A method that does the same to both halves.
macro_rules! both {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            Self(op!($intrinsic(self.0, other.0)), op!($intrinsic(self.1, other.1)))
        }
    };
}

#[inline(always)]
fn widen_bf16(bits: __m128i) -> __m256 {
    let wide = op!(_mm256_cvtepu16_epi32(bits));
    let shifted = op!(_mm256_slli_epi32::<16>(wide));
    op!(_mm256_castsi256_ps(shifted))
}

#[inline(always)]
fn nearest_8(value: __m256) -> (__m256, __m256) {
    // A NaN becomes i32::MIN, whose shifted bits are zero.
    let whole = op!(_mm256_cvtps_epi32(value));
    let exponent = op!(_mm256_slli_epi32::<23>(whole));
    (op!(_mm256_cvtepi32_ps(whole)), op!(_mm256_castsi256_ps(exponent)))
}

#[inline(always)]
fn add_bits_8(value: __m256, bits: __m256) -> __m256 {
    let value = op!(_mm256_castps_si256(value));
    let bits = op!(_mm256_castps_si256(bits));
    let sum = op!(_mm256_add_epi32(value, bits));
    op!(_mm256_castsi256_ps(sum))
}

#[inline(always)]
fn zero_below_8(value: __m256, key: __m256, limit: __m256) -> __m256 {
    let below = op!(_mm256_cmp_ps::<_CMP_LT_OQ>(key, limit));
    op!(_mm256_andnot_ps(below, value))
}

#[inline(always)]
fn abs_8(value: __m256) -> __m256 {
    let sign = op!(_mm256_set1_ps(-0.0));
    op!(_mm256_andnot_ps(sign, value))
}

#[inline(always)]
fn finite_8(value: __m256) -> bool {
    let limit = op!(_mm256_set1_ps(f32::MAX));
    let inside = op!(_mm256_cmp_ps::<_CMP_LE_OQ>(abs_8(value), limit));
    op!(_mm256_movemask_ps(inside)) == 0xff
}

/// Products of two neighbours fit 16 bits: at most 2 * 15 * 127.
#[inline(always)]
fn add_products_8(sums: __m256i, codes: __m256i, query: __m256i) -> __m256i {
    let pairs = op!(_mm256_maddubs_epi16(codes, query));
    let ones = op!(_mm256_set1_epi16(1));
    let fours = op!(_mm256_madd_epi16(pairs, ones));
    op!(_mm256_add_epi32(sums, fours))
}

#[inline(always)]
fn pairs_8(word: __m256i, shifts: __m256i) -> __m256 {
    let shifted = op!(_mm256_srlv_epi32(word, shifts));
    let mask = op!(_mm256_set1_epi32(3));
    let pairs = op!(_mm256_and_si256(shifted, mask));
    op!(_mm256_cvtepi32_ps(pairs))
}

/// The tree of `Lanes::sum` from eight lanes on.
#[inline(always)]
fn sum_8(eight: __m256) -> f32 {
    let high = op!(_mm256_extractf128_ps::<1>(eight));
    let low = op!(_mm256_castps256_ps128(eight));
    let four = op!(_mm_add_ps(low, high));
    let upper = op!(_mm_movehl_ps(four, four));
    let two = op!(_mm_add_ps(four, upper));
    let second = op!(_mm_movehdup_ps(two));
    let one = op!(_mm_add_ss(two, second));
    op!(_mm_cvtss_f32(one))
}

impl Lanes for Avx2Lanes {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        let half = op!(_mm256_set1_ps(value));
        Self(half, half)
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        let low = op!(_mm256_loadu_ps(from.as_ptr()));
        Self(low, op!(_mm256_loadu_ps(from[8..].as_ptr())))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        op!(_mm256_storeu_ps(to.as_mut_ptr(), self.0));
        op!(_mm256_storeu_ps(to[8..].as_mut_ptr(), self.1));
    }

    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        let low = op!(_mm_loadu_si128(from.as_ptr().cast()));
        let high = op!(_mm_loadu_si128(from[8..].as_ptr().cast()));
        Self(op!(_mm256_cvtph_ps(low)), op!(_mm256_cvtph_ps(high)))
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        let low = op!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        let high = op!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        op!(_mm_storeu_si128(to.as_mut_ptr().cast(), low));
        op!(_mm_storeu_si128(to[8..].as_mut_ptr().cast(), high));
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        let low = op!(_mm_loadu_si128(from.as_ptr().cast()));
        let high = op!(_mm_loadu_si128(from[8..].as_ptr().cast()));
        Self(widen_bf16(low), widen_bf16(high))
    }

    type Codes = (__m256i, __m256i);
    type Products = (__m256i, __m256i);

    #[inline(always)]
    fn load_codes(from: &[u32; LANES]) -> Self::Codes {
        let low = op!(_mm256_loadu_si256(from.as_ptr().cast()));
        (low, op!(_mm256_loadu_si256(from[8..].as_ptr().cast())))
    }

    #[inline(always)]
    fn low_nibbles(codes: Self::Codes) -> Self::Codes {
        let mask = op!(_mm256_set1_epi8(15));
        (op!(_mm256_and_si256(codes.0, mask)), op!(_mm256_and_si256(codes.1, mask)))
    }

    #[inline(always)]
    fn high_nibbles(codes: Self::Codes) -> Self::Codes {
        let shifted = (op!(_mm256_srli_epi32::<4>(codes.0)), op!(_mm256_srli_epi32::<4>(codes.1)));
        Self::low_nibbles(shifted)
    }

    #[inline(always)]
    fn no_products() -> Self::Products {
        (op!(_mm256_setzero_si256()), op!(_mm256_setzero_si256()))
    }

    #[inline(always)]
    fn add_products(sums: Self::Products, codes: Self::Codes, query: i32) -> Self::Products {
        let query = op!(_mm256_set1_epi32(query));
        (add_products_8(sums.0, codes.0, query), add_products_8(sums.1, codes.1, query))
    }

    #[inline(always)]
    fn products(sums: Self::Products) -> Self {
        Self(op!(_mm256_cvtepi32_ps(sums.0)), op!(_mm256_cvtepi32_ps(sums.1)))
    }

    #[inline(always)]
    fn bytes(words: &[u32; 4]) -> Self {
        let all = op!(_mm_loadu_si128(words.as_ptr().cast()));
        let low = op!(_mm256_cvtepu8_epi32(all));
        let upper = op!(_mm_srli_si128::<8>(all));
        let high = op!(_mm256_cvtepu8_epi32(upper));
        Self(op!(_mm256_cvtepi32_ps(low)), op!(_mm256_cvtepi32_ps(high)))
    }

    #[inline(always)]
    fn pairs_of_bits(word: u32) -> Self {
        let word = op!(_mm256_set1_epi32(word as i32));
        let low = op!(_mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let high = op!(_mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30));
        Self(pairs_8(word, low), pairs_8(word, high))
    }

    both!(add, _mm256_add_ps);
    both!(sub, _mm256_sub_ps);
    both!(mul, _mm256_mul_ps);
    both!(div, _mm256_div_ps);
    both!(max, _mm256_max_ps);
    both!(min, _mm256_min_ps);

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        let low = op!(_mm256_fmadd_ps(self.0, factor.0, addend.0));
        Self(low, op!(_mm256_fmadd_ps(self.1, factor.1, addend.1)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(abs_8(self.0), abs_8(self.1))
    }

    #[inline(always)]
    fn nearest(self) -> (Self, Self) {
        let (low, low_exponent) = nearest_8(self.0);
        let (high, high_exponent) = nearest_8(self.1);
        (Self(low, high), Self(low_exponent, high_exponent))
    }

    #[inline(always)]
    fn add_bits(self, bits: Self) -> Self {
        Self(add_bits_8(self.0, bits.0), add_bits_8(self.1, bits.1))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        sum_8(op!(_mm256_add_ps(self.0, self.1)))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        let eight = op!(_mm256_max_ps(self.0, self.1));
        let high = op!(_mm256_extractf128_ps::<1>(eight));
        let low = op!(_mm256_castps256_ps128(eight));
        let four = op!(_mm_max_ps(low, high));
        let upper = op!(_mm_movehl_ps(four, four));
        let two = op!(_mm_max_ps(four, upper));
        let second = op!(_mm_movehdup_ps(two));
        let one = op!(_mm_max_ss(two, second));
        op!(_mm_cvtss_f32(one))
    }

    #[inline(always)]
    fn zero_where_below(self, key: Self, limit: Self) -> Self {
        Self(zero_below_8(self.0, key.0, limit.0), zero_below_8(self.1, key.1, limit.1))
    }

    #[inline(always)]
    fn all_finite(self) -> bool {
        finite_8(self.0) & finite_8(self.1)
    }

    #[inline(always)]
    fn store_i16(self, to: &mut [i16; LANES]) {
        let low = op!(_mm256_cvtps_epi32(self.0));
        let high = op!(_mm256_cvtps_epi32(self.1));
        // The pack works in 128-bit halves: 0-3, 8-11 | 4-7, 12-15; the permute puts them right.
        let packed = op!(_mm256_packs_epi32(low, high));
        let ordered = op!(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        op!(_mm256_storeu_si256(to.as_mut_ptr().cast(), ordered));
    }
}

/// Sixteen lanes in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Lanes(__m512);

macro_rules! one {
    ($name:ident, $intrinsic:ident) => {
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            Self(op!($intrinsic(self.0, other.0)))
        }
    };
}

impl Lanes for Avx512Lanes {
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(op!(_mm512_set1_ps(value)))
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(op!(_mm512_loadu_ps(from.as_ptr())))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        op!(_mm512_storeu_ps(to.as_mut_ptr(), self.0));
    }

    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        let bits = op!(_mm256_loadu_si256(from.as_ptr().cast()));
        Self(op!(_mm512_cvtph_ps(bits)))
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        let bits = op!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        op!(_mm256_storeu_si256(to.as_mut_ptr().cast(), bits));
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        let bits = op!(_mm256_loadu_si256(from.as_ptr().cast()));
        let wide = op!(_mm512_cvtepu16_epi32(bits));
        let shifted = op!(_mm512_slli_epi32::<16>(wide));
        Self(op!(_mm512_castsi512_ps(shifted)))
    }

    type Codes = __m512i;
    type Products = __m512i;

    #[inline(always)]
    fn load_codes(from: &[u32; LANES]) -> Self::Codes {
        op!(_mm512_loadu_si512(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn low_nibbles(codes: Self::Codes) -> Self::Codes {
        let mask = op!(_mm512_set1_epi8(15));
        op!(_mm512_and_si512(codes, mask))
    }

    #[inline(always)]
    fn high_nibbles(codes: Self::Codes) -> Self::Codes {
        Self::low_nibbles(op!(_mm512_srli_epi32::<4>(codes)))
    }

    #[inline(always)]
    fn no_products() -> Self::Products {
        op!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn add_products(sums: Self::Products, codes: Self::Codes, query: i32) -> Self::Products {
        let query = op!(_mm512_set1_epi32(query));
        op!(_mm512_dpbusd_epi32(sums, codes, query))
    }

    #[inline(always)]
    fn products(sums: Self::Products) -> Self {
        Self(op!(_mm512_cvtepi32_ps(sums)))
    }

    #[inline(always)]
    fn bytes(words: &[u32; 4]) -> Self {
        let all = op!(_mm_loadu_si128(words.as_ptr().cast()));
        let wide = op!(_mm512_cvtepu8_epi32(all));
        Self(op!(_mm512_cvtepi32_ps(wide)))
    }

    #[inline(always)]
    fn pairs_of_bits(word: u32) -> Self {
        let word = op!(_mm512_set1_epi32(word as i32));
        let shifts =
            op!(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
        let shifted = op!(_mm512_srlv_epi32(word, shifts));
        let mask = op!(_mm512_set1_epi32(3));
        let pairs = op!(_mm512_and_si512(shifted, mask));
        Self(op!(_mm512_cvtepi32_ps(pairs)))
    }

    one!(add, _mm512_add_ps);
    one!(sub, _mm512_sub_ps);
    one!(mul, _mm512_mul_ps);
    one!(div, _mm512_div_ps);
    one!(max, _mm512_max_ps);
    one!(min, _mm512_min_ps);

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Self(op!(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(op!(_mm512_abs_ps(self.0)))
    }

    #[inline(always)]
    fn nearest(self) -> (Self, Self) {
        // A NaN becomes i32::MIN, whose shifted bits are zero.
        let whole = op!(_mm512_cvtps_epi32(self.0));
        let exponent = op!(_mm512_slli_epi32::<23>(whole));
        (Self(op!(_mm512_cvtepi32_ps(whole))), Self(op!(_mm512_castsi512_ps(exponent))))
    }

    #[inline(always)]
    fn add_bits(self, bits: Self) -> Self {
        let value = op!(_mm512_castps_si512(self.0));
        let bits = op!(_mm512_castps_si512(bits.0));
        let sum = op!(_mm512_add_epi32(value, bits));
        Self(op!(_mm512_castsi512_ps(sum)))
    }

    #[inline(always)]
    fn zero_where_below(self, key: Self, limit: Self) -> Self {
        let kept = op!(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(key.0, limit.0));
        Self(op!(_mm512_maskz_mov_ps(kept, self.0)))
    }

    #[inline(always)]
    fn all_finite(self) -> bool {
        let limit = op!(_mm512_set1_ps(f32::MAX));
        op!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.abs().0, limit)) == 0xffff
    }

    #[inline(always)]
    fn store_i16(self, to: &mut [i16; LANES]) {
        let whole = op!(_mm512_cvtps_epi32(self.0));
        let packed = op!(_mm512_cvtsepi32_epi16(whole));
        op!(_mm256_storeu_si256(to.as_mut_ptr().cast(), packed));
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let high = op!(_mm512_extractf32x8_ps::<1>(self.0));
        let low = op!(_mm512_castps512_ps256(self.0));
        sum_8(op!(_mm256_add_ps(low, high)))
    }

    #[inline(always)]
    fn sums(vectors: [Self; LANES]) -> Self {
        // Each step adds what `sum` adds there, of twice as many vectors in one register.
        let v = vectors;
        let mut eights = [v[0].0; 8];
        for at in 0..8 {
            let (a, b) = (v[2 * at].0, v[2 * at + 1].0);
            let low = op!(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b));
            let high = op!(_mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            eights[at] = op!(_mm512_add_ps(low, high));
        }
        let mut fours = [v[0].0; 4];
        for at in 0..4 {
            let (a, b) = (eights[2 * at], eights[2 * at + 1]);
            let low = op!(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b));
            let high = op!(_mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            fours[at] = op!(_mm512_add_ps(low, high));
        }
        let mut twos = [v[0].0; 2];
        for at in 0..2 {
            let a = op!(_mm512_castps_pd(fours[2 * at]));
            let b = op!(_mm512_castps_pd(fours[2 * at + 1]));
            let low = op!(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
            let high = op!(_mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
            twos[at] = op!(_mm512_add_ps(low, high));
        }
        let even = op!(_mm512_shuffle_ps::<0b10_00_10_00>(twos[0], twos[1]));
        let odd = op!(_mm512_shuffle_ps::<0b11_01_11_01>(twos[0], twos[1]));
        let sums = op!(_mm512_add_ps(even, odd));
        // Vector i stands in 128-bit part i % 4, place i / 4.
        let order = op!(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        Self(op!(_mm512_permutexvar_ps(order, sums)))
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        op!(_mm512_reduce_max_ps(self.0))
    }
}
