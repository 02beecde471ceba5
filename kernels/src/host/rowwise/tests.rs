//! The row-wise kernels against f64 references, and their bits on every instruction set, thread
//! count and row count (P1).

use std::num::NonZeroUsize;

use crate::{
    Device, HostBuffer, HostDevice, HostOptions, HugePages, Isa, Matrix, RmsNorm, RopeScaling,
    RopeSpec, RopeStyle, RopeTable, WeightFormat,
};

fn devices() -> impl Iterator<Item = HostDevice> {
    Isa::ALL.into_iter().filter(|isa| isa.supported()).flat_map(|isa| {
        [1, 2].map(|threads| {
            HostDevice::open(HostOptions {
                isa: Some(isa),
                threads: NonZeroUsize::new(threads).unwrap(),
                huge_pages: HugePages::Off,
            })
            .unwrap()
        })
    })
}

fn values(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 * 12.0 - 6.0
    };
    (0..len).map(|_| next()).collect()
}

fn buffer(device: &HostDevice, values: &[f32]) -> HostBuffer<f32> {
    let mut buffer = device.buffer(values.len()).unwrap();
    device.upload(&mut device.stream().unwrap(), values, &mut buffer, 0);
    buffer
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `kernel` on every device for 1, 3 and 40 rows of `width`, compares each row's bits with
/// those of the row alone on the portable device, and returns the 40 rows.
fn check(width: usize, kernel: impl Fn(&HostDevice, &[f32], usize) -> Vec<f32>) -> Vec<f32> {
    let x = values(7, 40 * width);
    let mut all: Option<Vec<f32>> = None;
    for device in devices() {
        for rows in [40, 3, 1] {
            let y = kernel(&device, &x[..rows * width], rows);
            let want = all.get_or_insert_with(|| y.clone());
            assert_eq!(bits(&y), bits(&want[..y.len()]), "{} {rows} rows", device.describe());
        }
    }
    all.unwrap()
}

#[test]
fn p1_rms_norm_has_one_arithmetic_and_is_within_2e_6_of_the_exact_one() {
    for width in [576, 64, 100, 7] {
        let gamma = values(3, width);
        let normalise = |device: &HostDevice, x: &[f32], rows: usize| {
            let (x, gamma) = (buffer(device, x), buffer(device, &gamma));
            let mut y = device.buffer::<f32>(rows * width).unwrap();
            let launch = RmsNorm { rows, x: &x, gamma: &gamma, eps: 1e-5, y: &mut y };
            device.rms_norm(&mut device.stream().unwrap(), launch);
            y.as_slice().to_vec()
        };
        let y = check(width, normalise);
        for (x, y) in values(7, 40 * width).chunks_exact(width).zip(y.chunks_exact(width)) {
            let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let factor = 1.0 / (squares / width as f64 + 1e-5).sqrt();
            for ((x, y), gamma) in x.iter().zip(y).zip(&gamma) {
                let want = f64::from(*x) * factor * f64::from(*gamma);
                assert!((want - f64::from(*y)).abs() < 2e-6 * want.abs().max(1.0));
            }
        }
    }
}

#[test]
fn p1_silu_mul_has_one_arithmetic_and_is_within_1e_6_of_the_exact_one() {
    for width in [1536, 19] {
        let up = values(5, 40 * width);
        let multiply = |device: &HostDevice, gate: &[f32], _: usize| {
            let (mut gate, up) = (buffer(device, gate), buffer(device, &up));
            device.silu_mul(&mut device.stream().unwrap(), gate.len(), &mut gate, &up);
            gate.as_slice().to_vec()
        };
        let y = check(width, multiply);
        for ((gate, up), y) in values(7, 40 * width).iter().zip(&up).zip(y) {
            let gate = f64::from(*gate);
            let want = gate / (1.0 + (-gate).exp()) * f64::from(*up);
            assert!((want - f64::from(y)).abs() < 1e-6 * want.abs().max(1.0));
        }
    }
}

#[test]
fn p1_add_and_rope_have_one_arithmetic() {
    let y = values(9, 40 * 384);
    check(384, |device, x, _| {
        let (mut x, y) = (buffer(device, x), buffer(device, &y));
        device.add(&mut device.stream().unwrap(), x.len(), &mut x, &y);
        x.as_slice().to_vec()
    });
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        let scaling = RopeScaling::None;
        let spec =
            RopeSpec { style, head_dim: 64, rotated: 48, theta: 1e4, scaling, positions: 3000 };
        let table = RopeTable::try_new(spec).unwrap();
        check(384, |device, x, rows| {
            let mut x = buffer(device, x);
            let positions: Vec<u32> = (0..rows as u32).map(|row| row * 73).collect();
            device.rope(&mut device.stream().unwrap(), &table, 6, &positions, &mut x);
            x.as_slice().to_vec()
        });
    }
}

#[test]
fn embedding_and_taking_rows_copy_what_was_asked_for() {
    for device in devices() {
        let mut stream = device.stream().unwrap();
        let table = values(11, 10 * 24);
        let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
        let matrix = Matrix { format: WeightFormat::F32, n: 10, k: 24, bytes: &bytes };
        let weight = device.weight(matrix).unwrap();
        let mut out = device.buffer::<f32>(4 * 24).unwrap();
        device.embed(&mut stream, &weight, &[9, 0, 9], &mut out);
        assert_eq!(out.as_slice()[..24], table[9 * 24..]);
        assert_eq!(out.as_slice()[24..48], table[..24]);
        let mut rows = device.buffer::<f32>(2 * 24).unwrap();
        device.take_rows(&mut stream, &out, 24, &[1, 2], &mut rows);
        let mut host = [0.0; 48];
        device.download(&mut stream, &rows, 0, &mut host).unwrap();
        assert_eq!(host[..24], table[..24]);
        assert_eq!(host[24..], table[9 * 24..]);
        let event = device.record(&mut stream);
        device.wait(&mut stream, &event);
        device.synchronise(&mut stream).unwrap();
    }
}
