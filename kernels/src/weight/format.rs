//! The storage formats of the file, and how the codes of each are packed. Reading the bytes of a
//! block is in `decode`; the arithmetic over packed codes is in `host::matmul`.

use super::BLOCK;
use crate::lanes::LANES;

/// How the file stores a matrix (the names and layouts of ggml).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "ggml's own names, so that they can be searched for")]
pub enum WeightFormat {
    /// 32 codes of 4 bits minus 8, and a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits minus 16, and a scale.
    Q5_0,
    /// 32 codes of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 signed codes of 8 bits and a scale.
    Q8_0,
    /// 256 codes of 4 bits; 8 scales and minima of 6 bits, in units of their own.
    Q4_K,
    /// 256 codes of 5 bits; 8 scales and minima of 6 bits, in units of their own.
    Q5_K,
    /// 256 codes of 6 bits minus 32; 16 signed scales of 8 bits, in a unit of their own.
    Q6_K,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl WeightFormat {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::F16,
        Self::Bf16,
        Self::F32,
    ];

    /// Values in one block of the file; a row is a whole number of them.
    #[must_use]
    pub const fn block_values(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => BLOCK,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            Self::F16 | Self::Bf16 | Self::F32 => 1,
        }
    }

    /// Bytes of one block of the file.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// How its codes are packed, for the formats that have codes.
    pub(crate) const fn code_form(self) -> Option<CodeForm> {
        match self {
            Self::Q4_0 => Some(CodeForm::Q4_0),
            Self::Q4_1 => Some(CodeForm::Q4_1),
            Self::Q5_0 => Some(CodeForm::Q5_0),
            Self::Q5_1 => Some(CodeForm::Q5_1),
            Self::Q8_0 => Some(CodeForm::Q8_0),
            Self::Q4_K => Some(CodeForm::Q4_K),
            Self::Q5_K => Some(CodeForm::Q5_K),
            Self::Q6_K => Some(CodeForm::Q6_K),
            Self::F16 | Self::Bf16 | Self::F32 => None,
        }
    }
}

/// How scales and minima are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Levels {
    /// Half precision, for each part of a block.
    One,
    /// Numbers of 8 bits, for each part of a block, in units of half precision that 256 inputs
    /// share. The product of the two is exact in single precision.
    Two,
}

/// How the codes of a format are packed, and what they stand for: code minus `offset`, times the
/// scale of its part of the block, plus the block's minimum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeForm {
    /// Bits of a packed code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// What was added to make codes unsigned.
    pub(crate) offset: i32,
    /// Parts of a block with a scale each: 1, or 2 for codes without minimum.
    pub(crate) parts: usize,
    /// Whether blocks have a minimum.
    pub(crate) minima: bool,
    /// How scales and minima are stored.
    pub(crate) levels: Levels,
}

impl CodeForm {
    pub(crate) const Q4_0: Self =
        Self { bits: 4, offset: 8, parts: 1, minima: false, levels: Levels::One };
    pub(crate) const Q4_1: Self = Self { offset: 0, minima: true, ..Self::Q4_0 };
    pub(crate) const Q5_0: Self = Self { bits: 5, offset: 16, ..Self::Q4_0 };
    pub(crate) const Q5_1: Self = Self { bits: 5, ..Self::Q4_1 };
    pub(crate) const Q8_0: Self = Self { bits: 8, offset: 128, ..Self::Q4_0 };
    pub(crate) const Q4_K: Self = Self { levels: Levels::Two, ..Self::Q4_1 };
    pub(crate) const Q5_K: Self = Self { bits: 5, ..Self::Q4_K };
    pub(crate) const Q6_K: Self =
        Self { bits: 6, offset: 32, parts: 2, minima: false, levels: Levels::Two };

    /// Bytes of the codes of one panel and block.
    pub(crate) const fn code_bytes(self) -> usize {
        self.bits * BLOCK * LANES / 8
    }
}
