//! Hot path for many rows. A stretch of a panel with its codes widened to 16 bits and its scales
//! multiplied out, so that the kernels for many rows know no formats. The vector forms of the
//! unpacking are beside those kernels; bits are only moved and exact products taken, so all agree.

use crate::{
    lanes::LANES,
    weight::{BLOCK, CodeForm, CodePanel, STRETCH},
};

/// Blocks unpacked at a time: those of two panels, 19 KiB, fit the first-level cache beside a pass.
pub(super) const CHUNK_BLOCKS: usize = 8;
/// Pairs of inputs in a block.
pub(super) const PAIRS: usize = BLOCK / 2;

/// Codes of two inputs for each output.
pub(super) type Pairs = [i16; 2 * LANES];

/// Some blocks of a panel.
pub(super) struct Unpacked {
    pub(super) blocks: [UnpackedBlock; CHUNK_BLOCKS],
}

/// One block of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct UnpackedBlock {
    /// `[pair of inputs][output][2]`, without the format's offset.
    pub(super) codes: [Pairs; PAIRS],
    /// `[part][output]`.
    pub(super) scales: [[f32; LANES]; 2],
    /// `[output]`, for formats that have them.
    pub(super) minima: [f32; LANES],
}

impl Unpacked {
    pub(super) fn new() -> Self {
        let block = UnpackedBlock {
            codes: [[0; 2 * LANES]; PAIRS],
            scales: [[0.0; LANES]; 2],
            minima: [0.0; LANES],
        };
        Self { blocks: [block; CHUNK_BLOCKS] }
    }
}

/// Unpacks blocks from `first` on, as many as fit or are left, in plain Rust.
pub(super) fn unpack(form: CodeForm, panel: CodePanel<'_>, first: usize, to: &mut Unpacked) {
    let blocks = panel.codes.chunks_exact(form.code_bytes()).skip(first);
    for ((at, codes), to) in (first..).zip(blocks).zip(&mut to.blocks) {
        let lines = codes.as_chunks::<STRETCH>().0;
        let offset = form.offset as i16;
        match form.bits {
            4 => block::<4>(lines, offset, &mut to.codes),
            5 => block::<5>(lines, offset, &mut to.codes),
            6 => block::<6>(lines, offset, &mut to.codes),
            _ => block::<8>(lines, offset, &mut to.codes),
        }
        for part in 0..form.parts {
            to.scales[part] = panel.scales(form, at, part);
        }
        if form.minima {
            to.minima = panel.minima(form, at);
        }
    }
}

#[inline(always)]
fn block<const BITS: usize>(lines: &[[u8; STRETCH]], offset: i16, to: &mut [Pairs; PAIRS]) {
    for (quad, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let words = match BITS {
            8 => words(&lines[quad]),
            _ => low_bits(words(&lines[quad / 2]), quad),
        };
        let words = match BITS {
            5 => with_bits(words, self::words(&lines[4]), (4 + quad) % 8, 0x1010),
            6 => {
                let field = (4 + 2 * (quad % 4)) % 8;
                with_bits(words, self::words(&lines[4 + quad / 4]), field, 0x3030)
            }
            _ => words,
        };
        to[0] = words.map(|word| (word & 0xff) as i16 - offset);
        to[1] = words.map(|word| (word >> 8) as i16 - offset);
    }
}

#[inline(always)]
fn words(line: &[u8; STRETCH]) -> [u16; 2 * LANES] {
    std::array::from_fn(|at| u16::from_le_bytes([line[2 * at], line[2 * at + 1]]))
}

#[inline(always)]
fn low_bits(words: [u16; 2 * LANES], quad: usize) -> [u16; 2 * LANES] {
    words.map(|word| (word >> (quad % 2 * 4)) & 0x0f0f)
}

/// Adds the bits from `from` on of each byte of `high`, moved to bit 4, where `mask` has them.
#[inline(always)]
fn with_bits(
    words: [u16; 2 * LANES],
    high: [u16; 2 * LANES],
    from: usize,
    mask: u16,
) -> [u16; 2 * LANES] {
    let moved = |word: u16| if from < 4 { word << (4 - from) } else { word >> (from - 4) };
    std::array::from_fn(|at| words[at] | (moved(high[at]) & mask))
}
