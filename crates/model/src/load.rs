//! From a GGUF file to packed weights on a device, one tensor at a time, so that no more than one
//! tensor is in memory twice.
//!
//! Every tensor is checked by name, shape and type before it is read, and a file with a tensor
//! that the layer loop would not use is refused: ignoring it would give other numbers, silently.

use std::collections::BTreeSet;

use checkpoint::{GgmlType, Gguf, GgufError};
use kernels::{
    Device, DeviceLost, Matrix, MemoryError, RopeError, RopeSpec, RopeTable, WeightError,
    WeightFormat,
};

use crate::spec::{Spec, SpecError};
use crate::weights::{Layer, Linear, Model, Weights};

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

/// Why a file could not be loaded as a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The metadata describes no model that can be run.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A tensor that the architecture needs is not there.
    #[error("tensor {name} is missing, expected with shape {expected:?}; the file is incomplete")]
    Missing {
        /// Which.
        name: String,
        /// Innermost first.
        expected: Vec<u64>,
    },
    /// A tensor has another shape than the metadata implies.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}; the file is corrupt")]
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
    /// A vector holds a value that would spoil every row.
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
    /// Reads, checks and packs all tensors of `gguf` for `device`.
    ///
    /// # Errors
    /// [`LoadError`] names the key or tensor and what was expected.
    pub fn load(gguf: &Gguf, device: &D, options: LoadOptions) -> Result<Self, LoadError> {
        Self::load_with_progress(gguf, device, options, &mut |_| {})
    }

    /// As [`Model::load`], telling after each tensor how far it is.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with_progress(
        gguf: &Gguf,
        device: &D,
        options: LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let spec = Spec::try_new(gguf)?;
        let rope = RopeTable::try_new(RopeSpec {
            style: spec.rope.style,
            head_dim: usize::from(spec.head_dim),
            rotated: usize::from(spec.head_dim),
            theta: spec.rope.theta,
            positions: spec.context.min(options.context_max),
        })?;
        let mut loader = Loader {
            gguf,
            device,
            stream: device.stream()?,
            used: BTreeSet::new(),
            told: LoadProgress {
                bytes: 0,
                bytes_total: gguf.tensors().iter().map(|tensor| tensor.bytes).sum(),
            },
            progress,
        };
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

struct Loader<'a, D: Device> {
    gguf: &'a Gguf,
    device: &'a D,
    stream: D::Stream,
    /// Names of the tensors that have been taken.
    used: BTreeSet<String>,
    told: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl<D: Device> Loader<'_, D> {
    fn weights(&mut self, spec: &Spec) -> Result<Weights<D>, LoadError> {
        let (width, vocab) = (u64::from(spec.width), u64::from(spec.vocab));
        let embedding = self.matrix("token_embd.weight", width, vocab)?;
        let layers =
            (0..spec.layers).map(|layer| self.layer(spec, layer)).collect::<Result<_, _>>()?;
        let output_norm = self.vector("output_norm.weight", width)?;
        let output = match spec.tied_embeddings {
            true => None,
            false => Some(self.matrix("output.weight", width, vocab)?),
        };
        let unused = self.gguf.tensors().iter().find(|tensor| !self.used.contains(&tensor.name));
        if let Some(tensor) = unused {
            return Err(LoadError::Unused { name: tensor.name.clone() });
        }
        Ok(Weights { embedding, layers, output_norm, output })
    }

    fn layer(&mut self, spec: &Spec, layer: u16) -> Result<Layer<D>, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (width, ffn) = (u64::from(spec.width), u64::from(spec.ffn));
        let head_dim = u64::from(spec.head_dim);
        let (all, kv) = (u64::from(spec.heads) * head_dim, u64::from(spec.kv_heads) * head_dim);
        let bias = spec.qkv_bias;
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm.weight"), width)?,
            query: self.linear(&name("attn_q"), (width, all), bias)?,
            key: self.linear(&name("attn_k"), (width, kv), bias)?,
            value: self.linear(&name("attn_v"), (width, kv), bias)?,
            attention_output: self.linear(&name("attn_output"), (all, width), false)?,
            feed_forward_norm: self.vector(&name("ffn_norm.weight"), width)?,
            gate: self.linear(&name("ffn_gate"), (width, ffn), false)?,
            up: self.linear(&name("ffn_up"), (width, ffn), false)?,
            down: self.linear(&name("ffn_down"), (ffn, width), false)?,
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
        let bytes = self.gguf.tensor_bytes(name)?;
        let size = |number: u64| usize::try_from(number).expect("the tensor is in memory");
        let matrix = Matrix { format, n: size(outputs), k: size(inputs), bytes };
        let weight = self
            .device
            .weight(matrix)
            .map_err(|source| LoadError::Pack { name: name.to_owned(), source })?;
        self.tell(name, bytes);
        Ok(weight)
    }

    /// A bias or a normalisation, which GGUF always stores in single precision.
    fn vector(&mut self, name: &str, len: u64) -> Result<D::Buffer<f32>, LoadError> {
        let found = self.checked(name, &[len])?;
        if found != GgmlType::F32 {
            return Err(LoadError::Type {
                name: name.to_owned(),
                found,
                supported: "F32",
                remedy: "convert the model again with a current converter",
            });
        }
        let bytes = self.gguf.tensor_bytes(name)?;
        let values: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(LoadError::NotFinite { name: name.to_owned(), at, value: values[at] });
        }
        let buffer = self.device.buffer(values.len());
        let mut buffer =
            buffer.map_err(|source| LoadError::Memory { name: name.to_owned(), source })?;
        self.device.upload(&mut self.stream, &values, &mut buffer, 0);
        self.tell(name, bytes);
        Ok(buffer)
    }

    /// The type of a tensor that is there and has the right shape; noted as used.
    fn checked(&mut self, name: &str, expected: &[u64]) -> Result<GgmlType, LoadError> {
        let Some(tensor) = self.gguf.find_tensor(name) else {
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

    /// Counts a tensor that is packed, and whose pages are not needed any more.
    fn tell(&mut self, name: &str, packed: &[u8]) {
        self.gguf.release(name);
        self.told.bytes += packed.len() as u64;
        (self.progress)(self.told);
    }
}
