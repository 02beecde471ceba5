//! Hot path. The layer loop: which kernel follows which, for any mix of rows.
//!
//! No arithmetic of its own and no decision that depends on how many rows there are, so a row's
//! bits are those that the kernels give it (P1).

use std::ops::Range;

use ids::{BLOCK_TOKENS, KvHeadIdx, LayerIdx, Position, SlotIdx, TokenId};
use kernels::{
    Attend, AttendSequence, AttendTable, Device, DeviceLost, Epilogue, HeadShape, KvWrite, Matmul,
    MatmulOutput, RmsNorm,
};

use crate::attended::{Attended, LayerQueries, block_of};
use crate::scratch::{Activations, Scratch};
use crate::weights::{HeadNorms, Layer, Linear, Model};

/// One token to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What stands there.
    pub token: TokenId,
    /// Where in its sequence; its block must be in the table.
    pub position: Position,
    /// Index of its sequence in the step.
    pub sequence: usize,
}

/// One forward pass.
pub struct Step<'a, D: Device> {
    /// Rows of a sequence stand together, in ascending position; sequences may be mixed freely.
    pub rows: &'a [Row],
    /// The device memory that holds the KV of the sequences.
    pub slots: &'a D::Slots,
    /// Asked before every layer: true ends the step (P6).
    pub stop: &'a dyn Fn() -> bool,
}

/// A step that gave no result. The K and V of its rows are written in part, so its positions
/// must be run again or be given up; earlier positions are untouched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StepError {
    /// `stop` said so.
    #[error("step stopped before layer {layer}")]
    Stopped {
        /// The first layer that did not run.
        layer: u16,
    },
    /// A token that the model does not have; nothing was written.
    #[error("token {token} of row {row} is not in the vocabulary of {vocab}")]
    Token {
        /// Index of the row.
        row: usize,
        /// Its token.
        token: u32,
        /// Tokens of the model.
        vocab: u32,
    },
    /// A position that the model does not have; nothing was written.
    #[error("position {position} of row {row} is beyond the context of {context}")]
    Position {
        /// Index of the row.
        row: usize,
        /// Its position.
        position: u32,
        /// Positions that can be run.
        context: u32,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

impl<D: Device> Model<D> {
    /// Runs all layers for all rows: writes their K and V, attends to what `kv` says, and leaves
    /// the hidden states in `scratch`, for [`Scratch::read_hidden`] and [`Model::logits_of_rows`].
    ///
    /// The slots of a block are zeroed here when its first token is run, so that lanes without a
    /// token are zero.
    ///
    /// # Errors
    /// [`StepError`]; the hidden states are those of no step then.
    ///
    /// # Panics
    /// When the step is larger than the scratch, a sequence is missing or lacks the block of a row,
    /// or the rows of a sequence do not ascend: faults of the caller.
    pub fn forward(
        &self,
        scratch: &mut Scratch<D>,
        step: &Step<'_, D>,
        kv: &mut dyn Attended<D>,
    ) -> Result<(), StepError> {
        scratch.hidden_rows = 0;
        self.list(scratch, step, kv)?;
        let count = step.rows.len();
        let Scratch { stream, activations, lists, .. } = &mut *scratch;
        if !lists.opened.is_empty() {
            self.device.zero(stream, step.slots, &lists.opened);
        }
        self.device.embed(stream, &self.weights.embedding, &lists.tokens, &mut activations.hidden);
        let per_layer = count * usize::from(self.spec.kv_heads);
        let runs = runs(step.rows);
        for (index, layer) in (0..).map(LayerIdx).zip(&self.weights.layers) {
            if (step.stop)() {
                return Err(StepError::Stopped { layer: index.0 });
            }
            let at = usize::from(index.0) * per_layer;
            let rows = LayerRows {
                count,
                positions: &lists.positions,
                slots: &lists.slots[at..at + per_layer],
            };
            self.project(stream, activations, layer, &rows);
            self.store(stream, activations, &rows, step.slots);
            let (values, positions) = (&activations.query, rows.positions);
            kv.prepare(LayerQueries { layer: index, stream, values, positions })?;
            let tables = self.tables(step, kv, index, &runs);
            self.attend(stream, activations, &rows, (step.slots, &sequences(&runs, &tables)));
            self.mix(stream, activations, layer, count);
            self.feed_forward(stream, activations, layer, count);
        }
        self.device.synchronise(stream)?;
        scratch.hidden_rows = count;
        Ok(())
    }
}

/// What every layer needs to know about the rows.
struct LayerRows<'a> {
    count: usize,
    /// `[rows]`.
    positions: &'a [u32],
    /// `[rows][kv_heads]`, of this layer.
    slots: &'a [SlotIdx],
}

impl<D: Device> Model<D> {
    /// Checks the rows and writes down, once per step, what the launches of all layers need.
    fn list(
        &self,
        scratch: &mut Scratch<D>,
        step: &Step<'_, D>,
        kv: &dyn Attended<D>,
    ) -> Result<(), StepError> {
        let count = step.rows.len();
        assert!(count <= scratch.shape.rows, "{count} rows in a scratch of {:?}", scratch.shape);
        let (vocab, context) = (self.spec.vocab, self.context());
        for (index, row) in step.rows.iter().enumerate() {
            if row.token.0 >= vocab {
                return Err(StepError::Token { row: index, token: row.token.0, vocab });
            }
            if row.position.0 >= context {
                return Err(StepError::Position { row: index, position: row.position.0, context });
            }
        }
        let lists = &mut scratch.lists;
        lists.tokens.clear();
        lists.tokens.extend(step.rows.iter().map(|row| row.token.0));
        lists.positions.clear();
        lists.positions.extend(step.rows.iter().map(|row| row.position.0));
        let kv_heads = usize::from(self.spec.kv_heads);
        lists.opened.clear();
        lists.slots.clear();
        lists.slots.resize(self.spec.slices_per_block() * count, SlotIdx(0));
        for (index, row) in step.rows.iter().enumerate() {
            assert_eq!(kv.shape(row.sequence), self.spec.shape(), "blocks of another model");
            let block = block_of(row.position.0);
            let open = opens_and_leaves_open(step.rows, index);
            for layer in 0..self.spec.layers {
                for head in 0..self.spec.kv_heads {
                    let slot = kv.slot(row.sequence, LayerIdx(layer), KvHeadIdx(head), block);
                    let at = usize::from(layer) * count + index;
                    lists.slots[at * kv_heads + usize::from(head)] = slot;
                    if open {
                        lists.opened.push(slot);
                    }
                }
            }
        }
        Ok(())
    }

    /// For every run of rows and every KV head what a layer attends to: `[runs][kv_heads]`.
    fn tables<'a>(
        &self,
        step: &Step<'_, D>,
        kv: &'a dyn Attended<D>,
        layer: LayerIdx,
        runs: &[Range<usize>],
    ) -> Vec<Vec<AttendTable<'a>>> {
        let heads = || (0..self.spec.kv_heads).map(KvHeadIdx);
        let sequences = runs.iter().map(|run| step.rows[run.start].sequence);
        sequences
            .map(|sequence| heads().map(|head| kv.table(sequence, layer, head)).collect())
            .collect()
    }

    fn head_shape(&self) -> HeadShape {
        HeadShape {
            heads: usize::from(self.spec.heads),
            kv_heads: usize::from(self.spec.kv_heads),
            head_dim: usize::from(self.spec.head_dim),
        }
    }

    /// The rows' queries, keys and values, rotated.
    fn project(
        &self,
        stream: &mut D::Stream,
        activations: &mut Activations<D>,
        layer: &Layer<D>,
        rows: &LayerRows<'_>,
    ) {
        let a = activations;
        let device = &self.device;
        device.rms_norm(
            stream,
            RmsNorm {
                rows: rows.count,
                x: &a.hidden,
                gamma: &layer.attention_norm,
                eps: self.spec.rms_eps,
                y: &mut a.normed,
            },
        );
        let outputs = &mut [
            product(&layer.query, &mut a.query, Epilogue::Store),
            product(&layer.key, &mut a.key, Epilogue::Store),
            product(&layer.value, &mut a.value, Epilogue::Store),
        ];
        let x = &a.normed;
        device.matmul(stream, Matmul { rows: rows.count, x, outputs });
        if let Some(norms) = &layer.head_norms {
            self.normalise_heads(stream, a, norms, rows.count);
        }
        let shape = self.head_shape();
        device.rope(stream, &self.rope, shape.heads, rows.positions, &mut a.query);
        device.rope(stream, &self.rope, shape.kv_heads, rows.positions, &mut a.key);
    }

    /// All rows are stored before any attends, because those of a chunk see one another, and see
    /// what is stored (rounded), as later chunks will.
    fn store(
        &self,
        stream: &mut D::Stream,
        a: &Activations<D>,
        rows: &LayerRows<'_>,
        slots: &D::Slots,
    ) {
        self.device.kv_write(
            stream,
            slots,
            KvWrite {
                kv_heads: usize::from(self.spec.kv_heads),
                k: &a.key,
                v: &a.value,
                slots: rows.slots,
                positions: rows.positions,
            },
        );
    }

    fn attend(
        &self,
        stream: &mut D::Stream,
        a: &mut Activations<D>,
        rows: &LayerRows<'_>,
        (slots, sequences): (&D::Slots, &[AttendSequence<'_>]),
    ) {
        self.device.attend(
            stream,
            slots,
            Attend {
                shape: self.head_shape(),
                q: &a.query,
                positions: rows.positions,
                sequences,
                scale: self.attention_scale,
                out: &mut a.mixed,
            },
        );
    }

    /// Back into the residual stream.
    fn mix(&self, stream: &mut D::Stream, a: &mut Activations<D>, layer: &Layer<D>, rows: usize) {
        let outputs = &mut [product(&layer.attention_output, &mut a.hidden, Epilogue::Add)];
        let x = &a.mixed;
        self.device.matmul(stream, Matmul { rows, x, outputs });
    }

    /// Queries and keys, each head on its own; no head depends on how many there are.
    fn normalise_heads(
        &self,
        stream: &mut D::Stream,
        a: &mut Activations<D>,
        norms: &HeadNorms<D>,
        rows: usize,
    ) {
        let eps = self.spec.rms_eps;
        let (heads, kv_heads) = (usize::from(self.spec.heads), usize::from(self.spec.kv_heads));
        let (x, y, gamma) = (&a.query, &mut a.mixed, &norms.query);
        self.device.rms_norm(stream, RmsNorm { rows: rows * heads, x, gamma, eps, y });
        let (x, y, gamma) = (&a.key, &mut a.key_normed, &norms.key);
        self.device.rms_norm(stream, RmsNorm { rows: rows * kv_heads, x, gamma, eps, y });
        // Names follow the values; attention overwrites what is then the spare buffer.
        std::mem::swap(&mut a.query, &mut a.mixed);
        std::mem::swap(&mut a.key, &mut a.key_normed);
    }

    fn feed_forward(
        &self,
        stream: &mut D::Stream,
        activations: &mut Activations<D>,
        layer: &Layer<D>,
        rows: usize,
    ) {
        let a = activations;
        let device = &self.device;
        device.rms_norm(
            stream,
            RmsNorm {
                rows,
                x: &a.hidden,
                gamma: &layer.feed_forward_norm,
                eps: self.spec.rms_eps,
                y: &mut a.normed,
            },
        );
        let outputs = &mut [
            product(&layer.gate, &mut a.gate, Epilogue::Store),
            product(&layer.up, &mut a.up, Epilogue::Store),
        ];
        device.matmul(stream, Matmul { rows, x: &a.normed, outputs });
        let ffn = usize::try_from(self.spec.ffn).expect("weights of it are in memory");
        device.silu_mul(stream, rows * ffn, &mut a.gate, &a.up);
        let outputs = &mut [product(&layer.down, &mut a.hidden, Epilogue::Add)];
        device.matmul(stream, Matmul { rows, x: &a.gate, outputs });
    }
}

fn product<'a, D: Device>(
    linear: &'a Linear<D>,
    y: &'a mut D::Buffer<f32>,
    epilogue: Epilogue,
) -> MatmulOutput<'a, D> {
    MatmulOutput { weight: &linear.weight, bias: linear.bias.as_ref(), y, epilogue }
}

/// Each run of rows with its tables.
fn sequences<'a>(
    runs: &[Range<usize>],
    tables: &'a [Vec<AttendTable<'a>>],
) -> Vec<AttendSequence<'a>> {
    let runs = runs.iter().zip(tables);
    runs.map(|(rows, tables)| AttendSequence { rows: rows.clone(), tables }).collect()
}

/// The rows of each sequence that stand together.
fn runs(rows: &[Row]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if rows[run.start].sequence == row.sequence => {
                let before = rows[index - 1].position;
                assert!(before < row.position, "{before:?} is followed by {:?}", row.position);
                run.end = index + 1;
            }
            Some(_) | None => runs.push(index..index + 1),
        }
    }
    runs
}

/// Whether a row is the first token of its block and the step does not fill that block.
fn opens_and_leaves_open(rows: &[Row], index: usize) -> bool {
    let first = rows[index];
    let position = first.position.0 as usize;
    let last = rows.get(index + BLOCK_TOKENS - 1);
    let filled = last.is_some_and(|row| {
        row.sequence == first.sequence && row.position.0 as usize == position + BLOCK_TOKENS - 1
    });
    position.is_multiple_of(BLOCK_TOKENS) && !filled
}
