//! What the rows of a step attend to: where their sequences' KV lies in device memory, and how much
//! of it a layer reads. Dense decode and prefill read all of it.
//!
//! Decides nothing; what a sparse sequence attends to is the engine's to say.

use ids::{BLOCK_TOKENS, KvHeadIdx, LayerIdx, SlotIdx};
use kernels::{AttendTable, Device};
use kv::{BlockTable, Shape};

use crate::StepError;

/// The queries of one layer, rotated, in the order of the step's rows.
pub struct LayerQueries<'a, D: Device> {
    /// Which layer.
    pub layer: LayerIdx,
    /// The stream that computed them and will attend.
    pub stream: &'a mut D::Stream,
    /// `[rows][heads * head_dim]`.
    pub values: &'a D::Buffer<f32>,
    /// `[rows]`.
    pub positions: &'a [u32],
}

/// The KV of a step's sequences, by their index in the step.
///
/// The blocks that a step's rows lie in are there for all of its layers; of earlier ones a layer
/// reads those that `table` names once `prepare` was called for it.
pub trait Attended<D: Device> {
    /// Layers and KV heads of a sequence's blocks.
    fn shape(&self, sequence: usize) -> Shape;

    /// Where the slice of a block lies that rows of this step are in.
    fn slot(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx, block: usize) -> SlotIdx;

    /// Called once for each layer in ascending order, behind the storing of the rows' K and V and
    /// before `table` is asked for that layer. May wait.
    ///
    /// # Errors
    /// When the layer cannot be attended to; the step ends with that error.
    fn prepare(&mut self, queries: LayerQueries<'_, D>) -> Result<(), StepError>;

    /// What the rows of a sequence attend to.
    fn table(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx) -> AttendTable<'_>;
}

/// Everything, from tables that hold all blocks of their sequences.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a>(pub &'a [&'a BlockTable]);

impl<D: Device> Attended<D> for Dense<'_> {
    fn shape(&self, sequence: usize) -> Shape {
        self.0[sequence].shape()
    }

    fn slot(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx, block: usize) -> SlotIdx {
        self.0[sequence].slots(layer, head)[block]
    }

    fn prepare(&mut self, _queries: LayerQueries<'_, D>) -> Result<(), StepError> {
        Ok(())
    }

    fn table(&self, sequence: usize, layer: LayerIdx, head: KvHeadIdx) -> AttendTable<'_> {
        AttendTable { slots: self.0[sequence].slots(layer, head), absent: 0 }
    }
}

/// The block of a position.
pub(crate) fn block_of(position: u32) -> usize {
    position as usize / BLOCK_TOKENS
}
