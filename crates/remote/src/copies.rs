//! Sealed, verified blocks that a node keeps: content-addressed, pinned by sessions, evicted least
//! recently used first when nobody pins them.
//!
//! `S` is the guard of a sealed slot; dropping the last clone frees the memory. Time is a counter:
//! every touch is later than all before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ids::{BlockKey, ShardId};

use crate::BlockReceipt;

#[cfg(test)]
mod tests;

/// A block of which one shard is kept here.
pub type CopyKey = (BlockKey, ShardId);

/// One kept block.
#[derive(Debug)]
pub struct Copy<S> {
    /// What its bytes were verified against.
    pub receipt: BlockReceipt,
    /// In the receipt's order.
    pub slices: Arc<[S]>,
}

impl<S> Clone for Copy<S> {
    fn clone(&self) -> Self {
        Self { receipt: self.receipt.clone(), slices: Arc::clone(&self.slices) }
    }
}

/// The kept blocks of a node.
#[derive(Debug)]
pub struct Copies<S> {
    held: BTreeMap<CopyKey, Held<S>>,
    /// Unpinned blocks by when they were last touched.
    idle: BTreeMap<u64, CopyKey>,
    /// The next touch's number.
    clock: u64,
    slices: usize,
    pinned_slices: usize,
}

#[derive(Debug)]
struct Held<S> {
    copy: Copy<S>,
    pins: u32,
    touched: u64,
}

impl<S> Default for Copies<S> {
    fn default() -> Self {
        let (held, idle) = (BTreeMap::new(), BTreeMap::new());
        Self { held, idle, clock: 0, slices: 0, pinned_slices: 0 }
    }
}

impl<S> Copies<S> {
    /// Keeps a block, pinned once. If it is here already that one is pinned and `copy` dropped.
    pub fn insert_pinned(&mut self, copy: Copy<S>) -> CopyKey {
        let key = (copy.receipt.key, copy.receipt.shard);
        if !self.pin(key) {
            let count = copy.slices.len();
            self.slices += count;
            self.pinned_slices += count;
            self.held.insert(key, Held { copy, pins: 1, touched: 0 });
        }
        key
    }

    /// Keeps a block from eviction until [`Self::unpin`]; `false` when it is not here.
    pub fn pin(&mut self, key: CopyKey) -> bool {
        let Some(held) = self.held.get_mut(&key) else {
            return false;
        };
        if held.pins == 0 {
            self.idle.remove(&held.touched);
            self.pinned_slices += held.copy.slices.len();
        }
        held.pins += 1;
        true
    }

    /// Gives a pin back; the last one makes the block the most recently used of the idle ones.
    ///
    /// # Panics
    /// When the block was not pinned: a pin was given back twice.
    pub fn unpin(&mut self, key: CopyKey) {
        let held = self.held.get_mut(&key).expect("a pinned block is not evicted");
        assert!(held.pins > 0, "{key:?} is not pinned");
        held.pins -= 1;
        if held.pins == 0 {
            held.touched = self.clock;
            self.clock += 1;
            self.idle.insert(held.touched, key);
            self.pinned_slices -= held.copy.slices.len();
        }
    }

    /// A kept block.
    #[must_use]
    pub fn get(&self, key: CopyKey) -> Option<&Copy<S>> {
        self.held.get(&key).map(|held| &held.copy)
    }

    /// Shards of a key that are kept, in order.
    pub fn shards_of(&self, key: BlockKey) -> impl Iterator<Item = ShardId> + '_ {
        let range = (key, ShardId(0))..=(key, ShardId(u16::MAX));
        self.held.range(range).map(|((_, shard), _)| *shard)
    }

    /// Drops idle blocks, least recently used first, until `wanted` slices or all idle ones are
    /// gone; returns how many slices went.
    pub fn evict(&mut self, wanted: usize) -> usize {
        let mut freed = 0;
        while freed < wanted {
            let Some((_, key)) = self.idle.pop_first() else {
                break;
            };
            let held = self.held.remove(&key).expect("idle blocks are held");
            freed += held.copy.slices.len();
        }
        self.slices -= freed;
        freed
    }

    /// Slices of all kept blocks.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.slices
    }

    /// Slices that could be evicted now.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        self.slices - self.pinned_slices
    }
}
