//! Hot path. From hidden states to logits: the final normalisation and the output matrix, for rows
//! of the last step or for hidden states that came from another node.
//!
//! Choosing a token is the device's: see [`Scratch::sample`].

use kernels::{Device, DeviceLost, Epilogue, Matmul, MatmulOutput, RmsNorm};

use crate::scratch::Scratch;
use crate::weights::Model;

impl<D: Device> Model<D> {
    /// Computes the logits of some rows of the last step, for [`Scratch::sample`] and
    /// [`Scratch::read_logits`]. The bits of a row do not depend on the other rows.
    ///
    /// # Panics
    /// When the last step has no such row, or there are more than `logit_rows` of them.
    pub fn logits_of_rows(&self, scratch: &mut Scratch<D>, rows: &[u32]) {
        let count = rows.len();
        let known = scratch.hidden_rows;
        assert!(count <= scratch.shape.logit_rows, "{count} rows in {:?}", scratch.shape);
        let inside = rows.iter().all(|row| (*row as usize) < known);
        assert!(inside, "rows {rows:?} of a step of {known}");
        let a = &mut scratch.activations;
        let stream = &mut scratch.stream;
        self.device.take_rows(stream, &a.hidden, scratch.width, rows, &mut a.last);
        self.logits_of_last(scratch, count);
    }

    /// The same from hidden states on the host, `[rows][width]`, as [`Scratch::read_hidden`] gave
    /// them, here or on another node of the same numerics class: same bits, same logits.
    ///
    /// # Panics
    /// When `hidden` is no whole number of rows or more than `logit_rows` of them.
    pub fn logits_of_hidden(&self, scratch: &mut Scratch<D>, hidden: &[f32]) {
        let count = hidden.len() / scratch.width;
        assert_eq!(hidden.len(), count * scratch.width, "hidden states come as whole rows");
        assert!(count <= scratch.shape.logit_rows, "{count} rows in {:?}", scratch.shape);
        self.device.upload(&mut scratch.stream, hidden, &mut scratch.activations.last, 0);
        self.logits_of_last(scratch, count);
    }

    fn logits_of_last(&self, scratch: &mut Scratch<D>, rows: usize) {
        let a = &mut scratch.activations;
        let stream = &mut scratch.stream;
        self.device.rms_norm(
            stream,
            RmsNorm {
                rows,
                x: &a.last,
                gamma: &self.weights.output_norm,
                eps: self.spec.rms_eps,
                y: &mut a.last_normed,
            },
        );
        let outputs = &mut [MatmulOutput {
            weight: self.weights.output.as_ref().unwrap_or(&self.weights.embedding),
            bias: None,
            y: &mut a.logits,
            epilogue: Epilogue::Store,
        }];
        self.device.matmul(stream, Matmul { rows, x: &a.last_normed, outputs });
        scratch.logit_rows = rows;
    }
}

impl<D: Device> Scratch<D> {
    /// Waits for what was launched.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn synchronise(&mut self) -> Result<(), DeviceLost> {
        self.device.synchronise(&mut self.stream)
    }
}
