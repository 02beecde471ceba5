//! A weight matrix, repacked once at load from the file's own codes, and its exact dequantised
//! rows. Products are in `host::matmul`; which tensor is which is crate `model`'s business.
//!
//! A matrix has `n` outputs (rows in the file) and `k` inputs. Outputs are taken in *panels* of
//! 16, inputs in *blocks* of 32:
//!
//! * 4-bit codes: a block is 4 groups of 64 bytes, 8 inputs each. Output `o` owns bytes
//!   `4o..4o+4` as two 16-bit words; nibble `j` of the first word is input `2j`, of the second
//!   input `2j + 1`. Shifting and masking thus yields pairs of 16-bit codes.
//! * 8-bit codes, stored plus 128: a block is 8 groups of 64 bytes, 4 inputs each; byte `j` of the
//!   first word is input `2j`, of the second input `2j + 1`.
//! * Scales (and minima) follow per block, 16 in half precision, in arrays of their own.
//! * 16-bit and 32-bit values: `[panel][k][16]`.

use half::{bf16, f16};

use crate::{
    lanes::LANES,
    memory::{HugePages, MemoryError, Region},
};

/// Inputs that share one scale.
pub(crate) const BLOCK: usize = 32;
/// Bytes of the 4-bit codes of one panel and block.
pub(crate) const BYTES_4: usize = BLOCK * LANES / 2;
/// Bytes of the 8-bit codes of one panel and block.
pub(crate) const BYTES_8: usize = BLOCK * LANES;

/// How the file stores a matrix (the names and layouts of ggml).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 32 codes of 4 bits minus 8, and a scale.
    Q4_0,
    /// 32 codes of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 signed codes of 8 bits and a scale.
    Q8_0,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl WeightFormat {
    /// Values in one block of the file; a row is a whole number of them.
    #[must_use]
    pub const fn block_values(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => BLOCK,
            Self::F16 | Self::Bf16 | Self::F32 => 1,
        }
    }

    /// Bytes of one block of the file.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Bytes of the codes of a panel and block, for the formats that have codes.
    pub(crate) const fn code_bytes(self) -> Option<usize> {
        match self {
            Self::Q4_0 | Self::Q4_1 => Some(BYTES_4),
            Self::Q8_0 => Some(BYTES_8),
            Self::F16 | Self::Bf16 | Self::F32 => None,
        }
    }
}

/// A matrix as the file has it.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Layout of `bytes`.
    pub format: WeightFormat,
    /// Outputs: rows of the file.
    pub n: usize,
    /// Inputs: values of a row.
    pub k: usize,
    /// The rows, one after the other, little endian.
    pub bytes: &'a [u8],
}

/// A matrix that cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// A dimension is zero or no whole number of blocks.
    #[error(
        "a {format:?} matrix of {n} x {k} cannot be packed; both must be positive and k a \
             multiple of {block}; the file is damaged or not supported"
    )]
    Shape {
        /// Format of the file.
        format: WeightFormat,
        /// Outputs.
        n: usize,
        /// Inputs.
        k: usize,
        /// What k must be a multiple of.
        block: usize,
    },
    /// The bytes are not those of such a matrix.
    #[error(
        "a {format:?} matrix of {n} x {k} takes {expected} bytes, not {found}; the file is \
             truncated or damaged"
    )]
    Length {
        /// Format of the file.
        format: WeightFormat,
        /// Outputs.
        n: usize,
        /// Inputs.
        k: usize,
        /// Bytes that the shape implies.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A scale or minimum is infinite or NaN, so every product with it would be.
    #[error("row {row} has a scale that is not finite in block {block}; the file is damaged")]
    Scale {
        /// Row of the file.
        row: usize,
        /// Block of that row.
        block: usize,
    },
    /// No memory for the packed form.
    #[error("cannot hold the packed weight")]
    Memory(#[from] MemoryError),
}

/// A matrix in panels, ready to be multiplied with. One format, so one arithmetic, for every
/// number of rows.
#[derive(Debug)]
pub struct PackedWeight {
    format: WeightFormat,
    n: usize,
    k: usize,
    codes: Region<u8>,
    scales: Region<u16>,
    minima: Region<u16>,
    wide: Region<u16>,
    full: Region<f32>,
}

impl PackedWeight {
    /// Repacks a matrix.
    ///
    /// # Errors
    /// When shape and length do not fit together, a scale is not finite, or memory is short.
    pub fn pack(matrix: Matrix<'_>, pages: HugePages) -> Result<Self, WeightError> {
        let Matrix {
            format,
            n,
            k,
            bytes,
        } = matrix;
        let block = format.block_values();
        let shape = || WeightError::Shape {
            format,
            n,
            k,
            block,
        };
        if n == 0 || k == 0 || k % block != 0 {
            return Err(shape());
        }
        let row_bytes = (k / block)
            .checked_mul(format.block_bytes())
            .ok_or_else(shape)?;
        let expected = row_bytes.checked_mul(n).ok_or_else(shape)?;
        if bytes.len() != expected {
            return Err(WeightError::Length {
                format,
                n,
                k,
                expected,
                found: bytes.len(),
            });
        }
        // `expected` fits the address space, so these, at most 16 times as large for a single
        // row, can be counted in usize on any machine that holds the file.
        let panels = n.div_ceil(LANES);
        let blocks = panels * k.div_ceil(BLOCK);
        let (codes, wide, full) = match format {
            WeightFormat::Q4_0 | WeightFormat::Q4_1 => (blocks * BYTES_4, 0, 0),
            WeightFormat::Q8_0 => (blocks * BYTES_8, 0, 0),
            WeightFormat::F16 | WeightFormat::Bf16 => (0, panels * k * LANES, 0),
            WeightFormat::F32 => (0, 0, panels * k * LANES),
        };
        let scales = if codes > 0 { blocks * LANES } else { 0 };
        let minima = if format == WeightFormat::Q4_1 {
            scales
        } else {
            0
        };
        let mut packed = Self {
            format,
            n,
            k,
            codes: Region::zeroed(codes, pages)?,
            scales: Region::zeroed(scales, pages)?,
            minima: Region::zeroed(minima, pages)?,
            wide: Region::zeroed(wide, pages)?,
            full: Region::zeroed(full, pages)?,
        };
        for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
            packed.pack_row(row, bytes)?;
        }
        Ok(packed)
    }

    /// How the file stored it.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.n
    }

    /// Inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.k
    }

    /// Bytes of the packed form.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.codes.as_slice().len()
            + 2 * (self.scales.as_slice().len() + self.minima.as_slice().len())
            + 2 * self.wide.as_slice().len()
            + 4 * self.full.as_slice().len()
    }

    /// The values of a row as ggml's reference dequantises them, bit for bit: `d * q`, and for
    /// Q4_1 `d * q + m` with two roundings.
    ///
    /// # Panics
    /// When `row` is not below the outputs or `out` is not as long as the inputs.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.n,
            "row {row} of a weight with {} outputs",
            self.n
        );
        assert_eq!(
            out.len(),
            self.k,
            "a row of a weight is as long as its inputs"
        );
        let (panel, lane) = (row / LANES, row % LANES);
        match self.format {
            WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q8_0 => {
                self.dequantise_codes(panel, lane, out);
            }
            WeightFormat::F16 | WeightFormat::Bf16 => {
                for (value, lanes) in out.iter_mut().zip(self.wide_panel(panel)) {
                    *value = match self.format {
                        WeightFormat::F16 => f16::from_bits(lanes[lane]).to_f32(),
                        _ => bf16::from_bits(lanes[lane]).to_f32(),
                    };
                }
            }
            WeightFormat::F32 => {
                for (value, lanes) in out.iter_mut().zip(self.full_panel(panel)) {
                    *value = lanes[lane];
                }
            }
        }
    }

    fn dequantise_codes(&self, panel: usize, lane: usize, out: &mut [f32]) {
        let codes = self.panel(panel);
        for (block, values) in out.chunks_exact_mut(BLOCK).enumerate() {
            let scale = f16::from_bits(codes.scales[block][lane]).to_f32();
            for (input, value) in values.iter_mut().enumerate() {
                *value = match self.format {
                    WeightFormat::Q4_0 => {
                        (i32::from(nibble(&codes.codes[block * BYTES_4..], lane, input)) - 8) as f32
                            * scale
                    }
                    WeightFormat::Q4_1 => {
                        let code = nibble(&codes.codes[block * BYTES_4..], lane, input);
                        let minimum = f16::from_bits(codes.minima[block][lane]).to_f32();
                        f32::from(code) * scale + minimum
                    }
                    _ => {
                        let code = codes.codes[block * BYTES_8 + byte_at(lane, input)];
                        (i32::from(code) - 128) as f32 * scale
                    }
                };
            }
        }
    }

    /// The codes, scales and minima of a panel.
    pub(crate) fn panel(&self, panel: usize) -> CodePanel<'_> {
        let blocks = self.k / BLOCK;
        let code_bytes = blocks * self.format.code_bytes().unwrap_or(0);
        let codes = &self.codes.as_slice()[panel * code_bytes..][..code_bytes];
        let scales = self.scales.as_slice().as_chunks().0;
        let minima = self.minima.as_slice().as_chunks().0;
        let range = panel * blocks..(panel + 1) * blocks;
        CodePanel {
            codes,
            scales: &scales[range.clone()],
            minima: minima.get(range).unwrap_or(&[]),
        }
    }

    /// A panel of 16-bit values.
    pub(crate) fn wide_panel(&self, panel: usize) -> &[[u16; LANES]] {
        &self.wide.as_slice().as_chunks().0[panel * self.k..(panel + 1) * self.k]
    }

    /// A panel of 32-bit values.
    pub(crate) fn full_panel(&self, panel: usize) -> &[[f32; LANES]] {
        &self.full.as_slice().as_chunks().0[panel * self.k..(panel + 1) * self.k]
    }

    fn pack_row(&mut self, row: usize, bytes: &[u8]) -> Result<(), WeightError> {
        let (panel, lane) = (row / LANES, row % LANES);
        match self.format {
            WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q8_0 => {
                self.pack_codes(row, bytes)?;
            }
            WeightFormat::F16 | WeightFormat::Bf16 => {
                let to = &mut self.wide.as_mut_slice()[panel * self.k * LANES..];
                for (input, value) in bytes.as_chunks::<2>().0.iter().enumerate() {
                    to[input * LANES + lane] = u16::from_le_bytes(*value);
                }
            }
            WeightFormat::F32 => {
                let to = &mut self.full.as_mut_slice()[panel * self.k * LANES..];
                for (input, value) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    to[input * LANES + lane] = f32::from_le_bytes(*value);
                }
            }
        }
        Ok(())
    }

    fn pack_codes(&mut self, row: usize, bytes: &[u8]) -> Result<(), WeightError> {
        let (panel, lane) = (row / LANES, row % LANES);
        let blocks = self.k / BLOCK;
        let format = self.format;
        for (block, bytes) in bytes.chunks_exact(format.block_bytes()).enumerate() {
            let at = panel * blocks + block;
            let half = |from: usize| u16::from_le_bytes([bytes[from], bytes[from + 1]]);
            let scale = half(0);
            let minimum = if format == WeightFormat::Q4_1 {
                half(2)
            } else {
                0
            };
            if !f16::from_bits(scale).is_finite() || !f16::from_bits(minimum).is_finite() {
                return Err(WeightError::Scale { row, block });
            }
            self.scales.as_mut_slice()[at * LANES + lane] = scale;
            match format {
                WeightFormat::Q4_1 => {
                    self.minima.as_mut_slice()[at * LANES + lane] = minimum;
                    let to = &mut self.codes.as_mut_slice()[at * BYTES_4..][..BYTES_4];
                    spread_nibbles(&bytes[4..], lane, to);
                }
                WeightFormat::Q4_0 => {
                    let to = &mut self.codes.as_mut_slice()[at * BYTES_4..][..BYTES_4];
                    spread_nibbles(&bytes[2..], lane, to);
                }
                _ => {
                    let to = &mut self.codes.as_mut_slice()[at * BYTES_8..][..BYTES_8];
                    for (input, code) in bytes[2..].iter().enumerate() {
                        // Flipping the sign bit adds 128.
                        to[byte_at(lane, input)] = code ^ 0x80;
                    }
                }
            }
        }
        Ok(())
    }
}

/// What one panel of 4- or 8-bit codes consists of.
#[derive(Clone, Copy)]
pub(crate) struct CodePanel<'a> {
    /// Codes of all blocks, in the layout at the top of this file.
    pub(crate) codes: &'a [u8],
    /// Scales per block, in half precision.
    pub(crate) scales: &'a [[u16; LANES]],
    /// Minima per block, in half precision; empty when the format has none.
    pub(crate) minima: &'a [[u16; LANES]],
}

/// Where the nibble of an input lies within a panel's block: byte and shift.
fn nibble_at(lane: usize, input: usize) -> (usize, usize) {
    let (group, rest) = (input / 8, input % 8);
    let (pair, word) = (rest / 2, rest % 2);
    (group * 64 + lane * 4 + word * 2 + pair / 2, 4 * (pair % 2))
}

fn nibble(codes: &[u8], lane: usize, input: usize) -> u8 {
    let (byte, shift) = nibble_at(lane, input);
    (codes[byte] >> shift) & 0x0f
}

/// Where the byte of an input lies within a panel's block.
fn byte_at(lane: usize, input: usize) -> usize {
    let (group, rest) = (input / 4, input % 4);
    group * 64 + lane * 4 + (rest % 2) * 2 + rest / 2
}

/// The file's 16 bytes hold input `j` in the low and `j + 16` in the high nibble of byte `j`.
fn spread_nibbles(from: &[u8], lane: usize, to: &mut [u8]) {
    for (input, byte) in from.iter().take(BLOCK / 2).enumerate() {
        let (at, shift) = nibble_at(lane, input);
        to[at] |= (byte & 0x0f) << shift;
        let (at, shift) = nibble_at(lane, input + BLOCK / 2);
        to[at] |= (byte >> 4) << shift;
    }
}
