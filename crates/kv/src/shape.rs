//! How many slices a block has and in which order they are listed.
//!
//! Not the byte layout of a slice: kernels own that.

use ids::{BLOCK_TOKENS, KvHeadIdx, LayerIdx, SliceChecksum};
use xxhash_rust::xxh3::xxh3_64;

/// Layers and KV heads of a model (or of one shard of it): one block has a slice for each pair.
///
/// Slices are listed layer by layer, heads ascending within a layer. Every list of slots,
/// checksums or homes of a block uses this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Transformer layers.
    pub layers: u16,
    /// KV heads per layer.
    pub heads: u16,
}

impl Shape {
    /// Slices (and device slots) of one block.
    #[must_use]
    pub fn slices(self) -> usize {
        usize::from(self.layers) * usize::from(self.heads)
    }

    /// Where the slice of `layer` and `head` stands in a block's list.
    ///
    /// # Panics
    /// When the layer or the head is not one of this shape: the caller's loop is wrong.
    #[must_use]
    pub fn index(self, layer: LayerIdx, head: KvHeadIdx) -> usize {
        assert!(
            layer.0 < self.layers && head.0 < self.heads,
            "layer {layer:?} or head {head:?} is outside {self:?}"
        );
        usize::from(layer.0) * usize::from(self.heads) + usize::from(head.0)
    }
}

/// Blocks that `tokens` tokens occupy, the open one included.
#[must_use]
pub fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}

/// Checksum of one slice's bytes as taken at sealing and compared after every fetch (P2).
#[must_use]
pub fn checksum(slice: &[u8]) -> SliceChecksum {
    SliceChecksum(xxh3_64(slice))
}

#[cfg(test)]
mod tests {
    use super::{Shape, blocks_for, checksum};
    use ids::{KvHeadIdx, LayerIdx, SliceChecksum};

    #[test]
    fn slices_are_listed_layer_by_layer() {
        let shape = Shape { layers: 30, heads: 3 };
        assert_eq!(shape.slices(), 90);
        assert_eq!(shape.index(LayerIdx(0), KvHeadIdx(2)), 2);
        assert_eq!(shape.index(LayerIdx(29), KvHeadIdx(2)), 89);
    }

    #[test]
    fn an_open_block_counts_as_a_block() {
        for (tokens, blocks) in [(0, 0), (1, 1), (16, 1), (17, 2)] {
            assert_eq!(blocks_for(tokens), blocks);
        }
    }

    /// Golden values: two processes of different builds must agree on them (P2, case 26).
    #[test]
    fn p2_checksums_are_the_same_in_every_process() {
        assert_eq!(checksum(b""), SliceChecksum(0x2d06_8005_38d3_94c2));
        assert_ne!(checksum(&[0; 4096]), checksum(&[0; 4095]));
    }
}
