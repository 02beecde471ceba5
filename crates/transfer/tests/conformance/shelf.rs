//! A real gate for the tests: slots on a shelf, one grant, and a record of what landed.

use std::collections::BTreeMap;

use ids::{Epoch, SessionId};
use parking_lot::Mutex;
use transfer::{Credential, Gate, HugePages, Refusal, Slab, Slot, SlotMut, SlotRef};

pub(crate) const AUTH: Credential =
    Credential { session: SessionId(7), epoch: Epoch(3), secret: [9; 16] };

pub(crate) struct Shelf {
    pub(crate) slab: Slab,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sealed: BTreeMap<u32, Slot>,
    landing: BTreeMap<u32, SlotMut>,
    landed: usize,
    aborted: usize,
    /// The session was ended: nothing may land any more.
    closed: bool,
    expired: bool,
}

pub(crate) fn slab(slots: u32, slot_bytes: usize) -> Slab {
    Slab::try_new(slots, slot_bytes, HugePages::Off).unwrap()
}

/// What slot content `n` looks like: every slot and every position differs.
pub(crate) fn pattern(n: usize, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(31) ^ n.wrapping_mul(131) ^ (i >> 8)) as u8;
    }
}

pub(crate) fn matches(n: usize, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    pattern(n, &mut expected);
    expected == bytes
}

impl Shelf {
    pub(crate) fn new(slots: u32, slot_bytes: usize) -> Self {
        Self { slab: slab(slots, slot_bytes), state: Mutex::default() }
    }

    /// Puts `count` patterned slots on the shelf; their addresses in order.
    pub(crate) fn fill(&self, count: usize) -> Vec<SlotRef> {
        let slots = self.slab.try_alloc_many(count as u32).unwrap();
        let mut state = self.state.lock();
        let mut refs = Vec::new();
        for (n, mut slot) in slots.into_iter().enumerate() {
            pattern(n, &mut slot);
            refs.push(address(&slot));
            state.sealed.insert(slot.index(), slot.seal());
        }
        refs
    }

    /// Opens `count` landing slots; their addresses in order.
    pub(crate) fn open(&self, count: usize) -> Vec<SlotRef> {
        let slots = self.slab.try_alloc_many(count as u32).unwrap();
        let mut state = self.state.lock();
        let refs = slots.iter().map(address).collect();
        state.landing.extend(slots.into_iter().map(|slot| (slot.index(), slot)));
        refs
    }

    pub(crate) fn sealed(&self, at: SlotRef) -> Option<Slot> {
        self.state.lock().sealed.get(&at.slot).cloned()
    }

    pub(crate) fn remove(&self, at: SlotRef) {
        self.state.lock().sealed.remove(&at.slot);
    }

    pub(crate) fn landed_and_aborted(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.landed, state.aborted)
    }

    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    pub(crate) fn expire(&self) {
        self.state.lock().expired = true;
    }
}

fn address(slot: &SlotMut) -> SlotRef {
    SlotRef { slot: slot.index(), generation: slot.generation() }
}

impl State {
    fn check(&self, auth: &Credential) -> Result<(), Refusal> {
        if auth.session != AUTH.session || auth.secret != AUTH.secret {
            return Err(Refusal::NoGrant);
        }
        if auth.epoch < AUTH.epoch {
            return Err(Refusal::StaleEpoch);
        }
        if self.expired {
            return Err(Refusal::Expired);
        }
        Ok(())
    }
}

fn same(at: SlotRef, generation: u32) -> Result<(), Refusal> {
    if at.generation == generation { Ok(()) } else { Err(Refusal::StaleGeneration(at.slot)) }
}

impl Gate for Shelf {
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal> {
        let state = self.state.lock();
        state.check(auth)?;
        let one = |at: &SlotRef| {
            let slot = state.sealed.get(&at.slot).ok_or(Refusal::NotYours(at.slot))?;
            same(*at, slot.generation())?;
            Ok(slot.clone())
        };
        refs.iter().map(one).collect()
    }

    fn open_write(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal> {
        let mut state = self.state.lock();
        state.check(auth)?;
        for at in refs {
            let slot = state.landing.get(&at.slot).ok_or(Refusal::NotYours(at.slot))?;
            same(*at, slot.generation())?;
        }
        let taken = refs.iter().map(|at| state.landing.remove(&at.slot).expect("just seen"));
        Ok(taken.collect())
    }

    fn landed(&self, _: &Credential, slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refusal::NoGrant);
        }
        state.landed += slots.len();
        for (at, slot) in slots {
            state.sealed.insert(at.slot, slot.seal());
        }
        Ok(())
    }

    fn aborted(&self, _: &Credential, slots: Vec<(SlotRef, SlotMut)>) {
        self.state.lock().aborted += slots.len();
    }
}
