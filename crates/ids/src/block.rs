//! Identities of KV blocks: what the tokens are, how the block was computed, what the bytes are.

use crate::digest::digest;

/// Tokens in one block. The paper and the blueprint use 16 throughout.
pub const BLOCK_TOKENS: usize = 16;

digest! {
    /// Hash of a block's whole prefix: namespace, parent hash and the block's own token ids.
    ///
    /// Equal hashes mean equal token prefixes in one namespace (model, numerics class, layout,
    /// tenant salt, how computed); crate `tokens` computes it and says how.
    BlockHash, 32
}

/// Identity of one sealed block: the hash chain plus the generation of its content.
///
/// The generation tells two computations of the same block apart when one of them had to be
/// discarded; it is 0 for dense blocks, whose bits P1 fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// Which tokens, computed how.
    pub hash: BlockHash,
    /// Which computation of them.
    pub generation: u32,
}

/// XXH3-64 of a slice's bytes, taken when the block was sealed (P2 verifies against this one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceChecksum(pub u64);

/// Index of a block within one sequence: position / [`BLOCK_TOKENS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIdx(pub u32);

impl BlockIdx {
    /// As an index into a table of blocks.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
