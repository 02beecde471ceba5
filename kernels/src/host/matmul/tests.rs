//! Matmul against an f64 reference, against itself on other instruction sets, threads and rows
//! (P1), and with rows that are not finite.

use std::num::NonZeroUsize;

use half::{bf16, f16};
use proptest::prelude::*;

use crate::{
    Device, Epilogue, HostDevice, HostOptions, HugePages, Isa, Matmul, MatmulOutput, Matrix,
    PackedWeight, WeightError, WeightFormat,
};

fn device(isa: Isa, threads: usize) -> HostDevice {
    HostDevice::open(HostOptions {
        isa: Some(isa),
        threads: NonZeroUsize::new(threads).unwrap(),
        huge_pages: HugePages::Off,
    })
    .unwrap()
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.supported())
}

/// A small generator: the same numbers on every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }

    fn value(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }
}

/// Where a block of the file has its scale, minimum or their units, in half precision.
fn units(format: WeightFormat) -> &'static [usize] {
    match format {
        WeightFormat::Q4_0 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => &[0],
        WeightFormat::Q4_1 | WeightFormat::Q5_1 => &[0, 2],
        WeightFormat::Q4_K | WeightFormat::Q5_K => &[0, 2],
        WeightFormat::Q6_K => &[208],
        WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::F32 => &[],
    }
}

/// A number of inputs near `k` that the format can have.
fn inputs(format: WeightFormat, k: usize) -> usize {
    k.next_multiple_of(format.block_values())
}

/// Random bytes of a matrix of the file, with scales of a usual size.
fn file_bytes(format: WeightFormat, n: usize, k: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut bytes = Vec::new();
    for _ in 0..n * k / format.block_values() {
        match format {
            WeightFormat::F16 => {
                bytes.extend(f16::from_f32(numbers.value()).to_le_bytes());
            }
            WeightFormat::Bf16 => {
                bytes.extend(bf16::from_f32(numbers.value()).to_le_bytes());
            }
            WeightFormat::F32 => bytes.extend(numbers.value().to_le_bytes()),
            _codes => {
                // Scales of two levels multiply numbers up to 63 or 127 with their unit.
                let size = if format.block_values() == 256 { 1e-3 } else { 0.05 };
                let mut unit = || f16::from_f32(numbers.value() * size).to_le_bytes();
                let (units, count) = ([unit(), unit()], units(format));
                let rest = format.block_bytes() - 2 * count.len();
                let rest: Vec<u8> = (0..rest).map(|_| numbers.next() as u8).collect();
                let at = bytes.len();
                bytes.extend(rest);
                for (place, unit) in count.iter().zip(units) {
                    let place = at + place;
                    bytes.splice(place..place, unit);
                }
            }
        }
    }
    bytes
}

fn pack(format: WeightFormat, n: usize, k: usize, bytes: &[u8]) -> PackedWeight {
    PackedWeight::pack(Matrix { format, n, k, bytes }, HugePages::Off).unwrap()
}

fn activations(rows: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut numbers = Numbers(seed);
    (0..rows * k).map(|_| numbers.value()).collect()
}

fn multiply(device: &HostDevice, weight: &PackedWeight, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / weight.inputs();
    let mut stream = device.stream().unwrap();
    let mut input = device.buffer(x.len()).unwrap();
    device.upload(&mut stream, x, &mut input, 0);
    let mut y = device.buffer::<f32>(rows * weight.outputs()).unwrap();
    let epilogue = Epilogue::Store;
    let outputs = &mut [MatmulOutput { weight, bias: None, y: &mut y, epilogue }];
    device.matmul(&mut stream, Matmul { rows, x: &input, outputs });
    y.as_slice().to_vec()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A matrix of 4 x 512 as the file has it, and the `gguf` package's values of it: see
/// integration-tests/goldens.
fn golden(format: WeightFormat) -> (Vec<u8>, Vec<f32>) {
    let name = format!("{format:?}").to_uppercase();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration-tests/goldens/formats");
    let read = |kind| std::fs::read(format!("{folder}/{name}.{kind}")).unwrap();
    let values = read("f32");
    let values = values.as_chunks::<4>().0.iter();
    let values = values.map(|value| f32::from_le_bytes(*value));
    (read("stored"), values.collect())
}

#[test]
fn p1_dequantised_rows_are_those_of_the_gguf_package_bit_for_bit() {
    for format in WeightFormat::ALL {
        let (stored, values) = golden(format);
        let (n, k) = (4, 512);
        // Six times, so that it takes a second panel, which is not full.
        let weight = pack(format, 6 * n, k, &stored.repeat(6));
        for row in 0..6 * n {
            let mut out = vec![0.0; k];
            weight.dequantise_row(row, &mut out);
            let want = &values[row % n * k..][..k];
            assert_eq!(bits(&out), bits(want), "{format:?} {row}");
        }
    }
}

#[test]
fn products_are_within_3e_5_of_the_largest_exact_one() {
    for format in WeightFormat::ALL {
        let (n, k, rows) = (50, inputs(format, 544), 5);
        let bytes = file_bytes(format, n, k, 2);
        let weight = pack(format, n, k, &bytes);
        let x = activations(rows, k, 3);
        let y = multiply(&device(Isa::detect(), 2), &weight, &x);
        // Those of the file, see the test above.
        let mut weights = vec![0.0; k];
        let mut worst = 0.0_f64;
        let mut largest = 0.0_f64;
        for (row, x) in x.chunks_exact(k).enumerate() {
            for output in 0..n {
                weight.dequantise_row(output, &mut weights);
                let exact: f64 =
                    weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                worst = worst.max((exact - f64::from(y[row * n + output])).abs());
                largest = largest.max(exact.abs());
            }
        }
        assert!(worst < 3e-5 * largest, "{format:?}: {worst} of {largest}");
    }
}

#[test]
fn p1_bits_do_not_depend_on_isa_threads_or_neighbouring_rows() {
    for format in WeightFormat::ALL {
        let (n, k) = (83, inputs(format, 160));
        let weight = pack(format, n, k, &file_bytes(format, n, k, 4));
        let x = activations(150, k, 5);
        let alone = |row: usize| {
            bits(&multiply(&device(Isa::Portable, 1), &weight, &x[row * k..(row + 1) * k]))
        };
        let want: Vec<Vec<u32>> = (0..150).map(alone).collect();
        for isa in isas() {
            for threads in [1, 2] {
                let device = device(isa, threads);
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 17, 150] {
                    let y = multiply(&device, &weight, &x[..rows * k]);
                    for (row, y) in y.chunks_exact(n).enumerate() {
                        assert_eq!(bits(y), want[row], "{format:?} {isa} {threads} {rows} {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_outputs_with_bias_and_residual_equal_single_launches() {
    let (k, rows) = (64, 3);
    let device = device(Isa::detect(), 2);
    let kinds = [(WeightFormat::Q4_1, 40), (WeightFormat::Q8_0, 24), (WeightFormat::F16, 17)];
    let [q, v, o] = kinds.map(|(format, n)| pack(format, n, k, &file_bytes(format, n, k, 6)));
    let x = activations(rows, k, 9);
    let mut stream = device.stream().unwrap();
    let mut input = device.buffer(x.len()).unwrap();
    device.upload(&mut stream, &x, &mut input, 0);
    let mut bias = device.buffer(40).unwrap();
    device.upload(&mut stream, &activations(1, 40, 10), &mut bias, 0);
    let mut ys = kinds.map(|(_, n)| device.buffer::<f32>(rows * n).unwrap());
    ys[1].as_mut_slice().fill(2.5);
    let [a, b, c] = &mut ys;
    let output = |weight, bias, y, epilogue| MatmulOutput { weight, bias, y, epilogue };
    let outputs = &mut [
        output(&q, Some(&bias), a, Epilogue::Store),
        output(&v, None, b, Epilogue::Add),
        output(&o, None, c, Epilogue::Store),
    ];
    device.matmul(&mut stream, Matmul { rows, x: &input, outputs });
    let plain = [&q, &v, &o].map(|weight| multiply(&device, weight, &x));
    for (at, value) in ys[0].as_slice().iter().enumerate() {
        assert_eq!(*value, plain[0][at] + bias.as_slice()[at % 40]);
    }
    for (at, value) in ys[1].as_slice().iter().enumerate() {
        assert_eq!(*value, 2.5 + plain[1][at]);
    }
    assert_eq!(bits(ys[2].as_slice()), bits(&plain[2]));
}

#[test]
fn p1_a_row_that_is_not_finite_comes_out_as_nan_and_leaves_the_others_alone() {
    for format in WeightFormat::ALL {
        let (n, k) = (20, inputs(format, 96));
        let weight = pack(format, n, k, &file_bytes(format, n, k, 11));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for isa in isas() {
                let device = device(isa, 1);
                let mut x = activations(3, k, 12);
                let clean = multiply(&device, &weight, &x);
                x[k + 40] = bad;
                let y = multiply(&device, &weight, &x);
                assert!(y[n..2 * n].iter().all(|value| !value.is_finite()), "{format:?} {isa}");
                assert_eq!(bits(&y[..n]), bits(&clean[..n]));
                assert_eq!(bits(&y[2 * n..]), bits(&clean[2 * n..]));
            }
        }
    }
}

#[test]
fn extreme_magnitudes_stay_finite_and_exact_zeros_stay_zero() {
    let (n, k) = (16, 64);
    let weight = pack(WeightFormat::Q8_0, n, k, &file_bytes(WeightFormat::Q8_0, n, k, 13));
    for isa in isas() {
        let device = device(isa, 1);
        assert!(multiply(&device, &weight, &vec![0.0; k]).iter().all(|&value| value == 0.0));
        assert!(multiply(&device, &weight, &vec![1e-38; k]).iter().all(|&value| value == 0.0));
        assert!(multiply(&device, &weight, &vec![1e36; k]).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn damaged_matrices_are_refused_with_what_is_wrong() {
    let refuse = |n, k, bytes: &[u8]| {
        let matrix = Matrix { format: WeightFormat::Q4_1, n, k, bytes };
        PackedWeight::pack(matrix, HugePages::Off).unwrap_err()
    };
    assert!(matches!(refuse(0, 32, &[]), WeightError::Shape { .. }));
    assert!(matches!(refuse(2, 33, &[0; 40]), WeightError::Shape { k: 33, .. }));
    assert!(matches!(refuse(usize::MAX, 1 << 62, &[]), WeightError::Shape { .. }));
    assert!(matches!(refuse(2, 32, &[0; 39]), WeightError::Length { expected: 40, found: 39, .. }));
    let mut bytes = [0; 40];
    bytes[20..22].copy_from_slice(&f16::INFINITY.to_le_bytes());
    assert!(matches!(refuse(2, 32, &bytes), WeightError::Scale { row: 1, block: 0 }));
}

/// Q4_0 as it is defined, read without the packed form.
fn q4_0_row(bytes: &[u8]) -> Vec<f32> {
    let values = |block: &[u8]| {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        let low = block[2..].iter().map(|byte| byte & 15);
        let codes: Vec<u8> = low.chain(block[2..].iter().map(|byte| byte >> 4)).collect();
        codes.into_iter().map(move |code| (f32::from(code) - 8.0) * scale)
    };
    bytes.chunks_exact(18).flat_map(values).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn p1_any_row_quantises_and_multiplies_alike_on_every_isa(
        x in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 256),
        seed in 0_u64..1000,
        kind in 0..WeightFormat::ALL.len(),
    ) {
        let format = WeightFormat::ALL[kind];
        let weight = pack(format, 21, 256, &file_bytes(format, 21, 256, seed));
        let want = multiply(&device(Isa::Portable, 1), &weight, &x);
        for isa in isas() {
            prop_assert_eq!(bits(&multiply(&device(isa, 1), &weight, &x)), bits(&want));
        }
    }

    #[test]
    fn packing_any_bytes_keeps_the_rows_or_names_the_scale(
        bytes in prop::collection::vec(any::<u8>(), 3 * 2 * 18),
    ) {
        let matrix = Matrix { format: WeightFormat::Q4_0, n: 3, k: 64, bytes: &bytes };
        match PackedWeight::pack(matrix, HugePages::Off) {
            Ok(weight) => {
                for (row, bytes) in bytes.chunks_exact(36).enumerate() {
                    let mut out = vec![0.0; 64];
                    weight.dequantise_row(row, &mut out);
                    prop_assert_eq!(bits(&out), bits(&q4_0_row(bytes)));
                }
            }
            Err(WeightError::Scale { row, block }) => {
                let at = row * 36 + block * 18;
                let scale = f16::from_le_bytes([bytes[at], bytes[at + 1]]);
                prop_assert!(!scale.is_finite());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}
