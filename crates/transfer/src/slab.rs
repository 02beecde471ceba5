//! Memory of fixed-size slots, reached by guards only.
//!
//! One anonymous mapping; a slot is exclusive ([`SlotMut`]) until it is sealed, then shared and
//! read-only ([`Slot`]), and free when the last guard drops. No two guards can alias mutably, and
//! a slot under a transfer cannot be reused, because the transfer holds a guard. Bookkeeping is
//! 12 bytes a slot. Content is not zeroed at allocation: whoever allocates fills the whole slot.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use parking_lot::Mutex;

mod mapping;
#[cfg(test)]
mod tests;

use mapping::Mapping;

/// Whether to ask for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Ask (`MADV_HUGEPAGE`); go on without where the system has none.
    Auto,
    /// Do not ask.
    Off,
}

/// A slab could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SlabError {
    /// No slots, no bytes, or more than the address space holds.
    #[error("slab of {slots} slots of {slot_bytes} bytes is empty or too large")]
    Size {
        /// Slots asked for.
        slots: u32,
        /// Bytes of one.
        slot_bytes: usize,
    },
    /// The system did not give the memory.
    #[error("the system refused a slab of {bytes} bytes; configure a smaller one")]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Not enough slots are free of guards and of other reservations; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} slab slots wanted, {free} of {total} free")]
pub struct SlabFull {
    /// How many were asked for.
    pub wanted: u32,
    /// How many could have been had.
    pub free: u32,
    /// How many the slab has: more than this can never be had.
    pub total: u32,
}

/// How the slots of a slab are used at one moment; the last three add up to `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// All slots.
    pub total: u32,
    /// Neither held by a guard nor promised.
    pub free: u32,
    /// Promised to a reservation and not yet allocated.
    pub reserved: u32,
    /// Held by a guard.
    pub used: u32,
}

/// A bounded set of equal slots. Clones are handles to one slab.
#[derive(Clone)]
pub struct Slab {
    inner: Arc<Inner>,
}

struct Inner {
    mapping: Mapping,
    slot_bytes: usize,
    total: u32,
    /// Per slot, the number of guards: 1 for a [`SlotMut`], any for [`Slot`]s, 0 when free.
    guards: Box<[AtomicU32]>,
    /// Per slot, raised at each allocation. Written under `state`'s lock.
    generations: Box<[AtomicU32]>,
    state: Mutex<State>,
}

struct State {
    /// Slots that were used before and came back; the last one in is the warmest.
    returned: Vec<u32>,
    /// Slots from here on were never used: their pages are not backed yet.
    fresh: u32,
    /// Promised to reservations.
    reserved: u32,
}

impl Inner {
    fn unused(&self, state: &State) -> u32 {
        let returned = u32::try_from(state.returned.len()).expect("slots are u32 and distinct");
        self.total - state.fresh + returned
    }

    /// Hands out `count` slots that the caller counted as unused.
    fn alloc(self: &Arc<Self>, state: &mut State, count: u32) -> Vec<SlotMut> {
        let mut out = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let index = state.returned.pop().unwrap_or_else(|| {
                assert!(state.fresh < self.total, "unused slots were counted");
                state.fresh += 1;
                state.fresh - 1
            });
            let before = self.generations[index as usize].fetch_add(1, Ordering::Relaxed);
            self.guards[index as usize].store(1, Ordering::Relaxed);
            out.push(SlotMut {
                slot: Slot { inner: Arc::clone(self), index, generation: before.wrapping_add(1) },
            });
        }
        out
    }
}

fn zeros(count: u32) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

impl Slab {
    /// Maps `slots` slots of `slot_bytes` bytes each. Pages are backed when first written.
    ///
    /// # Errors
    /// [`SlabError`] when the size is senseless or the system refuses it.
    pub fn try_new(slots: u32, slot_bytes: usize, huge: HugePages) -> Result<Self, SlabError> {
        let size = SlabError::Size { slots, slot_bytes };
        let bytes = match (slots as usize).checked_mul(slot_bytes) {
            Some(bytes) if bytes > 0 && isize::try_from(bytes).is_ok() => bytes,
            Some(_) | None => return Err(size),
        };
        let mapping =
            Mapping::try_new(bytes, huge).map_err(|source| SlabError::Map { bytes, source })?;
        let state = State { returned: Vec::new(), fresh: 0, reserved: 0 };
        Ok(Self {
            inner: Arc::new(Inner {
                mapping,
                slot_bytes,
                total: slots,
                guards: zeros(slots),
                generations: zeros(slots),
                state: Mutex::new(state),
            }),
        })
    }

    /// One slot, or `None` when none is free of guards and reservations.
    #[must_use]
    pub fn try_alloc(&self) -> Option<SlotMut> {
        self.try_alloc_many(1).ok()?.pop()
    }

    /// `wanted` slots, all or nothing.
    ///
    /// # Errors
    /// [`SlabFull`], and nothing was taken.
    pub fn try_alloc_many(&self, wanted: u32) -> Result<Vec<SlotMut>, SlabFull> {
        let mut state = self.inner.state.lock();
        self.check(&state, wanted)?;
        Ok(self.inner.alloc(&mut state, wanted))
    }

    /// Reserves the right to `wanted` slots, all or nothing.
    ///
    /// # Errors
    /// [`SlabFull`], and nothing was reserved.
    pub fn try_reserve(&self, wanted: u32) -> Result<SlabReservation, SlabFull> {
        let mut state = self.inner.state.lock();
        self.check(&state, wanted)?;
        state.reserved += wanted;
        drop(state);
        Ok(SlabReservation { inner: Arc::clone(&self.inner), left: wanted })
    }

    fn check(&self, state: &State, wanted: u32) -> Result<(), SlabFull> {
        let free = self.inner.unused(state) - state.reserved;
        if wanted > free {
            return Err(SlabFull { wanted, free, total: self.inner.total });
        }
        Ok(())
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// How the slots are used right now, for metrics and admission.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let state = self.inner.state.lock();
        let unused = self.inner.unused(&state);
        Occupancy {
            total: self.inner.total,
            free: unused - state.reserved,
            reserved: state.reserved,
            used: self.inner.total - unused,
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.occupancy().fmt(f)
    }
}

/// The right to allocate a number of slots. What was not used goes back on Drop.
#[must_use = "a dropped reservation reserves nothing"]
pub struct SlabReservation {
    inner: Arc<Inner>,
    left: u32,
}

impl SlabReservation {
    /// How many slots can still be allocated from it.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// `count` slots, all or nothing; `None` when fewer are left in the reservation.
    pub fn try_alloc_many(&mut self, count: u32) -> Option<Vec<SlotMut>> {
        self.left = self.left.checked_sub(count)?;
        let mut state = self.inner.state.lock();
        state.reserved -= count;
        Some(self.inner.alloc(&mut state, count))
    }

    /// Splits off the right to `count` slots; `None`, and nothing changes, when fewer are left.
    pub fn split(&mut self, count: u32) -> Option<Self> {
        self.left = self.left.checked_sub(count)?;
        Some(Self { inner: Arc::clone(&self.inner), left: count })
    }
}

impl Drop for SlabReservation {
    fn drop(&mut self) {
        if self.left > 0 {
            self.inner.state.lock().reserved -= self.left;
        }
    }
}

impl fmt::Debug for SlabReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlabReservation({} left)", self.left)
    }
}

/// A slot that exactly one owner writes to.
#[must_use = "a dropped slot is free"]
pub struct SlotMut {
    /// The only guard of its slot.
    slot: Slot,
}

impl SlotMut {
    /// Number of the slot in its slab.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.slot.index
    }

    /// How often the slot had been allocated when this guard was made.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.slot.generation
    }

    /// Makes it shared and read-only for the rest of this allocation.
    pub fn seal(self) -> Slot {
        self.slot
    }
}

impl Deref for SlotMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slot
    }
}

impl DerefMut for SlotMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let offset = self.slot.index as usize * self.slot.inner.slot_bytes;
        // SAFETY: a slot inside a `SlotMut` has no other guard (alloc makes one, `seal` gives it
        // away, `SlotMut` is not Clone), and guards of other slots cover other ranges, so the
        // `&mut self` borrow is the only access to these bytes.
        unsafe { self.slot.inner.mapping.slice_mut(offset, self.slot.inner.slot_bytes) }
    }
}

impl fmt::Debug for SlotMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotMut({}@{})", self.slot.index, self.slot.generation)
    }
}

/// A sealed slot: immutable, shared, free when the last clone drops.
#[must_use = "a dropped slot is free"]
pub struct Slot {
    inner: Arc<Inner>,
    index: u32,
    generation: u32,
}

impl Slot {
    /// Number of the slot in its slab.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How often the slot had been allocated when its first guard was made.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether this is the only guard of the slot, so that dropping it frees the slot.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.guards().load(Ordering::Acquire) == 1
    }

    fn guards(&self) -> &AtomicU32 {
        &self.inner.guards[self.index as usize]
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        // Relaxed as in Arc: a new guard is made from one that is held.
        let before = self.guards().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "guards of one slot fit in u32");
        Self { inner: Arc::clone(&self.inner), index: self.index, generation: self.generation }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // As in Arc: every use of the bytes happens before the slot is handed out again.
        if self.guards().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.inner.state.lock().returned.push(self.index);
        }
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let offset = self.index as usize * self.inner.slot_bytes;
        // SAFETY: the slot is held by this guard, so it is not handed out again; a mutable borrow
        // needs a `SlotMut`, whose own `Slot` is private to it and the slot's only guard.
        unsafe { self.inner.mapping.slice(offset, self.inner.slot_bytes) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({}@{})", self.index, self.generation)
    }
}
