//! How the codes, scales and minima of a panel lie in memory, and their values one at a time.
//! Reading the file's blocks is in `decode`; reading many at once is in `host::matmul`.
//!
//! A panel is one stretch of bytes, so that a product with one row is one stream: scales, minima
//! and units of all blocks first, up to a multiple of 64 bytes, then the codes. Outputs count
//! upwards from 0 to 15 in each item:
//!
//! * One level: 16 scales in half precision for each block, then as many minima if there are any.
//! * Two levels: 16 numbers of 8 bits for each part of a block, then 16 for each block's minima,
//!   then 16 units of scales in half precision for every 8 blocks, then as many of minima.
//! * Codes: a block is 8 *quads* of 4 inputs, each of 64 bytes: output `o` owns bytes
//!   `4o..4o+4`, inputs 0, 2, 1, 3. So the bytes of a quad are the codes of a multiplication in
//!   8 bits, and their even and odd ones, widened, those of two multiplications in 16 bits, of
//!   inputs 0 and 1, and of 2 and 3.
//!   Codes of 8 bits are stored so. Of smaller ones the low 4 bits are: quad `2g` in the low and
//!   quad `2g + 1` in the high nibbles of stretch `g` of 64 bytes. After these 256 bytes follow
//!   the bits from the fifth on: bit `(4 + q) % 8` of a byte is the fifth bit of quad `q`, or
//!   bits `(4 + 2q) % 8` and the next of the two stretches are the fifth and sixth of quads 0 to
//!   3 and 4 to 7.

use std::ops::Range;

use super::{BLOCK, decode::Decoded, format::CodeForm, format::Levels};
use crate::lanes::{LANES, widened};

/// Blocks that share a unit.
pub(crate) const UNIT_BLOCKS: usize = 8;
/// Inputs of a quad.
const QUAD: usize = 4;
/// Bytes of a quad, of the nibbles of two, of the higher bits of several.
pub(crate) const STRETCH: usize = QUAD * LANES;

/// Where the parts of a panel begin.
#[derive(Clone, Debug)]
pub(super) struct PanelLayout {
    scales: Range<usize>,
    minima: Range<usize>,
    units: Range<usize>,
    min_units: Range<usize>,
    codes: Range<usize>,
}

impl PanelLayout {
    /// Of a panel with `k` inputs; `None` beyond the address space.
    pub(super) fn try_new(form: CodeForm, k: usize) -> Option<Self> {
        let blocks = k.div_ceil(BLOCK);
        let mut end = 0_usize;
        let mut next = |count: usize, bytes: usize| {
            let start = end;
            end = count.checked_mul(bytes)?.checked_add(start)?;
            Some(start..end)
        };
        let minima = |count| if form.minima { count } else { 0 };
        let (scales, minima, units, min_units) = match form.levels {
            Levels::One => {
                (next(blocks, 2 * LANES)?, next(minima(blocks), 2 * LANES)?, next(0, 0)?, 0..0)
            }
            Levels::Two => {
                let units = blocks.div_ceil(UNIT_BLOCKS);
                (
                    next(blocks, form.parts * LANES)?,
                    next(minima(blocks), LANES)?,
                    next(units, 2 * LANES)?,
                    next(minima(units), 2 * LANES)?,
                )
            }
        };
        let codes_at = end.checked_next_multiple_of(STRETCH)?;
        let codes = codes_at..blocks.checked_mul(form.code_bytes())?.checked_add(codes_at)?;
        Some(Self { scales, minima, units, min_units, codes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.codes.end
    }

    /// The parts of a panel's bytes.
    pub(super) fn panel<'a>(&self, bytes: &'a [u8]) -> CodePanel<'a> {
        let part = |range: &Range<usize>| &bytes[range.clone()];
        CodePanel {
            scales: part(&self.scales),
            minima: part(&self.minima),
            units: part(&self.units),
            min_units: part(&self.min_units),
            codes: part(&self.codes),
        }
    }

    /// Writes a block of a row into a zeroed place.
    pub(super) fn set(&self, form: CodeForm, panel: &mut [u8], place: Place, decoded: &Decoded) {
        let Place { block, lane } = place;
        let mut half = |range: &Range<usize>, at: usize, value: u16| {
            let at = range.start + 2 * (at * LANES + lane);
            panel[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match form.levels {
            Levels::One => {
                half(&self.scales, block, decoded.unit);
                if form.minima {
                    half(&self.minima, block, decoded.min_unit);
                }
            }
            Levels::Two => {
                half(&self.units, block / UNIT_BLOCKS, decoded.unit);
                if form.minima {
                    half(&self.min_units, block / UNIT_BLOCKS, decoded.min_unit);
                    panel[self.minima.start + block * LANES + lane] = decoded.minimum;
                }
                for (part, scale) in decoded.scales.into_iter().take(form.parts).enumerate() {
                    let at = (block * form.parts + part) * LANES + lane;
                    panel[self.scales.start + at] = scale;
                }
            }
        }
        let bytes = form.code_bytes();
        let codes = &mut panel[self.codes.clone()][block * bytes..][..bytes];
        for (quad, &[a, b, c, d]) in decoded.codes.as_chunks::<QUAD>().0.iter().enumerate() {
            let word = u32::from_le_bytes([a, c, b, d]);
            for field in fields(form, lane, quad).into_iter().flatten() {
                field.set(word, codes);
            }
        }
    }
}

/// A block of an output of a panel.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) lane: usize,
}

/// What one panel of codes consists of; the layout is at the top of this file.
#[derive(Clone, Copy)]
pub(crate) struct CodePanel<'a> {
    /// Scales, or their numbers.
    pub(crate) scales: &'a [u8],
    /// Minima, or their numbers; empty when the format has none.
    pub(crate) minima: &'a [u8],
    /// Units of scales; empty with one level.
    pub(crate) units: &'a [u8],
    /// Units of minima; empty with one level or without minima.
    pub(crate) min_units: &'a [u8],
    /// Codes.
    pub(crate) codes: &'a [u8],
}

impl CodePanel<'_> {
    /// The scales of a part of a block.
    #[inline(always)]
    pub(crate) fn scales(self, form: CodeForm, block: usize, part: usize) -> [f32; LANES] {
        let at = block * form.parts + part;
        match form.levels {
            Levels::One => halves(self.scales, at),
            Levels::Two => {
                let units = halves(self.units, block / UNIT_BLOCKS);
                let numbers = numbers(self.scales, at);
                // Only Q6_K has two parts, and signed scales.
                let number = |lane: usize| match form.parts {
                    1 => f32::from(numbers[lane]),
                    _ => f32::from(numbers[lane].cast_signed()),
                };
                std::array::from_fn(|lane| units[lane] * number(lane))
            }
        }
    }

    /// The minima of a block of a format that has them.
    #[inline(always)]
    pub(crate) fn minima(self, form: CodeForm, block: usize) -> [f32; LANES] {
        match form.levels {
            Levels::One => halves(self.minima, block),
            Levels::Two => {
                let units = halves(self.min_units, block / UNIT_BLOCKS);
                let numbers = numbers(self.minima, block);
                std::array::from_fn(|lane| units[lane] * f32::from(numbers[lane]))
            }
        }
    }

    /// The codes of a block of an output.
    pub(super) fn codes(self, form: CodeForm, place: Place) -> [u8; BLOCK] {
        let bytes = form.code_bytes();
        let from = &self.codes[place.block * bytes..][..bytes];
        let mut codes = [0; BLOCK];
        for (quad, codes) in codes.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
            let fields = fields(form, place.lane, quad).into_iter().flatten();
            let word = fields.fold(0, |word, field| word | field.get(from));
            let [a, c, b, d] = word.to_le_bytes();
            *codes = [a, b, c, d];
        }
        codes
    }
}

fn halves(from: &[u8], at: usize) -> [f32; LANES] {
    let bytes = &from.as_chunks::<{ 2 * LANES }>().0[at];
    std::array::from_fn(|lane| widened(u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]])))
}

fn numbers(from: &[u8], at: usize) -> &[u8; LANES] {
    &from.as_chunks().0[at]
}

/// Some bits of the codes of a quad of an output, and where they lie.
struct Field {
    byte: usize,
    shift: usize,
    /// Of the bits at their place, for each of the four codes.
    mask: u32,
    /// Which bit of a code the lowest of them is.
    first: usize,
}

impl Field {
    fn get(&self, from: &[u8]) -> u32 {
        let bytes = from[self.byte..].first_chunk().expect("a quad's bytes are inside a block");
        (u32::from_le_bytes(*bytes) >> self.shift & self.mask) << self.first
    }

    fn set(&self, word: u32, to: &mut [u8]) {
        let bytes = to[self.byte..].first_chunk_mut().expect("a quad's bytes are inside a block");
        let field = (word >> self.first & self.mask) << self.shift;
        *bytes = (u32::from_le_bytes(*bytes) | field).to_le_bytes();
    }
}

/// The bits of the codes of a quad, in one or two fields.
fn fields(form: CodeForm, lane: usize, quad: usize) -> [Option<Field>; 2] {
    const NIBBLES: usize = 4 * STRETCH;
    let at = lane * QUAD;
    let whole = Field { byte: quad * STRETCH + at, shift: 0, mask: 0xffff_ffff, first: 0 };
    let low =
        Field { byte: quad / 2 * STRETCH + at, shift: quad % 2 * 4, mask: 0x0f0f_0f0f, first: 0 };
    match form.bits {
        4 => [Some(low), None],
        5 => {
            let shift = (4 + quad) % 8;
            let high = Field { byte: NIBBLES + at, shift, mask: 0x0101_0101, first: 4 };
            [Some(low), Some(high)]
        }
        6 => {
            let (byte, shift) = (NIBBLES + quad / 4 * STRETCH + at, (4 + 2 * (quad % 4)) % 8);
            [Some(low), Some(Field { byte, shift, mask: 0x0303_0303, first: 4 })]
        }
        _ => [Some(whole), None],
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::WeightFormat;

    const K: usize = 512;

    fn forms() -> impl Iterator<Item = (WeightFormat, CodeForm)> {
        let all = WeightFormat::ALL.into_iter();
        all.filter_map(|format| format.code_form().map(|form| (format, form)))
    }

    /// What a block holds: every value of a code comes up in every place.
    fn sample(form: CodeForm, Place { block, lane }: Place, round: usize) -> Decoded {
        let unit = |at: usize| f16::from_f32((at % 31) as f32 - 11.5).to_bits();
        let code = |input: usize| (input * 7 + lane * 3 + block * 11 + round) % (1 << form.bits);
        Decoded {
            codes: std::array::from_fn(|input| code(input) as u8),
            // Blocks that share units have the same.
            unit: match form.levels {
                Levels::One => unit(block * 5 + lane),
                Levels::Two => unit(block / UNIT_BLOCKS * 5 + lane),
            },
            min_unit: match form.levels {
                Levels::One => unit(block * 3 + lane),
                Levels::Two => unit(block / UNIT_BLOCKS * 3 + lane),
            },
            scales: [(block * 37 + lane) as u8, (block * 91 + lane * 5) as u8],
            minimum: (block * 17 + lane * 13) as u8,
        }
    }

    #[test]
    fn every_value_of_every_code_and_all_scales_and_minima_come_back() {
        for (format, form) in forms() {
            let layout = PanelLayout::try_new(form, K).unwrap();
            for round in 0..1 << form.bits {
                let mut bytes = vec![0; layout.bytes()];
                let places = (0..K / BLOCK)
                    .flat_map(|block| (0..LANES).map(move |lane| Place { block, lane }));
                for place in places.clone() {
                    layout.set(form, &mut bytes, place, &sample(form, place, round));
                }
                let panel = layout.panel(&bytes);
                for place in places {
                    let Place { block, lane } = place;
                    let want = sample(form, place, round);
                    assert_eq!(panel.codes(form, place), want.codes, "{format:?} {block} {lane}");
                    let unit = f16::from_bits(want.unit).to_f32();
                    for part in 0..form.parts {
                        let number = match (form.levels, form.parts) {
                            (Levels::One, _) => 1.0,
                            (Levels::Two, 1) => f32::from(want.scales[part]),
                            (Levels::Two, _) => f32::from(want.scales[part].cast_signed()),
                        };
                        assert_eq!(panel.scales(form, block, part)[lane], unit * number);
                    }
                    if form.minima {
                        let unit = f16::from_bits(want.min_unit).to_f32();
                        let number = match form.levels {
                            Levels::One => 1.0,
                            Levels::Two => f32::from(want.minimum),
                        };
                        assert_eq!(panel.minima(form, block)[lane], unit * number);
                    }
                }
            }
        }
    }

    /// Reading a panel is what a product with one row takes, so its bits are its speed.
    #[test]
    fn a_packed_value_takes_as_many_bits_as_in_the_file_or_an_eighth_more() {
        for (format, form) in forms() {
            let bytes = PanelLayout::try_new(form, 4096).unwrap().bytes();
            let packed = bytes as f64 * 8.0 / (16.0 * 4096.0);
            let file = format.block_bytes() as f64 * 8.0 / format.block_values() as f64;
            assert!((file..=file + 0.125).contains(&packed), "{format:?}: {packed}, not {file}");
        }
    }

    #[test]
    fn sizes_beyond_the_address_space_are_no_layout() {
        for (_, form) in forms() {
            assert!(PanelLayout::try_new(form, usize::MAX - BLOCK).is_none());
        }
    }
}
