//! Hashes what arrived against the sealing receipts (P2).
//!
//! The expected checksums come from the node that computed the block, never from the one that
//! served it. What to do about a wrong slice is the caller's decision.

use std::sync::Arc;

use ids::SliceChecksum;
use transfer::SlotMut;

/// Up to here hashing stays on the caller's thread: at 10 GB/s this is 0.1 ms, a switch to
/// another thread costs as much.
const INLINE_BYTES_MAX: usize = 1 << 20;

/// The slices of one block and what they must hash to.
pub(crate) struct Arrived {
    pub(crate) slots: Vec<SlotMut>,
    pub(crate) checksums: Arc<[SliceChecksum]>,
}

/// The same slices, and the first that does not hash to its checksum.
pub(crate) struct Verified {
    pub(crate) slots: Vec<SlotMut>,
    pub(crate) wrong: Option<usize>,
}

/// The runtime is shutting down: what arrived was dropped unverified.
#[derive(Debug)]
pub(crate) struct Stopped;

/// One answer per block, in order. At most one thread is used per call.
pub(crate) async fn verify(blocks: Vec<Arrived>) -> Result<Vec<Verified>, Stopped> {
    let slots = blocks.iter().flat_map(|block| &block.slots);
    let bytes: usize = slots.map(|slot| slot.len()).sum();
    if bytes <= INLINE_BYTES_MAX {
        return Ok(verify_all(blocks));
    }
    let hashing = tokio::task::spawn_blocking(|| verify_all(blocks));
    hashing.await.map_err(|_| Stopped)
}

fn verify_all(blocks: Vec<Arrived>) -> Vec<Verified> {
    let check = |block: Arrived| Verified { wrong: first_wrong(&block), slots: block.slots };
    blocks.into_iter().map(check).collect()
}

fn first_wrong(block: &Arrived) -> Option<usize> {
    let (slots, checksums) = (&block.slots, &block.checksums);
    let pairs = slots.iter().zip(checksums.iter());
    let mut wrong = pairs.map(|(slot, expected)| kv::checksum(slot) != *expected);
    let uneven = slots.len() != checksums.len();
    let short = uneven.then(|| slots.len().min(checksums.len()));
    wrong.position(|wrong| wrong).or(short)
}
