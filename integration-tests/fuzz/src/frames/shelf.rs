//! The gate behind the fuzzed server: two slots to read, two that land as one block.
//!
//! What lands is kept by `remote::Landing`, as on a memory node. Deliberately no clock: the grant
//! ends after a number of frames.

use std::collections::BTreeMap;

use ids::{BlockHash, BlockIdx, BlockKey, Epoch, SessionId, ShardId, SliceChecksum};
use parking_lot::Mutex;
use remote::{BlockReceipt, Landing, SliceRef};
use transfer::{Credential, Gate, HugePages, Refusal, Slab, Slot, SlotMut, SlotRef};

pub(super) const SLICE_BYTES: usize = 64;

pub(super) const AUTH: Credential =
    Credential { session: SessionId(7), epoch: Epoch(3), secret: [9; 16] };

const KEY: BlockKey = BlockKey { hash: BlockHash([1; 32]), generation: 1 };

/// What the first byte of slot `index` is, and all of the others.
pub(super) fn content(index: u32) -> [u8; SLICE_BYTES] {
    [0xa0 | index.to_le_bytes()[0]; SLICE_BYTES]
}

pub(super) struct Shelf {
    slab: Slab,
    state: Mutex<State>,
}

struct State {
    /// Frames that the grant still admits.
    frames_left: u8,
    sealed: BTreeMap<SliceRef, Slot>,
    landing: Landing<SlotMut>,
    /// Slots that are in the hands of a connection.
    out: usize,
}

impl Shelf {
    pub(super) fn new(frames_left: u8) -> Self {
        let slab = Slab::try_new(4, SLICE_BYTES, HugePages::Off).expect("a page is mapped");
        let mut slots = slab.try_alloc_many(4).expect("the slab is new").into_iter();
        let mut sealed = BTreeMap::new();
        for mut slot in slots.by_ref().take(2) {
            let content = content(slot.index());
            slot.copy_from_slice(&content);
            sealed.insert(place(&slot), slot.seal());
        }
        let receipt = BlockReceipt {
            key: KEY,
            index: BlockIdx(0),
            shard: ShardId(0),
            tokens: 16,
            checksums: [SliceChecksum(0); 2].into(),
        };
        let mut landing = Landing::default();
        landing.open(receipt, slots.map(|slot| (place(&slot), slot)).collect());
        Self { slab, state: Mutex::new(State { frames_left, sealed, landing, out: 0 }) }
    }

    /// Every slot is on the shelf or was torn and given back; none is with a connection.
    pub(super) fn check_no_slot_is_lost(&self) {
        let mut state = self.state.lock();
        assert_eq!(state.out, 0, "a connection ended and kept slots");
        state.landing = Landing::default();
        let used = self.slab.occupancy().used as usize;
        assert_eq!(used, state.sealed.len(), "guards outlived their connection");
    }
}

fn place(slot: &SlotMut) -> SliceRef {
    SliceRef { slot: slot.index(), generation: slot.generation() }
}

fn named(at: &SlotRef) -> SliceRef {
    SliceRef { slot: at.slot, generation: at.generation }
}

impl State {
    fn admit(&mut self, auth: &Credential) -> Result<(), Refusal> {
        if auth.session != AUTH.session || auth.secret != AUTH.secret {
            return Err(Refusal::NoGrant);
        }
        if auth.epoch < AUTH.epoch {
            return Err(Refusal::StaleEpoch);
        }
        self.frames_left = self.frames_left.checked_sub(1).ok_or(Refusal::Expired)?;
        Ok(())
    }
}

impl Gate for Shelf {
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal> {
        let mut state = self.state.lock();
        state.admit(auth)?;
        let one = |at| state.sealed.get(&named(at)).cloned().ok_or(Refusal::NotYours(at.slot));
        refs.iter().map(one).collect()
    }

    fn open_write(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal> {
        let mut state = self.state.lock();
        state.admit(auth)?;
        let places: Vec<_> = refs.iter().map(named).collect();
        let taken = state.landing.open_write(&places);
        let taken = taken.map_err(|error| Refusal::NotYours(error.0.slot))?;
        state.out += taken.len();
        Ok(taken)
    }

    fn landed(&self, _: &Credential, slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        state.out -= slots.len();
        for (at, slot) in slots {
            state.landing.landed(named(&at), slot);
        }
        Ok(())
    }

    fn aborted(&self, _: &Credential, slots: Vec<(SlotRef, SlotMut)>) {
        let mut state = self.state.lock();
        state.out -= slots.len();
        let places: Vec<_> = slots.iter().map(|(at, _)| named(at)).collect();
        state.landing.aborted(&places);
    }
}
