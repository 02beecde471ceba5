//! Attention against a naive f64 form, and against itself on other instruction sets, threads,
//! chunks and neighbours (P1).

use std::num::NonZeroUsize;

use half::f16;
use ids::SlotIdx;

use crate::{
    Attend, AttendSequence, AttendTable, Device, HeadShape, HostDevice, HostOptions, HugePages,
    Isa, KvWrite, SlotArena, SlotShape,
};

fn device(isa: Isa, threads: usize) -> HostDevice {
    HostDevice::open(HostOptions {
        isa: Some(isa),
        threads: NonZeroUsize::new(threads).unwrap(),
        huge_pages: HugePages::Off,
    })
    .unwrap()
}

fn value(seed: usize, at: usize) -> f32 {
    let mixed = (seed as u64 * 0x9e37_79b9 + at as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
    ((mixed >> 40) as f32 / (1 << 24) as f32 - 0.5) * 4.0
}

fn values(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| value(seed, at)).collect()
}

/// A sequence with its own q, k and v, and its blocks somewhere in the arena.
struct Sequence {
    shape: HeadShape,
    len: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    tables: Vec<Vec<SlotIdx>>,
}

impl Sequence {
    /// `stride` and `first` decide where slots lie; they must not matter.
    fn new(shape: HeadShape, seed: usize, len: usize, first: u32, stride: u32) -> Self {
        let blocks = len.div_ceil(16) as u32;
        let table = |head: usize| {
            (0..blocks)
                .map(|block| {
                    let reversed = blocks - 1 - block;
                    SlotIdx(first + (reversed * shape.kv_heads as u32 + head as u32) * stride)
                })
                .collect()
        };
        let width = shape.kv_heads * shape.head_dim;
        Self {
            shape,
            len,
            q: values(seed, len * shape.heads * shape.head_dim),
            k: values(seed + 1, len * width),
            v: values(seed + 2, len * width),
            tables: (0..shape.kv_heads).map(table).collect(),
        }
    }

    fn write(&self, device: &HostDevice, arena: &SlotArena, positions: std::ops::Range<usize>) {
        let width = self.shape.kv_heads * self.shape.head_dim;
        let mut stream = device.stream().unwrap();
        let part = |all: &[f32]| {
            let from = &all[positions.start * width..positions.end * width];
            let mut buffer = device.buffer(from.len()).unwrap();
            device.upload(&mut device.stream().unwrap(), from, &mut buffer, 0);
            buffer
        };
        let (k, v) = (part(&self.k), part(&self.v));
        let slots: Vec<SlotIdx> = positions
            .clone()
            .flat_map(|position| self.tables.iter().map(move |table| table[position / 16]))
            .collect();
        let positions: Vec<u32> = positions.map(|position| position as u32).collect();
        let kv_heads = self.shape.kv_heads;
        let launch = KvWrite { kv_heads, k: &k, v: &v, slots: &slots, positions: &positions };
        device.kv_write(&mut stream, arena, launch);
    }

    /// Row `position` by the book, over the stored (rounded) k and v.
    fn naive(&self, position: usize) -> Vec<f64> {
        let all = vec![(0..=position / 16).collect(); self.shape.kv_heads];
        self.naive_over(position, &all)
    }

    /// The same over some blocks of each KV head.
    fn naive_over(&self, position: usize, chosen: &[Vec<usize>]) -> Vec<f64> {
        let HeadShape { heads, kv_heads, head_dim } = self.shape;
        let stored = |x: f32| f64::from(f16::from_f32(x).to_f32());
        let mut out = Vec::new();
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let at = |token: usize, d: usize| (token * kv_heads + kv_head) * head_dim + d;
            let q = &self.q[(position * heads + head) * head_dim..][..head_dim];
            let tokens: Vec<usize> =
                (0..=position).filter(|token| chosen[kv_head].contains(&(token / 16))).collect();
            let scores: Vec<f64> = tokens
                .iter()
                .map(|&token| {
                    let dot: f64 =
                        (0..head_dim).map(|d| f64::from(q[d]) * stored(self.k[at(token, d)])).sum();
                    dot / (head_dim as f64).sqrt()
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let weighted: f64 = tokens
                    .iter()
                    .zip(&weights)
                    .map(|(&token, weight)| weight * stored(self.v[at(token, d)]))
                    .sum();
                out.push(weighted / sum);
            }
        }
        out
    }
}

/// Attends the given rows of some sequences in one launch; one vector per row.
fn attend(
    device: &HostDevice,
    arena: &SlotArena,
    rows: &[(&Sequence, std::ops::Range<usize>)],
) -> Vec<Vec<f32>> {
    let shape = rows[0].0.shape;
    let width = shape.heads * shape.head_dim;
    let mut q = Vec::new();
    let mut positions = Vec::new();
    let tables: Vec<Vec<AttendTable<'_>>> = rows
        .iter()
        .map(|(sequence, _)| {
            sequence.tables.iter().map(|slots| AttendTable::dense(slots)).collect()
        })
        .collect();
    let mut sequences = Vec::new();
    for ((sequence, range), tables) in rows.iter().zip(&tables) {
        let first = positions.len();
        q.extend_from_slice(&sequence.q[range.start * width..range.end * width]);
        positions.extend(range.clone().map(|position| position as u32));
        sequences.push(AttendSequence { rows: first..positions.len(), tables });
    }
    let mut stream = device.stream().unwrap();
    let mut input = device.buffer(q.len()).unwrap();
    device.upload(&mut stream, &q, &mut input, 0);
    let mut out = device.buffer::<f32>(q.len()).unwrap();
    let launch = Attend {
        shape,
        q: &input,
        positions: &positions,
        sequences: &sequences,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        out: &mut out,
    };
    device.attend(&mut stream, arena, launch);
    out.as_slice().chunks_exact(width).map(<[f32]>::to_vec).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

fn arena(device: &HostDevice, head_dim: usize) -> SlotArena {
    device.slots(SlotShape { head_dim, count: 4000 }).unwrap()
}

const SMOLLM2: HeadShape = HeadShape { heads: 9, kv_heads: 3, head_dim: 64 };

#[test]
fn attention_is_within_2e_5_of_a_naive_one_for_many_shapes() {
    let shapes = [
        SMOLLM2,
        HeadShape { heads: 4, kv_heads: 4, head_dim: 16 },
        HeadShape { heads: 14, kv_heads: 2, head_dim: 64 },
        HeadShape { heads: 8, kv_heads: 1, head_dim: 112 },
        HeadShape { heads: 2, kv_heads: 2, head_dim: 256 },
    ];
    for shape in shapes {
        let device = device(Isa::detect(), 2);
        let arena = arena(&device, shape.head_dim);
        let sequence = Sequence::new(shape, 1, 75, 3, 2);
        sequence.write(&device, &arena, 0..75);
        for (position, row) in attend(&device, &arena, &[(&sequence, 0..75)]).iter().enumerate() {
            for (got, want) in row.iter().zip(sequence.naive(position)) {
                let error = (f64::from(*got) - want).abs();
                assert!(error < 2e-5, "{shape:?} {position}: {error:e}");
            }
        }
    }
}

#[test]
fn p1_bits_do_not_depend_on_isa_threads_chunks_or_neighbours() {
    let len = 1100;
    let reference = device(Isa::Portable, 1);
    let memory = arena(&reference, 64);
    let sequence = Sequence::new(SMOLLM2, 10, len, 0, 1);
    sequence.write(&reference, &memory, 0..len);
    let rows: Vec<usize> = vec![0, 1, 15, 16, 17, 500, 1023, 1024, 1039, 1098, 1099];
    let want: Vec<_> = rows
        .iter()
        .map(|&row| bits(&attend(&reference, &memory, &[(&sequence, row..row + 1)])).remove(0))
        .collect();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
        for threads in [1, 2] {
            let device = device(isa, threads);
            let arena = arena(&device, 64);
            // The same content in other slots, written in chunks, with neighbours.
            let moved = Sequence::new(SMOLLM2, 10, len, 700, 3);
            let other = Sequence::new(SMOLLM2, 50, 100, 0, 1);
            moved.write(&device, &arena, 0..300);
            other.write(&device, &arena, 0..100);
            moved.write(&device, &arena, 300..len);
            for (&row, want) in rows.iter().zip(&want) {
                let alone = attend(&device, &arena, &[(&moved, row..row + 1)]);
                assert_eq!(bits(&alone)[0], *want, "{isa} {threads} alone {row}");
                let from = row.saturating_sub(20);
                let batch: &[_] = &[(&other, 3..9), (&moved, from..row + 1), (&other, 99..100)];
                let batch = attend(&device, &arena, batch);
                assert_eq!(bits(&batch)[6 + row - from], *want, "{isa} {threads} batch {row}");
            }
            let chunk = attend(&device, &arena, &[(&moved, 400..len)]);
            for (&row, want) in rows.iter().zip(&want).filter(|(row, _)| **row >= 400) {
                assert_eq!(bits(&chunk)[row - 400], *want, "{isa} {threads} chunk {row}");
            }
        }
    }
}

/// Attends rows `rows` of a sequence to some of its blocks, chosen for each KV head.
fn attend_to(
    device: &HostDevice,
    arena: &SlotArena,
    sequence: &Sequence,
    rows: std::ops::Range<usize>,
    chosen: &[Vec<usize>],
) -> Vec<Vec<f32>> {
    let shape = sequence.shape;
    let width = shape.heads * shape.head_dim;
    let last = (rows.end - 1) / 16;
    let slots: Vec<Vec<SlotIdx>> = (chosen.iter().zip(&sequence.tables))
        .map(|(chosen, table)| chosen.iter().map(|&block| table[block]).collect())
        .collect();
    let tables: Vec<AttendTable<'_>> = (slots.iter())
        .map(|slots| AttendTable { slots, absent: (last + 1 - slots.len()) as u32 })
        .collect();
    let mut stream = device.stream().unwrap();
    let mut q = device.buffer(rows.len() * width).unwrap();
    device.upload(&mut stream, &sequence.q[rows.start * width..rows.end * width], &mut q, 0);
    let mut out = device.buffer(rows.len() * width).unwrap();
    let positions: Vec<u32> = rows.clone().map(|row| row as u32).collect();
    let launch = Attend {
        shape,
        q: &q,
        positions: &positions,
        sequences: &[AttendSequence { rows: 0..rows.len(), tables: &tables }],
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        out: &mut out,
    };
    device.attend(&mut stream, arena, launch);
    out.as_slice().chunks_exact(width).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_subset_is_attended_to_as_by_the_book_and_alike_everywhere() {
    let len = 1500;
    let sequence = Sequence::new(SMOLLM2, 70, len, 0, 1);
    // Of 94 blocks, other ones for each KV head; the rows lie in the last two.
    let chosen: Vec<Vec<usize>> =
        [7, 3, 1].map(|step| (0..92).step_by(step).chain(92..94).collect()).into();
    let rows = 1485..1491;
    let mut seen: Option<Vec<Vec<u32>>> = None;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
        for threads in [1, 3] {
            let device = device(isa, threads);
            let arena = arena(&device, 64);
            sequence.write(&device, &arena, 0..len);
            let out = attend_to(&device, &arena, &sequence, rows.clone(), &chosen);
            for (row, out) in rows.clone().zip(&out) {
                let want = sequence.naive_over(row, &chosen);
                for (got, want) in out.iter().zip(want) {
                    assert!((f64::from(*got) - want).abs() < 2e-5, "{isa} {row}");
                }
            }
            // Each row alone, with the blocks up to its own.
            for (row, out) in rows.clone().zip(&out) {
                let up_to = |chosen: &Vec<usize>| {
                    chosen.iter().copied().filter(|block| *block <= row / 16).collect()
                };
                let own: Vec<Vec<usize>> = chosen.iter().map(up_to).collect();
                let alone = attend_to(&device, &arena, &sequence, row..row + 1, &own);
                assert_eq!(bits(&alone)[0], bits(std::slice::from_ref(out))[0], "{isa} {row}");
            }
            let out = bits(&out);
            assert_eq!(*seen.get_or_insert_with(|| out.clone()), out, "{isa} {threads}");
        }
    }
}

#[test]
fn p1_all_blocks_as_a_subset_are_dense_attention() {
    let device = device(Isa::detect(), 2);
    let arena = arena(&device, 64);
    let sequence = Sequence::new(SMOLLM2, 80, 1100, 0, 1);
    sequence.write(&device, &arena, 0..1100);
    let all = vec![(0..69).collect(); 3];
    let subset = attend_to(&device, &arena, &sequence, 1090..1100, &all);
    assert_eq!(bits(&subset), bits(&attend(&device, &arena, &[(&sequence, 1090..1100)])));
}

#[test]
fn p1_a_drafted_row_changes_nothing_before_it() {
    let device = device(Isa::detect(), 2);
    let arena = arena(&device, 64);
    let mut sequence = Sequence::new(SMOLLM2, 90, 500, 0, 1);
    sequence.write(&device, &arena, 0..500);
    let chosen: Vec<Vec<usize>> = vec![(0..30).step_by(2).chain(30..32).collect(); 3];
    let before = attend_to(&device, &arena, &sequence, 494..499, &chosen);
    let other = Sequence::new(SMOLLM2, 91, 500, 0, 1);
    let (wide, narrow) = (9 * 64, 3 * 64);
    sequence.q[497 * wide..].copy_from_slice(&other.q[497 * wide..]);
    sequence.k[497 * narrow..].copy_from_slice(&other.k[497 * narrow..]);
    sequence.v[497 * narrow..].copy_from_slice(&other.v[497 * narrow..]);
    sequence.write(&device, &arena, 497..500);
    let after = attend_to(&device, &arena, &sequence, 494..499, &chosen);
    assert_eq!(bits(&before[..3]), bits(&after[..3]));
    assert_ne!(bits(&before[3..]), bits(&after[3..]));
}

#[test]
fn p1_tokens_behind_a_rows_position_change_nothing() {
    let device = device(Isa::detect(), 1);
    let arena = arena(&device, 64);
    let sequence = Sequence::new(SMOLLM2, 20, 40, 0, 1);
    sequence.write(&device, &arena, 0..21);
    let before = attend(&device, &arena, &[(&sequence, 20..21)]);
    sequence.write(&device, &arena, 21..40);
    assert_eq!(bits(&before), bits(&attend(&device, &arena, &[(&sequence, 20..21)])));
}

#[test]
fn p1_a_row_that_is_not_finite_comes_out_as_nan_and_leaves_the_others_alone() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
        let device = device(isa, 1);
        let arena = arena(&device, 64);
        let mut sequence = Sequence::new(SMOLLM2, 30, 40, 0, 1);
        sequence.write(&device, &arena, 0..40);
        let clean = attend(&device, &arena, &[(&sequence, 30..40)]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            sequence.q[33 * 9 * 64 + 5] = bad;
            let rows = attend(&device, &arena, &[(&sequence, 30..40)]);
            assert!(rows[3][..64].iter().all(|value| value.is_nan()), "{isa} {bad}");
            assert_eq!(bits(&rows[..3]), bits(&clean[..3]));
            assert_eq!(bits(&rows[4..]), bits(&clean[4..]));
        }
    }
}

#[test]
fn slots_gathered_and_scattered_elsewhere_attend_alike() {
    let device = device(Isa::detect(), 2);
    let arena = arena(&device, 64);
    let mut stream = device.stream().unwrap();
    let sequence = Sequence::new(SMOLLM2, 40, 50, 0, 1);
    sequence.write(&device, &arena, 0..50);
    let want = attend(&device, &arena, &[(&sequence, 49..50)]);
    let ids: Vec<SlotIdx> = sequence.tables.concat();
    let moved = Sequence::new(SMOLLM2, 40, 50, 1000, 2);
    let mut bytes = vec![0; ids.len() * 4096];
    device.gather(&mut stream, &arena, &ids, &mut bytes).unwrap();
    device.scatter(&mut stream, &arena, &bytes, &moved.tables.concat());
    device.zero(&mut stream, &arena, &ids);
    assert_eq!(bits(&attend(&device, &arena, &[(&moved, 49..50)])), bits(&want));
    device.gather(&mut stream, &arena, &ids, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn a_slot_is_k_transposed_then_v_in_half_precision_and_unused_lanes_stay_zero() {
    let device = device(Isa::detect(), 1);
    let arena = arena(&device, 16);
    let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 16 };
    let sequence = Sequence::new(shape, 60, 3, 5, 1);
    sequence.write(&device, &arena, 0..3);
    let mut bytes = vec![0; 1024];
    device.gather(&mut device.stream().unwrap(), &arena, &[SlotIdx(5)], &mut bytes).unwrap();
    let halves: Vec<f16> =
        bytes.chunks_exact(2).map(|pair| f16::from_le_bytes([pair[0], pair[1]])).collect();
    for token in 0..16 {
        for d in 0..16 {
            let (k, v) = match token < 3 {
                true => (sequence.k[token * 16 + d], sequence.v[token * 16 + d]),
                false => (0.0, 0.0),
            };
            assert_eq!(halves[d * 16 + token], f16::from_f32(k));
            assert_eq!(halves[256 + token * 16 + d], f16::from_f32(v));
        }
    }
    assert_eq!(sequence.len, 3);
}
