//! What a memory node decides: reservations, placing, landing, commit, location, reads. Composed
//! of `remote`'s leases, landing and copies; sans-IO like them.
//!
//! ```text
//! reserve ─► place ─► (bytes land) ─► take_landed ─► (verify) ─► keep ─► locate, open_read
//!    │                                                  └──────► reject
//!    └─ release | expire | a higher epoch: everything the session holds goes; what it kept stays
//!       as cache until somebody else needs the room
//! ```
//! Nothing is readable before it was verified (P2). The promises to sessions never add up to more
//! than the node has; cached blocks are outside of them and are evicted when room is needed (P4).
//! Bytes and hashing are the shell's: it moves guards in and out and says when it is.

use std::collections::{BTreeSet, HashMap};

use ids::{BlockKey, Epoch, Moment, SessionId, ShardId, Span};

use remote::{
    BlockReceipt, Copies, Copy, Denied, Grant, Granted, Landing, LeaseLimits, Leases, LocatedBlock,
    Reservation, ReserveRefused, SliceRef,
};

mod answers;
mod holding;
#[cfg(test)]
mod tests;

pub(crate) use answers::{
    AccessRefused, KeepRefused, Located, PlaceRefused, Placed, Verdict, Verdicts,
};
use holding::{Holding, count_of, note_pin, pin, survey, unpin};

/// The node's memory, as far as the store must know it.
pub(crate) trait Slots {
    /// Guard of a slot that is being filled.
    type Filling;
    /// Guard of a slot that is sealed; the last clone frees it.
    type Sealed: Clone;

    /// All slots.
    fn total(&self) -> u32;

    /// Slots without a guard.
    fn free(&self) -> u32;

    /// Slots to fill, all or nothing.
    fn try_alloc(&self, count: u32) -> Option<Vec<(SliceRef, Self::Filling)>>;

    /// The place of a sealed slot.
    fn place(sealed: &Self::Sealed) -> SliceRef;
}

/// How a store is used at one moment, in slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// All slots.
    pub(crate) total: u32,
    /// Promised to sessions, used or not. `total - reserved` can be promised.
    pub(crate) reserved: u32,
    /// Of the promised, in use by their sessions.
    pub(crate) used: u32,
    /// Of the used, landing.
    pub(crate) landing: u32,
    /// Verified and kept, pinned or not.
    pub(crate) kept: u32,
    /// Of the kept, pinned by nobody.
    pub(crate) cached: u32,
    /// Sessions.
    pub(crate) sessions: u32,
}

/// The slices of a node and who may do what with them.
pub(crate) struct Store<P: Slots> {
    slots: P,
    leases: Leases<Holding<P::Filling, P::Sealed>>,
    copies: Copies<P::Sealed>,
    /// Sum of all holdings' `reserved`; never above the number of slots.
    reserved: u32,
    /// Refuses new sessions from now on.
    draining: bool,
}

impl<P: Slots> Store<P> {
    /// An empty store over these slots.
    #[must_use]
    pub(crate) fn new(slots: P, limits: LeaseLimits) -> Self {
        Self {
            slots,
            leases: Leases::new(limits),
            copies: Copies::default(),
            reserved: 0,
            draining: false,
        }
    }

    /// Promises slices to a session. Idempotent per (session, epoch); a higher epoch ends what
    /// the former owner held. `secret` is fresh randomness for a new grant.
    ///
    /// # Errors
    /// [`ReserveRefused`]; a former owner's hold may have ended all the same.
    pub(crate) fn reserve(
        &mut self,
        request: &Reservation,
        secret: [u8; 16],
        now: Moment,
    ) -> Result<Granted, ReserveRefused> {
        match self.leases.epoch_of(request.session) {
            Some(former) if former < request.epoch => self.release(request.session, former, now),
            Some(_) | None => {}
        }
        let (total, reserved, draining) = (self.slots.total(), self.reserved, self.draining);
        let wanted = request.slices;
        let make = || {
            if draining {
                return Err(ReserveRefused::Draining);
            }
            if wanted > total {
                return Err(ReserveRefused::NeverFits { wanted, total });
            }
            let free = total - reserved;
            if wanted > free {
                return Err(ReserveRefused::Full { wanted, free });
            }
            Ok(Holding {
                reserved: wanted,
                used: 0,
                landing: Landing::default(),
                pins: BTreeSet::new(),
                readable: HashMap::new(),
            })
        };
        let granted = self.leases.grant(request, secret, now, make)?;
        self.reserved = self.leases.iter().map(|(_, holding)| holding.reserved).sum();
        Ok(granted)
    }

    /// Prolongs a session's lease; returns what is in force.
    ///
    /// # Errors
    /// [`Denied`] when the grant does not open the session.
    pub(crate) fn extend(
        &mut self,
        grant: &Grant,
        lease: Span,
        now: Moment,
    ) -> Result<Span, Denied> {
        self.leases.extend(grant, lease, now)
    }

    /// Ends a session: everything it holds goes, at once. Idempotent.
    pub(crate) fn release(&mut self, session: SessionId, epoch: Epoch, now: Moment) {
        if let Some(holding) = self.leases.release(session, epoch, now) {
            self.end(holding);
        }
    }

    /// Ends the sessions whose lease ran out; called by a timer (case 8).
    pub(crate) fn expire(&mut self, now: Moment) -> Vec<SessionId> {
        let over = self.leases.expire(now);
        let mut sessions = Vec::with_capacity(over.len());
        for (session, holding) in over {
            self.end(holding);
            sessions.push(session);
        }
        sessions
    }

    /// Refuses new sessions from now on; those that are here go on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Opens slots for blocks that are not here, pins those that are; all or nothing.
    ///
    /// Placing a block again that is still landing begins it anew.
    ///
    /// # Errors
    /// [`PlaceRefused`], and nothing changed (but cached blocks may have been evicted).
    pub(crate) fn place(
        &mut self,
        grant: &Grant,
        receipts: Vec<BlockReceipt>,
        now: Moment,
    ) -> Result<Placed, PlaceRefused> {
        let holding = self.leases.check(grant, now)?;
        let survey = survey(&self.copies, holding, receipts)?;
        // Pinned before anything is evicted to make room.
        for at in &survey.to_pin {
            pin(&mut self.copies, holding, *at, P::place);
        }
        let count = survey.fresh.iter().map(|receipt| receipt.checksums.len()).sum();
        let slots = match make_room(&self.slots, &mut self.copies, count) {
            Ok(slots) => slots,
            Err(refused) => {
                for at in &survey.to_pin {
                    unpin(&mut self.copies, holding, *at, P::place);
                }
                return Err(refused);
            }
        };
        let (mut slots, mut place) = (slots.into_iter(), Vec::with_capacity(survey.fresh.len()));
        for receipt in survey.fresh {
            let slices = receipt.checksums.len();
            if let Some(former) = holding.landing.find(receipt.key, receipt.shard) {
                holding.used -= count_of(former.slices.len());
                drop(holding.landing.commit(receipt.key, receipt.shard));
            }
            holding.used += count_of(slices);
            let own = slots.by_ref().take(slices).collect();
            place.push(holding.landing.open(receipt, own));
        }
        let held = survey.held;
        Ok(Placed { place, held })
    }

    /// Hands landing slots to one connection.
    ///
    /// # Errors
    /// [`AccessRefused`], and nothing was handed out.
    pub(crate) fn open_write(
        &mut self,
        grant: &Grant,
        refs: &[SliceRef],
        now: Moment,
    ) -> Result<Vec<P::Filling>, AccessRefused> {
        let holding = self.leases.check(grant, now)?;
        let opened = holding.landing.open_write(refs);
        opened.map_err(|closed| AccessRefused::NotYours(closed.0.slot))
    }

    /// Takes filled slots back from their connection.
    ///
    /// # Errors
    /// [`Denied`] when the session ended meanwhile: the slots are freed.
    pub(crate) fn landed(
        &mut self,
        grant: &Grant,
        slots: Vec<(SliceRef, P::Filling)>,
        now: Moment,
    ) -> Result<(), Denied> {
        let holding = self.leases.check(grant, now)?;
        for (at, slot) in slots {
            holding.landing.landed(at, slot);
        }
        Ok(())
    }

    /// Notes that a connection broke with these slots in its hands; they are free already.
    pub(crate) fn aborted(&mut self, grant: &Grant, refs: &[SliceRef], now: Moment) {
        if let Ok(holding) = self.leases.check(grant, now) {
            holding.landing.aborted(refs);
        }
    }

    /// Takes blocks out of landing for verification; what did not arrive whole is dropped. For
    /// each block to verify, [`Self::keep`] or [`Self::reject`] must follow.
    ///
    /// # Errors
    /// [`Denied`] when the grant does not open the session.
    pub(crate) fn take_landed(
        &mut self,
        grant: &Grant,
        keys: &[BlockKey],
        now: Moment,
    ) -> Result<Verdicts<P::Filling>, Denied> {
        let holding = self.leases.check(grant, now)?;
        let mut verdicts = Vec::with_capacity(keys.len());
        for key in keys {
            let shards = holding.landing.shards_of(*key);
            if shards.is_empty() {
                let kept = holding.pins.range((*key, ShardId(0))..=(*key, ShardId(u16::MAX)));
                let verdict = match kept.count() {
                    0 => Verdict::Rejected,
                    _ => Verdict::Kept,
                };
                verdicts.push((*key, verdict));
            }
            for shard in shards {
                let slices = holding.landing.find(*key, shard).map_or(0, |at| at.slices.len());
                let verdict = match holding.landing.commit(*key, shard) {
                    Some(landed) => Verdict::Verify(landed),
                    None => {
                        holding.used -= count_of(slices);
                        Verdict::Rejected
                    }
                };
                verdicts.push((*key, verdict));
            }
        }
        Ok(verdicts)
    }

    /// Keeps a verified block, pinned for its session and readable from now on.
    ///
    /// # Errors
    /// [`KeepRefused`]; the block is dropped, and no longer counts as used.
    pub(crate) fn keep(
        &mut self,
        grant: &Grant,
        receipt: BlockReceipt,
        slices: Vec<P::Sealed>,
        now: Moment,
    ) -> Result<(), KeepRefused> {
        let holding = self.leases.check(grant, now)?;
        let at = (receipt.key, receipt.shard);
        let present = self.copies.get(at);
        if present.is_some_and(|copy| copy.receipt.checksums != receipt.checksums) {
            holding.used -= count_of(slices.len());
            return Err(KeepRefused::Conflict { key: receipt.key });
        }
        if holding.pins.contains(&at) {
            holding.used -= count_of(slices.len());
            return Ok(());
        }
        let copy = Copy { receipt, slices: slices.into() };
        self.copies.insert_pinned(copy);
        note_pin(&self.copies, holding, at, P::place);
        Ok(())
    }

    /// Gives back what a block that failed verification used of its session's reservation.
    pub(crate) fn reject(&mut self, grant: &Grant, slices: usize, now: Moment) {
        if let Ok(holding) = self.leases.check(grant, now) {
            holding.used -= count_of(slices);
        }
    }

    /// Where blocks lie; pins them for the session, all that are here or none.
    ///
    /// # Errors
    /// [`PlaceRefused`], and nothing changed.
    pub(crate) fn locate(
        &mut self,
        grant: &Grant,
        keys: &[BlockKey],
        now: Moment,
    ) -> Result<Located, PlaceRefused> {
        let holding = self.leases.check(grant, now)?;
        let (mut answer, mut to_pin, mut wanted) = (Located::default(), BTreeSet::new(), 0);
        for key in keys {
            let before = answer.found.len();
            for shard in self.copies.shards_of(*key) {
                let at = (*key, shard);
                let Some(copy) = self.copies.get(at) else {
                    continue;
                };
                if !holding.pins.contains(&at) && to_pin.insert(at) {
                    wanted += copy.slices.len();
                }
                answer.found.push(LocatedBlock {
                    key: *key,
                    shard,
                    slices: copy.slices.iter().map(P::place).collect(),
                });
            }
            if answer.found.len() == before {
                answer.missing.push(*key);
            }
        }
        let left = (holding.reserved - holding.used) as usize;
        if wanted > left {
            return Err(PlaceRefused::OverReservation { wanted, left });
        }
        for at in to_pin {
            pin(&mut self.copies, holding, at, P::place);
        }
        Ok(answer)
    }

    /// The guards of slots to send; the session must have them pinned.
    ///
    /// # Errors
    /// [`AccessRefused`] for the first that it may not read.
    pub(crate) fn open_read(
        &mut self,
        grant: &Grant,
        refs: &[SliceRef],
        now: Moment,
    ) -> Result<Vec<P::Sealed>, AccessRefused> {
        let holding = self.leases.check(grant, now)?;
        let open = |at: &SliceRef| match holding.readable.get(&at.slot) {
            Some((generation, slot)) if *generation == at.generation => Ok(slot.clone()),
            Some(_) => Err(AccessRefused::Stale(at.slot)),
            None => Err(AccessRefused::NotYours(at.slot)),
        };
        refs.iter().map(open).collect()
    }

    /// How it is used right now.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        let landing: usize = self.leases.iter().map(|(_, held)| held.landing.slot_count()).sum();
        Counts {
            total: self.slots.total(),
            reserved: self.reserved,
            used: self.leases.iter().map(|(_, held)| held.used).sum(),
            landing: count_of(landing),
            kept: count_of(self.copies.slice_count()),
            cached: count_of(self.copies.idle_count()),
            sessions: count_of(self.leases.len()),
        }
    }

    fn end(&mut self, holding: Holding<P::Filling, P::Sealed>) {
        self.reserved -= holding.reserved;
        for at in &holding.pins {
            self.copies.unpin(*at);
        }
    }
}

/// Allocates, evicting cached blocks as far as needed.
fn make_room<P: Slots>(
    slots: &P,
    copies: &mut Copies<P::Sealed>,
    wanted: usize,
) -> Result<Vec<(SliceRef, P::Filling)>, PlaceRefused> {
    let count = count_of(wanted);
    while slots.free() < count {
        let missing = count - slots.free();
        if copies.evict(missing as usize) == 0 {
            let free = slots.free();
            return Err(PlaceRefused::Busy { wanted, free });
        }
    }
    slots.try_alloc(count).ok_or(PlaceRefused::Busy { wanted, free: slots.free() })
}
