//! From a checkpoint to packed weights on a device, one tensor at a time: read from the mapped
//! file, packed, and its pages given back, so that no more than one tensor is in memory twice.
//!
//! Every tensor is checked by name, shape and type before it is read, and a file with a tensor
//! that the layer loop would not use is refused: ignoring it would give other numbers, silently.

use std::collections::BTreeSet;

use checkpoint::{Checkpoint, CheckpointError, GgmlType};
use half::{bf16, f16};
use kernels::{
    Device, DeviceLost, Matrix, MemoryError, RopeError, RopeSpec, RopeTable, WeightError,
    WeightFormat,
};

use crate::names::{GGUF, HUB, Names};
use crate::spec::{Spec, SpecError};
use crate::weights::{HeadNorms, Layer, Linear, Model, Weights};

/// What the loading process decides.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Positions to serve at most, should the model be made for more: the table of rotary
    /// positions takes `4 * head_dim` bytes for each.
    pub context_max: u32,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { context_max: 131_072 }
    }
}

/// How far loading is, told after every tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the file that are packed.
    pub bytes: u64,
    /// Bytes of all tensors.
    pub bytes_total: u64,
}

/// Why a checkpoint could not be loaded as a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The metadata describes no model that can be run.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// A tensor that the architecture needs is not there.
    #[error("tensor {name} is missing, expected with shape {expected:?}; the file is incomplete")]
    Missing {
        /// Which.
        name: String,
        /// Innermost first.
        expected: Vec<u64>,
    },
    /// A tensor has another shape than the metadata implies.
    #[error(
        "tensor {name} has shape {found:?}, expected {expected:?} (innermost first); \
         the file is corrupt or its metadata are of another model"
    )]
    Shape {
        /// Which.
        name: String,
        /// Innermost first.
        found: Vec<u64>,
        /// Innermost first.
        expected: Vec<u64>,
    },
    /// A tensor is stored in a way that no kernel reads.
    #[error("tensor {name} is stored as {found}, supported is {supported}: {remedy}")]
    Type {
        /// Which.
        name: String,
        /// As stored.
        found: GgmlType,
        /// What would do.
        supported: &'static str,
        /// What the user can do.
        remedy: &'static str,
    },
    /// A tensor of which the architecture knows nothing.
    #[error(
        "tensor {name} is not used by this architecture, so the result would be wrong: \
         the file belongs to a variant that is not supported"
    )]
    Unused {
        /// Which.
        name: String,
    },
    /// A tensor of floats holds a value that would spoil every row.
    #[error("tensor {name} holds {value} at {at}, expected finite numbers; the file is corrupt")]
    NotFinite {
        /// Which.
        name: String,
        /// Index of the first such value.
        at: usize,
        /// The value.
        value: f32,
    },
    /// A matrix could not be packed.
    #[error("tensor {name} cannot be loaded")]
    Pack {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: WeightError,
    },
    /// A vector found no place in device memory.
    #[error("no device memory for tensor {name}")]
    Memory {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: MemoryError,
    },
    /// The rotary positions of the metadata cannot be computed.
    #[error("the rotary positions of this model cannot be used")]
    Rope(#[from] RopeError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceLost),
}

impl<D: Device> Model<D> {
    /// Reads, checks and packs all tensors of `checkpoint` for `device`.
    ///
    /// # Errors
    /// [`LoadError`] names the key or tensor and what was expected.
    pub fn load(
        checkpoint: &Checkpoint,
        device: &D,
        options: LoadOptions,
    ) -> Result<Self, LoadError> {
        Self::load_with_progress(checkpoint, device, options, &mut |_| {})
    }

    /// As [`Model::load`], telling after each tensor how far it is.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with_progress(
        checkpoint: &Checkpoint,
        device: &D,
        options: LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let spec = Spec::try_new(checkpoint)?;
        let mut loader = Loader {
            checkpoint,
            names: match checkpoint {
                Checkpoint::Gguf(_) => &GGUF,
                Checkpoint::Directory(_) => &HUB,
            },
            device,
            stream: device.stream()?,
            used: BTreeSet::new(),
            told: LoadProgress {
                bytes: 0,
                bytes_total: checkpoint.tensors().iter().map(|tensor| tensor.bytes).sum(),
            },
            progress,
        };
        let rope = loader.rope(&spec, served(&spec, options)?)?;
        let weights = loader.weights(&spec)?;
        device.synchronise(&mut loader.stream)?;
        tracing::debug!(device = %device.describe(), ?spec, "model loaded");
        Ok(Self {
            device: device.clone(),
            spec,
            weights,
            rope,
            attention_scale: 1.0 / f32::from(spec.head_dim).sqrt(),
        })
    }
}

/// Positions that this process serves.
fn served(spec: &Spec, options: LoadOptions) -> Result<u32, SpecError> {
    let served = spec.context.min(options.context_max);
    match spec.window.filter(|window| *window < served) {
        Some(window) => Err(SpecError::Unsupported {
            key: "the sliding window".to_owned(),
            found: format!("{window} positions of a context of {}", spec.context),
            remedy: format!(
                "set model.context_max to at most {window}, or use a model that attends to its \
                 whole context"
            ),
        }),
        None => Ok(served),
    }
}

struct Loader<'a, D: Device> {
    checkpoint: &'a Checkpoint,
    names: &'static Names,
    device: &'a D,
    stream: D::Stream,
    /// Names of the tensors that have been taken.
    used: BTreeSet<String>,
    told: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl<D: Device> Loader<'_, D> {
    fn rope(&mut self, spec: &Spec, positions: u32) -> Result<RopeTable, LoadError> {
        let head_dim = usize::from(spec.head_dim);
        let rope = RopeSpec {
            style: spec.rope.style,
            head_dim,
            rotated: head_dim,
            theta: spec.rope.theta,
            scaling: spec.rope.scaling,
            positions,
        };
        let stored = self.names.rope_divisors.filter(|name| self.has(name));
        Ok(match stored {
            Some(name) => {
                let divisors = self.floats(name, u64::from(spec.head_dim) / 2)?;
                RopeTable::with_divisors(rope, &divisors)?
            }
            None => RopeTable::try_new(rope)?,
        })
    }

    fn weights(&mut self, spec: &Spec) -> Result<Weights<D>, LoadError> {
        let names = self.names;
        let (width, vocab) = (u64::from(spec.width), u64::from(spec.vocab));
        let tied = spec.tied_embeddings && self.output_is_embedding(width, vocab)?;
        // The two largest come first: a tensor is on its pages and packed for a moment, and that
        // moment should come while little else is there.
        let embedding = self.matrix(names.embedding, width, vocab)?;
        let output = match tied {
            true => None,
            false => Some(self.matrix(names.output, width, vocab)?),
        };
        let layers =
            (0..spec.layers).map(|layer| self.layer(spec, layer)).collect::<Result<_, _>>()?;
        let output_norm = self.vector(names.output_norm, width)?;
        let unused =
            self.checkpoint.tensors().iter().find(|tensor| {
                !self.used.contains(&tensor.name) && !names.is_harmless(&tensor.name)
            });
        if let Some(tensor) = unused {
            return Err(LoadError::Unused { name: tensor.name.clone() });
        }
        Ok(Weights { embedding, layers, output_norm, output })
    }

    /// Whether a tied checkpoint has no output matrix of other values than the embedding.
    fn output_is_embedding(&mut self, width: u64, vocab: u64) -> Result<bool, LoadError> {
        let (embedding, output) = (self.names.embedding, self.names.output);
        if !self.has(output) {
            return Ok(true);
        }
        let same_type =
            self.checked(embedding, &[width, vocab])? == self.checked(output, &[width, vocab])?;
        let checkpoint = self.checkpoint;
        let same =
            same_type && checkpoint.tensor_bytes(embedding)? == checkpoint.tensor_bytes(output)?;
        if same {
            self.tell(output);
        }
        Ok(same)
    }

    fn layer(&mut self, spec: &Spec, layer: u16) -> Result<Layer<D>, LoadError> {
        let names = self.names;
        let name = |part: &str| names.in_layer(layer, part);
        let weight = |part: &str| format!("{}.weight", name(part));
        let parts = &names.layer;
        let (width, ffn) = (u64::from(spec.width), u64::from(spec.ffn));
        let head_dim = u64::from(spec.head_dim);
        let (all, kv) = (u64::from(spec.heads) * head_dim, u64::from(spec.kv_heads) * head_dim);
        let biases = spec.biases;
        Ok(Layer {
            attention_norm: self.vector(&weight(parts.attention_norm), width)?,
            query: self.linear(&name(parts.query), (width, all), biases.qkv)?,
            key: self.linear(&name(parts.key), (width, kv), biases.qkv)?,
            value: self.linear(&name(parts.value), (width, kv), biases.qkv)?,
            head_norms: match spec.qk_norm {
                true => Some(HeadNorms {
                    query: self.vector(&weight(parts.query_norm), head_dim)?,
                    key: self.vector(&weight(parts.key_norm), head_dim)?,
                }),
                false => None,
            },
            attention_output: self.linear(
                &name(parts.attention_output),
                (all, width),
                biases.attention_output,
            )?,
            feed_forward_norm: self.vector(&weight(parts.feed_forward_norm), width)?,
            gate: self.linear(&name(parts.gate), (width, ffn), biases.feed_forward)?,
            up: self.linear(&name(parts.up), (width, ffn), biases.feed_forward)?,
            down: self.linear(&name(parts.down), (ffn, width), biases.feed_forward)?,
        })
    }

    fn linear(
        &mut self,
        name: &str,
        (inputs, outputs): (u64, u64),
        biased: bool,
    ) -> Result<Linear<D>, LoadError> {
        let weight = self.matrix(&format!("{name}.weight"), inputs, outputs)?;
        let bias = match biased {
            true => Some(self.vector(&format!("{name}.bias"), outputs)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    fn matrix(&mut self, name: &str, inputs: u64, outputs: u64) -> Result<D::Weight, LoadError> {
        let stored = self.checked(name, &[inputs, outputs])?;
        let format = match stored {
            GgmlType::Q4_0 => WeightFormat::Q4_0,
            GgmlType::Q4_1 => WeightFormat::Q4_1,
            GgmlType::Q5_0 => WeightFormat::Q5_0,
            GgmlType::Q5_1 => WeightFormat::Q5_1,
            GgmlType::Q8_0 => WeightFormat::Q8_0,
            GgmlType::Q4_K => WeightFormat::Q4_K,
            GgmlType::Q5_K => WeightFormat::Q5_K,
            GgmlType::Q6_K => WeightFormat::Q6_K,
            GgmlType::F16 => WeightFormat::F16,
            GgmlType::BF16 => WeightFormat::Bf16,
            GgmlType::F32 => WeightFormat::F32,
            found => {
                return Err(LoadError::Type {
                    name: name.to_owned(),
                    found,
                    supported: "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F16, BF16 or F32",
                    remedy: "take the model in one of these quantisations",
                });
            }
        };
        let bytes = self.checkpoint.tensor_bytes(name)?;
        refuse_not_finite(name, stored, bytes)?;
        let size = |number: u64| usize::try_from(number).expect("the tensor is mapped");
        let matrix = Matrix { format, n: size(outputs), k: size(inputs), bytes };
        let weight = self
            .device
            .weight(matrix)
            .map_err(|source| LoadError::Pack { name: name.to_owned(), source })?;
        self.tell(name);
        Ok(weight)
    }

    /// A bias or a normalisation.
    fn vector(&mut self, name: &str, len: u64) -> Result<D::Buffer<f32>, LoadError> {
        let values = self.floats(name, len)?;
        let buffer = self.device.buffer(values.len());
        let mut buffer =
            buffer.map_err(|source| LoadError::Memory { name: name.to_owned(), source })?;
        self.device.upload(&mut self.stream, &values, &mut buffer, 0);
        Ok(buffer)
    }

    /// A tensor of one dimension, widened without rounding.
    fn floats(&mut self, name: &str, len: u64) -> Result<Vec<f32>, LoadError> {
        let found = self.checked(name, &[len])?;
        let bytes = self.checkpoint.tensor_bytes(name)?;
        let halves = || bytes.as_chunks::<2>().0.iter();
        let values: Vec<f32> = match found {
            GgmlType::F32 => {
                bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
            }
            GgmlType::F16 => halves().map(|value| f16::from_le_bytes(*value).to_f32()).collect(),
            GgmlType::BF16 => halves().map(|value| bf16::from_le_bytes(*value).to_f32()).collect(),
            found => {
                return Err(LoadError::Type {
                    name: name.to_owned(),
                    found,
                    supported: "F32, F16 or BF16",
                    remedy: "convert the model again with a current converter",
                });
            }
        };
        refuse_not_finite(name, found, bytes)?;
        self.tell(name);
        Ok(values)
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.find_tensor(name).is_some()
    }

    /// The type of a tensor that is there and has the right shape; noted as used.
    fn checked(&mut self, name: &str, expected: &[u64]) -> Result<GgmlType, LoadError> {
        let Some(tensor) = self.checkpoint.find_tensor(name) else {
            return Err(LoadError::Missing { name: name.to_owned(), expected: expected.to_vec() });
        };
        if tensor.shape != expected {
            return Err(LoadError::Shape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        self.used.insert(name.to_owned());
        Ok(tensor.ty)
    }

    /// A tensor is packed: its pages may go.
    fn tell(&mut self, name: &str) {
        self.checkpoint.release(name);
        self.told.bytes += self.checkpoint.find_tensor(name).map_or(0, |tensor| tensor.bytes);
        (self.progress)(self.told);
    }
}

/// Infinite values and NaN in a tensor of floats; scales of quantised ones are checked when packed.
fn refuse_not_finite(name: &str, stored: GgmlType, bytes: &[u8]) -> Result<(), LoadError> {
    let f32_of = |value: [u8; 4]| f32::from_le_bytes(value);
    let found = match stored {
        GgmlType::F32 => not_finite(bytes, |value| f32_of(value).is_finite(), f32_of),
        GgmlType::F16 => not_finite(
            bytes,
            |value| u16::from_le_bytes(value) & 0x7c00 != 0x7c00,
            |value| f16::from_le_bytes(value).to_f32(),
        ),
        GgmlType::BF16 => not_finite(
            bytes,
            |value| u16::from_le_bytes(value) & 0x7f80 != 0x7f80,
            |value| bf16::from_le_bytes(value).to_f32(),
        ),
        _quantised => None,
    };
    match found {
        Some((at, value)) => Err(LoadError::NotFinite { name: name.to_owned(), at, value }),
        None => Ok(()),
    }
}

/// Index and value of the first that is not finite.
fn not_finite<const N: usize>(
    bytes: &[u8],
    is_finite: impl Fn([u8; N]) -> bool,
    read: impl Fn([u8; N]) -> f32,
) -> Option<(usize, f32)> {
    // In runs without an exit, which the compiler turns into vectors.
    const RUN: usize = 1024;
    let mut runs = bytes.as_chunks::<N>().0.chunks(RUN).enumerate();
    let (run, values) =
        runs.find(|(_, values)| !values.iter().fold(true, |all, value| all & is_finite(*value)))?;
    let at = values.iter().position(|value| !is_finite(*value))?;
    Some((run * RUN + at, read(values[at])))
}
