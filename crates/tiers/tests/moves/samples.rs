//! Blocks with content that differs in every slice, and their true receipts.

use std::sync::Arc;

use ids::{BlockHash, BlockIdx, BlockKey, ShardId};
use remote::{BlockReceipt, SliceRef};
use tiers::{CopyBlock, FetchBlock, FetchedBlock};
use transfer::{HugePages, Slab, SlotMut};

pub(crate) const SLICE_BYTES: usize = 4096;
/// Slices of one sample block.
pub(crate) const SLICES: usize = 6;

pub(crate) fn slab(blocks: usize) -> Slab {
    Slab::try_new((blocks * SLICES) as u32, SLICE_BYTES, HugePages::Off).unwrap()
}

/// Block `n` of a sequence.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) receipt: BlockReceipt,
    slices: Vec<Vec<u8>>,
}

pub(crate) fn samples(count: usize) -> Vec<Sample> {
    (0..count).map(sample).collect()
}

pub(crate) fn sample(n: usize) -> Sample {
    let byte = |slice: usize, i: usize| (i * 31 + slice * 131 + n * 251 + (i >> 8)) as u8;
    let slice = |slice| (0..SLICE_BYTES).map(|i| byte(slice, i)).collect();
    let slices: Vec<Vec<u8>> = (0..SLICES).map(slice).collect();
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&(n as u64).to_be_bytes());
    let receipt = BlockReceipt {
        key: BlockKey { hash: BlockHash(hash), generation: 0 },
        index: BlockIdx(n as u32),
        shard: ShardId(0),
        tokens: 16,
        checksums: slices.iter().map(|slice| kv::checksum(slice)).collect(),
    };
    Sample { receipt, slices }
}

impl Sample {
    /// Its bytes in slots of a slab.
    pub(crate) fn slots(&self, slab: &Slab) -> Vec<SlotMut> {
        let mut slots = slab.try_alloc_many(self.slices.len() as u32).unwrap();
        for (slot, slice) in slots.iter_mut().zip(&self.slices) {
            slot.copy_from_slice(slice);
        }
        slots
    }

    pub(crate) fn to_copy(&self, slab: &Slab) -> CopyBlock {
        CopyBlock {
            receipt: self.receipt.clone(),
            slices: self.slots(slab).into_iter().map(SlotMut::seal).collect(),
        }
    }

    pub(crate) fn to_fetch(&self, at: Option<Arc<[SliceRef]>>) -> FetchBlock {
        FetchBlock { receipt: self.receipt.clone(), at }
    }

    pub(crate) fn assert_is(&self, fetched: &FetchedBlock) {
        assert_eq!(fetched.receipt, self.receipt);
        assert_eq!(fetched.slices.len(), self.slices.len());
        for (got, expected) in fetched.slices.iter().zip(&self.slices) {
            assert!(**got == **expected, "block {:?}", self.receipt.index);
        }
    }
}
