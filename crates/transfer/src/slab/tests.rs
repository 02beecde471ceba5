//! Guards against a model: no two alias, everything is free at the end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{HugePages, Slab, SlabError, SlabFull, SlabReservation, Slot, SlotMut};

fn slab(slots: u32) -> Slab {
    Slab::try_new(slots, 64, HugePages::Off).unwrap()
}

#[test]
fn p4_senseless_sizes_are_refused_by_name() {
    for (slots, slot_bytes) in [(0, 4096), (4, 0), (u32::MAX, usize::MAX / 2)] {
        let error = Slab::try_new(slots, slot_bytes, HugePages::Auto).unwrap_err();
        assert!(matches!(error, SlabError::Size { .. }));
    }
    // More than a 47-bit address space.
    let error = Slab::try_new(u32::MAX, 1 << 20, HugePages::Auto).unwrap_err();
    assert!(matches!(error, SlabError::Map { .. }));
}

#[test]
fn case_13_a_reused_slot_has_another_generation() {
    let slab = slab(1);
    let first = slab.try_alloc().unwrap();
    let (index, generation) = (first.index(), first.generation());
    let sealed = first.seal();
    let held = sealed.clone();
    assert!(!sealed.is_sole());
    drop(sealed);
    assert!(slab.try_alloc().is_none(), "P7: a clone keeps it from being reused");
    drop(held);
    let second = slab.try_alloc().unwrap();
    assert_eq!(second.index(), index);
    assert_ne!(second.generation(), generation);
}

#[test]
fn p4_reserved_slots_are_not_for_others() {
    let slab = slab(10);
    let mut reservation = slab.try_reserve(8).unwrap();
    let full = SlabFull { wanted: 3, free: 2, total: 10 };
    assert_eq!(slab.try_alloc_many(3).unwrap_err(), full);
    assert_eq!(slab.try_reserve(3).unwrap_err(), full);
    let mine = reservation.try_alloc_many(5).unwrap();
    assert!(reservation.try_alloc_many(4).is_none());
    drop(reservation);
    assert_eq!(slab.occupancy().free, 5);
    drop(mine);
    assert_eq!(slab.occupancy().free, 10);
}

#[test]
fn guards_pass_between_threads_with_their_bytes() {
    let slab = slab(64);
    std::thread::scope(|scope| {
        for worker in 0..4u8 {
            let slab = &slab;
            scope.spawn(move || {
                for round in 0..500u32 {
                    let mark = worker.wrapping_add(round as u8);
                    let mut slot = slab.try_alloc().unwrap();
                    slot.fill(mark);
                    let sealed = slot.seal();
                    let copy = sealed.clone();
                    drop(sealed);
                    assert!(copy.iter().all(|byte| *byte == mark));
                }
            });
        }
    });
    assert_eq!(slab.occupancy().free, 64);
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(u32),
    Reserve(u32),
    AllocReserved(usize, u32),
    DropReservation(usize),
    Seal(usize),
    Clone(usize),
    DropMut(usize),
    DropShared(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u32..5).prop_map(Op::Alloc),
        (0u32..5).prop_map(Op::Reserve),
        (any::<usize>(), 0u32..4).prop_map(|(which, count)| Op::AllocReserved(which, count)),
        any::<usize>().prop_map(Op::DropReservation),
        any::<usize>().prop_map(Op::Seal),
        any::<usize>().prop_map(Op::Clone),
        any::<usize>().prop_map(Op::DropMut),
        any::<usize>().prop_map(Op::DropShared),
    ]
}

#[derive(Default)]
struct Held {
    reservations: Vec<SlabReservation>,
    exclusive: Vec<SlotMut>,
    shared: Vec<Slot>,
    /// What was written last to each slot.
    marks: BTreeMap<u32, u8>,
    next_mark: u8,
}

impl Held {
    fn take(&mut self, slots: Vec<SlotMut>) {
        for mut slot in slots {
            self.next_mark = self.next_mark.wrapping_add(1);
            slot.fill(self.next_mark);
            self.marks.insert(slot.index(), self.next_mark);
            self.exclusive.push(slot);
        }
    }

    fn apply(&mut self, slab: &Slab, op: &Op) {
        let pick = |which: usize, len: usize| (len > 0).then(|| which % len.max(1));
        match *op {
            Op::Alloc(count) => {
                if let Ok(slots) = slab.try_alloc_many(count) {
                    self.take(slots);
                }
            }
            Op::Reserve(count) => self.reservations.extend(slab.try_reserve(count)),
            Op::AllocReserved(which, count) => {
                if let Some(at) = pick(which, self.reservations.len())
                    && let Some(slots) = self.reservations[at].try_alloc_many(count)
                {
                    self.take(slots);
                }
            }
            Op::DropReservation(which) => {
                if let Some(at) = pick(which, self.reservations.len()) {
                    drop(self.reservations.remove(at));
                }
            }
            Op::Seal(which) => {
                if let Some(at) = pick(which, self.exclusive.len()) {
                    self.shared.push(self.exclusive.remove(at).seal());
                }
            }
            Op::Clone(which) => {
                if let Some(at) = pick(which, self.shared.len()) {
                    self.shared.push(self.shared[at].clone());
                }
            }
            Op::DropMut(which) => {
                if let Some(at) = pick(which, self.exclusive.len()) {
                    drop(self.exclusive.remove(at));
                }
            }
            Op::DropShared(which) => {
                if let Some(at) = pick(which, self.shared.len()) {
                    drop(self.shared.remove(at));
                }
            }
        }
    }

    fn used(&self) -> usize {
        let exclusive = self.exclusive.iter().map(SlotMut::index);
        let mut all: Vec<u32> = exclusive.chain(self.shared.iter().map(Slot::index)).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

proptest! {
    /// Case 31, and: what a guard reads is what its owner wrote, whatever others did since.
    #[test]
    fn p6_p7_guards_never_alias_and_all_come_back(ops in prop::collection::vec(op(), 0..150)) {
        let slab = slab(12);
        let mut held = Held::default();
        for op in &ops {
            held.apply(&slab, op);
            let now = slab.occupancy();
            prop_assert_eq!(now.free + now.reserved + now.used, now.total);
            prop_assert_eq!(now.used as usize, held.used());
            for slot in &held.shared {
                let mark = held.marks[&slot.index()];
                prop_assert!(slot.iter().all(|byte| *byte == mark));
            }
        }
        drop(held);
        prop_assert_eq!(slab.occupancy().free, 12);
    }
}
