//! The bits of the numerics class (P1): a change of any kernel's arithmetic must change
//! `NUMERICS_CLASS`, and this golden value with it.

use std::num::NonZeroUsize;

use ids::SlotIdx;

use super::*;
use crate::{
    AttendSequence, AttendTable, Epilogue, HeadShape, MatmulOutput, RopeScaling, RopeSpec,
    RopeStyle, WeightFormat,
};

/// Small exact numbers in a fixed order.
fn number(at: usize) -> f32 {
    ((at * 2_654_435_761) % 4093) as f32 / 2048.0 - 1.0
}

fn filled(device: &HostDevice, len: usize) -> HostBuffer<f32> {
    let mut buffer = device.buffer::<f32>(len).unwrap();
    for (at, value) in buffer.as_mut_slice().iter_mut().enumerate() {
        *value = number(at);
    }
    buffer
}

const ROWS: usize = 19;
const WIDTH: usize = 64;
const SHAPE: HeadShape = HeadShape { heads: 4, kv_heads: 4, head_dim: 16 };

fn weight(device: &HostDevice, format: WeightFormat) -> PackedWeight {
    let blocks = WIDTH * WIDTH / format.block_values();
    let half = half::f16::from_f32(0.031).to_le_bytes();
    let bytes: Vec<u8> = (0..blocks)
        .flat_map(|block| {
            let codes = (2..format.block_bytes()).map(move |at| (block * 7 + at * 13) as u8);
            half.into_iter().chain(codes)
        })
        .collect();
    device.weight(Matrix { format, n: WIDTH, k: WIDTH, bytes: &bytes }).unwrap()
}

/// Stores k and v of all rows and attends.
fn attend(device: &HostDevice, [q, k, v]: [&HostBuffer<f32>; 3]) -> HostBuffer<f32> {
    let mut stream = device.stream().unwrap();
    let slots = device.slots(SlotShape { head_dim: 16, count: 8 }).unwrap();
    let positions: Vec<u32> = (0..ROWS as u32).collect();
    let tables: Vec<Vec<SlotIdx>> =
        (0..4).map(|head| vec![SlotIdx(head), SlotIdx(7 - head)]).collect();
    let ids: Vec<SlotIdx> =
        (0..ROWS).flat_map(|row| tables.iter().map(move |table| table[row / 16])).collect();
    let launch = KvWrite { kv_heads: 4, k, v, slots: &ids, positions: &positions };
    device.kv_write(&mut stream, &slots, launch);
    let tables: Vec<AttendTable<'_>> =
        tables.iter().map(|slots| AttendTable::dense(slots)).collect();
    let mut out = device.buffer::<f32>(ROWS * WIDTH).unwrap();
    let launch = Attend {
        shape: SHAPE,
        q,
        positions: &positions,
        sequences: &[AttendSequence { rows: 0..ROWS, tables: &tables }],
        scale: 0.25,
        out: &mut out,
    };
    device.attend(&mut stream, &slots, launch);
    out
}

/// One small layer: norm, products of every kind of weight, rope, KV, attention, gate.
fn layer(device: &HostDevice) -> Vec<f32> {
    let mut stream = device.stream().unwrap();
    let (x, gamma) = (filled(device, ROWS * WIDTH), filled(device, WIDTH));
    let mut normal = device.buffer::<f32>(ROWS * WIDTH).unwrap();
    let launch = RmsNorm { rows: ROWS, x: &x, gamma: &gamma, eps: 1e-5, y: &mut normal };
    device.rms_norm(&mut stream, launch);
    let formats = [WeightFormat::Q4_0, WeightFormat::Q8_0, WeightFormat::F16];
    let weights = formats.map(|format| weight(device, format));
    let mut products = formats.map(|_| device.buffer::<f32>(ROWS * WIDTH).unwrap());
    let epilogue = Epilogue::Store;
    let mut outputs: Vec<_> = (weights.iter().zip(&mut products))
        .map(|(weight, y)| MatmulOutput { weight, bias: None, y, epilogue })
        .collect();
    device.matmul(&mut stream, Matmul { rows: ROWS, x: &normal, outputs: &mut outputs });
    let spec = RopeSpec {
        style: RopeStyle::Interleaved,
        head_dim: 16,
        rotated: 16,
        theta: 1e4,
        scaling: RopeScaling::None,
        positions: 32,
    };
    let table = RopeTable::try_new(spec).unwrap();
    let positions: Vec<u32> = (0..ROWS as u32).collect();
    let [q, k, v] = &mut products;
    device.rope(&mut stream, &table, 4, &positions, q);
    device.rope(&mut stream, &table, 4, &positions, k);
    let mut out = attend(device, [q, k, v]);
    device.silu_mul(&mut stream, ROWS * WIDTH, &mut out, &normal);
    out.as_slice().to_vec()
}

#[test]
fn p1_the_bits_of_this_numerics_class_are_these_on_every_isa() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
        let threads = NonZeroUsize::new(2).unwrap();
        let options = HostOptions { isa: Some(isa), threads, huge_pages: HugePages::Off };
        let device = HostDevice::open(options).unwrap();
        let values = layer(&device);
        assert!(values.iter().all(|value| value.is_finite()));
        // FNV-1a over the bits.
        let digest = values.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, value| {
            (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!((NUMERICS_CLASS, digest), ("host-2", GOLDEN), "{isa}: {digest:#018x}");
    }
}

/// Of class host-2; a new value needs a new class.
const GOLDEN: u64 = 0x0182_5592_e112_a6bc;

#[test]
fn an_instruction_set_that_is_missing_is_refused_with_the_best_there_is() {
    for isa in Isa::ALL {
        let opened = HostDevice::open(HostOptions { isa: Some(isa), ..HostOptions::default() });
        match opened {
            Ok(device) => assert!(isa.supported() && device.isa() == isa),
            Err(error) => {
                assert!(!isa.supported());
                assert!(error.to_string().contains(Isa::detect().name()));
            }
        }
    }
}
