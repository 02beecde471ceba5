//! A loaded model: packed weights in device memory, named by what they do.
//!
//! Only holds them; reading them from a file is in `load`, using them in `forward`.

use kernels::{Device, RopeTable};

use crate::spec::Spec;

/// A model on a device: immutable, shared by all that run it.
#[derive(Debug)]
pub struct Model<D: Device> {
    pub(crate) device: D,
    pub(crate) spec: Spec,
    pub(crate) weights: Weights<D>,
    /// Covers the positions that this process serves.
    pub(crate) rope: RopeTable,
    /// Factor on the scores: one by the root of `head_dim`, a correctly rounded root and division.
    pub(crate) attention_scale: f32,
}

pub(crate) struct Weights<D: Device> {
    /// `[vocab][width]`.
    pub(crate) embedding: D::Weight,
    pub(crate) layers: Vec<Layer<D>>,
    /// `[width]`.
    pub(crate) output_norm: D::Buffer<f32>,
    /// `[vocab][width]`; `None` when it is the embedding.
    pub(crate) output: Option<D::Weight>,
}

impl<D: Device> std::fmt::Debug for Weights<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

/// A matrix `[outputs][inputs]` with its bias, where the family has one.
pub(crate) struct Linear<D: Device> {
    pub(crate) weight: D::Weight,
    pub(crate) bias: Option<D::Buffer<f32>>,
}

/// Normalisations of single heads, before they are rotated.
pub(crate) struct HeadNorms<D: Device> {
    /// `[head_dim]`.
    pub(crate) query: D::Buffer<f32>,
    /// `[head_dim]`.
    pub(crate) key: D::Buffer<f32>,
}

/// One transformer layer.
pub(crate) struct Layer<D: Device> {
    /// `[width]`.
    pub(crate) attention_norm: D::Buffer<f32>,
    /// `[heads * head_dim][width]`.
    pub(crate) query: Linear<D>,
    /// `[kv_heads * head_dim][width]`.
    pub(crate) key: Linear<D>,
    /// `[kv_heads * head_dim][width]`.
    pub(crate) value: Linear<D>,
    /// `None` in families that have none.
    pub(crate) head_norms: Option<HeadNorms<D>>,
    /// `[width][heads * head_dim]`.
    pub(crate) attention_output: Linear<D>,
    /// `[width]`.
    pub(crate) feed_forward_norm: D::Buffer<f32>,
    /// `[ffn][width]`.
    pub(crate) gate: Linear<D>,
    /// `[ffn][width]`.
    pub(crate) up: Linear<D>,
    /// `[width][ffn]`.
    pub(crate) down: Linear<D>,
}

impl<D: Device> Model<D> {
    /// The shape.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The device that it was loaded to.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Factor on the scores of attention.
    #[must_use]
    pub fn attention_scale(&self) -> f32 {
        self.attention_scale
    }

    /// Positions that can be run: those of the model, or fewer where `context_max` says so.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.rope.spec().positions
    }
}
