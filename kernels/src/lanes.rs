//! Sixteen virtual f32 lanes: the vector that every kernel is written over, and its portable
//! form. The x86 forms are in `x86`. A lane operation here is one IEEE 754 operation per lane, so
//! all forms agree bit for bit (the payload of a NaN excepted).

use half::{bf16, f16};

/// The number of lanes, the same on every instruction set.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values. Implementations are named only by `for_each_isa!`, inside functions that
/// have the target features they need; every method must be inlined there.
pub(crate) trait Lanes: Copy {
    /// Whether 32 vector registers of 16 lanes are there, or 16 of 8: how wide a tile may be.
    const WIDE: bool;

    fn splat(value: f32) -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    /// IEEE half precision, widened exactly.
    fn load_f16(from: &[u16; LANES]) -> Self;
    /// Rounded to half precision, ties to even.
    fn store_f16(self, to: &mut [u16; LANES]);
    /// bfloat16, widened exactly.
    fn load_bf16(from: &[u16; LANES]) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// `if self > other { self } else { other }`: a NaN in `other` survives.
    fn max(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`: a NaN in `other` survives.
    fn min(self, other: Self) -> Self;
    fn abs(self) -> Self;
    /// The nearest integer, ties to even, as a value and, as bits, in the place of an exponent;
    /// the caller knows that it fits i32. Of a NaN the value is any number and the bits are 0.
    fn nearest(self) -> (Self, Self);
    /// The sum of the bits, as integers: `self * 2^n` for the second value of `nearest`, where
    /// the caller knows that the result is a normal number or overflows to infinity.
    fn add_bits(self, bits: Self) -> Self;
    /// `+0` in the lanes where `key < limit`, `self` elsewhere.
    fn zero_where_below(self, key: Self, limit: Self) -> Self;
    /// Whether no lane is infinite or NaN.
    fn all_finite(self) -> bool;
    /// Sixteen words of codes.
    type Codes: Copy;
    /// Sixteen sums of products of codes, as integers.
    type Products: Copy;

    fn load_codes(from: &[u32; LANES]) -> Self::Codes;
    /// The lower four bits of each byte.
    fn low_nibbles(codes: Self::Codes) -> Self::Codes;
    /// The upper four bits of each byte.
    fn high_nibbles(codes: Self::Codes) -> Self::Codes;
    fn no_products() -> Self::Products;
    /// Adds the products of each lane's four bytes, at most 15, with four signed bytes of `query`,
    /// not -128.
    fn add_products(sums: Self::Products, codes: Self::Codes, query: i32) -> Self::Products;
    /// The sums as values; the caller knows that they are below 2^24.
    fn products(sums: Self::Products) -> Self;
    /// The bytes of four words, the first one lowest, as values.
    fn bytes(words: &[u32; 4]) -> Self;
    /// Bits 2i and 2i + 1 of the word in lane i, as values.
    fn pairs_of_bits(word: u32) -> Self;

    /// To i16, ties to even; the caller knows that the values fit.
    fn store_i16(self, to: &mut [i16; LANES]);

    /// The first lane.
    #[inline(always)]
    fn first(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes[0]
    }

    /// Sum over the lanes by the tree i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        tree_sum(lanes)
    }

    /// In lane i the sum over the lanes of vector i, each by the tree of [`Self::sum`].
    #[inline(always)]
    fn sums(vectors: [Self; LANES]) -> Self {
        Self::load(&vectors.map(Self::sum))
    }

    /// The largest lane (of lanes without NaN, where order does not matter).
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        tree_max(lanes)
    }
}

#[inline(always)]
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

#[inline(always)]
fn tree_max(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let other = lanes[lane + half];
            lanes[lane] = if lanes[lane] > other { lanes[lane] } else { other };
        }
    }
    lanes[0]
}

/// Plain Rust, one lane after the other.
#[derive(Clone, Copy)]
pub(crate) struct PortableLanes([f32; LANES]);

impl PortableLanes {
    #[inline(always)]
    fn each(self, op: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(op))
    }

    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (lane, value) in out.iter_mut().zip(other.0) {
            *lane = op(*lane, value);
        }
        Self(out)
    }
}

impl From<[f32; LANES]> for PortableLanes {
    #[inline(always)]
    fn from(lanes: [f32; LANES]) -> Self {
        Self(lanes)
    }
}

/// Half precision widened exactly, in a form that compilers vectorise. The exponent is moved to
/// its place by a multiplication, which is exact and normalises subnormal numbers.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let magnitude = (f32::from_bits((bits & 0x7fff) << 13) * REBIAS).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude | special | (bits & 0x8000) << 16)
}

/// `a * b + c` rounded once. Where the machine has no such instruction the C library is called
/// for each value; this does the same in f64, in a form that compilers vectorise.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        return a.mul_add(b, c);
    }
    // The product is exact in f64. The sum is rounded to odd (Boldo and Melquiond 2008): when it
    // is inexact, which the error term of TwoSum tells, the neighbour with the odd mantissa is
    // taken, and rounding that to f32 is then right, subnormal results included.
    let product = f64::from(a) * f64::from(b);
    let addend = f64::from(c);
    let sum = product + addend;
    let part = sum - product;
    let error = (product - (sum - part)) + (addend - part);
    let bits = sum.to_bits();
    // Away from zero when the error has the sum's sign, else towards it. A NaN error (the sum is
    // infinite or NaN) compares as neither.
    let inexact = u64::from(error < 0.0) | u64::from(error > 0.0);
    let even = inexact & !bits & 1;
    let opposite = (error.to_bits() ^ bits) >> 63;
    let odd = bits.wrapping_add(even).wrapping_sub(2 * (even & opposite));
    f64::from_bits(odd) as f32
}

impl Lanes for PortableLanes {
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }

    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Self {
        Self(from.map(widened))
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [u16; LANES]) {
        *to = self.0.map(|value| f16::from_f32(value).to_bits());
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        Self(from.map(|bits| bf16::from_bits(bits).to_f32()))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        let mut out = self.0;
        for ((lane, factor), addend) in out.iter_mut().zip(factor.0).zip(addend.0) {
            *lane = fused(*lane, factor, addend);
        }
        Self(out)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.each(f32::abs)
    }

    #[inline(always)]
    fn nearest(self) -> (Self, Self) {
        let whole = self.0.map(|value| value.round_ties_even() as i32);
        let exponent = whole.map(|whole| f32::from_bits((whole << 23) as u32));
        (Self(whole.map(|whole| whole as f32)), Self(exponent))
    }

    #[inline(always)]
    fn add_bits(self, bits: Self) -> Self {
        self.zip(bits, |value, bits| f32::from_bits(value.to_bits().wrapping_add(bits.to_bits())))
    }

    type Codes = [u32; LANES];
    type Products = [i32; LANES];

    #[inline(always)]
    fn load_codes(from: &[u32; LANES]) -> Self::Codes {
        *from
    }

    #[inline(always)]
    fn low_nibbles(codes: Self::Codes) -> Self::Codes {
        codes.map(|word| word & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn high_nibbles(codes: Self::Codes) -> Self::Codes {
        codes.map(|word| word >> 4 & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn no_products() -> Self::Products {
        [0; LANES]
    }

    #[inline(always)]
    fn add_products(sums: Self::Products, codes: Self::Codes, query: i32) -> Self::Products {
        let query = query.to_le_bytes();
        let mut out = sums;
        for (sum, word) in out.iter_mut().zip(codes) {
            for (code, query) in word.to_le_bytes().into_iter().zip(query) {
                *sum += i32::from(code) * i32::from(query as i8);
            }
        }
        out
    }

    #[inline(always)]
    fn products(sums: Self::Products) -> Self {
        Self(sums.map(|sum| sum as f32))
    }

    #[inline(always)]
    fn bytes(words: &[u32; 4]) -> Self {
        let mut out = [0.0; LANES];
        for (four, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *four = word.to_le_bytes().map(f32::from);
        }
        Self(out)
    }

    #[inline(always)]
    fn pairs_of_bits(word: u32) -> Self {
        let mut out = [0.0; LANES];
        for (lane, value) in out.iter_mut().enumerate() {
            *value = (word >> (2 * lane) & 3) as f32;
        }
        Self(out)
    }

    #[inline(always)]
    fn zero_where_below(self, key: Self, limit: Self) -> Self {
        let mut out = self.0;
        for ((lane, key), limit) in out.iter_mut().zip(key.0).zip(limit.0) {
            if key < limit {
                *lane = 0.0;
            }
        }
        Self(out)
    }

    #[inline(always)]
    fn all_finite(self) -> bool {
        self.0.iter().all(|lane| lane.is_finite())
    }

    #[inline(always)]
    fn store_i16(self, to: &mut [i16; LANES]) {
        *to = self.0.map(|value| value.round_ties_even() as i16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_half_precision_numbers_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widened(bits), f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits}");
        }
    }

    /// The library's fmaf is rounded once by definition.
    #[test]
    fn p1_the_portable_fma_is_rounded_once() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        let equal = |a: f32, b: f32, c: f32| {
            let (got, want) = (fused(a, b, c), a.mul_add(b, c));
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{a:e} * {b:e} + {c:e}: {got:e}, not {want:e}"
            );
        };
        for _ in 0..3_000_000 {
            let (a, b) = (f32::from_bits(next()), f32::from_bits(next()));
            equal(a, b, f32::from_bits(next()));
            // Close to cancelling, to a tie, and to the subnormals.
            let scale = f32::from_bits((next() % 64 + 60) << 23);
            equal(a, b, -(a * b) * (1.0 + scale));
            equal(a, scale, b * scale);
            equal(a * 1e-30, b * 1e-12, f32::from_bits(next() % (1 << 24)));
        }
        let special = [0.0, -0.0, 1.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN];
        for a in special {
            for b in special {
                for c in special {
                    equal(a, b, c);
                    equal(a, -b, c);
                }
            }
        }
    }
}
