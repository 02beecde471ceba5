//! What a node of the tests keeps, made of the cores that real nodes are made of: leases, landing,
//! copies. One session, no eviction.

use std::collections::BTreeMap;

use ids::{BlockKey, Epoch, Moment, SessionId, Span, Tenant};
use proto::storage::{Committed, Located, Placed};
use remote::{
    BlockReceipt, Copies, Copy, Denied, Grant, Landing, LeaseLimits, Leases, LocatedBlock,
    Reservation, SliceRef,
};
use transfer::{Slab, Slot, SlotMut};

use crate::samples::SLICES;

const SESSION: SessionId = SessionId(7);
const NOW: Moment = Moment(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceRefused {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("reserve more")]
    OverReservation,
}

#[derive(Debug)]
pub(crate) enum AccessRefused {
    Denied(Denied),
    NotYours(u32),
    Stale(u32),
}

impl From<Denied> for AccessRefused {
    fn from(why: Denied) -> Self {
        Self::Denied(why)
    }
}

pub(crate) struct Keeper {
    slab: Slab,
    leases: Leases<Held>,
    copies: Copies<Slot>,
}

/// What the session has here.
#[derive(Default)]
struct Held {
    /// Slices that it may still place.
    left: usize,
    landing: Landing<SlotMut>,
    /// By slot: the generation that is right.
    readable: BTreeMap<u32, (u32, Slot)>,
}

fn address(index: u32, generation: u32) -> SliceRef {
    let slot = index;
    SliceRef { slot, generation }
}

impl Keeper {
    pub(crate) fn new(slab: Slab) -> Self {
        let limits = LeaseLimits { sessions_max: 1, lease_max: Span::from_secs(60) };
        Self { slab, leases: Leases::new(limits), copies: Copies::default() }
    }

    pub(crate) fn grant(&mut self, blocks: usize) -> Grant {
        let request = Reservation {
            session: SESSION,
            epoch: Epoch(1),
            tenant: Tenant::default(),
            slices: (blocks * SLICES) as u32,
            lease: Span::from_secs(30),
        };
        let held = Held { left: blocks * SLICES, ..Held::default() };
        let granted = self.leases.grant(&request, [9; 16], NOW, || Ok(held));
        granted.unwrap().grant
    }

    pub(crate) fn release(&mut self) {
        self.leases.release(SESSION, Epoch(1), NOW);
    }

    pub(crate) fn landing(&self) -> usize {
        let each = self.leases.iter();
        each.map(|(_, held)| held.landing.slot_count()).sum()
    }

    pub(crate) fn kept(&self) -> usize {
        self.copies.slice_count() / SLICES
    }

    /// Keeps slices as they are, whatever they hash to.
    pub(crate) fn keep(&mut self, grant: &Grant, receipt: BlockReceipt, slots: Vec<SlotMut>) {
        let slices = slots.into_iter().map(SlotMut::seal).collect();
        self.leases.check(grant, NOW).unwrap();
        self.copies.insert_pinned(Copy { receipt, slices });
    }

    pub(crate) fn locate(&mut self, grant: &Grant, keys: &[BlockKey]) -> Result<Located, Denied> {
        let held = self.leases.check(grant, NOW)?;
        let mut answer = Located::default();
        for key in keys {
            let mut shards = self.copies.shards_of(*key).peekable();
            if shards.peek().is_none() {
                answer.missing.push(*key);
            }
            for shard in shards {
                let copy = self.copies.get((*key, shard)).unwrap();
                for slot in copy.slices.iter() {
                    let own = (slot.generation(), slot.clone());
                    held.readable.insert(slot.index(), own);
                }
                let places = copy.slices.iter();
                answer.found.push(LocatedBlock {
                    key: *key,
                    shard,
                    slices: places.map(|slot| address(slot.index(), slot.generation())).collect(),
                });
            }
        }
        Ok(answer)
    }

    pub(crate) fn open_read(
        &mut self,
        grant: &Grant,
        refs: &[SliceRef],
    ) -> Result<Vec<Slot>, AccessRefused> {
        let held = self.leases.check(grant, NOW)?;
        let open = |at: &SliceRef| match held.readable.get(&at.slot) {
            Some((generation, slot)) if *generation == at.generation => Ok(slot.clone()),
            Some(_) => Err(AccessRefused::Stale(at.slot)),
            None => Err(AccessRefused::NotYours(at.slot)),
        };
        refs.iter().map(open).collect()
    }

    pub(crate) fn place(
        &mut self,
        grant: &Grant,
        receipts: Vec<BlockReceipt>,
    ) -> Result<Placed, PlaceRefused> {
        let held = self.leases.check(grant, NOW)?;
        let is_here = |one: &BlockReceipt| self.copies.get((one.key, one.shard)).is_some();
        let (here, fresh): (Vec<_>, Vec<_>) = receipts.into_iter().partition(is_here);
        let wanted: usize = fresh.iter().map(|one| one.checksums.len()).sum();
        held.left = held.left.checked_sub(wanted).ok_or(PlaceRefused::OverReservation)?;
        let mut place = Vec::new();
        for receipt in fresh {
            let slots = self.slab.try_alloc_many(receipt.checksums.len() as u32);
            let slots = slots.unwrap().into_iter();
            let slots = slots.map(|slot| (address(slot.index(), slot.generation()), slot));
            place.push(held.landing.open(receipt, slots.collect()));
        }
        let held = here.into_iter().map(|one| one.key).collect();
        Ok(Placed { place, held })
    }

    pub(crate) fn open_write(
        &mut self,
        grant: &Grant,
        refs: &[SliceRef],
    ) -> Result<Vec<SlotMut>, AccessRefused> {
        let held = self.leases.check(grant, NOW)?;
        let opened = held.landing.open_write(refs);
        opened.map_err(|closed| AccessRefused::NotYours(closed.0.slot))
    }

    pub(crate) fn landed(
        &mut self,
        grant: &Grant,
        slots: Vec<(SliceRef, SlotMut)>,
    ) -> Result<(), Denied> {
        let held = self.leases.check(grant, NOW)?;
        for (at, slot) in slots {
            held.landing.landed(at, slot);
        }
        Ok(())
    }

    pub(crate) fn aborted(&mut self, grant: &Grant, refs: &[SliceRef]) {
        if let Ok(held) = self.leases.check(grant, NOW) {
            held.landing.aborted(refs);
        }
    }

    /// Verifies and keeps what landed.
    pub(crate) fn commit(&mut self, grant: &Grant, keys: &[BlockKey]) -> Result<Committed, Denied> {
        let mut answer = Committed::default();
        for key in keys {
            let held = self.leases.check(grant, NOW)?;
            let shards = held.landing.shards_of(*key).into_iter();
            let landed: Option<Vec<_>> = shards.map(|at| held.landing.commit(*key, at)).collect();
            let is_right = |block: &remote::LandedBlock<SlotMut>| {
                let sums = block.slices.iter().map(|slot| kv::checksum(slot));
                sums.eq(block.receipt.checksums.iter().copied())
            };
            match landed {
                Some(blocks) if !blocks.is_empty() && blocks.iter().all(is_right) => {
                    for block in blocks {
                        self.keep(grant, block.receipt, block.slices);
                    }
                    answer.committed.push(*key);
                }
                Some(_) | None => answer.rejected.push(*key),
            }
        }
        Ok(answer)
    }
}
