//! Error bounds of the elementary functions against the standard library's f64 ones.

use super::*;
use crate::lanes::{LANES, PortableLanes};

fn one(function: fn(PortableLanes) -> PortableLanes, x: f32) -> f32 {
    let mut out = [0.0; LANES];
    function(PortableLanes::splat(x)).store(&mut out);
    out[0]
}

fn ulps(got: f32, want: f64) -> f64 {
    let unit = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
    (f64::from(got) - want).abs() / unit
}

#[test]
fn exp_and_exp2_stay_within_two_ulps() {
    let mut worst = (0.0_f64, 0.0_f64);
    for step in -86_000..88_000 {
        let x = step as f32 / 1000.0;
        worst.0 = worst.0.max(ulps(one(exp, x), f64::from(x).exp()));
        let x = x.min(0.0);
        worst.1 = worst.1.max(ulps(one(exp2, x), f64::from(x).exp2()));
    }
    assert!(worst.0 < 2.0 && worst.1 < 2.0, "exp {} exp2 {}", worst.0, worst.1);
}

#[test]
fn exp_of_extremes_is_zero_saturated_or_nan() {
    assert_eq!(one(exp2, f32::NEG_INFINITY), 0.0);
    assert_eq!(one(exp2, -126.5), 0.0);
    assert_eq!(one(exp2, -126.0), f32::MIN_POSITIVE);
    assert_eq!(one(exp2, 0.0), 1.0);
    assert!(one(exp2, f32::NAN).is_nan());
    assert_eq!(one(exp, -100.0), 0.0);
    assert_eq!(one(exp, f32::NEG_INFINITY), 0.0);
    assert!(one(exp, f32::INFINITY).is_finite());
    assert!(one(exp, f32::NAN).is_nan());
    assert_eq!(one(silu, 0.0), 0.0);
    assert!(one(silu, -200.0).abs() < 1e-30 && one(silu, 200.0) == 200.0);
}

#[test]
fn sine_and_cosine_hold_to_1e_12_over_a_million_positions() {
    for step in 0..200_000_u32 {
        let x = f64::from(step) * 5.237_1;
        let (sine, cosine) = sin_cos(x);
        assert!((sine - x.sin()).abs() < 1e-12 && (cosine - x.cos()).abs() < 1e-12, "{x}");
    }
}

#[test]
fn logarithm_and_exponential_hold_to_1e_14() {
    for step in 1..20_000_i32 {
        let x = f64::from(step) * 0.37;
        assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "{x}");
        let y = f64::from(step - 10_000) * 0.03;
        assert!((exp_f64(y) / y.exp() - 1.0).abs() < 1e-14, "{y}");
    }
}
