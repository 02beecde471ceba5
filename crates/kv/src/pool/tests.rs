//! The pool against a model of it, and the named cases.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{PoolFull, SlotIdx, SlotLease, SlotPool, SlotReservation};

#[test]
fn lowest_free_slot_first() {
    let pool = SlotPool::new(4);
    let mut reservation = pool.try_reserve(4).unwrap();
    let mut leases = reservation.take_many(4).unwrap();
    drop(leases.remove(2));
    drop(leases.remove(0));
    let mut again = pool.try_reserve(2).unwrap();
    assert_eq!(again.take().unwrap().idx(), SlotIdx(0));
    let both = again.take();
    assert_eq!(both.unwrap().idx(), SlotIdx(0), "the first was dropped at once");
    assert!(again.take().is_none(), "two were reserved");
}

#[test]
fn p4_a_reservation_is_all_or_nothing() {
    let pool = SlotPool::new(10);
    let held = pool.try_reserve(7).unwrap();
    let refused = pool.try_reserve(4).unwrap_err();
    let expected = PoolFull { wanted: 4, free: 3, total: 10 };
    assert_eq!(refused, expected);
    drop(held);
    assert_eq!(pool.try_reserve(10).unwrap().left(), 10);
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(u32),
    Take { which: usize, count: u32 },
    Split { which: usize, count: u32 },
    DropReservation(usize),
    DropLease(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u32..12).prop_map(Op::Reserve),
        (any::<usize>(), 0u32..6).prop_map(|(which, count)| Op::Take { which, count }),
        (any::<usize>(), 0u32..6).prop_map(|(which, count)| Op::Split { which, count }),
        any::<usize>().prop_map(Op::DropReservation),
        any::<usize>().prop_map(Op::DropLease),
    ]
}

/// The pool as one would draw it: a set of leased ids and the counts of each reservation.
struct Model {
    total: u32,
    leased: BTreeSet<u32>,
    reservations: Vec<SlotReservation>,
    left: Vec<u32>,
    leases: Vec<SlotLease>,
}

impl Model {
    fn free(&self) -> u32 {
        self.total - self.leased.len() as u32 - self.left.iter().sum::<u32>()
    }

    fn apply(&mut self, pool: &SlotPool, op: &Op) {
        match *op {
            Op::Reserve(wanted) => match pool.try_reserve(wanted) {
                Ok(reservation) => {
                    assert!(wanted <= self.free());
                    self.reservations.push(reservation);
                    self.left.push(wanted);
                }
                Err(full) => {
                    assert_eq!(full.free, self.free());
                    assert!(wanted > full.free);
                }
            },
            Op::Take { which, count } if !self.left.is_empty() => {
                let at = which % self.left.len();
                let Some(leases) = self.reservations[at].take_many(count) else {
                    assert!(count > self.left[at]);
                    return;
                };
                self.left[at] -= count;
                for lease in leases {
                    let lowest = (0..).find(|id| !self.leased.contains(id)).unwrap();
                    assert_eq!(lease.idx(), SlotIdx(lowest), "lowest first");
                    self.leased.insert(lowest);
                    self.leases.push(lease);
                }
            }
            Op::Split { which, count } if !self.left.is_empty() => {
                let at = which % self.left.len();
                if let Some(part) = self.reservations[at].split(count) {
                    self.left[at] -= count;
                    self.left.push(count);
                    self.reservations.push(part);
                }
            }
            Op::DropReservation(which) if !self.left.is_empty() => {
                let at = which % self.left.len();
                self.left.remove(at);
                drop(self.reservations.remove(at));
            }
            Op::DropLease(which) if !self.leases.is_empty() => {
                let lease = self.leases.remove(which % self.leases.len());
                self.leased.remove(&lease.idx().0);
            }
            Op::Take { .. } | Op::Split { .. } | Op::DropReservation(_) | Op::DropLease(_) => {}
        }
    }
}

proptest! {
    /// Case 31: whatever the order of use, every slot is back when all guards are gone.
    #[test]
    fn p6_pool_agrees_with_its_model_and_ends_free(
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let pool = SlotPool::new(24);
        let mut model = Model {
            total: 24,
            leased: BTreeSet::new(),
            reservations: Vec::new(),
            left: Vec::new(),
            leases: Vec::new(),
        };
        for op in &ops {
            model.apply(&pool, op);
            let now = pool.occupancy();
            prop_assert_eq!(now.free, model.free());
            prop_assert_eq!(now.leased as usize, model.leased.len());
            prop_assert_eq!(now.free + now.reserved + now.leased, now.total);
        }
        drop(model);
        prop_assert_eq!(pool.occupancy().free, 24);
    }
}
