//! What a step is written against: memory, order and launches of one device. The host fills it
//! with [`crate::HostDevice`]. With a GPU in mind launches name a stream, copies name both sides,
//! and results may be read only after `synchronise`; where the first CUDA kernels showed that this
//! is not enough is written in docs/ARCHITECTURE.md.
//!
//! Activations are row-major `[rows][width]` from the start of a buffer; a buffer may be longer
//! than the rows in use. Shapes that do not fit, positions and slots out of range are faults of
//! the caller, not of a request, and panic with the two numbers that disagree.

use std::ops::Range;

use ids::{SlotIdx, SummaryIdx};

use crate::{
    memory::MemoryError,
    rope::RopeTable,
    sample::{SampleKey, Sampled, Sampling},
    slots::SlotShape,
    summary::SummaryShape,
    weight::{Matrix, WeightError},
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
    impl Sealed for u16 {}
    impl Sealed for u8 {}
}

/// A value that a buffer may hold; any bits are valid and all zeros are a zero.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {}
impl Element for f32 {}
impl Element for u32 {}
impl Element for u16 {}
impl Element for u8 {}

/// The device stopped working; what was launched since the last `synchronise` has no result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("device {device} is lost: {reason}; restart the process")]
pub struct DeviceLost {
    /// Which device.
    pub device: String,
    /// What its driver said.
    pub reason: String,
}

/// Rows of a batch, from the first to before the last.
pub type RowRange = Range<usize>;

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads; query heads `g * heads / kv_heads ..` share KV head `g`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// What a matmul does with the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `y = x w^T + bias`.
    Store,
    /// `y += x w^T + bias`: the residual stream.
    Add,
}

/// One weight of a [`Matmul`] and where its products go.
pub struct MatmulOutput<'a, D: Device> {
    /// `[n][k]`.
    pub weight: &'a D::Weight,
    /// `[n]`, when the layer has one.
    pub bias: Option<&'a D::Buffer<f32>>,
    /// `[rows][n]`.
    pub y: &'a mut D::Buffer<f32>,
    /// Replace or add.
    pub epilogue: Epilogue,
}

/// `y = x w^T` for several weights over the same rows (q, k and v; gate and up), in one launch.
pub struct Matmul<'a, 'b, D: Device> {
    /// Rows of x and of every y.
    pub rows: usize,
    /// `[rows][k]`.
    pub x: &'a D::Buffer<f32>,
    /// At least one; all weights have k inputs.
    pub outputs: &'a mut [MatmulOutput<'b, D>],
}

/// `y = x / sqrt(mean(x^2) + eps) * gamma` for every row.
pub struct RmsNorm<'a, D: Device> {
    /// Rows (or rows times heads, for a norm per head).
    pub rows: usize,
    /// `[rows][width]`.
    pub x: &'a D::Buffer<f32>,
    /// `[width]`; its length is the width.
    pub gamma: &'a D::Buffer<f32>,
    /// Added to the mean of the squares.
    pub eps: f32,
    /// `[rows][width]`.
    pub y: &'a mut D::Buffer<f32>,
}

/// Stores the k and v of every row as half precision, rounded to nearest even.
pub struct KvWrite<'a, D: Device> {
    /// KV heads of a row.
    pub kv_heads: usize,
    /// `[rows][kv_heads * head_dim]`, already rotated.
    pub k: &'a D::Buffer<f32>,
    /// `[rows][kv_heads * head_dim]`.
    pub v: &'a D::Buffer<f32>,
    /// `[rows][kv_heads]`: the slots of the block that each row's position lies in.
    pub slots: &'a [SlotIdx],
    /// `[rows]`; the lane within the block is the position modulo 16.
    pub positions: &'a [u32],
}

/// The blocks of a sequence that one KV head attends to.
///
/// A row attends to all tokens of these blocks up to its own position, and blocks beyond it may be
/// there. What makes a row's bits is the place of a block in this list, and nothing else of its
/// index: so `absent = 0` is dense attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttendTable<'a> {
    /// Their slots in ascending block index. The last ones are consecutive blocks: all that the
    /// rows of this launch lie in.
    pub slots: &'a [SlotIdx],
    /// How many blocks of the sequence are left out, all of them before those that rows lie in. So
    /// position `p` is token `p - 16 * absent` of the list.
    pub absent: u32,
}

impl<'a> AttendTable<'a> {
    /// Every block: place `i` is block index `i`, which holds positions `16 i ..`.
    #[must_use]
    pub fn dense(slots: &'a [SlotIdx]) -> Self {
        Self { slots, absent: 0 }
    }
}

/// Rows of one sequence and the blocks that they attend to.
#[derive(Clone, Debug)]
pub struct AttendSequence<'a> {
    /// Which rows of the batch, with ascending positions.
    pub rows: RowRange,
    /// One for each KV head.
    pub tables: &'a [AttendTable<'a>],
}

/// Softmax attention of every row over the blocks of its sequence.
pub struct Attend<'a, D: Device> {
    /// Heads of this layer.
    pub shape: HeadShape,
    /// `[rows][heads * head_dim]`, already rotated.
    pub q: &'a D::Buffer<f32>,
    /// Position of each row.
    pub positions: &'a [u32],
    /// Sequences of this batch; rows in none of them are left as they are in `out`.
    pub sequences: &'a [AttendSequence<'a>],
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `[rows][heads * head_dim]`.
    pub out: &'a mut D::Buffer<f32>,
}

/// Makes the summaries of sealed blocks.
pub struct Summarise<'a> {
    /// For each unit the slots of its block, layer by layer, KV heads ascending.
    pub from: &'a [SlotIdx],
    /// The units.
    pub to: &'a [SummaryIdx],
}

/// Rows of one sequence and its blocks, from the first on without a gap.
#[derive(Clone, Debug)]
pub struct ScoreSequence<'a> {
    /// Which rows of the batch.
    pub rows: RowRange,
    /// Blocks that are scored by their summaries; all rows lie behind them.
    pub summaries: &'a [SummaryIdx],
    /// For each KV head the slots of the blocks behind them, scored by the stored keys up to each
    /// row's position.
    pub exact: &'a [&'a [SlotIdx]],
}

impl ScoreSequence<'_> {
    /// Blocks of the sequence.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.summaries.len() + self.exact.first().map_or(0, |slots| slots.len())
    }
}

/// How much of the attention of each row each block takes: the softmax over all tokens up to the
/// row, summed by block and averaged over the query heads that share a KV head.
pub struct Score<'a, D: Device> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Which layer of the summaries.
    pub layer: usize,
    /// `[rows][heads * head_dim]`, already rotated.
    pub q: &'a D::Buffer<f32>,
    /// Position of each row.
    pub positions: &'a [u32],
    /// Sequences of this batch; of rows in none of them the masses are left as they are.
    pub sequences: &'a [ScoreSequence<'a>],
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Blocks that there is room for in `mass`.
    pub stride: usize,
    /// `[rows][kv_heads][stride]`: of each row and KV head 1 in all, 0 behind the last block.
    pub mass: &'a mut D::Buffer<f32>,
}

/// A device and its launches. Work on one stream happens in the order of the calls.
pub trait Device: Clone + Send + Sync + 'static {
    /// An array in device memory.
    type Buffer<T: Element>: Send + Sync;
    /// A packed matrix in device memory.
    type Weight: Send + Sync;
    /// The bounded memory for KV. Launches order their own accesses to it.
    type Slots: Send + Sync;
    /// The bounded memory for key summaries. Launches order their own accesses to it.
    type Summaries: Send + Sync;
    /// A queue of work, with its scratch memory.
    type Stream: Send;
    /// A point in a stream.
    type Event: Send;

    /// For people: kind, instruction set or compute capability, threads or multiprocessors.
    fn describe(&self) -> String;
    /// Devices whose class is equal produce equal bits (P1).
    fn numerics_class(&self) -> &'static str;

    /// A zeroed array.
    ///
    /// # Errors
    /// When the device has no such memory.
    fn buffer<T: Element>(&self, len: usize) -> Result<Self::Buffer<T>, MemoryError>;
    /// Packs a matrix of the file into device memory.
    ///
    /// # Errors
    /// When the bytes are no such matrix or memory is short.
    fn weight(&self, matrix: Matrix<'_>) -> Result<Self::Weight, WeightError>;
    /// Allocates the KV slots, zeroed, once.
    ///
    /// # Errors
    /// When the head width is not supported or memory is short.
    fn slots(&self, shape: SlotShape) -> Result<Self::Slots, MemoryError>;

    /// Allocates units for summaries, zeroed, once.
    ///
    /// # Errors
    /// When the head width is not supported or memory is short.
    fn summaries(&self, shape: SummaryShape) -> Result<Self::Summaries, MemoryError>;

    /// A new stream.
    ///
    /// # Errors
    /// When the device is lost.
    fn stream(&self) -> Result<Self::Stream, DeviceLost>;
    /// Marks the work so far.
    fn record(&self, stream: &mut Self::Stream) -> Self::Event;
    /// Makes later work on this stream wait for the event of another.
    fn wait(&self, stream: &mut Self::Stream, event: &Self::Event);
    /// Returns when all work of the stream is done.
    ///
    /// # Errors
    /// When the device is lost.
    fn synchronise(&self, stream: &mut Self::Stream) -> Result<(), DeviceLost>;

    /// Copies from the host to `to[at..]`.
    fn upload<T: Element>(
        &self,
        stream: &mut Self::Stream,
        from: &[T],
        to: &mut Self::Buffer<T>,
        at: usize,
    );
    /// Copies `from[at..]` to the host and waits for it.
    ///
    /// # Errors
    /// When the device is lost.
    fn download<T: Element>(
        &self,
        stream: &mut Self::Stream,
        from: &Self::Buffer<T>,
        at: usize,
        to: &mut [T],
    ) -> Result<(), DeviceLost>;

    /// `out[i] = weight[rows[i]]`, dequantised exactly: the embedding of tokens.
    fn embed(
        &self,
        stream: &mut Self::Stream,
        weight: &Self::Weight,
        rows: &[u32],
        out: &mut Self::Buffer<f32>,
    );
    /// Products with one or more weights.
    fn matmul(&self, stream: &mut Self::Stream, launch: Matmul<'_, '_, Self>);
    /// Root mean square normalisation.
    fn rms_norm(&self, stream: &mut Self::Stream, launch: RmsNorm<'_, Self>);
    /// Rotates `heads` heads of every row by the row's position, in place.
    fn rope(
        &self,
        stream: &mut Self::Stream,
        table: &RopeTable,
        heads: usize,
        positions: &[u32],
        x: &mut Self::Buffer<f32>,
    );
    /// `gate[i] = silu(gate[i]) * up[i]` for the first `len` values.
    fn silu_mul(
        &self,
        stream: &mut Self::Stream,
        len: usize,
        gate: &mut Self::Buffer<f32>,
        up: &Self::Buffer<f32>,
    );
    /// `x[i] += y[i]` for the first `len` values.
    fn add(
        &self,
        stream: &mut Self::Stream,
        len: usize,
        x: &mut Self::Buffer<f32>,
        y: &Self::Buffer<f32>,
    );
    /// `to[i] = from[rows[i]]` for rows of `width` values: the rows that need logits.
    fn take_rows(
        &self,
        stream: &mut Self::Stream,
        from: &Self::Buffer<f32>,
        width: usize,
        rows: &[u32],
        to: &mut Self::Buffer<f32>,
    );
    /// Stores k and v of new positions.
    fn kv_write(&self, stream: &mut Self::Stream, slots: &Self::Slots, launch: KvWrite<'_, Self>);
    /// Attention over slots.
    fn attend(&self, stream: &mut Self::Stream, slots: &Self::Slots, launch: Attend<'_, Self>);
    /// Zeroes slots: before their first lane is written, so that unused lanes are zero.
    fn zero(&self, stream: &mut Self::Stream, slots: &Self::Slots, ids: &[SlotIdx]);
    /// Copies whole slots to the host, one after the other, and waits.
    ///
    /// # Errors
    /// When the device is lost.
    fn gather(
        &self,
        stream: &mut Self::Stream,
        slots: &Self::Slots,
        ids: &[SlotIdx],
        to: &mut [u8],
    ) -> Result<(), DeviceLost>;
    /// Copies whole slots from the host.
    fn scatter(&self, stream: &mut Self::Stream, slots: &Self::Slots, from: &[u8], ids: &[SlotIdx]);
    /// Makes summaries from the keys of sealed blocks.
    fn summarise(
        &self,
        stream: &mut Self::Stream,
        slots: &Self::Slots,
        summaries: &Self::Summaries,
        launch: Summarise<'_>,
    );
    /// Copies whole units to the host, one after the other, and waits.
    ///
    /// # Errors
    /// When the device is lost.
    fn gather_summaries(
        &self,
        stream: &mut Self::Stream,
        summaries: &Self::Summaries,
        ids: &[SummaryIdx],
        to: &mut [u8],
    ) -> Result<(), DeviceLost>;
    /// Copies whole units from the host.
    fn scatter_summaries(
        &self,
        stream: &mut Self::Stream,
        summaries: &Self::Summaries,
        from: &[u8],
        ids: &[SummaryIdx],
    );
    /// Masses of blocks.
    fn score(
        &self,
        stream: &mut Self::Stream,
        slots: &Self::Slots,
        summaries: &Self::Summaries,
        launch: Score<'_, Self>,
    );
    /// Chooses a token for each row of `[rows][vocabulary]` logits, one request a row, and waits.
    /// The answers replace what is in `chosen`.
    ///
    /// # Errors
    /// When the device is lost.
    fn sample(
        &self,
        stream: &mut Self::Stream,
        logits: &Self::Buffer<f32>,
        vocabulary: usize,
        rows: &[(Sampling, SampleKey)],
        chosen: &mut Vec<Sampled>,
    ) -> Result<(), DeviceLost>;
}
