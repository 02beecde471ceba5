//! The store against a slab model: nothing leaks, nothing unverified is read, bad references are
//! refused by name.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ids::{BlockHash, BlockIdx, BlockKey, Epoch, Moment, SessionId, ShardId, SliceChecksum};
use ids::{Span, Tenant};
use proptest::prelude::*;

use super::{AccessRefused, Counts, PlaceRefused, Slots, Store, Verdict};
use remote::{BlockReceipt, Denied, Grant, LeaseLimits, Reservation, ReserveRefused, SliceRef};

const SLICES: usize = 3;

/// Slots that are numbers; a guard gives its number back.
#[derive(Clone)]
struct Rack(Rc<RefCell<Free>>);

struct Free {
    ids: BTreeSet<u32>,
    generations: Vec<u32>,
}

struct Guard {
    at: SliceRef,
    rack: Rc<RefCell<Free>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        assert!(self.rack.borrow_mut().ids.insert(self.at.slot), "freed twice");
    }
}

impl Rack {
    fn new(total: u32) -> Self {
        Self(Rc::new(RefCell::new(Free {
            ids: (0..total).collect(),
            generations: vec![0; total as usize],
        })))
    }
}

impl Slots for Rack {
    type Filling = Guard;
    type Sealed = Rc<Guard>;

    fn total(&self) -> u32 {
        self.0.borrow().generations.len() as u32
    }

    fn free(&self) -> u32 {
        self.0.borrow().ids.len() as u32
    }

    fn try_alloc(&self, count: u32) -> Option<Vec<(SliceRef, Guard)>> {
        let mut free = self.0.borrow_mut();
        if free.ids.len() < count as usize {
            return None;
        }
        let mut out = Vec::new();
        for _ in 0..count {
            let slot = free.ids.pop_first()?;
            free.generations[slot as usize] += 1;
            let generation = free.generations[slot as usize];
            let at = SliceRef { slot, generation };
            let rack = Rc::clone(&self.0);
            out.push((at, Guard { at, rack }));
        }
        Some(out)
    }

    fn place(sealed: &Rc<Guard>) -> SliceRef {
        sealed.at
    }
}

fn receipt(n: u8) -> BlockReceipt {
    BlockReceipt {
        key: key(n),
        index: BlockIdx(n.into()),
        shard: ShardId(0),
        tokens: 16,
        checksums: vec![SliceChecksum(n.into()); SLICES].into(),
    }
}

fn key(n: u8) -> BlockKey {
    BlockKey { hash: BlockHash([n; 32]), generation: 0 }
}

fn at(secs: u64) -> Moment {
    Moment(0) + Span::from_secs(secs)
}

fn ask(session: u128, epoch: u64, slices: u32) -> Reservation {
    Reservation {
        session: SessionId(session),
        epoch: Epoch(epoch),
        tenant: Tenant::default(),
        slices,
        lease: Span::from_secs(10),
    }
}

fn store(total: u32) -> (Store<Rack>, Rack) {
    let rack = Rack::new(total);
    let limits = LeaseLimits { sessions_max: 8, lease_max: Span::from_secs(30) };
    (Store::new(rack.clone(), limits), rack)
}

fn reserve(store: &mut Store<Rack>, session: u128, slices: u32) -> Grant {
    store.reserve(&ask(session, 1, slices), [session as u8; 16], at(0)).unwrap().grant
}

/// Places, lands and keeps one block; where it lies.
fn put(store: &mut Store<Rack>, grant: &Grant, n: u8) -> Vec<SliceRef> {
    let placed = store.place(grant, vec![receipt(n)], at(0)).unwrap();
    if placed.place.is_empty() {
        return store.locate(grant, &[key(n)], at(0)).unwrap().found[0].slices.to_vec();
    }
    let refs = placed.place[0].slices.to_vec();
    let slots = store.open_write(grant, &refs, at(0)).unwrap();
    store.landed(grant, refs.iter().copied().zip(slots).collect(), at(0)).unwrap();
    assert_eq!(commit(store, grant, n, true), "kept");
    refs
}

fn commit(store: &mut Store<Rack>, grant: &Grant, n: u8, good: bool) -> &'static str {
    match store.take_landed(grant, &[key(n)], at(0)).unwrap().pop().unwrap().1 {
        Verdict::Kept => "kept before",
        Verdict::Rejected => "rejected",
        Verdict::Verify(landed) if good => {
            let sealed = landed.slices.into_iter().map(Rc::new).collect();
            store.keep(grant, landed.receipt, sealed, at(0)).unwrap();
            "kept"
        }
        Verdict::Verify(landed) => {
            store.reject(grant, landed.slices.len(), at(0));
            "corrupt"
        }
    }
}

#[test]
fn p2_nothing_is_readable_before_it_was_verified() {
    let (mut store, rack) = store(12);
    let grant = reserve(&mut store, 1, 6);
    let placed = store.place(&grant, vec![receipt(1)], at(0)).unwrap();
    let refs = placed.place[0].slices.to_vec();
    let read = |store: &mut Store<Rack>| store.open_read(&grant, &refs, at(0)).map(|_| ());
    let closed = Err(AccessRefused::NotYours(refs[0].slot));
    assert_eq!(read(&mut store), closed);
    let slots = store.open_write(&grant, &refs, at(0)).unwrap();
    assert_eq!(read(&mut store), closed);
    store.landed(&grant, refs.iter().copied().zip(slots).collect(), at(0)).unwrap();
    assert_eq!(read(&mut store), closed);
    assert_eq!(store.locate(&grant, &[key(1)], at(0)).unwrap().missing, [key(1)]);
    assert_eq!(commit(&mut store, &grant, 1, false), "corrupt");
    assert_eq!(read(&mut store), closed, "a corrupt block is gone");
    assert_eq!((store.counts().used, rack.free()), (0, 12));
    let refs = put(&mut store, &grant, 1);
    assert_eq!(store.open_read(&grant, &refs, at(0)).unwrap().len(), 3);
    assert_eq!(commit(&mut store, &grant, 1, true), "kept before", "commit is idempotent");
}

/// Case 13: the five bad references, each a refusal of its own.
#[test]
fn case_13_bad_references_are_refused_by_name() {
    let (mut store, _) = store(3);
    let grant = reserve(&mut store, 1, 3);
    let old = put(&mut store, &grant, 1);
    let read = |store: &mut Store<Rack>, grant: &Grant, refs: &[SliceRef], now| {
        store.open_read(grant, refs, now).map(|slots| slots.len())
    };
    let outside = SliceRef { slot: u32::MAX, generation: 1 };
    let refused = read(&mut store, &grant, &[old[0], outside], at(0));
    assert_eq!(refused, Err(AccessRefused::NotYours(u32::MAX)));
    let forged = Grant { secret: [9; 16], ..grant.clone() };
    let refused = read(&mut store, &forged, &old, at(0));
    assert_eq!(refused, Err(AccessRefused::Denied(Denied::WrongSecret)));
    let expired = read(&mut store, &grant, &old, at(11));
    assert_eq!(expired, Err(AccessRefused::Denied(Denied::Expired)));
    store.release(SessionId(1), Epoch(1), at(0));
    let refused = read(&mut store, &grant, &old, at(0));
    assert_eq!(refused, Err(AccessRefused::Denied(Denied::NoSession)));
    let next = reserve(&mut store, 2, 3);
    let refused = read(&mut store, &next, &old, at(0));
    assert_eq!(refused, Err(AccessRefused::NotYours(old[0].slot)), "cached, not pinned");
    let new = put(&mut store, &next, 2);
    assert_eq!(new[0].slot, old[0].slot, "the cached block made room");
    assert_eq!(read(&mut store, &next, &old, at(0)), Err(AccessRefused::Stale(old[0].slot)));
}

#[test]
fn case_01_a_session_that_is_never_heard_of_again_is_freed_by_its_lease() {
    let (mut store, rack) = store(12);
    let grant = reserve(&mut store, 1, 12);
    let placed = store.place(&grant, vec![receipt(1), receipt(2)], at(0)).unwrap();
    let out = store.open_write(&grant, &placed.place[0].slices, at(0)).unwrap();
    assert!(store.expire(at(9)).is_empty());
    assert_eq!(store.expire(at(10)), [SessionId(1)]);
    assert_eq!(rack.free(), 9, "P7: a connection still writes to three");
    let pairs = placed.place[0].slices.iter().copied().zip(out).collect();
    assert_eq!(store.landed(&grant, pairs, at(10)), Err(Denied::NoSession));
    assert_eq!(rack.free(), 12);
    assert_eq!(store.counts(), Counts { total: 12, ..Counts::default() });
}

/// Case 5 and 32: a release in any state frees everything, and so does a repeated one.
#[test]
fn case_05_case_32_a_release_in_any_state_frees_everything() {
    for state in 0..5 {
        let (mut store, rack) = store(12);
        let grant = reserve(&mut store, 1, 12);
        let mut out = Vec::new();
        if state > 0 {
            let placed = store.place(&grant, vec![receipt(1)], at(0)).unwrap();
            let refs = placed.place[0].slices.to_vec();
            if state > 1 {
                out = store.open_write(&grant, &refs, at(0)).unwrap();
            }
            if state > 2 {
                let slots = refs.iter().copied().zip(out.drain(..)).collect();
                store.landed(&grant, slots, at(0)).unwrap();
            }
            if state > 3 {
                assert_eq!(commit(&mut store, &grant, 1, true), "kept");
            }
        }
        store.release(SessionId(1), Epoch(1), at(1));
        store.release(SessionId(1), Epoch(1), at(1));
        drop(out);
        let counts = store.counts();
        assert_eq!((counts.reserved, counts.used, counts.landing), (0, 0, 0));
        assert_eq!(rack.free() + counts.cached, 12, "state {state}");
        let late = store.reserve(&ask(1, 1, 1), [0; 16], at(2));
        assert!(matches!(late, Err(ReserveRefused::StaleEpoch { .. })), "overtaken");
    }
}

#[test]
fn case_25_a_block_of_the_same_key_and_other_bytes_is_a_conflict() {
    let (mut store, _) = store(12);
    let grant = reserve(&mut store, 1, 6);
    put(&mut store, &grant, 1);
    let other = BlockReceipt { checksums: vec![SliceChecksum(99); SLICES].into(), ..receipt(1) };
    let refused = store.place(&grant, vec![other], at(0));
    assert_eq!(refused, Err(PlaceRefused::Conflict { key: key(1) }));
}

#[test]
fn p4_promises_never_exceed_the_slots_and_cache_gives_way() {
    let (mut store, rack) = store(6);
    let first = reserve(&mut store, 1, 6);
    put(&mut store, &first, 1);
    put(&mut store, &first, 2);
    let over = store.place(&first, vec![receipt(3)], at(0));
    assert_eq!(over, Err(PlaceRefused::OverReservation { wanted: 3, left: 0 }));
    let full = store.reserve(&ask(2, 1, 1), [2; 16], at(0));
    assert_eq!(full, Err(ReserveRefused::Full { wanted: 1, free: 0 }));
    let never = store.reserve(&ask(2, 1, 7), [2; 16], at(0));
    assert_eq!(never, Err(ReserveRefused::NeverFits { wanted: 7, total: 6 }));
    store.release(SessionId(1), Epoch(1), at(0));
    assert_eq!((store.counts().cached, rack.free()), (6, 0), "sealed blocks outlive it");
    let second = reserve(&mut store, 2, 6);
    let placed = store.place(&second, vec![receipt(2), receipt(3)], at(0)).unwrap();
    assert_eq!(placed.held, [key(2)], "found in the cache");
    assert_eq!(placed.place[0].key, key(3), "the other cached block made room");
    store.drain();
    let draining = store.reserve(&ask(3, 1, 1), [3; 16], at(0));
    assert_eq!(draining, Err(ReserveRefused::Draining));
}

#[test]
fn p7_slots_on_the_wire_of_an_ended_session_are_not_given_to_the_next() {
    let (mut store, _) = store(3);
    let first = reserve(&mut store, 1, 3);
    let refs = store.place(&first, vec![receipt(1)], at(0)).unwrap().place[0].slices.to_vec();
    let out = store.open_write(&first, &refs, at(0)).unwrap();
    store.release(SessionId(1), Epoch(1), at(0));
    let second = reserve(&mut store, 2, 3);
    let busy = store.place(&second, vec![receipt(2)], at(0));
    assert_eq!(busy, Err(PlaceRefused::Busy { wanted: 3, free: 0 }));
    drop(out);
    assert_eq!(store.place(&second, vec![receipt(2)], at(0)).unwrap().place.len(), 1);
}

#[test]
fn a_block_placed_again_begins_anew_and_costs_nothing_more() {
    let (mut store, _) = store(6);
    let grant = reserve(&mut store, 1, 3);
    let first = store.place(&grant, vec![receipt(1)], at(0)).unwrap();
    let out = store.open_write(&grant, &first.place[0].slices, at(0)).unwrap();
    store.aborted(&grant, &first.place[0].slices, at(0));
    drop(out);
    assert_eq!(put(&mut store, &grant, 1).len(), 3);
    assert_eq!(store.counts().used, 3);
}

#[derive(Clone, Debug)]
enum Op {
    Reserve { session: u128, epoch: u64, slices: u32 },
    Put { session: u128, block: u8, fate: u8 },
    Locate { session: u128, block: u8 },
    Release(u128),
    Tick(u64),
    DropStray,
}

fn op() -> impl Strategy<Value = Op> {
    let session = || 1u128..4;
    prop_oneof![
        (session(), 1u64..3, 1u32..14).prop_map(|(session, epoch, slices)| Op::Reserve {
            session,
            epoch,
            slices
        }),
        (session(), 0u8..5, 0u8..5).prop_map(|(session, block, fate)| Op::Put {
            session,
            block,
            fate
        }),
        (session(), 0u8..5).prop_map(|(session, block)| Op::Locate { session, block }),
        session().prop_map(Op::Release),
        (0u64..8).prop_map(Op::Tick),
        Just(Op::DropStray),
    ]
}

struct World {
    store: Store<Rack>,
    grants: [Option<Grant>; 4],
    /// Slots in the hands of connections that never end by themselves.
    stray: Vec<Guard>,
    now: Moment,
}

impl World {
    fn put(&mut self, grant: &Grant, block: u8, fate: u8) {
        let now = self.now;
        let Ok(placed) = self.store.place(grant, vec![receipt(block)], now) else {
            return;
        };
        let Some(located) = placed.place.first() else {
            return;
        };
        if fate == 0 {
            return;
        }
        let refs = located.slices.to_vec();
        let slots = self.store.open_write(grant, &refs, now).unwrap();
        if fate == 1 {
            self.stray.extend(slots);
            return;
        }
        self.store.landed(grant, refs.into_iter().zip(slots).collect(), now).unwrap();
        for (_, verdict) in self.store.take_landed(grant, &[key(block)], now).unwrap() {
            let Verdict::Verify(landed) = verdict else {
                continue;
            };
            if fate == 2 {
                self.store.reject(grant, landed.slices.len(), now);
            } else {
                let sealed = landed.slices.into_iter().map(Rc::new).collect();
                self.store.keep(grant, landed.receipt, sealed, now).unwrap();
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Reserve { session, epoch, slices } => {
                let secret = [epoch as u8; 16];
                let granted = self.store.reserve(&ask(session, epoch, slices), secret, self.now);
                if let Ok(granted) = granted {
                    self.grants[session as usize] = Some(granted.grant);
                }
            }
            Op::Put { session, block, fate } => {
                if let Some(grant) = self.grants[session as usize].clone() {
                    self.put(&grant, block, fate);
                }
            }
            Op::Locate { session, block } => {
                let Some(grant) = &self.grants[session as usize] else {
                    return;
                };
                if let Ok(located) = self.store.locate(grant, &[key(block)], self.now) {
                    for found in located.found {
                        let read = self.store.open_read(grant, &found.slices, self.now);
                        assert!(read.is_ok(), "what is located can be read");
                    }
                }
            }
            Op::Release(session) => self.store.release(SessionId(session), Epoch(2), self.now),
            Op::Tick(secs) => {
                self.now = self.now + Span::from_secs(secs);
                self.store.expire(self.now);
            }
            Op::DropStray => self.stray.clear(),
        }
    }
}

proptest! {
    /// Case 31: whatever happened, when all sessions ended nothing is reserved, used, landing or
    /// pinned, and free plus cached is everything.
    #[test]
    fn case_31_everything_is_free_or_cached_in_the_end(
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let (store, rack) = store(12);
        let mut world = World { store, grants: [const { None }; 4], stray: vec![], now: at(0) };
        for op in &ops {
            world.apply(op);
            let counts = world.store.counts();
            prop_assert!(counts.reserved <= counts.total, "P4");
            prop_assert!(counts.used <= counts.reserved, "P4");
            prop_assert!(counts.landing + (counts.kept - counts.cached) <= counts.used + 12);
        }
        world.store.expire(at(1 << 20));
        world.stray.clear();
        let counts = world.store.counts();
        prop_assert_eq!((counts.reserved, counts.used, counts.landing), (0, 0, 0));
        prop_assert_eq!(counts.kept, counts.cached, "nothing is pinned");
        prop_assert_eq!(rack.free() + counts.cached, 12);
    }
}
