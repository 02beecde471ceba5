//! A block's two states: filling (one owner, grows) and sealed (immutable, shared).
//!
//! ```text
//! FillingBlock --push x16--> full --seal(key)--> SealedBlock
//!      ^                      |
//!      +----- NotFull{block} -+   a failed step gives the block back
//! ```
//! A block does not compute its hash and does not touch KV bytes; its owner does both.

use std::fmt;

use ids::{BLOCK_TOKENS, BlockKey, KvHeadIdx, LayerIdx, SlotIdx, TokenId};

use crate::pool::SlotLease;
use crate::shape::Shape;

#[cfg(test)]
mod tests;

/// A block needs one slot for each slice; the leases come back with the error.
#[derive(Debug, thiserror::Error)]
#[error("a block of this model takes {expected} device slots, got {}", .slots.len())]
pub struct WrongSlotCount {
    /// Slices of the shape.
    pub expected: usize,
    /// What was given.
    pub slots: Vec<SlotLease>,
}

/// The block already holds 16 tokens: seal it and open the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block is full with {BLOCK_TOKENS} tokens; seal it before the next token")]
pub struct BlockFull;

/// Only a full block can be sealed; the block comes back with the error.
#[derive(Debug, thiserror::Error)]
#[error("block lacks {missing} of {BLOCK_TOKENS} tokens and cannot be sealed")]
pub struct NotFull {
    /// Tokens still to come.
    pub missing: usize,
    /// The block, unchanged.
    pub block: FillingBlock,
}

/// A block that its sequence still writes to.
pub struct FillingBlock {
    shape: Shape,
    /// At most [`BLOCK_TOKENS`].
    tokens: Vec<TokenId>,
    /// One lease per slice, in the shape's order.
    slots: Box<[SlotLease]>,
}

impl FillingBlock {
    /// An empty block on these slots, one per slice in the shape's order.
    ///
    /// # Errors
    /// [`WrongSlotCount`] with the leases inside.
    pub fn try_new(shape: Shape, slots: Vec<SlotLease>) -> Result<Self, WrongSlotCount> {
        let expected = shape.slices();
        if slots.len() != expected {
            return Err(WrongSlotCount { expected, slots });
        }
        Ok(Self {
            shape,
            tokens: Vec::with_capacity(BLOCK_TOKENS),
            slots: slots.into_boxed_slice(),
        })
    }

    /// Notes the next token, whose K and V the caller writes to the slots.
    ///
    /// # Errors
    /// [`BlockFull`] when 16 tokens are in.
    pub fn push(&mut self, token: TokenId) -> Result<(), BlockFull> {
        if self.is_full() {
            return Err(BlockFull);
        }
        self.tokens.push(token);
        Ok(())
    }

    /// The tokens so far.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Whether it can be sealed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tokens.len() == BLOCK_TOKENS
    }

    /// The slot of one slice.
    #[must_use]
    pub fn slot(&self, layer: LayerIdx, head: KvHeadIdx) -> SlotIdx {
        self.slots[self.shape.index(layer, head)].idx()
    }

    /// All slots, in the shape's order.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = SlotIdx> + '_ {
        self.slots.iter().map(SlotLease::idx)
    }

    /// Makes it immutable under its identity. The KV of all 16 tokens must be written by now.
    ///
    /// # Errors
    /// [`NotFull`] with the block inside.
    pub fn seal(self, key: BlockKey) -> Result<SealedBlock, NotFull> {
        match <[TokenId; BLOCK_TOKENS]>::try_from(self.tokens.as_slice()) {
            Ok(tokens) => Ok(SealedBlock { key, shape: self.shape, tokens, slots: self.slots }),
            Err(_) => Err(NotFull { missing: BLOCK_TOKENS - self.tokens.len(), block: self }),
        }
    }
}

impl fmt::Debug for FillingBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FillingBlock({} tokens)", self.tokens.len())
    }
}

/// A complete block: its tokens, identity and slots never change again.
pub struct SealedBlock {
    key: BlockKey,
    shape: Shape,
    tokens: [TokenId; BLOCK_TOKENS],
    /// One lease per slice, in the shape's order.
    slots: Box<[SlotLease]>,
}

impl SealedBlock {
    /// Its identity.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Its tokens.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId; BLOCK_TOKENS] {
        &self.tokens
    }

    /// The slot of one slice.
    #[must_use]
    pub fn slot(&self, layer: LayerIdx, head: KvHeadIdx) -> SlotIdx {
        self.slots[self.shape.index(layer, head)].idx()
    }

    /// All slots, in the shape's order.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = SlotIdx> + '_ {
        self.slots.iter().map(SlotLease::idx)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }
}

impl fmt::Debug for SealedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedBlock({:?})", self.key)
    }
}
