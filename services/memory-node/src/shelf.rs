//! The store behind its lock, with the node's slab and clock: what both the gRPC services and the
//! bulk gate talk to.
//!
//! Decides nothing that the store could decide; adds when it is, fresh secrets, and the
//! hashing of what landed.

use ids::{BlockKey, Epoch, Moment, SessionId, Span};
use parking_lot::Mutex;
use remote::{
    BlockReceipt, Denied, Grant, Granted, LandedBlock, LeaseLimits, Reservation, ReserveRefused,
    SliceRef,
};
use tokio::time::Instant;
use transfer::{Credential, Gate, Refusal, Slab, Slot, SlotMut, SlotRef};
use xxhash_rust::xxh3::xxh3_64;

use crate::metrics::Events;
use crate::store::{AccessRefused, Counts, Located, PlaceRefused, Placed, Slots, Store, Verdict};

/// Slices of one commit that are hashed where they are; more go to a thread for blocking work.
/// 64 of 4 KiB take some 20 microseconds.
const HASH_INLINE_MAX: usize = 64;

/// The slab as the store sees it.
pub(crate) struct SlabSlots(Slab);

impl Slots for SlabSlots {
    type Filling = SlotMut;
    type Sealed = Slot;

    fn total(&self) -> u32 {
        self.0.occupancy().total
    }

    fn free(&self) -> u32 {
        self.0.occupancy().free
    }

    fn try_alloc(&self, count: u32) -> Option<Vec<(SliceRef, SlotMut)>> {
        let slots = self.0.try_alloc_many(count).ok()?;
        let placed = slots.into_iter().map(|slot| {
            let at = SliceRef { slot: slot.index(), generation: slot.generation() };
            (at, slot)
        });
        Some(placed.collect())
    }

    fn place(sealed: &Slot) -> SliceRef {
        SliceRef { slot: sealed.index(), generation: sealed.generation() }
    }
}

/// Keys of blocks that can be read from now on, and of those that were dropped.
#[derive(Debug, Default)]
pub(crate) struct CommitOutcome {
    pub(crate) committed: Vec<BlockKey>,
    pub(crate) rejected: Vec<BlockKey>,
}

/// Everything that the node keeps.
pub(crate) struct Shelf {
    store: Mutex<Store<SlabSlots>>,
    /// The zero of the store's clock.
    start: Instant,
    pub(crate) events: Events,
}

impl Shelf {
    pub(crate) fn new(slab: Slab, limits: LeaseLimits, events: Events) -> Self {
        Self {
            store: Mutex::new(Store::new(SlabSlots(slab), limits)),
            start: Instant::now(),
            events,
        }
    }

    fn now(&self) -> Moment {
        Moment(0) + Span::from(self.start.elapsed())
    }

    /// Promises slices to a session.
    pub(crate) fn reserve(&self, request: &Reservation) -> Result<Granted, ReserveRefused> {
        let mut secret = [0; 16];
        // A system without randomness cannot keep strangers out: refuse rather than guess.
        if let Err(error) = getrandom::fill(&mut secret) {
            tracing::error!(%error, "no randomness for a grant");
            return Err(ReserveRefused::Draining);
        }
        let answer = self.store.lock().reserve(request, secret, self.now());
        self.events.reserved(&answer);
        answer
    }

    pub(crate) fn extend(&self, grant: &Grant, lease: Span) -> Result<Span, Denied> {
        self.store.lock().extend(grant, lease, self.now())
    }

    pub(crate) fn release(&self, session: SessionId, epoch: Epoch) {
        self.store.lock().release(session, epoch, self.now());
    }

    pub(crate) fn place(
        &self,
        grant: &Grant,
        receipts: Vec<BlockReceipt>,
    ) -> Result<Placed, PlaceRefused> {
        self.store.lock().place(grant, receipts, self.now())
    }

    pub(crate) fn locate(&self, grant: &Grant, keys: &[BlockKey]) -> Result<Located, PlaceRefused> {
        self.store.lock().locate(grant, keys, self.now())
    }

    /// Verifies what landed and keeps what is right (P2).
    pub(crate) async fn commit(
        &self,
        grant: &Grant,
        keys: &[BlockKey],
    ) -> Result<CommitOutcome, Denied> {
        let verdicts = self.store.lock().take_landed(grant, keys, self.now())?;
        let mut outcome = CommitOutcome::default();
        let mut landed = Vec::new();
        for (key, verdict) in verdicts {
            match verdict {
                Verdict::Kept => outcome.committed.push(key),
                Verdict::Rejected => outcome.rejected.push(key),
                Verdict::Verify(block) => landed.push(block),
            }
        }
        let slices: usize = landed.iter().map(|block| block.slices.len()).sum();
        let verified = if slices <= HASH_INLINE_MAX {
            verify(landed)
        } else {
            let hashing = tokio::task::spawn_blocking(move || verify(landed));
            hashing.await.expect("hashing does not panic and is not aborted")
        };
        let mut store = self.store.lock();
        for (block, is_right) in verified {
            let (key, slices) = (block.receipt.key, block.slices.len());
            if !is_right {
                store.reject(grant, slices, self.now());
                outcome.rejected.push(key);
                continue;
            }
            let sealed = block.slices.into_iter().map(SlotMut::seal).collect();
            match store.keep(grant, block.receipt, sealed, self.now()) {
                Ok(()) => outcome.committed.push(key),
                Err(refused) => {
                    tracing::debug!(%refused, "a verified block was not kept");
                    outcome.rejected.push(key);
                }
            }
        }
        drop(store);
        self.events.committed(&outcome);
        Ok(outcome)
    }

    /// Ends leases that ran out, for as long as it is polled (case 8).
    pub(crate) async fn expire(&self) {
        // A lease ends at most this much late; asking is one walk over the sessions.
        let tick = std::time::Duration::from_millis(100);
        loop {
            tokio::time::sleep(tick).await;
            for session in self.store.lock().expire(self.now()) {
                tracing::info!(%session, "lease ran out; its reservation is free");
                self.events.expired();
            }
        }
    }

    /// Refuses new sessions from now on, and waits until those here have ended.
    pub(crate) async fn drain(&self) {
        self.store.lock().drain();
        while self.counts().sessions > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.store.lock().counts()
    }
}

fn verify(blocks: Vec<LandedBlock<SlotMut>>) -> Vec<(LandedBlock<SlotMut>, bool)> {
    let is_right = |block: &LandedBlock<SlotMut>| {
        let pairs = block.slices.iter().zip(block.receipt.checksums.iter());
        pairs.into_iter().all(|(slice, checksum)| xxh3_64(slice) == checksum.0)
    };
    let judged = blocks.into_iter().map(|block| {
        let right = is_right(&block);
        (block, right)
    });
    judged.collect()
}

fn grant(auth: &Credential) -> Grant {
    Grant { session: auth.session, epoch: auth.epoch, secret: auth.secret }
}

fn places(refs: &[SlotRef]) -> Vec<SliceRef> {
    let place = |at: &SlotRef| SliceRef { slot: at.slot, generation: at.generation };
    refs.iter().map(place).collect()
}

fn denied(denied: Denied) -> Refusal {
    match denied {
        Denied::NoSession | Denied::WrongSecret => Refusal::NoGrant,
        Denied::StaleEpoch => Refusal::StaleEpoch,
        Denied::Expired => Refusal::Expired,
    }
}

fn refusal(refused: AccessRefused) -> Refusal {
    match refused {
        AccessRefused::Denied(why) => denied(why),
        AccessRefused::NotYours(slot) => Refusal::NotYours(slot),
        AccessRefused::Stale(slot) => Refusal::StaleGeneration(slot),
    }
}

impl Gate for Shelf {
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal> {
        let mut store = self.store.lock();
        store.open_read(&grant(auth), &places(refs), self.now()).map_err(refusal)
    }

    fn open_write(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal> {
        let mut store = self.store.lock();
        store.open_write(&grant(auth), &places(refs), self.now()).map_err(refusal)
    }

    fn landed(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal> {
        let (refs, slots): (Vec<SlotRef>, Vec<SlotMut>) = slots.into_iter().unzip();
        let pairs = places(&refs).into_iter().zip(slots).collect();
        let mut store = self.store.lock();
        store.landed(&grant(auth), pairs, self.now()).map_err(denied)
    }

    fn aborted(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>) {
        let (refs, slots): (Vec<SlotRef>, Vec<SlotMut>) = slots.into_iter().unzip();
        drop(slots);
        self.store.lock().aborted(&grant(auth), &places(&refs), self.now());
    }
}
