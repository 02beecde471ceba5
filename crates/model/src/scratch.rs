//! The working memory of whoever runs a model: activations on the device and lists on the host,
//! allocated once for the largest step.
//!
//! One scratch per running thread; a model is shared. Holds no KV and no sequence.

use kernels::{Device, DeviceLost, MemoryError, SampleKey, Sampled, Sampling, SlotIdx};

use crate::weights::Model;

/// The largest step that a scratch has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchShape {
    /// Rows of one forward pass: the prefill chunk or the decode batch.
    pub rows: usize,
    /// Rows whose logits are computed at once; each takes `4 * vocab` bytes.
    pub logit_rows: usize,
}

/// Activations of one runner.
pub struct Scratch<D: Device> {
    pub(crate) device: D,
    pub(crate) shape: ScratchShape,
    pub(crate) width: usize,
    pub(crate) vocab: usize,
    pub(crate) stream: D::Stream,
    pub(crate) activations: Activations<D>,
    pub(crate) lists: Lists,
    /// Rows of `activations.hidden` that the last finished step wrote.
    pub(crate) hidden_rows: usize,
    /// Rows of `activations.logits` that were last written.
    pub(crate) logit_rows: usize,
}

/// Device memory, all `[rows][..]`, written and read within one step.
pub(crate) struct Activations<D: Device> {
    /// The residual stream, `[rows][width]`.
    pub(crate) hidden: D::Buffer<f32>,
    /// Behind a normalisation, `[rows][width]`.
    pub(crate) normed: D::Buffer<f32>,
    /// `[rows][heads * head_dim]`.
    pub(crate) query: D::Buffer<f32>,
    /// `[rows][kv_heads * head_dim]`.
    pub(crate) key: D::Buffer<f32>,
    /// `[rows][kv_heads * head_dim]`.
    pub(crate) value: D::Buffer<f32>,
    /// Keys behind the normalisation of their heads, `[rows][kv_heads * head_dim]`; empty in
    /// families that have none.
    pub(crate) key_normed: D::Buffer<f32>,
    /// What attention mixed, `[rows][heads * head_dim]`; before that, queries behind the
    /// normalisation of their heads.
    pub(crate) mixed: D::Buffer<f32>,
    /// `[rows][ffn]`.
    pub(crate) gate: D::Buffer<f32>,
    /// `[rows][ffn]`.
    pub(crate) up: D::Buffer<f32>,
    /// Rows that need logits, `[logit_rows][width]`.
    pub(crate) last: D::Buffer<f32>,
    /// The same behind the final normalisation.
    pub(crate) last_normed: D::Buffer<f32>,
    /// `[logit_rows][vocab]`.
    pub(crate) logits: D::Buffer<f32>,
}

/// Host lists of one step, kept for their memory.
#[derive(Default)]
pub(crate) struct Lists {
    /// Token of every row.
    pub(crate) tokens: Vec<u32>,
    /// Position of every row.
    pub(crate) positions: Vec<u32>,
    /// Where every row's K and V go: `[layers][rows][kv_heads]`.
    pub(crate) slots: Vec<SlotIdx>,
    /// Slots of blocks that are opened and not filled by this step.
    pub(crate) opened: Vec<SlotIdx>,
}

impl<D: Device> Model<D> {
    /// Working memory for steps of up to `shape`.
    ///
    /// # Errors
    /// When the device has not enough memory or is lost.
    pub fn scratch(&self, shape: ScratchShape) -> Result<Scratch<D>, ScratchError> {
        let spec = &self.spec;
        let size = |number: u32| usize::try_from(number).expect("weights of it are in memory");
        let (width, ffn, vocab) = (size(spec.width), size(spec.ffn), size(spec.vocab));
        let head_dim = usize::from(spec.head_dim);
        let all = usize::from(spec.heads) * head_dim;
        let kv = usize::from(spec.kv_heads) * head_dim;
        let rows = |width: usize| self.device.buffer(shape.rows.saturating_mul(width));
        let last = |width: usize| self.device.buffer(shape.logit_rows.saturating_mul(width));
        Ok(Scratch {
            device: self.device.clone(),
            shape,
            width,
            vocab,
            stream: self.device.stream()?,
            activations: Activations {
                hidden: rows(width)?,
                normed: rows(width)?,
                query: rows(all)?,
                key: rows(kv)?,
                value: rows(kv)?,
                key_normed: rows(if spec.qk_norm { kv } else { 0 })?,
                mixed: rows(all)?,
                gate: rows(ffn)?,
                up: rows(ffn)?,
                last: last(width)?,
                last_normed: last(width)?,
                logits: last(vocab)?,
            },
            lists: Lists::default(),
            hidden_rows: 0,
            logit_rows: 0,
        })
    }
}

/// Why there is no working memory.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// Not enough device memory.
    #[error("no device memory for the activations; lower the prefill chunk or the batch")]
    Memory(#[from] MemoryError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

impl<D: Device> Scratch<D> {
    /// What it has room for.
    #[must_use]
    pub fn shape(&self) -> ScratchShape {
        self.shape
    }

    /// The stream that steps run on, to order copies of KV against them.
    pub fn stream(&mut self) -> &mut D::Stream {
        &mut self.stream
    }

    /// Copies the hidden state of one row of the last step (behind the last layer, before the
    /// final normalisation) to the host: `out` becomes `[width]`.
    ///
    /// # Errors
    /// When the device is lost.
    ///
    /// # Panics
    /// When the last step had no such row.
    pub fn read_hidden(&mut self, row: usize, out: &mut Vec<f32>) -> Result<(), DeviceLost> {
        assert!(row < self.hidden_rows, "row {row} of a step of {}", self.hidden_rows);
        out.clear();
        out.resize(self.width, 0.0);
        let hidden = &self.activations.hidden;
        self.device.download(&mut self.stream, hidden, row * self.width, out)
    }

    /// Copies all logits that were last computed to the host: `out` becomes `[rows][vocab]`.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn read_logits(&mut self, out: &mut Vec<f32>) -> Result<(), DeviceLost> {
        out.clear();
        out.resize(self.logit_rows * self.vocab, 0.0);
        self.device.download(&mut self.stream, &self.activations.logits, 0, out)
    }

    /// Chooses a token for each row of the logits that were last computed, one request a row.
    ///
    /// # Errors
    /// When the device is lost.
    ///
    /// # Panics
    /// When there are not as many requests as rows.
    pub fn sample(
        &mut self,
        requests: &[(Sampling, SampleKey)],
        chosen: &mut Vec<Sampled>,
    ) -> Result<(), DeviceLost> {
        assert_eq!(requests.len(), self.logit_rows, "one request for each row of logits");
        let logits = &self.activations.logits;
        self.device.sample(&mut self.stream, logits, self.vocab, requests, chosen)
    }
}
