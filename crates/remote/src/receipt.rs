//! Sealing receipts: what a block's bytes must hash to, wherever they are read from (P2).

use std::sync::Arc;

use ids::{BlockIdx, BlockKey, ShardId, SliceChecksum};

/// Proof of what was computed, made by the node that sealed the block.
///
/// A reader verifies every slice against this, never against what the serving node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReceipt {
    /// Which block: token prefix, how computed, generation.
    pub key: BlockKey,
    /// Its place in the sequence.
    pub index: BlockIdx,
    /// Which set of KV heads the slices cover.
    pub shard: ShardId,
    /// Valid tokens: [`ids::BLOCK_TOKENS`] when sealed, fewer for the open tail of a prompt.
    pub tokens: u8,
    /// One per slice, layer-major, then KV head.
    pub checksums: Arc<[SliceChecksum]>,
}

/// A slice's place in one node's slab; the generation makes a stale one recognisable (case 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceRef {
    /// Index of the slot.
    pub slot: u32,
    /// How often the slot had been handed out when this slice was put there.
    pub generation: u32,
}

/// Where one node keeps the slices of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedBlock {
    /// Which block.
    pub key: BlockKey,
    /// Which shard of it.
    pub shard: ShardId,
    /// One per slice, in the order of [`BlockReceipt::checksums`].
    pub slices: Arc<[SliceRef]>,
}
