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
    /// To the nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self * 2^exponent` for an integral `exponent`, by adding to the exponent field; the
    /// caller knows that the result is a normal number or overflows to infinity.
    fn shift_exponent(self, exponent: Self) -> Self;
    /// `+0` in the lanes where `key < limit`, `self` elsewhere.
    fn zero_where_below(self, key: Self, limit: Self) -> Self;
    /// Whether no lane is infinite or NaN.
    fn all_finite(self) -> bool;
    /// To i16, ties to even; the caller knows that the values fit.
    fn store_i16(self, to: &mut [i16; LANES]);

    /// The lanes from `count` on replaced by minus infinity.
    #[inline(always)]
    fn keep_first(self, count: usize) -> Self {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        for lane in lanes.iter_mut().skip(count) {
            *lane = f32::NEG_INFINITY;
        }
        Self::load(&lanes)
    }

    /// Sum over the lanes by the tree i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1).
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        tree_sum(lanes)
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
            lanes[lane] = if lanes[lane] > other {
                lanes[lane]
            } else {
                other
            };
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
        Self(from.map(|bits| f16::from_bits(bits).to_f32()))
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
            *lane = lane.mul_add(factor, addend);
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
    fn round(self) -> Self {
        self.each(f32::round_ties_even)
    }

    #[inline(always)]
    fn shift_exponent(self, exponent: Self) -> Self {
        self.zip(exponent, |value, exponent| {
            f32::from_bits(
                value
                    .to_bits()
                    .wrapping_add(((exponent as i32) << 23) as u32),
            )
        })
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
