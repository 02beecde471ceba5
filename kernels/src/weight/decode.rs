//! The file's blocks of codes, taken apart 32 values at a time. Layouts: ggml/src/ggml-common.h of
//! llama.cpp; the order of operations on scales is that of its `dequantize_row_*`. Packing is the
//! parent's business.

use super::{BLOCK, WeightFormat};

/// 32 values of a row.
pub(super) struct Decoded {
    /// Unsigned, with the offset of the format's `CodeForm`.
    pub(super) codes: [u8; BLOCK],
    /// Half precision: the scale, or what `scales` count.
    pub(super) unit: u16,
    /// Half precision: the minimum, or what `minimum` counts; to be added.
    pub(super) min_unit: u16,
    /// Of two levels: the scale of the block's one part, or of both, in units.
    pub(super) scales: [u8; 2],
    /// Of two levels: the minimum in its units.
    pub(super) minimum: u8,
}

impl Decoded {
    /// Whether every product with these values is a number.
    pub(super) fn is_finite(&self) -> bool {
        const EXPONENT: u16 = 0x7c00;
        self.unit & EXPONENT != EXPONENT && self.min_unit & EXPONENT != EXPONENT
    }
}

/// The values `32 * sub` and after of a block of the file; `None` for formats without codes.
///
/// # Panics
/// When `bytes` is shorter than a block of the format, or `sub` beyond it.
pub(super) fn decode(format: WeightFormat, bytes: &[u8], sub: usize) -> Option<Decoded> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let single =
        |codes, min_unit| Decoded { codes, unit: half(0), min_unit, scales: [0; 2], minimum: 0 };
    let decoded = match format {
        WeightFormat::Q4_0 => single(nibbles(&bytes[2..]), 0),
        WeightFormat::Q4_1 => single(nibbles(&bytes[4..]), half(2)),
        WeightFormat::Q5_0 => single(with_fifth_bits(&bytes[2..]), 0),
        WeightFormat::Q5_1 => single(with_fifth_bits(&bytes[4..]), half(2)),
        WeightFormat::Q8_0 => {
            let codes: [u8; BLOCK] = std::array::from_fn(|at| bytes[2 + at]);
            // Flipping the sign bit adds 128.
            single(codes.map(|code| code ^ 0x80), 0)
        }
        WeightFormat::Q4_K => {
            two_level(&bytes[4..16], sub, single(k_nibbles(&bytes[16..144], sub), half(2)))
        }
        WeightFormat::Q5_K => {
            // One byte of the 32 holds a bit of the same place in every sub-block.
            let (fifth, low) = bytes[16..176].split_at(BLOCK);
            let low = k_nibbles(low, sub);
            let codes = std::array::from_fn(|at| low[at] | ((fifth[at] >> sub) & 1) << 4);
            two_level(&bytes[4..16], sub, single(codes, half(2)))
        }
        WeightFormat::Q6_K => Decoded {
            codes: q6_codes(bytes, sub),
            unit: half(208),
            min_unit: 0,
            scales: [bytes[192 + 2 * sub], bytes[193 + 2 * sub]],
            minimum: 0,
        },
        WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::F32 => return None,
    };
    Some(decoded)
}

/// 16 bytes hold input `j` in the low and `j + 16` in the high nibble of byte `j`.
fn nibbles(from: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|at| match at < BLOCK / 2 {
        true => from[at] & 0x0f,
        false => from[at - BLOCK / 2] >> 4,
    })
}

/// Four bytes with the highest bits, input 0 lowest, and nibbles after them.
fn with_fifth_bits(from: &[u8]) -> [u8; BLOCK] {
    let low = nibbles(&from[4..]);
    std::array::from_fn(|at| low[at] | ((from[at / 8] >> (at % 8)) & 1) << 4)
}

/// 32 bytes hold an even sub-block in their low and the next one in their high nibbles.
fn k_nibbles(from: &[u8], sub: usize) -> [u8; BLOCK] {
    let from = &from[sub / 2 * BLOCK..][..BLOCK];
    std::array::from_fn(|at| (from[at] >> (4 * (sub % 2))) & 0x0f)
}

/// Scales and minima of 6 bits in 12 bytes: the first four of each whole in a byte, whose upper
/// two bits belong to the last four. The file's minimum is one to subtract.
fn two_level(packed: &[u8], sub: usize, units: Decoded) -> Decoded {
    const SIGN: u16 = 0x8000;
    let (scale, minimum) = if sub < 4 {
        (packed[sub] & 0x3f, packed[sub + 4] & 0x3f)
    } else {
        let low = packed[sub + 4];
        (low & 0x0f | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
    };
    Decoded { scales: [scale; 2], minimum, min_unit: units.min_unit ^ SIGN, ..units }
}

/// Half of the block, 128 values, has 64 bytes with nibbles and 32 with two upper bits each.
fn q6_codes(bytes: &[u8], sub: usize) -> [u8; BLOCK] {
    let (half, quarter) = (sub / 4, sub % 4);
    let low = &bytes[half * 64 + quarter % 2 * BLOCK..][..BLOCK];
    let high = &bytes[128 + half * BLOCK..][..BLOCK];
    std::array::from_fn(|at| {
        let low = (low[at] >> (4 * (quarter / 2))) & 0x0f;
        let high = (high[at] >> (2 * quarter)) & 3;
        low | high << 4
    })
}
