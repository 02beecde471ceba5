//! Writes small GGUF files for the tests: real containers with random weights, so that loading
//! can be tested without a download. Knows what a stored block means, as the reader does not.

use std::io::Write as _;
use std::path::Path;

use half::{bf16, f16};

/// SplitMix64: the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From -1 to 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    /// A type that no kernel takes.
    Q2K,
}

impl Stored {
    /// All that kernels take.
    pub(crate) const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::BF16 => 30,
        }
    }
}

/// A quantised block of which only the units matter: values, bytes, and the places of its
/// half-precision units, each with the largest number that it is multiplied with.
type Block = (u64, usize, &'static [(usize, f32)]);

fn block(stored: Stored) -> Block {
    match stored {
        Stored::Q4_0 => (32, 18, &[(0, 8.0)]),
        Stored::Q5_0 => (32, 22, &[(0, 16.0)]),
        Stored::Q5_1 => (32, 24, &[(0, 16.0), (2, 1.0)]),
        Stored::Q4K => (256, 144, &[(0, 63.0 * 15.0), (2, 63.0)]),
        Stored::Q5K => (256, 176, &[(0, 63.0 * 31.0), (2, 63.0)]),
        Stored::Q6K => (256, 210, &[(208, 128.0 * 32.0)]),
        Stored::Q2K => (256, 84, &[]),
        Stored::F32 | Stored::F16 | Stored::BF16 | Stored::Q4_1 | Stored::Q8_0 => {
            unreachable!("{stored:?} is written value by value")
        }
    }
}

/// A tensor to be written, and the values that its stored form stands for.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Innermost first.
    pub(crate) shape: Vec<u64>,
    pub(crate) stored: Stored,
    pub(crate) bytes: Vec<u8>,
    /// Row-major, as dequantised; empty for formats that are written as random bits.
    pub(crate) values: Vec<f32>,
}

impl Tensor {
    /// Random values of about `scale`, made in the stored form so that nothing is rounded twice.
    pub(crate) fn random(
        random: &mut Random,
        name: &str,
        shape: &[u64],
        stored: Stored,
        scale: f32,
    ) -> Self {
        let elements: u64 = shape.iter().product();
        let mut tensor = Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            stored,
            bytes: Vec::new(),
            values: Vec::new(),
        };
        match stored {
            Stored::F32 | Stored::F16 | Stored::BF16 => {
                for _ in 0..elements {
                    tensor.push_float(random.unit() * scale);
                }
            }
            Stored::Q4_1 => {
                for _ in 0..elements / 32 {
                    tensor.push_q4_1(random, scale);
                }
            }
            Stored::Q8_0 => {
                for _ in 0..elements / 32 {
                    tensor.push_q8_0(random, scale);
                }
            }
            Stored::Q4_0
            | Stored::Q5_0
            | Stored::Q5_1
            | Stored::Q4K
            | Stored::Q5K
            | Stored::Q6K
            | Stored::Q2K => {
                for _ in 0..elements / block(stored).0 {
                    tensor.push_random_bits(random, scale);
                }
            }
        }
        tensor
    }

    /// Values near one, as a trained normalisation has them.
    pub(crate) fn gamma(random: &mut Random, name: &str, width: u64) -> Self {
        let mut tensor = Self::random(random, name, &[width], Stored::F32, 0.25);
        tensor.bytes.clear();
        for value in &mut tensor.values {
            *value += 1.0;
            tensor.bytes.extend(value.to_le_bytes());
        }
        tensor
    }

    fn push_float(&mut self, value: f32) {
        let value = if self.stored == Stored::F16 {
            let rounded = f16::from_f32(value);
            self.bytes.extend(rounded.to_le_bytes());
            rounded.to_f32()
        } else if self.stored == Stored::BF16 {
            let rounded = bf16::from_f32(value);
            self.bytes.extend(rounded.to_le_bytes());
            rounded.to_f32()
        } else {
            self.bytes.extend(value.to_le_bytes());
            value
        };
        self.values.push(value);
    }

    /// Any codes and any scales of the second level, with units that keep values near `scale`.
    fn push_random_bits(&mut self, random: &mut Random, scale: f32) {
        let (_, bytes, units) = block(self.stored);
        let start = self.bytes.len();
        self.bytes.extend((0..bytes).map(|_| (random.next() >> 56) as u8));
        for (at, largest) in units {
            let unit = f16::from_f32(scale / largest * (1.0 + random.unit().abs()));
            let at = start + at;
            self.bytes[at..at + 2].copy_from_slice(&unit.to_le_bytes());
        }
    }

    fn push_q4_1(&mut self, random: &mut Random, scale: f32) {
        let step = f16::from_f32(scale / 7.5 * (0.5 + 0.5 * random.unit().abs()));
        let min = f16::from_f32(-scale * (0.5 + 0.5 * random.unit().abs()));
        self.bytes.extend(step.to_le_bytes());
        self.bytes.extend(min.to_le_bytes());
        let codes: Vec<u8> = (0..32).map(|_| (random.next() >> 60) as u8).collect();
        for lane in 0..16 {
            self.bytes.push(codes[lane] | codes[lane + 16] << 4);
        }
        let value = |code: u8| f32::from(code) * step.to_f32() + min.to_f32();
        self.values.extend(codes.into_iter().map(value));
    }

    fn push_q8_0(&mut self, random: &mut Random, scale: f32) {
        let step = f16::from_f32(scale / 127.0 * (0.5 + 0.5 * random.unit().abs()));
        self.bytes.extend(step.to_le_bytes());
        for _ in 0..32 {
            let code = (random.next() >> 56) as i8;
            self.bytes.extend(code.to_le_bytes());
            self.values.push(f32::from(code) * step.to_f32());
        }
    }
}

/// A metadata value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Text(String),
}

/// A file before it is written; tests change keys and tensors to make it wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct GgufFile {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl GgufFile {
    /// Sets a key, replacing what it was.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.unset(key);
        self.metadata.push((key.to_owned(), value));
    }

    pub(crate) fn unset(&mut self, key: &str) {
        self.metadata.retain(|(other, _)| other != key);
    }

    pub(crate) fn tensor(&self, name: &str) -> &Tensor {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("the test file has no tensor {name}"))
    }

    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("the test file has no tensor {name}"))
    }

    pub(crate) fn write(&self, path: &Path) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            match value {
                Value::U32(number) => {
                    out.extend(4u32.to_le_bytes());
                    out.extend(number.to_le_bytes());
                }
                Value::F32(number) => {
                    out.extend(6u32.to_le_bytes());
                    out.extend(number.to_le_bytes());
                }
                Value::Text(content) => {
                    out.extend(8u32.to_le_bytes());
                    text(&mut out, content);
                }
            }
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dimension in &tensor.shape {
                out.extend(dimension.to_le_bytes());
            }
            out.extend(tensor.stored.number().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.bytes.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        let mut file = std::fs::File::create(path).expect("the test's folder can be written");
        file.write_all(&out).expect("the test's file can be written");
    }
}

fn text(out: &mut Vec<u8>, content: &str) {
    out.extend((content.len() as u64).to_le_bytes());
    out.extend(content.as_bytes());
}
