//! Inputs of a launch of attention, made from a seed, and what the host device answers. Knows
//! nothing of where else they are run.

use std::num::NonZeroUsize;
use std::ops::Range;

use half::f16;
use kernels::{
    Attend, AttendSequence, AttendTable, Device, HeadShape, HostDevice, HostOptions, HugePages,
    SlotIdx, SlotShape, slot_bytes,
};

/// Numbers from a seed (a linear congruence, its high bits).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (((self.0 >> 32) * u64::from(end)) >> 32) as u32
    }

    /// From -`width` to `width`.
    pub(crate) fn value(&mut self, width: f32) -> f32 {
        (self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * width
    }

    /// `count` distinct numbers below `count`, in any order.
    pub(crate) fn order(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count).collect();
        for at in (1..count).rev() {
            all.swap(at as usize, self.below(at + 1) as usize);
        }
        all
    }
}

/// One launch.
pub(crate) struct Case {
    pub(crate) shape: HeadShape,
    pub(crate) scale: f32,
    /// The arena: slot after slot, in half precision.
    pub(crate) slots: Vec<u16>,
    pub(crate) positions: Vec<u32>,
    /// `[rows][heads * head_dim]`.
    pub(crate) q: Vec<f32>,
    rows: Vec<Range<usize>>,
    /// Of each sequence, of each KV head.
    tables: Vec<Vec<Vec<SlotIdx>>>,
}

impl Case {
    /// Sequences are given by the positions of their rows.
    pub(crate) fn new(shape: HeadShape, sequences: &[Range<u32>], seed: u64) -> Self {
        let mut numbers = Numbers::new(seed);
        let blocks = |positions: &Range<u32>| positions.end.div_ceil(16);
        let count = shape.kv_heads as u32 * sequences.iter().map(blocks).sum::<u32>();
        // One slot more than is used: its number is the first one that is never in a table.
        let slot_values = slot_bytes(shape.head_dim) / 2;
        let values = (count as usize + 1) * slot_values;
        let mut slots: Vec<u16> =
            (0..values).map(|_| f16::from_f32(numbers.value(2.0)).to_bits()).collect();
        let mut free = numbers.order(count).into_iter().map(SlotIdx);
        let mut tables = Vec::new();
        let mut rows = Vec::new();
        let mut positions = Vec::new();
        for sequence in sequences {
            let table = |free: &mut dyn Iterator<Item = SlotIdx>| {
                free.take(blocks(sequence) as usize).collect::<Vec<_>>()
            };
            let own: Vec<_> = (0..shape.kv_heads).map(|_| table(&mut free)).collect();
            for slot in own.iter().filter_map(|table| table.last()) {
                let at = slot.0 as usize * slot_values;
                spoil(&mut slots[at..at + slot_values], shape.head_dim, sequence.end);
            }
            tables.push(own);
            rows.push(positions.len()..positions.len() + sequence.len());
            positions.extend(sequence.clone());
        }
        let q = (0..positions.len() * shape.heads * shape.head_dim)
            .map(|_| numbers.value(2.0))
            .collect();
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        Self { shape, scale, slots, positions, q, rows, tables }
    }

    /// Leaves one sequence and its rows.
    pub(crate) fn keep_sequence(&mut self, index: usize) {
        let rows = self.rows[index].clone();
        let width = self.shape.heads * self.shape.head_dim;
        self.q = self.q[rows.start * width..rows.end * width].to_vec();
        self.positions = self.positions[rows.clone()].to_vec();
        self.tables = vec![self.tables[index].clone()];
        self.rows = vec![0..rows.len()];
    }

    pub(crate) fn slot_count(&self) -> u32 {
        (self.slots.len() / (slot_bytes(self.shape.head_dim) / 2)) as u32
    }

    /// Calls with the sequences as launches take them.
    pub(crate) fn with_sequences<R>(&self, call: impl FnOnce(&[AttendSequence<'_>]) -> R) -> R {
        let tables: Vec<Vec<AttendTable<'_>>> = self
            .tables
            .iter()
            .map(|sequence| sequence.iter().map(|slots| AttendTable::dense(slots)).collect())
            .collect();
        let sequences: Vec<AttendSequence<'_>> = self
            .rows
            .iter()
            .zip(&tables)
            .map(|(rows, tables)| AttendSequence { rows: rows.clone(), tables })
            .collect();
        call(&sequences)
    }

    /// What the host device makes of it.
    pub(crate) fn on_host(&self) -> Vec<f32> {
        let threads = NonZeroUsize::MIN;
        let options = HostOptions { isa: None, threads, huge_pages: HugePages::Off };
        let device = HostDevice::open(options).unwrap();
        let mut stream = device.stream().unwrap();
        let count = self.slot_count();
        let arena = device.slots(SlotShape { head_dim: self.shape.head_dim, count }).unwrap();
        let bytes: Vec<u8> = self.slots.iter().flat_map(|value| value.to_le_bytes()).collect();
        let ids: Vec<SlotIdx> = (0..count).map(SlotIdx).collect();
        device.scatter(&mut stream, &arena, &bytes, &ids);
        let mut q = device.buffer(self.q.len()).unwrap();
        device.upload(&mut stream, &self.q, &mut q, 0);
        let mut out = device.buffer(self.q.len()).unwrap();
        self.with_sequences(|sequences| {
            let launch = Attend {
                shape: self.shape,
                q: &q,
                positions: &self.positions,
                sequences,
                scale: self.scale,
                out: &mut out,
            };
            device.attend(&mut stream, &arena, launch);
        });
        out.as_slice().to_vec()
    }
}

/// Not numbers in the lanes of the open block that no row sees: whoever reads them shows it.
fn spoil(slot: &mut [u16], head_dim: usize, end: u32) {
    let tokens = (end - 1) as usize % 16 + 1;
    for lane in tokens..16 {
        for d in 0..head_dim {
            slot[d * 16 + lane] = f16::NAN.to_bits();
            slot[(16 + lane) * head_dim + d] = f16::NAN.to_bits();
        }
    }
}
