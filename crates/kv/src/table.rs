//! The blocks of one sequence, and per (layer, KV head) the list of slots that attention walks.
//!
//! Sealed blocks first, then the filling ones: in decode one open block, in a prefill chunk as
//! many as the chunk spans, all full but the last. The table does not decide what is resident and
//! does not hash; under dense decode every block of the sequence is in it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ids::{BLOCK_TOKENS, BlockKey, KvHeadIdx, LayerIdx, SlotIdx, TokenId};

use crate::block::{FillingBlock, NotFull, SealedBlock};
use crate::pool::SlotReservation;
use crate::shape::{Shape, blocks_for};

#[cfg(test)]
mod tests;

/// Tokens could not be appended; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tokens} more tokens need {wanted} device slots, the reservation has {left}")]
pub struct AppendError {
    /// Tokens that were to be appended.
    pub tokens: usize,
    /// Slots of the blocks to open for them.
    pub wanted: usize,
    /// Slots that the sequence may still take.
    pub left: u32,
}

/// A sealed block was not added; it comes back.
#[derive(Debug, thiserror::Error)]
pub enum PushSealedError {
    /// Blocks are appended in order, so a filling block ends the sealed part.
    #[error("a sealed block cannot follow the {filling} filling blocks; seal them first")]
    BehindFilling {
        /// Filling blocks in the table.
        filling: usize,
        /// The block that was given.
        block: Arc<SealedBlock>,
    },
    /// The block belongs to another model or shard.
    #[error("block has shape {theirs:?}, the sequence has {ours:?}")]
    OtherShape {
        /// Shape of the table.
        ours: Shape,
        /// Shape of the block.
        theirs: Shape,
        /// The block that was given.
        block: Arc<SealedBlock>,
    },
}

/// The oldest filling block was not sealed; the table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// All blocks are sealed.
    #[error("no filling block to seal")]
    Nothing,
    /// It has fewer than 16 tokens.
    #[error("the open block lacks {missing} of {BLOCK_TOKENS} tokens and cannot be sealed")]
    NotFull {
        /// Tokens still to come.
        missing: usize,
    },
}

/// The blocks of one sequence in ascending order.
pub struct BlockTable {
    shape: Shape,
    /// Shared with whoever else holds the block (another request, the sender of a copy).
    sealed: Vec<Arc<SealedBlock>>,
    /// All full but the last.
    filling: VecDeque<FillingBlock>,
    /// Per slice of the shape, the slot of every block in ascending block index.
    columns: Vec<Vec<SlotIdx>>,
}

impl BlockTable {
    /// An empty sequence.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            sealed: Vec::new(),
            filling: VecDeque::new(),
            columns: vec![Vec::new(); shape.slices()],
        }
    }

    /// Adds a sealed block that exists already (a prefix hit, or KV that was handed over).
    ///
    /// # Errors
    /// [`PushSealedError`] with the block inside.
    pub fn push_sealed(&mut self, block: Arc<SealedBlock>) -> Result<(), PushSealedError> {
        if !self.filling.is_empty() {
            return Err(PushSealedError::BehindFilling { filling: self.filling.len(), block });
        }
        if block.shape() != self.shape {
            return Err(PushSealedError::OtherShape {
                ours: self.shape,
                theirs: block.shape(),
                block,
            });
        }
        for (column, slot) in self.columns.iter_mut().zip(block.slots()) {
            column.push(slot);
        }
        self.sealed.push(block);
        Ok(())
    }

    /// Adds tokens whose KV the caller is about to write, opening blocks as needed, all or nothing.
    ///
    /// # Errors
    /// [`AppendError`] when the reservation cannot cover the blocks; nothing changed.
    pub fn append(
        &mut self,
        tokens: &[TokenId],
        reservation: &mut SlotReservation,
    ) -> Result<(), AppendError> {
        let room = self.room_in_last();
        let blocks = blocks_for(tokens.len().saturating_sub(room));
        let wanted = blocks * self.shape.slices();
        let refused = AppendError { tokens: tokens.len(), wanted, left: reservation.left() };
        let count = u32::try_from(wanted).map_err(|_| refused)?;
        let mut slots = reservation.take_many(count).ok_or(refused)?.into_iter();
        let (first, rest) = tokens.split_at(room.min(tokens.len()));
        if let Some(open) = self.filling.back_mut() {
            fill(open, first);
        }
        for chunk in rest.chunks(BLOCK_TOKENS) {
            let own = slots.by_ref().take(self.shape.slices()).collect();
            let mut block = FillingBlock::try_new(self.shape, own).expect("one slot per slice");
            fill(&mut block, chunk);
            for (column, slot) in self.columns.iter_mut().zip(block.slots()) {
                column.push(slot);
            }
            self.filling.push_back(block);
        }
        Ok(())
    }

    /// Seals the oldest filling block under `key`; it stays in its place in the sequence.
    ///
    /// # Errors
    /// [`SealError`], and nothing changed.
    pub fn seal_oldest(&mut self, key: BlockKey) -> Result<Arc<SealedBlock>, SealError> {
        let block = self.filling.pop_front().ok_or(SealError::Nothing)?;
        match block.seal(key) {
            Ok(block) => {
                let block = Arc::new(block);
                self.sealed.push(Arc::clone(&block));
                Ok(block)
            }
            Err(NotFull { missing, block }) => {
                self.filling.push_front(block);
                Err(SealError::NotFull { missing })
            }
        }
    }

    /// Filling blocks, oldest first; all but the last are full.
    pub fn filling(&self) -> impl ExactSizeIterator<Item = &FillingBlock> {
        self.filling.iter()
    }

    /// Filling blocks that can be sealed now.
    #[must_use]
    pub fn full_count(&self) -> usize {
        self.filling.iter().filter(|block| block.is_full()).count()
    }

    /// Sealed blocks in ascending block index.
    #[must_use]
    pub fn sealed(&self) -> &[Arc<SealedBlock>] {
        &self.sealed
    }

    /// The slots of one (layer, KV head), one per block in ascending block index, the open block
    /// last: what attention walks.
    #[must_use]
    pub fn slots(&self, layer: LayerIdx, head: KvHeadIdx) -> &[SlotIdx] {
        &self.columns[self.shape.index(layer, head)]
    }

    /// Tokens in all blocks.
    #[must_use]
    pub fn token_count(&self) -> usize {
        let open: usize = self.filling.iter().map(|block| block.tokens().len()).sum();
        self.sealed.len() * BLOCK_TOKENS + open
    }

    /// Blocks, the filling ones included.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.sealed.len() + self.filling.len()
    }

    /// The shape of every block in it.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn room_in_last(&self) -> usize {
        let last = self.filling.back();
        last.map_or(0, |block| BLOCK_TOKENS - block.tokens().len())
    }
}

impl fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockTable")
            .field("shape", &self.shape)
            .field("sealed", &self.sealed.len())
            .field("tokens", &self.token_count())
            .finish_non_exhaustive()
    }
}

fn fill(block: &mut FillingBlock, tokens: &[TokenId]) {
    for token in tokens {
        block.push(*token).expect("the caller counted the room");
    }
}
