//! A slot is written by one connection at a time, and a block counts only when all of it landed.

use std::rc::Rc;
use std::sync::Arc;

use super::{Landing, NotOpen};
use crate::{BlockReceipt, SliceRef};
use ids::{BlockHash, BlockIdx, BlockKey, ShardId, SliceChecksum};

const KEY: BlockKey = BlockKey { hash: BlockHash([1; 32]), generation: 0 };

fn receipt(slices: u64) -> BlockReceipt {
    BlockReceipt {
        key: KEY,
        index: BlockIdx(0),
        shard: ShardId(0),
        tokens: 16,
        checksums: (0..slices).map(SliceChecksum).collect::<Vec<_>>().into(),
    }
}

fn at(slot: u32) -> SliceRef {
    SliceRef { slot, generation: 1 }
}

/// A landing block of three slots, and a handle that counts the guards alive.
fn three() -> (Landing<Rc<()>>, Rc<()>) {
    let guard = Rc::new(());
    let mut landing = Landing::default();
    let slots = (0..3).map(|slot| (at(slot), Rc::clone(&guard))).collect();
    let located = landing.open(receipt(3), slots);
    assert_eq!(located.slices, Arc::from([at(0), at(1), at(2)]));
    assert_eq!(landing.find(KEY, ShardId(0)), Some(located));
    (landing, guard)
}

#[test]
fn a_block_is_given_out_when_all_of_it_has_landed() {
    let (mut landing, _guard) = three();
    for (slot, guard) in (0..).zip(landing.open_write(&[at(0), at(1), at(2)]).unwrap()) {
        landing.landed(at(slot), guard);
    }
    let block = landing.commit(KEY, ShardId(0)).unwrap();
    assert_eq!(block.slices.len(), 3);
    assert_eq!(landing.slot_count(), 0);
    assert!(landing.commit(KEY, ShardId(0)).is_none(), "it is out");
}

#[test]
fn case_02_a_block_with_a_missing_slice_is_rejected_and_freed() {
    let (mut landing, guard) = three();
    let out = landing.open_write(&[at(0), at(1)]).unwrap();
    for (slot, guard) in (0..).zip(out) {
        landing.landed(at(slot), guard);
    }
    assert!(landing.commit(KEY, ShardId(0)).is_none());
    assert_eq!(Rc::strong_count(&guard), 1, "all slots are free again");
}

#[test]
fn p7_a_slot_belongs_to_one_connection_and_a_refused_write_opens_nothing() {
    let (mut landing, _guard) = three();
    let out = landing.open_write(&[at(1)]).unwrap();
    assert_eq!(landing.open_write(&[at(0), at(1)]), Err(NotOpen(at(1))));
    let stale = SliceRef { slot: 0, generation: 9 };
    assert_eq!(landing.open_write(&[at(2), stale]), Err(NotOpen(stale)));
    let rest = landing.open_write(&[at(0), at(2)]).expect("the refused ones left these alone");
    drop((out, rest));
}

#[test]
fn p7_what_a_broken_connection_held_is_never_read() {
    let (mut landing, guard) = three();
    let out = landing.open_write(&[at(0), at(1), at(2)]).unwrap();
    landing.aborted(&[at(0), at(1), at(2)]);
    drop(out);
    assert!(landing.open_write(&[at(0)]).is_err(), "lost, not waiting");
    assert!(landing.commit(KEY, ShardId(0)).is_none());
    assert_eq!(Rc::strong_count(&guard), 1);
}

#[test]
fn a_slot_that_lands_after_its_session_ended_is_dropped() {
    let (mut landing, guard) = three();
    let out = landing.open_write(&[at(0)]).unwrap();
    assert!(landing.commit(KEY, ShardId(0)).is_none());
    for slot in out {
        landing.landed(at(0), slot);
    }
    assert_eq!(Rc::strong_count(&guard), 1);
    assert_eq!(landing.slot_count(), 0);
}
