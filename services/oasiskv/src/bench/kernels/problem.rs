//! What the kernels are measured on: an arena of slots with numbers in it, and one row of each of
//! some sequences of one length, whose blocks lie anywhere. Computes nothing.

use half::f16;
use ids::BLOCK_TOKENS;
use kernels::{AttendSequence, AttendTable, HeadShape, SlotIdx, slot_bytes};

pub(super) struct Problem {
    pub(super) shape: HeadShape,
    pub(super) sequences: u32,
    /// Tokens of each sequence; its row is the last one.
    pub(super) context: u32,
    /// The arena, two halves a word, the lower address first.
    pub(super) words: Vec<u32>,
    /// `[sequences][heads * head_dim]`.
    pub(super) q: Vec<f32>,
    pub(super) positions: Vec<u32>,
    /// All slots, in the order of the tables: sequence, KV head, block.
    pub(super) ids: Vec<SlotIdx>,
}

impl Problem {
    /// The same numbers for the same arguments.
    pub(super) fn new(shape: HeadShape, sequences: u32, context: u32) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32
        };
        let mut value = |width: f32| (next() as f32 / (1_u32 << 30) as f32 - 1.0) * width;
        let blocks = context.div_ceil(BLOCK_TOKENS as u32);
        let count = blocks * shape.kv_heads as u32 * sequences;
        // A few thousand different values are as good as all different ones, and fast to make.
        let some: Vec<u16> = (0..8191).map(|_| f16::from_f32(value(2.0)).to_bits()).collect();
        let words = count as usize * slot_bytes(shape.head_dim) / 4;
        let half = |at: usize| u32::from(some[at % some.len()]);
        let words = (0..words).map(|at| half(2 * at) | half(2 * at + 1) << 16).collect();
        let q = (0..sequences as usize * shape.heads * shape.head_dim).map(|_| value(2.0));
        let q = q.collect();
        // A stride that shares no factor with the count visits every slot once.
        let stride = (2_654_435_761 % u64::from(count)..)
            .find(|&stride| coprime(stride, u64::from(count)))
            .unwrap_or(1);
        let ids = (0..u64::from(count)).map(|at| SlotIdx((at * stride % u64::from(count)) as u32));
        let ids = ids.collect();
        let positions = vec![context - 1; sequences as usize];
        Self { shape, sequences, context, words, q, positions, ids }
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.shape.head_dim as f32).sqrt()
    }

    /// Bytes of all slices.
    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    /// The words of a slot.
    pub(super) fn slot(&self, id: SlotIdx) -> &[u32] {
        let words = slot_bytes(self.shape.head_dim) / 4;
        &self.words[id.0 as usize * words..][..words]
    }

    /// Calls with the sequences as launches take them.
    pub(super) fn with_sequences<R>(&self, call: impl FnOnce(&[AttendSequence<'_>]) -> R) -> R {
        let blocks = self.context.div_ceil(BLOCK_TOKENS as u32) as usize;
        let tables: Vec<AttendTable<'_>> =
            self.ids.chunks(blocks).map(AttendTable::dense).collect();
        let sequences: Vec<AttendSequence<'_>> = tables
            .chunks(self.shape.kv_heads)
            .enumerate()
            .map(|(row, tables)| AttendSequence { rows: row..row + 1, tables })
            .collect();
        call(&sequences)
    }
}

/// Whether no number above 1 divides both (Euclid).
fn coprime(mut a: u64, mut b: u64) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_every_slot_once() {
        let shape = HeadShape { heads: 4, kv_heads: 2, head_dim: 16 };
        let problem = Problem::new(shape, 3, 100);
        let mut ids: Vec<u32> = problem.ids.iter().map(|id| id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..3 * 2 * 7).collect::<Vec<u32>>());
        problem.with_sequences(|sequences| {
            assert_eq!(sequences.len(), 3);
            assert!(sequences.iter().all(|one| one.tables.len() == 2));
            assert!(sequences.iter().all(|one| one.tables.iter().all(|t| t.slots.len() == 7)));
        });
    }
}
