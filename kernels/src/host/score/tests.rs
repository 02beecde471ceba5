//! Summaries against what they say of the keys, and masses against a naive f64 form over the
//! dequantised keys; both against themselves on other instruction sets, threads and places (P1).

use std::num::NonZeroUsize;

use half::f16;
use ids::{SlotIdx, SummaryIdx};

use crate::{
    Device, HeadShape, HostDevice, HostOptions, HugePages, Isa, KvWrite, Score, ScoreSequence,
    SlotArena, SlotShape, Summarise, SummaryArena, SummaryKind, SummaryShape,
};

const LAYERS: usize = 2;

fn device(isa: Isa, threads: usize) -> HostDevice {
    let threads = NonZeroUsize::new(threads).unwrap();
    HostDevice::open(HostOptions { isa: Some(isa), threads, huge_pages: HugePages::Off }).unwrap()
}

fn value(seed: usize, at: usize) -> f32 {
    let mixed = (seed as u64 * 0x9e37_79b9 + at as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
    ((mixed >> 40) as f32 / (1 << 24) as f32 - 0.5) * 4.0
}

/// A sequence with keys of one layer, rows at its end, and where its slots and units lie.
struct Case {
    shape: HeadShape,
    kind: SummaryKind,
    tokens: usize,
    rows: usize,
    /// `[token][kv_heads * head_dim]`.
    keys: Vec<f32>,
    /// `[row][heads * head_dim]`.
    queries: Vec<f32>,
    first_slot: u32,
    first_unit: u32,
}

impl Case {
    fn new(shape: HeadShape, kind: SummaryKind, (tokens, rows): (usize, usize)) -> Self {
        let keys = (0..tokens * shape.kv_heads * shape.head_dim).map(|at| value(1, at)).collect();
        let queries = (0..rows * shape.heads * shape.head_dim).map(|at| value(2, at)).collect();
        Self { shape, kind, tokens, rows, keys, queries, first_slot: 3, first_unit: 2 }
    }

    fn blocks(&self) -> usize {
        self.tokens.div_ceil(16)
    }

    /// All blocks that no row lies in.
    fn sealed(&self) -> usize {
        (self.tokens - self.rows) / 16
    }

    fn slot(&self, block: usize, head: usize) -> SlotIdx {
        SlotIdx(self.first_slot + (block * self.shape.kv_heads + head) as u32)
    }

    /// Writes keys and summaries; the second layer's summaries are those of the first.
    fn store(&self, device: &HostDevice) -> (SlotArena, SummaryArena) {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let mut stream = device.stream().unwrap();
        let slots = device.slots(SlotShape { head_dim, count: 400 }).unwrap();
        let mut k = device.buffer(self.keys.len()).unwrap();
        device.upload(&mut stream, &self.keys, &mut k, 0);
        let places: Vec<SlotIdx> = (0..self.tokens)
            .flat_map(|token| (0..kv_heads).map(move |head| self.slot(token / 16, head)))
            .collect();
        let positions: Vec<u32> = (0..self.tokens as u32).collect();
        let launch = KvWrite { kv_heads, k: &k, v: &k, slots: &places, positions: &positions };
        device.kv_write(&mut stream, &slots, launch);
        let shape = SummaryShape { kind: self.kind, head_dim, layers: LAYERS, kv_heads, count: 60 };
        let summaries = device.summaries(shape).unwrap();
        let from: Vec<SlotIdx> = (0..self.sealed())
            .flat_map(|block| {
                (0..LAYERS * kv_heads).map(move |column| self.slot(block, column % kv_heads))
            })
            .collect();
        let launch = Summarise { from: &from, to: &self.units() };
        device.summarise(&mut stream, &slots, &summaries, launch);
        (slots, summaries)
    }

    fn units(&self) -> Vec<SummaryIdx> {
        (0..self.sealed() as u32).map(|block| SummaryIdx(self.first_unit + block)).collect()
    }

    /// `[row][kv_head][block]`.
    fn masses(&self, device: &HostDevice, by_keys: bool) -> Vec<f32> {
        let (slots, summaries) = self.store(device);
        let mut stream = device.stream().unwrap();
        let mut q = device.buffer(self.queries.len()).unwrap();
        device.upload(&mut stream, &self.queries, &mut q, 0);
        let sealed = if by_keys { 0 } else { self.sealed() };
        let units = self.units();
        let exact: Vec<Vec<SlotIdx>> = (0..self.shape.kv_heads)
            .map(|head| (sealed..self.blocks()).map(|block| self.slot(block, head)).collect())
            .collect();
        let exact: Vec<&[SlotIdx]> = exact.iter().map(Vec::as_slice).collect();
        let first = (self.tokens - self.rows) as u32;
        let positions: Vec<u32> = (first..).take(self.rows).collect();
        let len = self.rows * self.shape.kv_heads * self.blocks();
        let mut mass = device.buffer(len).unwrap();
        let launch = Score {
            shape: self.shape,
            layer: 1,
            q: &q,
            positions: &positions,
            sequences: &[ScoreSequence {
                rows: 0..self.rows,
                summaries: &units[..sealed],
                exact: &exact,
            }],
            scale: 1.0 / (self.shape.head_dim as f32).sqrt(),
            stride: self.blocks(),
            mass: &mut mass,
        };
        device.score(&mut stream, &slots, &summaries, launch);
        mass.as_slice().to_vec()
    }

    /// The stored key of a token.
    fn key(&self, token: usize, head: usize) -> Vec<f64> {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let from = &self.keys[(token * kv_heads + head) * head_dim..][..head_dim];
        from.iter().map(|key| f64::from(f16::from_f32(*key).to_f32())).collect()
    }

    /// What stands for the keys of a sealed block: per token, what its summary says.
    fn summarised(&self, block: usize, head: usize) -> Vec<Vec<f64>> {
        let d = self.shape.head_dim;
        let keys: Vec<Vec<f64>> = (0..16).map(|token| self.key(block * 16 + token, head)).collect();
        let rounded = |value: f64| f64::from(f16::from_f32(value as f32).to_f32());
        let coded = |key: f64, least: f64, step: f64, codes: f64| {
            let code = ((key - least) / step).round_ties_even().clamp(0.0, codes);
            least + code * step
        };
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(value), b.max(value)))
        };
        match self.kind {
            SummaryKind::Int4 => keys
                .iter()
                .map(|key| {
                    let (least, most) = range(&mut key.iter().copied());
                    let step = rounded((most - least) / 15.0);
                    key.iter().map(|key| coded(*key, least, step, 15.0)).collect()
                })
                .collect(),
            SummaryKind::Int2 | SummaryKind::MinMax8 => {
                let mut out = keys.clone();
                for channel in 0..d {
                    let (least, most) = range(&mut keys.iter().map(|key| key[channel]));
                    let step = rounded((most - least) / 3.0);
                    for token in &mut out {
                        token[channel] = coded(token[channel], least, step, 3.0);
                    }
                }
                out
            }
        }
    }

    /// By the book, `[row][kv_head][block]`.
    fn naive(&self, by_keys: bool) -> Vec<f64> {
        let HeadShape { heads, kv_heads, head_dim } = self.shape;
        let group = heads / kv_heads;
        let mut out = Vec::new();
        for row in 0..self.rows {
            let position = self.tokens - self.rows + row;
            for head in 0..kv_heads {
                let mut keys: Vec<Vec<f64>> = Vec::new();
                for block in 0..self.blocks() {
                    if !by_keys && block < self.sealed() {
                        keys.extend(self.summarised(block, head));
                    } else {
                        let end = self.tokens.min(block * 16 + 16);
                        keys.extend((block * 16..end).map(|token| self.key(token, head)));
                    }
                }
                let mut mass = vec![0.0; self.blocks()];
                for query in head * group..(head + 1) * group {
                    let q = &self.queries[(row * heads + query) * head_dim..][..head_dim];
                    let score = |key: &Vec<f64>| -> f64 {
                        let dot: f64 = q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum();
                        dot / (head_dim as f64).sqrt()
                    };
                    let weights: Vec<f64> =
                        keys[..=position].iter().map(|key| score(key).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for (token, weight) in weights.iter().enumerate() {
                        mass[token / 16] += weight / total / group as f64;
                    }
                }
                out.extend(mass);
            }
        }
        out
    }
}

const SHAPES: [HeadShape; 4] = [
    HeadShape { heads: 9, kv_heads: 3, head_dim: 64 },
    HeadShape { heads: 7, kv_heads: 1, head_dim: 128 },
    HeadShape { heads: 2, kv_heads: 2, head_dim: 16 },
    HeadShape { heads: 4, kv_heads: 2, head_dim: 256 },
];

#[test]
fn masses_are_those_of_the_book_over_what_summaries_say() {
    let device = device(Isa::detect(), 2);
    for shape in SHAPES {
        for (tokens, rows) in [(100, 1), (128, 1), (131, 5), (40, 3), (9, 2)] {
            // 8-bit queries cost int4 a few percent; int2 and stored keys are f32.
            for (kind, by_keys, bound) in [
                (SummaryKind::Int4, false, 0.06),
                (SummaryKind::Int2, false, 3e-5),
                (SummaryKind::Int4, true, 3e-5),
            ] {
                let case = Case::new(shape, kind, (tokens, rows));
                let got = case.masses(&device, by_keys);
                for (at, (got, want)) in got.iter().zip(case.naive(by_keys)).enumerate() {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= bound * want.max(0.01), "{shape:?} {kind} {at}: {got} {want}");
                }
                for sum in got.chunks_exact(case.blocks()).map(|row| row.iter().sum::<f32>()) {
                    assert!((sum - 1.0).abs() < 1e-5, "{shape:?} {kind}: {sum}");
                }
            }
        }
    }
}

#[test]
fn a_bound_of_minmax8_is_none_that_a_key_exceeds() {
    let device = device(Isa::detect(), 1);
    for shape in SHAPES {
        let case = Case::new(shape, SummaryKind::MinMax8, (64, 1));
        let (_, summaries) = case.store(&device);
        let d = shape.head_dim;
        summaries.read(|units| {
            for (block, unit) in case.units().into_iter().enumerate() {
                for head in 0..shape.kv_heads {
                    let words = units.column(unit, head);
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let half = |at: usize| {
                        f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32())
                    };
                    let (offset, step) = (half(2 * d), half(2 * d + 2));
                    for token in 0..16 {
                        for (channel, key) in case.key(block * 16 + token, head).iter().enumerate()
                        {
                            let least = offset + f64::from(bytes[channel]) * step;
                            let most = offset + f64::from(bytes[d + channel]) * step;
                            assert!(
                                (least - 1e-6..=most + 1e-6).contains(key),
                                "{least} {key} {most}"
                            );
                            assert!(most - least < 4.1, "a bound says something");
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn p1_masses_and_summaries_are_the_same_bits_everywhere() {
    for kind in SummaryKind::ALL {
        for shape in SHAPES {
            let mut first: Option<(Vec<u32>, Vec<u8>)> = None;
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                for (threads, first_slot, first_unit) in [(1, 3, 2), (3, 40, 9)] {
                    let device = device(isa, threads);
                    let mut case = Case::new(shape, kind, (203, 5));
                    (case.first_slot, case.first_unit) = (first_slot, first_unit);
                    let mass = case.masses(&device, false);
                    let mass: Vec<u32> = mass.iter().map(|mass| mass.to_bits()).collect();
                    let (_, summaries) = case.store(&device);
                    let mut stream = device.stream().unwrap();
                    let units = case.units();
                    let mut bytes = vec![0; units.len() * summaries.shape().unit_bytes()];
                    device.gather_summaries(&mut stream, &summaries, &units, &mut bytes).unwrap();
                    let got = (mass, bytes);
                    let want = first.get_or_insert_with(|| got.clone());
                    assert!(*want == got, "{kind} {shape:?} {isa} {threads}");
                }
            }
        }
    }
}

#[test]
fn p1_a_row_alone_has_the_masses_that_it_has_in_company() {
    let device = device(Isa::detect(), 2);
    let kinds = SummaryKind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)]);
    for (kind, by_keys) in kinds {
        let shape = SHAPES[0];
        let all = Case::new(shape, kind, (203, 5));
        let together = all.masses(&device, by_keys);
        let per_row = shape.kv_heads * all.blocks();
        for row in 0..5 {
            let mut one = Case::new(shape, kind, (199 + row, 1));
            one.queries = all.queries[row * 9 * 64..(row + 1) * 9 * 64].to_vec();
            assert_eq!(one.sealed(), all.sealed(), "the same blocks are summarised");
            let alone = one.masses(&device, by_keys);
            for head in 0..shape.kv_heads {
                let got = &alone[head * one.blocks()..][..one.blocks()];
                let want = &together[row * per_row + head * all.blocks()..][..one.blocks()];
                assert_eq!(got, want, "{kind} row {row} head {head}");
            }
        }
    }
}

#[test]
fn units_that_were_carried_elsewhere_score_alike() {
    let device = device(Isa::detect(), 1);
    for kind in SummaryKind::ALL {
        let case = Case::new(SHAPES[0], kind, (100, 1));
        let (_, summaries) = case.store(&device);
        let mut stream = device.stream().unwrap();
        let unit = summaries.shape().unit_bytes();
        let mut bytes = vec![0; unit];
        device.gather_summaries(&mut stream, &summaries, &[SummaryIdx(3)], &mut bytes).unwrap();
        device.scatter_summaries(&mut stream, &summaries, &bytes, &[SummaryIdx(50)]);
        summaries.read(|units| {
            for column in 0..LAYERS * 3 {
                let (from, to) = (SummaryIdx(3), SummaryIdx(50));
                assert_eq!(units.column(from, column), units.column(to, column));
                assert!(units.column(from, column).iter().any(|word| *word != 0));
            }
        });
    }
}

#[test]
fn equal_keys_and_keys_that_are_not_finite_are_summarised_without_a_panic() {
    let device = device(Isa::detect(), 1);
    for kind in SummaryKind::ALL {
        let mut case = Case::new(SHAPES[0], kind, (100, 1));
        case.keys[..16 * 192].fill(0.25);
        case.keys[16 * 192..32 * 192].fill(0.0);
        let mass = case.masses(&device, false);
        assert!(mass.iter().all(|mass| mass.is_finite() && *mass >= 0.0), "{kind}");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            case.keys[40 * 192 + 7] = bad;
            let mass = case.masses(&device, false);
            // The spoiled head says nothing, the others are as they were.
            let clean = &mass[case.blocks()..];
            assert!(clean.iter().all(|mass| mass.is_finite()), "{kind} {bad}");
            assert!(mass[..case.blocks()].iter().any(|mass| !mass.is_finite()), "{kind} {bad}");
        }
    }
}
