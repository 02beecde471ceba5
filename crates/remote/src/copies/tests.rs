//! Pins hold blocks, the rest goes oldest first, and the counts add up.

use super::{Copies, Copy};
use crate::BlockReceipt;
use ids::{BlockHash, BlockIdx, BlockKey, ShardId, SliceChecksum};
use proptest::prelude::*;

fn copy(n: u8, slices: usize) -> Copy<u8> {
    let receipt = BlockReceipt {
        key: BlockKey { hash: BlockHash([n; 32]), generation: 0 },
        index: BlockIdx(0),
        shard: ShardId(0),
        tokens: 16,
        checksums: vec![SliceChecksum(0); slices].into(),
    };
    Copy { receipt, slices: vec![n; slices].into() }
}

#[test]
fn idle_blocks_go_least_recently_used_first_and_pinned_ones_stay() {
    let mut copies = Copies::default();
    let keys: Vec<_> = (0..4).map(|n| copies.insert_pinned(copy(n, 2))).collect();
    for key in &keys[..3] {
        copies.unpin(*key);
    }
    assert!(copies.pin(keys[0]));
    copies.unpin(keys[0]);
    assert_eq!(copies.idle_count(), 6);
    assert_eq!(copies.evict(3), 4, "whole blocks");
    assert!(copies.get(keys[1]).is_none() && copies.get(keys[2]).is_none());
    assert!(copies.get(keys[0]).is_some(), "it was used last");
    assert_eq!(copies.evict(100), 2);
    assert!(copies.get(keys[3]).is_some(), "pinned");
    assert_eq!((copies.slice_count(), copies.idle_count()), (2, 0));
}

proptest! {
    /// Case 31: whatever happens, when all pins are given back everything can be evicted.
    #[test]
    fn case_31_no_pin_is_lost(ops in prop::collection::vec((0u8..6, 0u8..3), 0..200)) {
        let mut copies = Copies::default();
        let mut pins = Vec::new();
        for (n, op) in ops {
            match op {
                0 => pins.push(copies.insert_pinned(copy(n, 1 + usize::from(n)))),
                1 => {
                    let key = (copy(n, 1).receipt.key, ShardId(0));
                    if copies.pin(key) {
                        pins.push(key);
                    }
                }
                _ if pins.is_empty() => { copies.evict(usize::from(n)); }
                _ => copies.unpin(pins.swap_remove(usize::from(n) % pins.len())),
            }
            prop_assert!(copies.idle_count() <= copies.slice_count());
            prop_assert!(pins.iter().all(|key| copies.get(*key).is_some()));
        }
        pins.into_iter().for_each(|key| copies.unpin(key));
        prop_assert_eq!(copies.idle_count(), copies.slice_count());
        copies.evict(usize::MAX);
        prop_assert_eq!(copies.slice_count(), 0);
    }
}
