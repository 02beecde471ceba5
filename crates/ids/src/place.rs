//! Where in the model a slice belongs.

use crate::{BlockIdx, BlockKey};

/// A transformer layer, from 0 at the embedding side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerIdx(pub u16);

/// A KV head within a layer (a GQA group of query heads shares it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvHeadIdx(pub u16);

/// A set of KV heads that one device holds. A node with one device has shard 0 only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// K and V of one (layer, KV head, block): the unit that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId {
    /// The sealed block it is part of.
    pub block: BlockKey,
    /// Position of that block in the sequence at hand.
    pub index: BlockIdx,
    /// Which layer.
    pub layer: LayerIdx,
    /// Which KV head.
    pub head: KvHeadIdx,
}

/// Number of a device slot: the place of one slice in the device's KV arena.
///
/// `kv` hands them out as rights, `kernels` reads and writes the memory behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SlotIdx(pub u32);

/// Number of a unit of device memory for key summaries: the place of the summaries of one block,
/// for all layers and KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SummaryIdx(pub u32);
