//! Every scheme against what transformers 5.24 computes (`ROPE_INIT_FUNCTIONS`, in f32) for heads
//! of 16, and numbers out of range.

use super::{RopeScaling, Yarn, YarnAttention};
use crate::math;
use crate::rope::{RopeError, RopeSpec, RopeStyle, RopeTable};

const YARN: Yarn = Yarn {
    factor: 4.0,
    original_context: 32_768,
    beta_fast: 32.0,
    beta_slow: 1.0,
    truncate: true,
    attention: YarnAttention::Paper,
};

const LLAMA3: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_context: 8192,
};

fn frequencies(theta: f64, scaling: RopeScaling) -> Result<(Vec<f64>, f64), RopeError> {
    let step = math::ln(theta) / 8.0;
    let mut out: Vec<f64> = (0..8).map(|pair| math::exp_f64(-f64::from(pair) * step)).collect();
    let attention = scaling.apply(theta, &mut out)?;
    Ok((out, attention))
}

#[test]
fn frequencies_and_factors_are_those_of_transformers() {
    let yarn_betas = Yarn {
        factor: 16.0,
        original_context: 4096,
        beta_fast: 8.0,
        beta_slow: 2.0,
        truncate: false,
        ..YARN
    };
    let scales = YarnAttention::Scales { mscale: 0.707, mscale_all_dim: 1.0 };
    let yarn_scales = Yarn { factor: 40.0, original_context: 4096, attention: scales, ..YARN };
    let given = YarnAttention::Given(0.75);
    let yarn_given = Yarn { factor: 2.0, original_context: 64, attention: given, ..YARN };
    let llama3_short = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 64,
    };
    #[rustfmt::skip]
    let cases: [(f64, RopeScaling, [f64; 8], f64); 7] = [
        (1e4, RopeScaling::Linear { factor: 4.0 },
         [0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
          0.000250000012, 7.90569466e-05], 1.0),
        (5e5, LLAMA3,
         [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05,
          6.64786967e-06, 1.28917316e-06], 1.0),
        (1e4, llama3_short,
         [1.0, 0.236687109, 0.00372535503, 0.000988211832, 0.000312499993, 9.88211832e-05,
          3.12500015e-05, 9.88211832e-06], 1.0),
        (1e6, RopeScaling::Yarn(YARN),
         [1.0, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05,
          7.90569356e-06, 1.40585337e-06], 1.138629436111989),
        (1e4, RopeScaling::Yarn(yarn_betas),
         [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00861553662, 0.00026239577,
          6.2500003e-05, 1.97642366e-05], 1.2772588722239782),
        (1e4, RopeScaling::Yarn(yarn_scales),
         [1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176,
          2.49999994e-05, 7.90569447e-06], 0.9210423553163399),
        (1e4, RopeScaling::Yarn(yarn_given),
         [1.0, 0.263523132, 0.0666666627, 0.0158113893, 0.00499999989, 0.00158113893,
          0.000500000024, 0.000158113893], 0.75),
    ];
    for (theta, scaling, expected, factor) in cases {
        let (ours, attention) = frequencies(theta, scaling).unwrap();
        for (pair, (ours, theirs)) in ours.iter().zip(expected).enumerate() {
            // What single precision leaves of a power and a slope.
            assert!((ours / theirs - 1.0).abs() < 3e-6, "{scaling:?}, {pair}: {ours} {theirs}");
        }
        assert!((attention - factor).abs() < 1e-12, "{scaling:?}: {attention} {factor}");
    }
}

#[test]
fn a_stretch_of_one_changes_nothing() {
    let plain = frequencies(1e4, RopeScaling::None).unwrap();
    let one = Yarn { factor: 1.0, ..YARN };
    for scaling in [RopeScaling::Linear { factor: 1.0 }, RopeScaling::Yarn(one)] {
        let (ours, attention) = frequencies(1e4, scaling).unwrap();
        assert_eq!(attention, 1.0);
        for (ours, plain) in ours.iter().zip(&plain.0) {
            assert!((ours / plain - 1.0).abs() < 1e-15, "{scaling:?}");
        }
    }
}

#[test]
fn divisors_of_a_file_give_the_table_of_the_scheme_that_they_were_made_for() {
    let spec = RopeSpec {
        style: RopeStyle::Halves,
        head_dim: 16,
        rotated: 16,
        theta: 5e5,
        scaling: LLAMA3,
        positions: 20_000,
    };
    let scheme = RopeTable::try_new(spec).unwrap();
    let plain = frequencies(5e5, RopeScaling::None).unwrap().0;
    let stretched = frequencies(5e5, LLAMA3).unwrap().0;
    let divisors: Vec<f32> =
        plain.iter().zip(&stretched).map(|(plain, long)| (plain / long) as f32).collect();
    let plain = RopeSpec { scaling: RopeScaling::None, ..spec };
    let stored = RopeTable::with_divisors(plain, &divisors).unwrap();
    for position in [0, 1, 8191, 19_999] {
        let mut rows = [[0.5f32; 16]; 2];
        scheme.rotate(&mut rows[0], position);
        stored.rotate(&mut rows[1], position);
        for (a, b) in rows[0].iter().zip(&rows[1]) {
            assert!((a - b).abs() < 1e-4, "{position}: {a} {b}");
        }
    }
}

#[test]
fn the_factor_of_yarn_is_on_sines_and_cosines() {
    let yarn = Yarn { attention: YarnAttention::Given(0.5), ..YARN };
    let spec = RopeSpec {
        style: RopeStyle::Interleaved,
        head_dim: 16,
        rotated: 16,
        theta: 1e4,
        scaling: RopeScaling::Yarn(yarn),
        positions: 2,
    };
    let mut row = [1.0f32; 16];
    RopeTable::try_new(spec).unwrap().rotate(&mut row, 0);
    assert_eq!(row, [0.5; 16]);
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let refused = |scaling| frequencies(1e4, scaling).unwrap_err().to_string();
    assert!(refused(RopeScaling::Linear { factor: 0.5 }).contains("factor 0.5"));
    assert!(refused(RopeScaling::Linear { factor: f64::NAN }).contains("factor NaN"));
    let flat = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 4.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    assert!(refused(flat).contains("high_freq_factor"));
    for (yarn, field) in [
        (Yarn { factor: f64::INFINITY, ..YARN }, "factor inf"),
        (Yarn { original_context: 0, ..YARN }, "original context 0"),
        (Yarn { beta_slow: 0.0, ..YARN }, "beta_slow 0"),
        (Yarn { beta_fast: 0.5, ..YARN }, "beta_fast 0.5"),
        (Yarn { attention: YarnAttention::Given(0.0), ..YARN }, "attention factor 0"),
    ] {
        assert!(refused(RopeScaling::Yarn(yarn)).contains(field), "{yarn:?}");
    }
}
