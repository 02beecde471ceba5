//! The prefill host's tier: slices of live sessions under leases, and sealed blocks that later
//! prompts with the same prefix can use.
//!
//! A block lives while a session may read it or the index has it; what the index alone has counts
//! as free and goes, least recently used first, when a session needs the room.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::HostBlock;
use ids::{
    BLOCK_TOKENS, BlockHash, BlockKey, ByteCount, Epoch, Moment, SessionId, Span, Tier, TokenId,
};
use kv::PrefixIndex;
use parking_lot::Mutex;
use placement::TierCapacity;
use remote::{Denied, Grant, Granted, LeaseLimits, Leases, Reservation, ReserveRefused};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use transfer::{Credential, Gate, Refusal, Slab, SlabReservation, Slot, SlotMut, SlotRef};

#[cfg(test)]
mod tests;

/// The tier. Shared by the control services, the bulk transport and the runs.
pub(crate) struct HostTier {
    slab: Slab,
    state: Mutex<State>,
    /// Zero of the tier's moments.
    started: Instant,
    /// Notified whenever sessions have ended.
    gone: Notify,
}

/// Blocks that are made readable under one lock: a tenth of a millisecond's work.
const BLOCKS_PER_LOCK: usize = 16;

struct State {
    leases: Leases<Held>,
    index: PrefixIndex<HostBlock>,
}

/// What the tier holds for one session. Dropping it stops the session's work here.
struct Held {
    reservation: SlabReservation,
    /// What the session may read.
    readable: HashMap<SlotRef, Slot>,
    /// Whether its run has begun: there is one at most.
    running: bool,
    ending: Ending,
}

/// The end of a session, for its run and for the prefill loop.
#[derive(Clone, Default)]
pub(crate) struct Ending {
    /// Wakes the run.
    pub(crate) ended: CancellationToken,
    /// Looked at by the loop between layers.
    pub(crate) flag: Arc<AtomicBool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ending.flag.store(true, Ordering::Release);
        self.ending.ended.cancel();
    }
}

/// A run cannot begin, or cannot have its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    /// The grant opens nothing.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The session has a run, or had one.
    #[error("the session's run has begun already")]
    Running,
    /// More than was reserved.
    #[error("{wanted} slices are needed, {left} are left of the session's reservation")]
    Reservation { wanted: u32, left: u32 },
}

impl HostTier {
    pub(crate) fn new(slab: Slab, limits: LeaseLimits, blocks_max: usize) -> Self {
        let state = State { leases: Leases::new(limits), index: PrefixIndex::new(blocks_max) };
        Self { slab, state: Mutex::new(state), started: Instant::now(), gone: Notify::new() }
    }

    fn now(&self) -> Moment {
        Moment(0) + self.started.elapsed().into()
    }

    /// Reserves slices for a session, at the cost of cached blocks that nobody reads.
    pub(crate) fn reserve(
        &self,
        request: &Reservation,
        secret: [u8; 16],
    ) -> Result<Granted, ReserveRefused> {
        let (wanted, total) = (request.slices, self.slab.occupancy().total);
        if wanted > total {
            return Err(ReserveRefused::NeverFits { wanted, total });
        }
        let now = self.now();
        let mut state = self.state.lock();
        let State { leases, index } = &mut *state;
        leases.grant(request, secret, now, || {
            let reservation = self.make_room(index, wanted)?;
            Ok(Held {
                reservation,
                readable: HashMap::new(),
                running: false,
                ending: Ending::default(),
            })
        })
    }

    fn make_room(
        &self,
        index: &mut PrefixIndex<HostBlock>,
        wanted: u32,
    ) -> Result<SlabReservation, ReserveRefused> {
        let full = match self.slab.try_reserve(wanted) {
            Ok(reservation) => return Ok(reservation),
            Err(full) => full,
        };
        // What cannot be had must not cost the cache anything.
        let free = full.free.saturating_add(idle_slots(index));
        if free < wanted {
            return Err(ReserveRefused::Full { wanted, free });
        }
        let mut missing = wanted - full.free;
        loop {
            let evicted = evict(index, missing);
            match self.slab.try_reserve(wanted) {
                Ok(reservation) => return Ok(reservation),
                // Something was read at that moment, and frees its slots a little later.
                Err(full) if evicted == 0 => {
                    let free = full.free;
                    return Err(ReserveRefused::Full { wanted, free });
                }
                Err(full) => missing = wanted - full.free,
            }
        }
    }

    pub(crate) fn extend(&self, grant: &Grant, lease: Span) -> Result<Span, Denied> {
        self.state.lock().leases.extend(grant, lease, self.now())
    }

    pub(crate) fn release(&self, session: SessionId, epoch: Epoch) {
        let held = self.state.lock().leases.release(session, epoch, self.now());
        // Outside of the lock: thousands of slots may go.
        drop(held);
        self.gone.notify_waiters();
    }

    /// Ends the sessions whose lease ran out; returns how many.
    pub(crate) fn expire(&self) -> usize {
        let over = self.state.lock().leases.expire(self.now());
        self.gone.notify_waiters();
        over.len()
    }

    /// Until no session is held any more.
    pub(crate) async fn emptied(&self) {
        loop {
            let gone = self.gone.notified();
            if self.state.lock().leases.is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// Begins the session's one run; tells when the session ends.
    pub(crate) fn begin(&self, grant: &Grant) -> Result<Ending, NoRoom> {
        let mut state = self.state.lock();
        let held = state.leases.check(grant, self.now())?;
        if std::mem::replace(&mut held.running, true) {
            return Err(NoRoom::Running);
        }
        Ok(held.ending.clone())
    }

    /// Sealed blocks of the prompt's prefix, oldest first.
    pub(crate) fn prefix(&self, hashes: &[BlockHash], tokens: &[TokenId]) -> Vec<HostBlock> {
        self.state.lock().index.lookup(hashes, tokens)
    }

    /// Slots for `wanted` slices out of the session's reservation; what is left of it goes back,
    /// because the prefix that was found needs none.
    pub(crate) fn take(&self, grant: &Grant, wanted: u32) -> Result<Vec<SlotMut>, NoRoom> {
        let mut state = self.state.lock();
        let held = state.leases.check(grant, self.now())?;
        let left = held.reservation.left();
        let slots = held.reservation.try_alloc_many(wanted);
        let slots = slots.ok_or(NoRoom::Reservation { wanted, left })?;
        let rest = held.reservation.left();
        drop(held.reservation.split(rest));
        Ok(slots)
    }

    /// Lets the session read these blocks. `false` when it has ended.
    pub(crate) fn publish(&self, grant: &Grant, blocks: &[HostBlock]) -> bool {
        for blocks in blocks.chunks(BLOCKS_PER_LOCK) {
            let mut state = self.state.lock();
            let Ok(held) = state.leases.check(grant, self.now()) else {
                return false;
            };
            let slots = blocks.iter().flat_map(|block| block.slices.iter());
            let refs = slots.map(|slot| (reference(slot), slot.clone()));
            held.readable.extend(refs);
        }
        true
    }

    /// Keeps a sealed block for later prompts. A refusal (it is there already, or the index is
    /// full) only means that it is not kept.
    pub(crate) fn keep(
        &self,
        parent: Option<BlockHash>,
        tokens: [TokenId; BLOCK_TOKENS],
        block: HostBlock,
    ) -> bool {
        let key: BlockKey = block.receipt.key;
        self.state.lock().index.insert(key, parent, tokens, block).is_ok()
    }

    /// What is free for new sessions, cached blocks included.
    pub(crate) fn capacity(&self) -> TierCapacity {
        let usage = self.usage();
        let bytes = |slots: u32| ByteCount(u64::from(slots) * self.slab.slot_bytes() as u64);
        TierCapacity {
            tier: Tier::PrefillHost,
            total: bytes(usage.total),
            free: bytes(usage.free + usage.idle),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let state = self.state.lock();
        let slots = self.slab.occupancy();
        Usage {
            total: slots.total,
            free: slots.free,
            reserved: slots.reserved,
            idle: idle_slots(&state.index),
            sessions: state.leases.len(),
            cached_blocks: state.index.len(),
        }
    }
}

/// How the tier's slots are used, in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) reserved: u32,
    /// Held by the prefix index alone.
    pub(crate) idle: u32,
    pub(crate) sessions: usize,
    pub(crate) cached_blocks: usize,
}

fn reference(slot: &Slot) -> SlotRef {
    SlotRef { slot: slot.index(), generation: slot.generation() }
}

/// Slots that the index alone holds: all of them can be evicted, because a block that a session
/// reads keeps the blocks before it read as well.
fn idle_slots(index: &PrefixIndex<HostBlock>) -> u32 {
    let idle = index.payloads().filter(|block| is_idle(block));
    let slots: usize = idle.map(|block| block.slices.len()).sum();
    u32::try_from(slots).unwrap_or(u32::MAX)
}

/// Evicts as many blocks as hold `missing` slots, least recently used first; returns how many went.
fn evict(index: &mut PrefixIndex<HostBlock>, missing: u32) -> usize {
    let per_block = index.payloads().next().map_or(1, |block| block.slices.len().max(1));
    let blocks = (missing as usize).div_ceil(per_block);
    index.evict(blocks, is_idle).len()
}

/// Whether only the index holds the block. All slices of a block are shared together.
fn is_idle(block: &HostBlock) -> bool {
    Arc::strong_count(&block.slices) == 1 && block.slices.first().is_none_or(Slot::is_sole)
}

fn grant_of(auth: &Credential) -> Grant {
    Grant { session: auth.session, epoch: auth.epoch, secret: auth.secret }
}

fn refusal(denied: Denied) -> Refusal {
    match denied {
        Denied::NoSession | Denied::WrongSecret => Refusal::NoGrant,
        Denied::StaleEpoch => Refusal::StaleEpoch,
        Denied::Expired => Refusal::Expired,
    }
}

impl Gate for HostTier {
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal> {
        let mut state = self.state.lock();
        let held = state.leases.check(&grant_of(auth), self.now()).map_err(refusal)?;
        let find = |at: &SlotRef| held.readable.get(at).cloned();
        refs.iter().map(|at| find(at).ok_or(Refusal::NotYours(at.slot))).collect()
    }

    /// Nobody writes here: blocks are computed on this host.
    fn open_write(&self, _auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal> {
        Err(Refusal::NotYours(refs.first().map_or(0, |at| at.slot)))
    }

    fn landed(&self, _auth: &Credential, _slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal> {
        Err(Refusal::NoGrant)
    }

    fn aborted(&self, _auth: &Credential, _slots: Vec<(SlotRef, SlotMut)>) {}
}
