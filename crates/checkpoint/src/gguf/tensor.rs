//! Tensor directory entries and the sizes of ggml's storage types.
//!
//! Deliberately knows sizes only, not how to decode a block: `model` and `kernels` do, for the
//! types they support. Sizes: ggml/src/ggml-common.h of llama.cpp.

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(non_camel_case_types, reason = "ggml's own names, so that they can be searched for")]
pub enum GgmlType {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    BF16,
    /// 64-bit float.
    F64,
    /// 8-bit integer.
    I8,
    /// 16-bit integer.
    I16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 4 bits, scale.
    Q4_0,
    /// 4 bits, scale and minimum.
    Q4_1,
    /// 5 bits, scale.
    Q5_0,
    /// 5 bits, scale and minimum.
    Q5_1,
    /// 8 bits, scale.
    Q8_0,
    /// 2-bit k-quant.
    Q2_K,
    /// 3-bit k-quant.
    Q3_K,
    /// 4-bit k-quant.
    Q4_K,
    /// 5-bit k-quant.
    Q5_K,
    /// 6-bit k-quant.
    Q6_K,
    /// 8-bit k-quant.
    Q8_K,
    /// 4 bits, table.
    IQ4_NL,
    /// 4-bit table k-quant.
    IQ4_XS,
    /// 4-bit microscaling float.
    MXFP4,
}

impl GgmlType {
    /// The type that stands behind ggml's number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            15 => Self::Q8_K,
            20 => Self::IQ4_NL,
            23 => Self::IQ4_XS,
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            30 => Self::BF16,
            39 => Self::MXFP4,
            _ => return None,
        })
    }

    /// Elements in one block, and bytes that the block takes.
    #[must_use]
    pub fn block(self) -> (u64, u64) {
        match self {
            Self::I8 => (1, 1),
            Self::F16 | Self::BF16 | Self::I16 => (1, 2),
            Self::F32 | Self::I32 => (1, 4),
            Self::F64 | Self::I64 => (1, 8),
            Self::Q4_0 | Self::IQ4_NL => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::MXFP4 => (32, 17),
            Self::Q2_K => (256, 84),
            Self::Q3_K => (256, 110),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
            Self::Q8_K => (256, 292),
            Self::IQ4_XS => (256, 136),
        }
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One entry of the tensor directory, checked against the size of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// As stored, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements per dimension, innermost (contiguous) first: a matrix of `n` rows of `k` elements
    /// is `[k, n]`. One to four entries, none zero.
    pub shape: Vec<u64>,
    /// Storage type.
    pub ty: GgmlType,
    /// First byte, relative to the start of the data section.
    pub offset: u64,
    /// Size of the stored form.
    pub bytes: u64,
}

impl TensorInfo {
    /// Product of the shape; cannot overflow, the parser checked it.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of one innermost row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let (elements, bytes) = self.ty.block();
        self.shape[0] / elements * bytes
    }
}

/// Size of a tensor, or what is wrong with its shape.
pub(super) fn stored_bytes(ty: GgmlType, shape: &[u64]) -> Result<u64, &'static str> {
    let (block_elements, block_bytes) = ty.block();
    let row = *shape.first().ok_or("it has no dimension")?;
    if shape.contains(&0) {
        return Err("a dimension is zero");
    }
    if row % block_elements != 0 {
        return Err("a row is no whole number of quantisation blocks");
    }
    let elements = shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
    elements
        .and_then(|n| (n / block_elements).checked_mul(block_bytes))
        .ok_or("the number of elements overflows")
}
