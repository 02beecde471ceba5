//! Waiting for landing slots: first come first served, all or nothing.
//!
//! Who waits holds no slots of its own batch, so batches cannot wait for each other in a circle.
//! A slab tells nobody when a slot comes back; the one in front looks again.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use transfer::{Slab, SlabReservation, SlotMut};

use crate::fetch::FetchError;

/// How often the one in front looks: well under a batch's time on the wire, and cheap.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Landing slots and the queue for them.
pub(crate) struct Room {
    slab: Slab,
    /// One permit; held by the one in front. Fair, so that a large wish is not starved.
    turn: Semaphore,
}

impl Room {
    pub(crate) fn new(slab: Slab) -> Self {
        Self { slab, turn: Semaphore::new(1) }
    }

    pub(crate) fn total(&self) -> usize {
        self.slab.occupancy().total as usize
    }

    /// The right to `wanted` slots, as soon as they are free.
    pub(crate) async fn reserve(
        &self,
        wanted: usize,
        deadline: Instant,
    ) -> Result<SlabReservation, FetchError> {
        let total = self.slab.occupancy().total;
        let Some(count) = u32::try_from(wanted).ok().filter(|count| *count <= total) else {
            return Err(FetchError::NeverFits { wanted, total });
        };
        let waiting = async {
            let _turn = self.turn.acquire().await.expect("never closed");
            loop {
                if let Ok(reservation) = self.slab.try_reserve(count) {
                    return reservation;
                }
                sleep(LOOK_AGAIN).await;
            }
        };
        let waited = timeout_at(deadline, waiting).await;
        waited.map_err(|_| self.none(wanted))
    }

    /// Slots for a batch whose former ones were lost with a connection. Does not wait: the caller
    /// holds slots.
    pub(crate) fn try_replace(&self, wanted: usize) -> Result<Vec<SlotMut>, FetchError> {
        let count = u32::try_from(wanted).map_err(|_| self.none(wanted))?;
        let slots = self.slab.try_alloc_many(count);
        slots.map_err(|_| self.none(wanted))
    }

    fn none(&self, wanted: usize) -> FetchError {
        let (free, total) = {
            let now = self.slab.occupancy();
            (now.free, now.total)
        };
        FetchError::NoRoom { wanted, free, total }
    }
}
