//! Device slots as rights: a bounded pool, reservations and leases.
//!
//! To hold a guard is to have the right; Drop gives it back. The pool hands out numbers only; the
//! memory behind them belongs to the device. Thread-safe, because the steps of several requests
//! end on several threads; which number is handed out depends only on the order of calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use ids::SlotIdx;
use parking_lot::Mutex;

#[cfg(test)]
mod tests;

/// Not enough slots are free of leases and of other reservations; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} device slots wanted, {free} of {total} free; wait for a request to end, \
     lower max_tokens or raise the device pool"
)]
pub struct PoolFull {
    /// How many were asked for.
    pub wanted: u32,
    /// How many could have been reserved.
    pub free: u32,
    /// How many the pool has: more than this can never be had.
    pub total: u32,
}

/// How the slots of a pool are used at one moment; the three add up to `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// All slots of the pool.
    pub total: u32,
    /// Neither leased nor promised.
    pub free: u32,
    /// Promised to a reservation and not yet leased.
    pub reserved: u32,
    /// Leased.
    pub leased: u32,
}

/// The bounded set of device slots. Clones are handles to one pool.
#[derive(Clone)]
pub struct SlotPool {
    /// Shared with every guard, so that a guard may outlive all handles.
    inner: Arc<Inner>,
}

struct Inner {
    /// Slots of the pool, ids `0..total`.
    total: u32,
    state: Mutex<State>,
}

struct State {
    /// Ids that were leased before and came back, lowest first.
    returned: BinaryHeap<Reverse<u32>>,
    /// Ids from here on were never leased; all of `returned` are below.
    fresh: u32,
    /// Promised to reservations and not yet leased.
    reserved: u32,
}

impl State {
    fn unleased(&self, total: u32) -> u32 {
        let returned = u32::try_from(self.returned.len()).expect("ids are u32 and distinct");
        total - self.fresh + returned
    }

    /// The lowest id without a lease. The caller holds a reservation, so there is one.
    fn lowest(&mut self, total: u32) -> u32 {
        if let Some(Reverse(id)) = self.returned.pop() {
            return id;
        }
        assert!(self.fresh < total, "a reservation covers every lease");
        self.fresh += 1;
        self.fresh - 1
    }
}

impl SlotPool {
    /// A pool of `total` slots, all free.
    #[must_use]
    pub fn new(total: u32) -> Self {
        let state = State { returned: BinaryHeap::new(), fresh: 0, reserved: 0 };
        Self { inner: Arc::new(Inner { total, state: Mutex::new(state) }) }
    }

    /// Reserves `wanted` slots, all or nothing, without waiting.
    ///
    /// # Errors
    /// [`PoolFull`], and nothing was reserved.
    pub fn try_reserve(&self, wanted: u32) -> Result<SlotReservation, PoolFull> {
        let total = self.inner.total;
        let mut state = self.inner.state.lock();
        let free = state.unleased(total) - state.reserved;
        if wanted > free {
            return Err(PoolFull { wanted, free, total });
        }
        state.reserved += wanted;
        drop(state);
        Ok(SlotReservation { inner: Arc::clone(&self.inner), left: wanted })
    }

    /// How the slots are used right now, for metrics and admission.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let total = self.inner.total;
        let state = self.inner.state.lock();
        let unleased = state.unleased(total);
        Occupancy {
            total,
            free: unleased - state.reserved,
            reserved: state.reserved,
            leased: total - unleased,
        }
    }
}

impl fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.occupancy().fmt(f)
    }
}

/// The right to lease a number of slots. What was not taken goes back on Drop.
#[must_use = "a dropped reservation reserves nothing"]
pub struct SlotReservation {
    inner: Arc<Inner>,
    /// How many may still be taken.
    left: u32,
}

impl SlotReservation {
    /// How many slots can still be taken.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Leases the lowest free slot; `None` when everything reserved was taken.
    pub fn take(&mut self) -> Option<SlotLease> {
        self.take_many(1)?.pop()
    }

    /// Leases the `count` lowest free slots in ascending order of id, or none of them.
    pub fn take_many(&mut self, count: u32) -> Option<Vec<SlotLease>> {
        self.left = self.left.checked_sub(count)?;
        let mut state = self.inner.state.lock();
        state.reserved -= count;
        let ids: Vec<u32> = (0..count).map(|_| state.lowest(self.inner.total)).collect();
        drop(state);
        let lease = |id| SlotLease { inner: Arc::clone(&self.inner), idx: SlotIdx(id) };
        Some(ids.into_iter().map(lease).collect())
    }

    /// Splits off the right to `count` slots; `None`, and nothing changes, when fewer are left.
    pub fn split(&mut self, count: u32) -> Option<Self> {
        self.left = self.left.checked_sub(count)?;
        Some(Self { inner: Arc::clone(&self.inner), left: count })
    }
}

impl Drop for SlotReservation {
    fn drop(&mut self) {
        if self.left > 0 {
            self.inner.state.lock().reserved -= self.left;
        }
    }
}

impl fmt::Debug for SlotReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotReservation({} left)", self.left)
    }
}

/// The right to use one device slot until Drop.
#[must_use = "a dropped lease frees its slot"]
pub struct SlotLease {
    inner: Arc<Inner>,
    idx: SlotIdx,
}

impl SlotLease {
    /// Which slot.
    #[must_use]
    pub fn idx(&self) -> SlotIdx {
        self.idx
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.returned.push(Reverse(self.idx.0));
    }
}

impl fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotLease({})", self.idx.0)
    }
}
