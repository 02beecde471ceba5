//! A weight matrix, repacked once at load from the file's own codes, and its exact dequantised
//! rows. Products are in `host::matmul`; which tensor is which is crate `model`'s business.
//!
//! A matrix has `n` outputs (rows in the file) and `k` inputs. Outputs are taken in *panels* of
//! 16, inputs in *blocks* of 32. Codes of 4, 5, 6 and 8 bits take as many bits here, and scales in
//! two levels stay in two levels, because the products of a single row are as fast as a panel can
//! be read: `panel` has the layout. 16-bit and 32-bit values: `[panel][k][16]`.

mod decode;
mod format;
mod panel;

use half::{bf16, f16};

use decode::{Decoded, decode};
pub use format::WeightFormat;
pub(crate) use format::{CodeForm, Levels};
pub(crate) use panel::{CodePanel, STRETCH, UNIT_BLOCKS};
use panel::{PanelLayout, Place};

use crate::{
    lanes::LANES,
    memory::{HugePages, MemoryError, Region},
};

/// Inputs that share one scale.
pub(crate) const BLOCK: usize = 32;

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
    /// Where the parts of a panel of codes lie; `None` for formats without codes.
    layout: Option<(CodeForm, PanelLayout)>,
    /// Panels of codes, one after the other; empty for formats without.
    codes: Region<u8>,
    /// 16-bit values; empty for other formats.
    wide: Region<u16>,
    /// 32-bit values; empty for other formats.
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
        let panels = n.div_ceil(LANES);
        let count = |each: usize| each.checked_mul(panels).ok_or_else(shape);
        let values = k.checked_mul(LANES).ok_or_else(shape)?;
        let (wide, full) = match format {
            WeightFormat::F16 | WeightFormat::Bf16 => (values, 0),
            WeightFormat::F32 => (0, values),
            _codes => (0, 0),
        };
        let layout = match format.code_form() {
            Some(form) => Some((form, PanelLayout::try_new(form, k).ok_or_else(shape)?)),
            None => None,
        };
        let codes = layout.as_ref().map_or(0, |(_, layout)| layout.bytes());
        let mut packed = Self {
            format,
            n,
            k,
            layout,
            codes: Region::zeroed(count(codes)?, pages)?,
            wide: Region::zeroed(count(wide)?, pages)?,
            full: Region::zeroed(count(full)?, pages)?,
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
        if let (Some(form), Some(codes)) = (self.format.code_form(), self.code_panel(panel)) {
            dequantise_codes(form, codes, lane, out);
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

    /// A panel of codes, for formats that have them.
    pub(crate) fn code_panel(&self, panel: usize) -> Option<CodePanel<'_>> {
        let (_, layout) = self.layout.as_ref()?;
        let bytes = &self.codes.as_slice()[panel * layout.bytes()..][..layout.bytes()];
        Some(layout.panel(bytes))
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
        if self.layout.is_some() {
            self.pack_codes(row, bytes)?;
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

    fn pack_codes(&mut self, row: usize, bytes: &[u8]) -> Result<(), WeightError> {
        let Some((form, layout)) = self.layout.as_ref() else { return Ok(()) };
        let (panel, lane) = (row / LANES, row % LANES);
        let to = &mut self.codes.as_mut_slice()[panel * layout.bytes()..][..layout.bytes()];
        let subs = self.format.block_values() / BLOCK;
        let file_blocks = bytes.chunks_exact(self.format.block_bytes());
        for (file_block, bytes) in file_blocks.enumerate() {
            for sub in 0..subs {
                let decoded = decode(self.format, bytes, sub).filter(Decoded::is_finite);
                let decoded = decoded.ok_or(WeightError::Scale { row, block: file_block })?;
                let place = Place { block: file_block * subs + sub, lane };
                layout.set(*form, to, place, &decoded);
            }
        }
        Ok(())
    }
}

fn dequantise_codes(form: CodeForm, panel: CodePanel<'_>, lane: usize, out: &mut [f32]) {
    for (block, values) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let codes = panel.codes(form, Place { block, lane });
        let minimum = form.minima.then(|| panel.minima(form, block)[lane]);
        let part_inputs = BLOCK / form.parts;
        for (part, values) in values.chunks_exact_mut(part_inputs).enumerate() {
            let scale = panel.scales(form, block, part)[lane];
            for (value, &code) in values.iter_mut().zip(&codes[part * part_inputs..]) {
                *value = (i32::from(code) - form.offset) as f32 * scale;
                if let Some(minimum) = minimum {
                    *value += minimum;
                }
            }
        }
    }
}
