//! What stands for the keys of a sealed block when it is scored: far fewer bytes than the keys. A
//! *unit* is the summaries of one block for all layers and KV heads, and moves as one: `[layer]
//! [kv_head]`.
//!
//! Layouts, for a head of width d (a multiple of 16) and a block of 16 tokens, in 32-bit words:
//!
//! - `int4`: per token 4-bit codes with a scale and a minimum. `[d/8][token]` words, whose byte j
//!   has the code of dimension 8g + j low and that of 8g + 4 + j high: what `vpdpbusd` wants. Then
//!   16 scales and 16 minima in half precision.
//! - `int2`: per channel and block 2-bit codes with a scale and a minimum (KIVI, arXiv 2402.02750).
//!   `[d]` words of 16 codes, the first token lowest; then d scales and d minima.
//! - `minmax8`: per channel the least and the largest key in 8 bits, rounded outward (Quest, arXiv
//!   2406.10774). `[d]` bytes of minima, `[d]` of maxima, then an offset and a step of the block.
//!
//! A token (int4), channel (int2) or block (minmax8) with a key that is not finite has a minimum
//! that is not a number, and so has whatever is scored with it.

use std::{fmt, str::FromStr};

use ids::{BLOCK_TOKENS, SummaryIdx};
use parking_lot::RwLock;

use crate::{
    memory::{HugePages, MemoryError, Region},
    slots::HEAD_DIM_MAX,
};

/// How keys are summarised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SummaryKind {
    /// Four bits a key, per token.
    Int4,
    /// Two bits a key, per channel and block.
    Int2,
    /// The least and the largest key of a channel, in 8 bits.
    MinMax8,
}

/// The name is none of [`SummaryKind::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown summary {given:?}; use one of int4, int2, minmax8")]
pub struct ParseSummaryError {
    given: String,
}

impl SummaryKind {
    /// From the most bytes to the fewest.
    pub const ALL: [Self; 3] = [Self::Int4, Self::Int2, Self::MinMax8];

    /// The name that [`FromStr`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int4 => "int4",
            Self::Int2 => "int2",
            Self::MinMax8 => "minmax8",
        }
    }

    /// Bytes that stand for one block of one head.
    #[must_use]
    pub const fn bytes(self, head_dim: usize) -> usize {
        4 * self.words(head_dim)
    }

    pub(crate) const fn words(self, head_dim: usize) -> usize {
        match self {
            Self::Int4 => head_dim / 8 * BLOCK_TOKENS + BLOCK_TOKENS,
            Self::Int2 => 2 * head_dim,
            Self::MinMax8 => head_dim / 2 + 1,
        }
    }
}

impl fmt::Display for SummaryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SummaryKind {
    type Err = ParseSummaryError;

    fn from_str(text: &str) -> Result<Self, ParseSummaryError> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == text);
        known.ok_or_else(|| ParseSummaryError { given: text.to_owned() })
    }
}

/// What an arena of summaries is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryShape {
    /// How keys are summarised.
    pub kind: SummaryKind,
    /// Width of one head; a multiple of 16 up to 256.
    pub head_dim: usize,
    /// Layers of a unit.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Number of units.
    pub count: u32,
}

impl SummaryShape {
    /// Summaries of a unit.
    pub(crate) fn columns(self) -> usize {
        self.layers * self.kv_heads
    }

    fn unit_words(self) -> usize {
        self.kind.words(self.head_dim) * self.columns()
    }

    /// Where the words of one column of a unit begin. Columns lie apart and units side by side: a
    /// sequence's blocks are scored column by column, and the hardware reads ahead.
    #[inline(always)]
    fn place(self, id: SummaryIdx, column: usize) -> usize {
        // Ids come from our own allocator, so one out of range is a fault of ours.
        assert!(id.0 < self.count, "unit {} of an arena of {}", id.0, self.count);
        (column * self.count as usize + id.0 as usize) * self.kind.words(self.head_dim)
    }

    /// Bytes of one unit.
    #[must_use]
    pub fn unit_bytes(self) -> usize {
        4 * self.unit_words()
    }
}

/// The units of the host device.
#[derive(Debug)]
pub struct SummaryArena {
    shape: SummaryShape,
    words: RwLock<Region<u32>>,
}

impl SummaryArena {
    pub(crate) fn try_new(shape: SummaryShape, pages: HugePages) -> Result<Self, MemoryError> {
        let head_dim = shape.head_dim;
        if head_dim == 0 || !head_dim.is_multiple_of(16) || head_dim > HEAD_DIM_MAX {
            return Err(MemoryError::HeadDim { head_dim });
        }
        let count = shape.count as usize;
        let words = shape.unit_words().checked_mul(count).ok_or(MemoryError::TooLarge {
            what: "summaries",
            count,
            unit_bytes: shape.unit_bytes(),
        })?;
        Ok(Self { shape, words: RwLock::new(Region::zeroed(words, pages)?) })
    }

    /// What it was made of.
    #[must_use]
    pub fn shape(&self) -> SummaryShape {
        self.shape
    }

    /// Calls with all words while nobody writes.
    pub(crate) fn read<R>(&self, call: impl FnOnce(Units<'_>) -> R) -> R {
        let words = self.words.read();
        call(Units { shape: self.shape, words: words.as_slice() })
    }

    /// Calls with the index of each unit and column (layer by layer, KV heads ascending) and the
    /// words of its summary.
    pub(crate) fn write(&self, ids: &[SummaryIdx], mut call: impl FnMut(usize, usize, &mut [u32])) {
        let (each, columns) = (self.shape.kind.words(self.shape.head_dim), self.shape.columns());
        let mut words = self.words.write();
        for (index, id) in ids.iter().enumerate() {
            for column in 0..columns {
                let at = self.shape.place(*id, column);
                call(index, column, &mut words.as_mut_slice()[at..at + each]);
            }
        }
    }
}

/// All units, readable.
#[derive(Clone, Copy)]
pub(crate) struct Units<'a> {
    shape: SummaryShape,
    words: &'a [u32],
}

impl<'a> Units<'a> {
    pub(crate) fn shape(self) -> SummaryShape {
        self.shape
    }

    /// The summary of one column of a unit.
    #[inline(always)]
    pub(crate) fn column(self, id: SummaryIdx, column: usize) -> &'a [u32] {
        let each = self.shape.kind.words(self.shape.head_dim);
        &self.words[self.shape.place(id, column)..][..each]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_block_at_width_64_are_those_that_the_documents_state() {
        let bytes = SummaryKind::ALL.map(|kind| kind.bytes(64));
        assert_eq!(bytes, [576, 512, 132], "36, 32 and 8.25 bytes a token");
        for kind in SummaryKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("int8".parse::<SummaryKind>().unwrap_err().to_string().contains("minmax8"));
    }
}
