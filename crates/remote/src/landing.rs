//! Slots that a session is writing copies into: handed to one connection at a time, readable by
//! nobody until everything of a block has landed and was verified (P2, P7).
//!
//! ```text
//!  Waiting --open_write--> Out --landed--> Landed      all Landed: commit gives the block out
//!                           |
//!                           +--aborted--> Lost         a lost slot rejects its block
//! ```
//! `F` is the guard of a slot that is being filled; a guard that is out belongs to a connection and
//! may die there, so nothing here ever waits for it.

use std::collections::BTreeMap;

use ids::{BlockKey, ShardId};

use crate::{BlockReceipt, LocatedBlock, SliceRef};

#[cfg(test)]
mod tests;

/// A write names a slot that this session may not write now; nothing was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {} of generation {} is not open for this session", .0.slot, .0.generation)]
pub struct NotOpen(pub SliceRef);

/// What is landing for one session.
#[derive(Debug)]
pub struct Landing<F> {
    blocks: BTreeMap<(BlockKey, ShardId), Block<F>>,
    /// Which block and which of its slices a slot is for.
    slots: BTreeMap<SliceRef, (BlockKey, ShardId, usize)>,
}

#[derive(Debug)]
struct Block<F> {
    receipt: BlockReceipt,
    refs: Vec<SliceRef>,
    cells: Vec<Cell<F>>,
}

#[derive(Debug)]
enum Cell<F> {
    Waiting(F),
    Out,
    Landed(F),
    Lost,
}

/// A block whose slices have all landed, unverified.
#[derive(Debug)]
pub struct LandedBlock<F> {
    /// What they must hash to.
    pub receipt: BlockReceipt,
    /// In the receipt's order.
    pub slices: Vec<F>,
}

impl<F> Default for Landing<F> {
    fn default() -> Self {
        Self { blocks: BTreeMap::new(), slots: BTreeMap::new() }
    }
}

impl<F> Landing<F> {
    /// Where a block is landing already, for a repeated request.
    #[must_use]
    pub fn find(&self, key: BlockKey, shard: ShardId) -> Option<LocatedBlock> {
        let block = self.blocks.get(&(key, shard))?;
        Some(LocatedBlock { key, shard, slices: block.refs.clone().into() })
    }

    /// Opens slots for a block, one per checksum of the receipt.
    ///
    /// # Panics
    /// When the numbers of slots and checksums differ, or the block is landing already: the caller
    /// allocates by the receipt and asks [`Self::find`] first.
    pub fn open(&mut self, receipt: BlockReceipt, slots: Vec<(SliceRef, F)>) -> LocatedBlock {
        assert_eq!(receipt.checksums.len(), slots.len(), "one slot per slice");
        let (key, shard) = (receipt.key, receipt.shard);
        let refs: Vec<SliceRef> = slots.iter().map(|(at, _)| *at).collect();
        for (i, at) in refs.iter().enumerate() {
            self.slots.insert(*at, (key, shard, i));
        }
        let located = LocatedBlock { key, shard, slices: refs.clone().into() };
        let cells = slots.into_iter().map(|(_, slot)| Cell::Waiting(slot)).collect();
        let former = self.blocks.insert((key, shard), Block { receipt, refs, cells });
        assert!(former.is_none(), "block {key:?} is landing already");
        located
    }

    /// Hands slots to a connection that is about to fill them, all or none.
    ///
    /// # Errors
    /// [`NotOpen`] for the first slot that is not waiting; nothing was handed out.
    pub fn open_write(&mut self, refs: &[SliceRef]) -> Result<Vec<F>, NotOpen> {
        let mut taken = Vec::with_capacity(refs.len());
        for (done, at) in refs.iter().enumerate() {
            match self.cell(*at).map(|cell| std::mem::replace(cell, Cell::Out)) {
                Some(Cell::Waiting(slot)) => taken.push(slot),
                other => {
                    if let (Some(cell), Some(former)) = (self.cell(*at), other) {
                        *cell = former;
                    }
                    for (at, slot) in refs[..done].iter().zip(taken) {
                        if let Some(cell) = self.cell(*at) {
                            *cell = Cell::Waiting(slot);
                        }
                    }
                    return Err(NotOpen(*at));
                }
            }
        }
        Ok(taken)
    }

    /// Takes a filled slot back from its connection. One that is no longer known is dropped.
    pub fn landed(&mut self, at: SliceRef, slot: F) {
        if let Some(cell @ Cell::Out) = self.cell(at) {
            *cell = Cell::Landed(slot);
        }
    }

    /// Notes that a connection ended with these slots in its hands.
    pub fn aborted(&mut self, refs: &[SliceRef]) {
        for at in refs {
            if let Some(cell @ Cell::Out) = self.cell(*at) {
                *cell = Cell::Lost;
            }
        }
    }

    /// Takes a block out if all of it has landed; otherwise drops what there is of it.
    pub fn commit(&mut self, key: BlockKey, shard: ShardId) -> Option<LandedBlock<F>> {
        let block = self.blocks.remove(&(key, shard))?;
        for at in &block.refs {
            self.slots.remove(at);
        }
        let landed = |cell| match cell {
            Cell::Landed(slot) => Some(slot),
            Cell::Waiting(_) | Cell::Out | Cell::Lost => None,
        };
        let slices: Option<Vec<F>> = block.cells.into_iter().map(landed).collect();
        Some(LandedBlock { receipt: block.receipt, slices: slices? })
    }

    /// Shards of a key that are landing.
    pub fn shards_of(&self, key: BlockKey) -> Vec<ShardId> {
        let range = (key, ShardId(0))..=(key, ShardId(u16::MAX));
        self.blocks.range(range).map(|((_, shard), _)| *shard).collect()
    }

    /// Slots that belong to blocks in flight.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    fn cell(&mut self, at: SliceRef) -> Option<&mut Cell<F>> {
        let (key, shard, index) = *self.slots.get(&at)?;
        self.blocks.get_mut(&(key, shard))?.cells.get_mut(index)
    }
}
