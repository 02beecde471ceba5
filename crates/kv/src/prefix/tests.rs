//! The index against a plain list, the forced collision (case 25) and the order of eviction.

use std::collections::BTreeMap;
use std::sync::Arc;

use ids::{BLOCK_TOKENS, BlockHash, BlockKey, TokenId};
use proptest::prelude::*;

use super::{PrefixIndex, RefusedBecause};
use crate::pool::{SlotLease, SlotPool};

fn hash(path: &[u8]) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[0] = path.len() as u8;
    bytes[1..=path.len()].copy_from_slice(path);
    BlockHash(bytes)
}

fn key(path: &[u8]) -> BlockKey {
    BlockKey { hash: hash(path), generation: 0 }
}

fn block(n: u8) -> [TokenId; BLOCK_TOKENS] {
    [TokenId(u32::from(n)); BLOCK_TOKENS]
}

fn chain(path: &[u8]) -> (Vec<BlockHash>, Vec<TokenId>) {
    let hashes = (1..=path.len()).map(|end| hash(&path[..end])).collect();
    let tokens = path.iter().flat_map(|n| block(*n)).collect();
    (hashes, tokens)
}

fn insert<V: Clone>(index: &mut PrefixIndex<V>, path: &[u8], payload: V) -> Option<RefusedBecause> {
    let (last, before) = path.split_last().unwrap();
    let parent = (!before.is_empty()).then(|| hash(before));
    let refused = index.insert(key(path), parent, block(*last), payload).err()?;
    Some(refused.because)
}

fn find<V: Clone>(index: &mut PrefixIndex<V>, path: &[u8]) -> Vec<V> {
    let (hashes, tokens) = chain(path);
    index.lookup(&hashes, &tokens)
}

#[test]
fn case_25_a_forced_collision_is_a_miss_and_is_counted() {
    let mut index = PrefixIndex::new(8);
    assert_eq!(insert(&mut index, &[1], "one"), None);
    let other = index.lookup(&[hash(&[1])], &block(2));
    assert!(other.is_empty(), "P2: the tokens are compared, not only the hash");
    let refused = index.insert(key(&[1]), None, block(2), "two").unwrap_err();
    assert_eq!(refused.because, RefusedBecause::Collision);
    assert_eq!(refused.payload, "two");
    assert_eq!(index.collisions(), 2);
    assert_eq!(find(&mut index, &[1]), ["one"]);
}

#[test]
fn case_25_the_same_block_behind_another_parent_is_a_miss() {
    let mut index = PrefixIndex::new(8);
    insert(&mut index, &[1], 1);
    insert(&mut index, &[1, 2], 2);
    let (mut hashes, mut tokens) = chain(&[1, 2]);
    hashes.remove(0);
    tokens.drain(..BLOCK_TOKENS);
    assert!(index.lookup(&hashes, &tokens).is_empty());
    assert_eq!(index.collisions(), 1);
}

#[test]
fn p4_the_index_is_bounded_and_says_why_it_refuses() {
    let mut index = PrefixIndex::new(2);
    assert_eq!(insert(&mut index, &[9, 9], 0), Some(RefusedBecause::NoParent));
    assert_eq!(insert(&mut index, &[1], 1), None);
    assert_eq!(insert(&mut index, &[1], 2), Some(RefusedBecause::Present));
    assert_eq!(insert(&mut index, &[1, 2], 3), None);
    let full = Some(RefusedBecause::Full { blocks_max: 2 });
    assert_eq!(insert(&mut index, &[3], 4), full);
}

#[test]
fn eviction_takes_the_oldest_leaf_first_and_spares_what_is_held() {
    let mut index = PrefixIndex::new(8);
    for path in [&[1][..], &[1, 2], &[1, 3], &[4]] {
        insert(&mut index, path, Arc::from(path));
    }
    find(&mut index, &[1, 2]);
    let evicted = index.evict(1, |payload| Arc::strong_count(payload) == 1);
    assert_eq!(evicted, [Arc::<[u8]>::from([1, 3].as_slice())]);
    let held = find(&mut index, &[1, 2]);
    let evicted = index.evict(9, |payload| Arc::strong_count(payload) == 1);
    assert_eq!(evicted, [Arc::<[u8]>::from([4].as_slice())]);
    drop(held);
    assert_eq!(index.evict(9, |_| true).len(), 2, "the leaf, then its parent");
    assert!(index.is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>),
    Lookup(Vec<u8>),
    Evict(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let path = || prop::collection::vec(0u8..3, 1..5);
    prop_oneof![
        path().prop_map(Op::Insert),
        path().prop_map(Op::Lookup),
        (0usize..4).prop_map(Op::Evict),
    ]
}

/// Paths that are in, with the time of their last use: eviction scans all of it.
#[derive(Default)]
struct Model {
    used: BTreeMap<Vec<u8>, u64>,
    clock: u64,
}

impl Model {
    fn prefix(&mut self, path: &[u8]) -> usize {
        let known = (1..=path.len()).take_while(|end| self.used.contains_key(&path[..*end]));
        let depth = known.count();
        for end in (1..=depth).rev() {
            self.clock += 1;
            self.used.insert(path[..end].to_vec(), self.clock);
        }
        depth
    }

    fn evict(&mut self, wanted: usize) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < wanted {
            let leaf = |path: &Vec<u8>| {
                !self.used.keys().any(|other| other.len() > path.len() && other.starts_with(path))
            };
            let oldest = self.used.iter().filter(|(path, _)| leaf(path)).min_by_key(|(_, at)| **at);
            let Some(path) = oldest.map(|(path, _)| path.clone()) else {
                break;
            };
            self.used.remove(&path);
            out.push(path);
        }
        out
    }
}

#[derive(Clone)]
struct Payload(Vec<u8>, #[expect(dead_code, reason = "held for its Drop")] Arc<SlotLease>);

proptest! {
    #[test]
    fn p6_index_agrees_with_its_model_and_frees_what_it_held(
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let pool = SlotPool::new(12);
        let mut index = PrefixIndex::new(12);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Insert(path) => {
                    let Ok(mut reservation) = pool.try_reserve(1) else { continue };
                    let lease = Arc::new(reservation.take().unwrap());
                    let refused = insert(&mut index, &path, Payload(path.clone(), lease));
                    let present = model.used.contains_key(&path);
                    let parent = path.len() == 1
                        || model.used.contains_key(&path[..path.len() - 1]);
                    let expected = match (present, parent) {
                        (true, _) => Some(RefusedBecause::Present),
                        (false, false) => Some(RefusedBecause::NoParent),
                        (false, true) => None,
                    };
                    prop_assert_eq!(refused, expected);
                    if refused.is_none() {
                        model.clock += 1;
                        model.used.insert(path, model.clock);
                    }
                }
                Op::Lookup(path) => {
                    let found = find(&mut index, &path);
                    prop_assert_eq!(found.len(), model.prefix(&path));
                    for (depth, payload) in found.iter().enumerate() {
                        prop_assert_eq!(&payload.0[..], &path[..=depth]);
                    }
                }
                Op::Evict(wanted) => {
                    let evicted = index.evict(wanted, |_| true);
                    let paths: Vec<_> = evicted.into_iter().map(|payload| payload.0).collect();
                    prop_assert_eq!(paths, model.evict(wanted));
                }
            }
            prop_assert_eq!(index.len(), model.used.len());
            prop_assert_eq!(pool.occupancy().leased as usize, model.used.len());
            prop_assert_eq!(index.collisions(), 0);
        }
        drop(index);
        prop_assert_eq!(pool.occupancy().free, 12);
    }
}
