//! A table against a plain list of tokens, and the slots that attention would walk.

use std::sync::Arc;

use ids::{BlockHash, BlockKey, KvHeadIdx, LayerIdx, SlotIdx, TokenId};
use proptest::prelude::*;

use super::{BlockTable, PushSealedError, SealError};
use crate::pool::SlotPool;
use crate::shape::Shape;

const SHAPE: Shape = Shape { layers: 2, heads: 2 };

fn key(n: u8) -> BlockKey {
    BlockKey { hash: BlockHash([n; 32]), generation: 0 }
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(TokenId).collect()
}

#[test]
fn a_chunk_spans_blocks_that_are_sealed_in_order() {
    let pool = SlotPool::new(40);
    let mut reservation = pool.try_reserve(40).unwrap();
    let mut table = BlockTable::new(SHAPE);
    table.append(&tokens(40), &mut reservation).unwrap();
    assert_eq!((table.block_count(), table.full_count()), (3, 2));
    let walked = table.slots(LayerIdx(1), KvHeadIdx(1));
    assert_eq!(walked, [SlotIdx(3), SlotIdx(7), SlotIdx(11)]);
    table.seal_oldest(key(0)).unwrap();
    let shared = table.seal_oldest(key(1)).unwrap();
    assert_eq!(table.seal_oldest(key(2)).unwrap_err(), SealError::NotFull { missing: 8 });
    table.append(&tokens(8), &mut reservation).unwrap();
    table.seal_oldest(key(2)).unwrap();
    assert_eq!(table.seal_oldest(key(3)).unwrap_err(), SealError::Nothing);
    assert_eq!(table.token_count(), 48);
    drop(table);
    assert_eq!(pool.occupancy().leased, 4, "one sealed block is still held");
    let mut other = BlockTable::new(SHAPE);
    other.push_sealed(Arc::clone(&shared)).unwrap();
    other.append(&tokens(1), &mut reservation).unwrap();
    let refused = other.push_sealed(shared).unwrap_err();
    assert!(matches!(refused, PushSealedError::BehindFilling { filling: 1, .. }));
}

#[test]
fn a_block_of_another_model_is_refused() {
    let pool = SlotPool::new(4);
    let mut reservation = pool.try_reserve(4).unwrap();
    let mut table = BlockTable::new(SHAPE);
    table.append(&tokens(16), &mut reservation).unwrap();
    let block = table.seal_oldest(key(0)).unwrap();
    let mut other = BlockTable::new(Shape { layers: 4, heads: 1 });
    let refused = other.push_sealed(block).unwrap_err();
    assert!(matches!(refused, PushSealedError::OtherShape { .. }));
}

proptest! {
    /// However the tokens arrive, the table holds them in order, each block on its own slots, and
    /// a refused append changes nothing (P4); dropping it frees everything (P6, case 31).
    #[test]
    fn p4_p6_appends_in_any_pieces_make_the_same_sequence(
        pieces in prop::collection::vec(0usize..40, 0..12),
        seal_every in 1usize..4,
    ) {
        let pool = SlotPool::new(64);
        let mut reservation = pool.try_reserve(60).unwrap();
        let mut table = BlockTable::new(SHAPE);
        let mut expected: Vec<TokenId> = Vec::new();
        for (round, piece) in pieces.iter().enumerate() {
            let start = expected.len() as u32;
            let more: Vec<TokenId> = (start..start + *piece as u32).map(TokenId).collect();
            match table.append(&more, &mut reservation) {
                Ok(()) => expected.extend(more),
                Err(refused) => prop_assert!(refused.wanted > refused.left as usize),
            }
            if round % seal_every == 0 {
                while table.full_count() > 0 {
                    table.seal_oldest(key(0)).unwrap();
                }
            }
            prop_assert_eq!(table.token_count(), expected.len());
            prop_assert_eq!(table.block_count(), expected.len().div_ceil(16));
            let mut held: Vec<SlotIdx> = (0..2)
                .flat_map(|layer| (0..2).map(move |head| (LayerIdx(layer), KvHeadIdx(head))))
                .flat_map(|(layer, head)| table.slots(layer, head).to_vec())
                .collect();
            let count = held.len();
            held.sort_unstable();
            held.dedup();
            prop_assert_eq!(held.len(), count, "no slot is used twice");
        }
        let sealed = table.sealed().iter().flat_map(|block| block.tokens().to_vec());
        let open = table.filling().flat_map(|block| block.tokens().to_vec());
        let seen: Vec<TokenId> = sealed.chain(open).collect();
        prop_assert_eq!(seen, expected);
        drop(table);
        drop(reservation);
        prop_assert_eq!(pool.occupancy().free, 64);
    }
}
