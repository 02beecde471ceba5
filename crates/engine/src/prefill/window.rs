//! The first working set is chosen by the queries of the prompt's last tokens: their masses over
//! all blocks of the prompt, by the stored keys, summed in the order of the tokens. So they do not
//! depend on chunks or on what was cached (P1).

use ids::{KvHeadIdx, LayerIdx, SlotIdx};
use kernels::{AttendTable, Device, ScoreSequence};
use kv::{BlockTable, Shape, blocks_for};
use model::{Attended, LayerQueries, StepError};

use super::SCORING_WINDOW;
use crate::sparse::Desk;

/// Sums of masses, growing with the chunks of one prompt.
#[derive(Debug)]
pub(super) struct Masses {
    /// `[layers][kv_heads][blocks]` of the whole prompt.
    values: Vec<f32>,
    tokens: usize,
    blocks: usize,
}

impl Masses {
    pub(super) fn new(shape: Shape, tokens: usize) -> Self {
        let blocks = blocks_for(tokens);
        Self { values: vec![0.0; shape.slices() * blocks], tokens, blocks }
    }

    pub(super) fn into_values(self) -> Vec<f32> {
        self.values
    }
}

/// A chunk of a prompt: attends to everything, and scores the rows of the window.
pub(super) struct Window<'a, D: Device> {
    pub(super) table: &'a BlockTable,
    /// Position of the chunk's first row.
    pub(super) first: usize,
    pub(super) masses: &'a mut Masses,
    pub(super) desk: &'a mut Desk<D>,
}

impl<D: Device> Attended<D> for Window<'_, D> {
    fn shape(&self, _sequence: usize) -> Shape {
        self.table.shape()
    }

    fn slot(&self, _sequence: usize, layer: LayerIdx, head: KvHeadIdx, block: usize) -> SlotIdx {
        self.table.slots(layer, head)[block]
    }

    fn prepare(&mut self, mut queries: LayerQueries<'_, D>) -> Result<(), StepError> {
        let rows = queries.positions.len();
        let window = self.masses.tokens.saturating_sub(SCORING_WINDOW);
        let from = window.saturating_sub(self.first);
        if from >= rows {
            return Ok(());
        }
        let (shape, layer) = (self.table.shape(), queries.layer);
        let exact: Vec<&[SlotIdx]> =
            (0..shape.heads).map(|head| self.table.slots(layer, KvHeadIdx(head))).collect();
        let stride = self.table.block_count();
        let sequence = ScoreSequence { rows: from..rows, summaries: &[], exact: &exact };
        let mass = self.desk.score_behind(&mut queries, &[sequence], stride)?;
        let heads = usize::from(shape.heads);
        for row in from..rows {
            for head in 0..heads {
                let from = &mass[(row * heads + head) * stride..][..stride];
                let column = usize::from(layer.0) * heads + head;
                let sums = &mut self.masses.values[column * self.masses.blocks..];
                for (sum, mass) in sums.iter_mut().zip(from) {
                    *sum += mass;
                }
            }
        }
        Ok(())
    }

    fn table(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx) -> AttendTable<'_> {
        debug_assert_eq!(sequence, 0, "a chunk is of one prompt");
        AttendTable { slots: self.table.slots(layer, head), absent: 0 }
    }
}
