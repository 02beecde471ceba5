//! Where the slices of a sparse sequence are kept besides the device: all of its sealed blocks, in
//! tiers below. The engine asks by block, layer and head, and does not know how far away they are.

use std::sync::Arc;

use ids::{BlockIdx, KvHeadIdx, LayerIdx};
use kv::Shape;
use parking_lot::RwLock;
use transfer::{Slab, SlabFull, Slot};

/// One slice of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceAt {
    /// Which block.
    pub block: BlockIdx,
    /// Of which layer.
    pub layer: LayerIdx,
    /// Of which KV head.
    pub head: KvHeadIdx,
}

/// Slices that were asked for, in that order, each verified against its receipt (P2).
pub type Slices = Vec<Slot>;

/// A fetch gave nothing, from no tier.
#[derive(Clone, Debug, thiserror::Error)]
#[error("slices could not be brought to the device: {detail}")]
pub struct BackingError {
    /// The first that is missing, where one is.
    pub block: Option<BlockIdx>,
    /// What was tried.
    pub detail: String,
}

/// Called once with what came of a fetch; from any thread.
pub type Arrival = Box<dyn FnOnce(Result<Slices, BackingError>) + Send>;

/// The tiers below the device, for one sequence.
pub trait Backing: Send + Sync {
    /// Fetches slices from the nearest tier that holds them: one call is one layer of one sequence,
    /// to be moved together. Returns at once; `arrival` may be called before that.
    fn fetch(&self, slices: &[SliceAt], arrival: Arrival);

    /// Keeps a block that decode has sealed; `write` fills one slice after the other, in the
    /// shape's order.
    ///
    /// # Errors
    /// When there is no room, which was reserved at admission.
    fn keep(
        &self,
        block: BlockIdx,
        write: &mut dyn FnMut(&mut [transfer::SlotMut]),
    ) -> Result<(), SlabFull>;
}

/// Everything in the memory of this host.
pub struct HostBacking {
    shape: Shape,
    slab: Slab,
    /// Slices of each block in the shape's order.
    blocks: RwLock<Vec<Arc<[Slot]>>>,
}

impl HostBacking {
    /// With the sealed blocks of a prompt, in order; further ones go into `slab`.
    #[must_use]
    pub fn new(shape: Shape, slab: Slab, blocks: Vec<Arc<[Slot]>>) -> Self {
        Self { shape, slab, blocks: RwLock::new(blocks) }
    }
}

impl Backing for HostBacking {
    fn fetch(&self, slices: &[SliceAt], arrival: Arrival) {
        let blocks = self.blocks.read();
        let found: Result<Slices, BackingError> = slices
            .iter()
            .map(|slice| {
                let at = self.shape.index(slice.layer, slice.head);
                let held = blocks.get(slice.block.index()).map(|block| block[at].clone());
                held.ok_or_else(|| BackingError {
                    block: Some(slice.block),
                    detail: format!("this host does not hold block {}", slice.block.0),
                })
            })
            .collect();
        drop(blocks);
        arrival(found);
    }

    fn keep(
        &self,
        block: BlockIdx,
        write: &mut dyn FnMut(&mut [transfer::SlotMut]),
    ) -> Result<(), SlabFull> {
        let count = u32::try_from(self.shape.slices()).unwrap_or(u32::MAX);
        let mut slots = self.slab.try_alloc_many(count)?;
        write(&mut slots);
        let slices = slots.into_iter().map(transfer::SlotMut::seal).collect();
        let mut blocks = self.blocks.write();
        assert_eq!(blocks.len(), block.index(), "blocks are sealed in order");
        blocks.push(slices);
        Ok(())
    }
}
