//! A weight matrix, repacked once at load from the file's own codes, and its exact dequantised
//! rows. Products are in `host::matmul`; which tensor is which is crate `model`'s business.
//!
//! A matrix has `n` outputs (rows in the file) and `k` inputs. Outputs are taken in *panels* of
//! 16, inputs in *blocks* of 32:
//!
//! * 4-bit codes: a block is 4 groups of 64 bytes, 8 inputs each. Output `o` owns bytes
//!   `4o..4o+4` as two 16-bit words; nibble `j` of the first word is input `2j`, of the second
//!   input `2j + 1`. Shifting and masking thus yields pairs of 16-bit codes.
//! * Codes of 5 to 8 bits take 8: a block is 8 groups of 64 bytes, 4 inputs each; byte `j` of the
//!   first word is input `2j`, of the second input `2j + 1`. Codes of 8 bits are stored plus 128.
//! * Scales (and minima) follow per block, 16 in half precision, in arrays of their own. Where the
//!   file has scales in two levels they are multiplied out, which is exact in single precision,
//!   and kept so; Q6_K has one for each half of a block.
//! * 16-bit and 32-bit values: `[panel][k][16]`.

mod decode;
mod format;

use half::{bf16, f16};

use decode::{Decoded, decode};
pub(crate) use format::CodeForm;
pub use format::WeightFormat;

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
    scales: Factors,
    minima: Factors,
    wide: Region<u16>,
    full: Region<f32>,
}

impl PackedWeight {
    /// Repacks a matrix.
    ///
    /// # Errors
    /// When shape and length do not fit together, a scale is not finite, or memory is short.
    pub fn pack(matrix: Matrix<'_>, pages: HugePages) -> Result<Self, WeightError> {
        let Matrix { format, n, k, bytes } = matrix;
        let block = format.block_values();
        let shape = || WeightError::Shape { format, n, k, block };
        if n == 0 || k == 0 || k % block != 0 {
            return Err(shape());
        }
        let row_bytes = (k / block).checked_mul(format.block_bytes()).ok_or_else(shape)?;
        let expected = row_bytes.checked_mul(n).ok_or_else(shape)?;
        if bytes.len() != expected {
            return Err(WeightError::Length { format, n, k, expected, found: bytes.len() });
        }
        // `expected` fits the address space, so these, at most 16 times as large for a single
        // row, can be counted in usize on any machine that holds the file.
        let panels = n.div_ceil(LANES);
        let blocks = panels * k.div_ceil(BLOCK);
        let (wide, full) = match format {
            WeightFormat::F16 | WeightFormat::Bf16 => (panels * k * LANES, 0),
            WeightFormat::F32 => (0, panels * k * LANES),
            _codes => (0, 0),
        };
        let form = format.code_form();
        let factors = |per_block| {
            let single = form.is_some_and(|form| form.full);
            Factors::zeroed(blocks * per_block * LANES, single, pages)
        };
        let mut packed = Self {
            format,
            n,
            k,
            codes: Region::zeroed(form.map_or(0, |form| blocks * form.block_bytes()), pages)?,
            scales: factors(form.map_or(0, |form| form.parts))?,
            minima: factors(form.map_or(0, |form| usize::from(form.minima)))?,
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
            + self.scales.bytes()
            + self.minima.bytes()
            + 2 * self.wide.as_slice().len()
            + 4 * self.full.as_slice().len()
    }

    /// The values of a row as ggml's reference dequantises them, bit for bit: `d * q`, and for
    /// formats with minima `d * q + m` with two roundings.
    ///
    /// # Panics
    /// When `row` is not below the outputs or `out` is not as long as the inputs.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of a weight with {} outputs", self.n);
        assert_eq!(out.len(), self.k, "a row of a weight is as long as its inputs");
        let (panel, lane) = (row / LANES, row % LANES);
        if let Some(form) = self.format.code_form() {
            self.dequantise_codes(form, panel, lane, out);
        } else if self.format == WeightFormat::F32 {
            for (value, lanes) in out.iter_mut().zip(self.full_panel(panel)) {
                *value = lanes[lane];
            }
        } else {
            for (value, lanes) in out.iter_mut().zip(self.wide_panel(panel)) {
                *value = match self.format {
                    WeightFormat::F16 => f16::from_bits(lanes[lane]).to_f32(),
                    _ => bf16::from_bits(lanes[lane]).to_f32(),
                };
            }
        }
    }

    fn dequantise_codes(&self, form: CodeForm, panel: usize, lane: usize, out: &mut [f32]) {
        let codes = self.panel(form, panel);
        let blocks = codes.codes.chunks_exact(form.block_bytes());
        for (block, (bytes, values)) in blocks.zip(out.chunks_exact_mut(BLOCK)).enumerate() {
            let minimum = form.minima.then(|| codes.minima.lane(block, lane));
            for (input, value) in values.iter_mut().enumerate() {
                let part = block * form.parts + input / form.part_inputs();
                let code = match form.bits {
                    4 => nibble(bytes, lane, input),
                    _ => bytes[byte_at(lane, input)],
                };
                *value = form.number(code) * codes.scales.lane(part, lane);
                if let Some(minimum) = minimum {
                    *value += minimum;
                }
            }
        }
    }

    /// The codes, scales and minima of a panel.
    pub(crate) fn panel(&self, form: CodeForm, panel: usize) -> CodePanel<'_> {
        let blocks = self.k / BLOCK;
        let code_bytes = blocks * form.block_bytes();
        CodePanel {
            codes: &self.codes.as_slice()[panel * code_bytes..][..code_bytes],
            parts: blocks * form.parts,
            scales: self.scales.panel(panel, blocks * form.parts),
            minima: self.minima.panel(panel, blocks),
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
        if let Some(form) = self.format.code_form() {
            self.pack_codes(form, row, bytes)?;
        } else if self.format == WeightFormat::F32 {
            let to = &mut self.full.as_mut_slice()[panel * self.k * LANES..];
            for (input, value) in bytes.as_chunks::<4>().0.iter().enumerate() {
                to[input * LANES + lane] = f32::from_le_bytes(*value);
            }
        } else {
            let to = &mut self.wide.as_mut_slice()[panel * self.k * LANES..];
            for (input, value) in bytes.as_chunks::<2>().0.iter().enumerate() {
                to[input * LANES + lane] = u16::from_le_bytes(*value);
            }
        }
        Ok(())
    }

    fn pack_codes(&mut self, form: CodeForm, row: usize, bytes: &[u8]) -> Result<(), WeightError> {
        let (panel, lane) = (row / LANES, row % LANES);
        let blocks = self.k / BLOCK;
        let subs = self.format.block_values() / BLOCK;
        let file_blocks = bytes.chunks_exact(self.format.block_bytes());
        for (block, bytes) in file_blocks.enumerate() {
            for sub in 0..subs {
                let decoded = decode(self.format, bytes, sub).filter(Decoded::is_finite);
                let decoded = decoded.ok_or(WeightError::Scale { row, block })?;
                let at = panel * blocks + block * subs + sub;
                for (part, scale) in decoded.scales.into_iter().take(form.parts).enumerate() {
                    self.scales.set(at * form.parts + part, lane, scale);
                }
                if form.minima {
                    self.minima.set(at, lane, decoded.minimum);
                }
                let size = form.block_bytes();
                let to = &mut self.codes.as_mut_slice()[at * size..][..size];
                for (input, code) in decoded.codes.into_iter().enumerate() {
                    if form.bits == 4 {
                        let (at, shift) = nibble_at(lane, input);
                        to[at] |= code << shift;
                    } else {
                        to[byte_at(lane, input)] = code;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The scales or the minima of a matrix, 16 for each block or part of one; one of the two regions
/// is empty, both are where the format has none.
#[derive(Debug)]
struct Factors {
    half: Region<u16>,
    full: Region<f32>,
}

impl Factors {
    fn zeroed(count: usize, full: bool, pages: HugePages) -> Result<Self, MemoryError> {
        let (half, full) = if full { (0, count) } else { (count, 0) };
        Ok(Self { half: Region::zeroed(half, pages)?, full: Region::zeroed(full, pages)? })
    }

    fn bytes(&self) -> usize {
        2 * self.half.as_slice().len() + 4 * self.full.as_slice().len()
    }

    /// What comes from half precision goes back to it unchanged.
    fn set(&mut self, at: usize, lane: usize, value: f32) {
        let at = at * LANES + lane;
        match self.full.as_mut_slice().get_mut(at) {
            Some(to) => *to = value,
            None => self.half.as_mut_slice()[at] = f16::from_f32(value).to_bits(),
        }
    }

    /// Those of a panel that has `count`.
    fn panel(&self, panel: usize, count: usize) -> PanelFactors<'_> {
        let range = panel * count..(panel + 1) * count;
        let half = self.half.as_slice().as_chunks().0;
        let full = self.full.as_slice().as_chunks().0;
        PanelFactors {
            half: half.get(range.clone()).unwrap_or(&[]),
            full: full.get(range).unwrap_or(&[]),
        }
    }
}

/// The scales or the minima of one panel, in one of two precisions; the other array is empty.
#[derive(Clone, Copy)]
pub(crate) struct PanelFactors<'a> {
    /// In half precision.
    pub(crate) half: &'a [[u16; LANES]],
    /// In single precision.
    pub(crate) full: &'a [[f32; LANES]],
}

impl PanelFactors<'_> {
    /// Whether there are `count` in the precision of the form.
    pub(crate) fn fits(self, form: CodeForm, count: usize) -> bool {
        let len = if form.full { self.full.len() } else { self.half.len() };
        len == count
    }

    fn lane(self, at: usize, lane: usize) -> f32 {
        match self.full.get(at) {
            Some(lanes) => lanes[lane],
            None => f16::from_bits(self.half[at][lane]).to_f32(),
        }
    }
}

/// What one panel of 4- or 8-bit codes consists of.
#[derive(Clone, Copy)]
pub(crate) struct CodePanel<'a> {
    /// Codes of all blocks, in the layout at the top of this file.
    pub(crate) codes: &'a [u8],
    /// Parts of all blocks: stretches of inputs that share a scale.
    pub(crate) parts: usize,
    /// Scales per part.
    pub(crate) scales: PanelFactors<'a>,
    /// Minima per block; empty when the format has none.
    pub(crate) minima: PanelFactors<'a>,
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
