//! Sealed dense blocks that later requests can reuse, found by their chain of hashes.
//!
//! An entry stores its tokens and its parent, so that two prefixes with one hash are told apart:
//! a collision is a miss, never another prompt's KV (P2). Only dense blocks belong here (a sparse
//! one has other bits). The index owns the payloads and decides the order of eviction; it neither
//! knows where the bytes are nor frees anything but by dropping a payload.

use std::collections::{BTreeMap, BTreeSet};

use ids::{BLOCK_TOKENS, BlockHash, BlockKey, TokenId};

#[cfg(test)]
mod tests;

/// A block was not added; the payload comes back.
#[derive(Debug, thiserror::Error)]
#[error("block not added to the prefix index: {because}")]
pub struct InsertRefused<V> {
    /// Why.
    pub because: RefusedBecause,
    /// What was given.
    pub payload: V,
}

/// Why a block was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedBecause {
    /// The same block is in; the first one stays, P1 fixes its bits.
    #[error("it is already in")]
    Present,
    /// Other tokens or another parent have this hash. Count it: it should never happen.
    #[error("another block has the same hash")]
    Collision,
    /// The block before it is not in, so no lookup would find it.
    #[error("its parent is not in")]
    NoParent,
    /// As many blocks as configured are in; evict first.
    #[error("the index holds its maximum of {blocks_max} blocks")]
    Full {
        /// The configured bound.
        blocks_max: usize,
    },
}

struct Entry<V> {
    key: BlockKey,
    /// Hash of the block before it, `None` for the first of a sequence.
    parent: Option<BlockHash>,
    tokens: [TokenId; BLOCK_TOKENS],
    payload: V,
    /// Value of the index's counter when it was last found or added.
    used: u64,
    /// Entries whose parent this is; only an entry without any may be evicted.
    children: usize,
}

/// Hash chain to payload, bounded, least recently used leaf evicted first.
pub struct PrefixIndex<V> {
    entries: BTreeMap<BlockHash, Entry<V>>,
    /// Entries without children by (last use, hash): the order of eviction.
    leaves: BTreeSet<(u64, BlockHash)>,
    /// Raised with every use; no two entries have the same value.
    counter: u64,
    /// Most entries that are ever in.
    blocks_max: usize,
    /// Lookups that ended at an entry with the right hash and the wrong tokens or parent.
    collisions: u64,
}

impl<V: Clone> PrefixIndex<V> {
    /// An empty index of at most `blocks_max` blocks.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            leaves: BTreeSet::new(),
            counter: 0,
            blocks_max,
            collisions: 0,
        }
    }

    /// The payloads of the longest known prefix of a sequence, in order.
    ///
    /// `hashes[i]` is the chained hash of block `i`, whose tokens are `tokens[16*i..16*(i+1)]`;
    /// the result is cut where an entry is missing or is not really this block. Cloned payloads
    /// keep what they guard alive while the caller uses it.
    pub fn lookup(&mut self, hashes: &[BlockHash], tokens: &[TokenId]) -> Vec<V> {
        let mut found = Vec::new();
        let mut parent = None;
        for (hash, own) in hashes.iter().zip(tokens.chunks_exact(BLOCK_TOKENS)) {
            let Some(entry) = self.entries.get(hash) else {
                break;
            };
            if entry.tokens != *own || entry.parent != parent {
                self.collisions += 1;
                break;
            }
            found.push(entry.payload.clone());
            parent = Some(*hash);
        }
        // Deepest first, so that a parent is always more recently used than its children.
        for hash in hashes[..found.len()].iter().rev() {
            self.touch(hash);
        }
        found
    }

    /// Adds a sealed dense block behind its parent.
    ///
    /// # Errors
    /// [`InsertRefused`] with the payload inside; nothing changed.
    pub fn insert(
        &mut self,
        key: BlockKey,
        parent: Option<BlockHash>,
        tokens: [TokenId; BLOCK_TOKENS],
        payload: V,
    ) -> Result<(), InsertRefused<V>> {
        let refuse = |because, payload| Err(InsertRefused { because, payload });
        if let Some(entry) = self.entries.get(&key.hash) {
            if entry.key == key && entry.tokens == tokens && entry.parent == parent {
                return refuse(RefusedBecause::Present, payload);
            }
            self.collisions += 1;
            return refuse(RefusedBecause::Collision, payload);
        }
        if self.entries.len() >= self.blocks_max {
            let blocks_max = self.blocks_max;
            return refuse(RefusedBecause::Full { blocks_max }, payload);
        }
        if let Some(hash) = parent {
            let Some(entry) = self.entries.get_mut(&hash) else {
                return refuse(RefusedBecause::NoParent, payload);
            };
            entry.children += 1;
            self.leaves.remove(&(entry.used, hash));
        }
        self.counter += 1;
        let entry = Entry { key, parent, tokens, payload, used: self.counter, children: 0 };
        self.entries.insert(key.hash, entry);
        self.leaves.insert((self.counter, key.hash));
        Ok(())
    }

    /// Takes out up to `wanted` blocks, least recently used leaves first, of those whose payload
    /// `is_free` (nobody else holds it). Dropping the result frees what the payloads guard.
    pub fn evict(&mut self, wanted: usize, is_free: impl Fn(&V) -> bool) -> Vec<V> {
        let mut out = Vec::new();
        let mut from = (0, BlockHash([0; 32]));
        while out.len() < wanted {
            let Some(leaf) = self.leaves.range(from..).next().copied() else {
                break;
            };
            let free = self.entries.get(&leaf.1).is_some_and(|entry| is_free(&entry.payload));
            if free {
                let parent = self.remove_leaf(leaf, &mut out);
                // A parent that became a leaf may be older than the leaves still to visit.
                from = parent.map_or(leaf, |parent| parent.min(leaf));
            } else {
                from = (leaf.0 + 1, BlockHash([0; 32]));
            }
        }
        out
    }

    /// Blocks in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is in, by hash.
    pub fn payloads(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|entry| &entry.payload)
    }

    /// Equal hashes of unequal blocks seen so far: a metric that should stay at zero.
    #[must_use]
    pub fn collisions(&self) -> u64 {
        self.collisions
    }

    fn touch(&mut self, hash: &BlockHash) {
        let Some(entry) = self.entries.get_mut(hash) else {
            return;
        };
        self.counter += 1;
        if self.leaves.remove(&(entry.used, *hash)) {
            self.leaves.insert((self.counter, *hash));
        }
        entry.used = self.counter;
    }

    /// Removes a leaf; tells which leaf its parent became, if it did.
    fn remove_leaf(
        &mut self,
        leaf: (u64, BlockHash),
        out: &mut Vec<V>,
    ) -> Option<(u64, BlockHash)> {
        self.leaves.remove(&leaf);
        let entry = self.entries.remove(&leaf.1)?;
        out.push(entry.payload);
        let hash = entry.parent?;
        let parent = self.entries.get_mut(&hash)?;
        parent.children -= 1;
        if parent.children > 0 {
            return None;
        }
        let freed = (parent.used, hash);
        self.leaves.insert(freed);
        Some(freed)
    }
}
