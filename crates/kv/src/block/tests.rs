//! Blocks give their guards back when a step fails, and free their slots when dropped.

use ids::{BlockHash, BlockKey, KvHeadIdx, LayerIdx, SlotIdx, TokenId};

use super::{BlockFull, FillingBlock};
use crate::pool::SlotPool;
use crate::shape::Shape;

const SHAPE: Shape = Shape { layers: 2, heads: 3 };

fn key() -> BlockKey {
    BlockKey { hash: BlockHash([7; 32]), generation: 0 }
}

#[test]
fn a_failed_step_returns_the_guards() {
    let pool = SlotPool::new(12);
    let mut reservation = pool.try_reserve(12).unwrap();
    let five = reservation.take_many(5).unwrap();
    let mut slots = FillingBlock::try_new(SHAPE, five).unwrap_err().slots;
    assert_eq!(slots.len(), 5);
    slots.push(reservation.take().unwrap());
    let mut block = FillingBlock::try_new(SHAPE, slots).unwrap();
    for token in 0..15 {
        block.push(TokenId(token)).unwrap();
    }
    let early = block.seal(key()).unwrap_err();
    assert_eq!(early.missing, 1);
    let mut block = early.block;
    block.push(TokenId(15)).unwrap();
    assert_eq!(block.push(TokenId(16)), Err(BlockFull));
    let sealed = block.seal(key()).unwrap();
    assert_eq!(sealed.slot(LayerIdx(1), KvHeadIdx(2)), SlotIdx(5));
    assert_eq!(sealed.tokens()[15], TokenId(15));
    drop(sealed);
    assert_eq!(pool.occupancy().leased, 0, "P6: a dropped block is freed");
}
