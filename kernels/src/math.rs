//! Elementary functions of our own: exp, exp2 over lanes in f32; ln, exp, sin and cos in f64 for
//! tables and log-probabilities. Fixed sequences of exactly rounded operations, so every machine
//! gives the same bits; they do not set errno and do not cover arguments that a step never has.

use crate::lanes::Lanes;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the product of the first with an integer below 2^12 is exact (Cephes).
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// 2^x is a normal number from here on; below, it is taken as zero.
const EXP2_MIN: f32 = -126.0;

/// e^x for x below is taken as zero, above as e^88: far outside what a step can tell apart.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// ln 2 and pi/2 in parts, as in fdlibm.
const LN_2_HIGH_F64: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW_F64: f64 = 1.908_214_929_270_587_7e-10;
const HALF_PI_1: f64 = 1.570_796_326_734_125_6;
const HALF_PI_2: f64 = 6.077_100_506_303_966e-11;
const HALF_PI_3: f64 = 2.022_266_248_795_950_6e-21;

/// 2^f on [-0.5, 0.5], highest power first (Cephes `exp2f`, Moshier).
const EXP2_COEFFICIENTS: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_5e-3, 9.618_437e-3, 5.550_332_3e-2, 2.402_264_8e-1, 6.931_472e-1];

/// (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2] (Cephes `expf`).
const EXP_COEFFICIENTS: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

#[inline(always)]
fn polynomial<V: Lanes, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut value = V::splat(coefficients[0]);
    for &coefficient in coefficients.iter().skip(1) {
        value = value.fma(x, V::splat(coefficient));
    }
    value
}

/// 2^x for x <= 0, within 2 units in the last place; 0 below -126, NaN stays.
#[inline(always)]
pub(crate) fn exp2<V: Lanes>(x: V) -> V {
    let bounded = V::splat(EXP2_MIN).max(x);
    let (whole, exponent) = bounded.nearest();
    let fraction = bounded.sub(whole);
    let power = polynomial(fraction, EXP2_COEFFICIENTS).fma(fraction, V::splat(1.0));
    power.add_bits(exponent).zero_where_below(x, V::splat(EXP2_MIN))
}

/// e^x, within 2 units in the last place; 0 below -87, e^88 from 88 on, NaN stays.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    let clamped = V::splat(EXP_MIN).max(V::splat(EXP_MAX).min(x));
    let (whole, exponent) = clamped.mul(V::splat(LOG2_E)).nearest();
    let high = whole.fma(V::splat(-LN_2_HIGH), clamped);
    let rest = whole.fma(V::splat(-LN_2_LOW), high);
    let square = rest.mul(rest);
    let power = polynomial(rest, EXP_COEFFICIENTS).fma(square, rest).add(V::splat(1.0));
    power.add_bits(exponent).zero_where_below(x, V::splat(EXP_MIN))
}

/// x / (1 + e^-x).
#[inline(always)]
pub(crate) fn silu<V: Lanes>(x: V) -> V {
    let decay = exp(V::splat(0.0).sub(x));
    x.div(V::splat(1.0).add(decay))
}

/// Natural logarithm of a positive normal number, to about 1e-15 relative.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh((m - 1) / (m + 1)); the argument is below 0.172, eleven terms suffice.
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    let mut series = 0.0;
    for odd in (0..11_u32).rev() {
        series = series * square + 1.0 / f64::from(2 * odd + 1);
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * ratio * series
}

/// e^x for |x| < 700, to about 1e-15 relative.
pub(crate) fn exp_f64(x: f64) -> f64 {
    let whole = (x * std::f64::consts::LOG2_E).round_ties_even();
    let rest = x - whole * LN_2_HIGH_F64 - whole * LN_2_LOW_F64;
    let mut series = 1.0;
    for term in (1..=15_u32).rev() {
        series = series * rest / f64::from(term) + 1.0;
    }
    f64::from_bits(((whole as i64 + 1023) as u64) << 52) * series
}

/// Sine and cosine of 0 <= x < 2^26, to about 1e-15 absolute.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    // Cody and Waite: the first two parts have 33 bits each, so their products with a quadrant
    // count below 2^20 or so are exact.
    let quadrant = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let rest = x - quadrant * HALF_PI_1 - quadrant * HALF_PI_2 - quadrant * HALF_PI_3;
    let square = rest * rest;
    let (mut sine, mut cosine) = (1.0, 1.0);
    for term in (1..=9_u32).rev() {
        let two = f64::from(2 * term);
        sine = 1.0 - sine * square / (two * (two + 1.0));
        cosine = 1.0 - cosine * square / (two * (two - 1.0));
    }
    let sine = sine * rest;
    match quadrant as i64 & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

#[cfg(test)]
mod tests;
