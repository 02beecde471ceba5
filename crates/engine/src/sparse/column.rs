//! Hot path. The device slots of one (layer, KV head) of a sparse sequence: which blocks are
//! resident, and the list of those that attention walks.
//!
//! Resident is a superset of attended (P1): what has left the attended set stays where it is until
//! its slot is needed, and costs nothing if it comes back. Which blocks are attended is not decided
//! here.

use ids::SlotIdx;
use kv::SlotLease;

/// A block in device memory.
#[derive(Debug)]
struct Resident {
    block: u32,
    slot: SlotLease,
    /// The step that attended to it last.
    used: u32,
    /// May not be evicted: attended, or about to be.
    pinned: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Column {
    /// In ascending block.
    resident: Vec<Resident>,
    /// Slots of the attended blocks in ascending block.
    table: Vec<SlotIdx>,
}

impl Column {
    fn find(&self, block: u32) -> Result<usize, usize> {
        self.resident.binary_search_by_key(&block, |resident| resident.block)
    }

    /// The slot of a resident block.
    pub(crate) fn slot(&self, block: u32) -> Option<SlotIdx> {
        Some(self.resident[self.find(block).ok()?].slot.idx())
    }

    /// Slots of the attended blocks, as of the last [`Self::attend`].
    pub(crate) fn table(&self) -> &[SlotIdx] {
        &self.table
    }

    /// Puts a block that is not resident into a slot and pins it; the content is the caller's to
    /// write.
    pub(crate) fn place(&mut self, block: u32, slot: SlotLease, step: u32) -> SlotIdx {
        let idx = slot.idx();
        let at = self.find(block).expect_err("a block is placed once");
        self.resident.insert(at, Resident { block, slot, used: step, pinned: true });
        idx
    }

    /// The least recently used block that is not pinned gives up its slot; of several the lowest.
    pub(crate) fn evict(&mut self) -> Option<SlotLease> {
        let unpinned = self.resident.iter().enumerate().filter(|(_, resident)| !resident.pinned);
        let (at, _) = unpinned.min_by_key(|(_, resident)| (resident.used, resident.block))?;
        Some(self.resident.remove(at).slot)
    }

    /// Keeps a resident block from being evicted until the next [`Self::attend`].
    pub(crate) fn pin(&mut self, block: u32) {
        let at = self.find(block).expect("only what is resident is pinned");
        self.resident[at].pinned = true;
    }

    /// Lets a block be evicted: what leaves the set before it was read in this step.
    pub(crate) fn unpin(&mut self, block: u32) {
        let at = self.find(block).expect("only what is resident leaves the set");
        self.resident[at].pinned = false;
    }

    /// From now on attention walks these, all resident, in ascending order.
    ///
    /// # Panics
    /// When a block is not resident: nothing may be attended that has not arrived.
    pub(crate) fn attend(&mut self, blocks: impl Iterator<Item = u32>, step: u32) {
        self.table.clear();
        let mut wanted = blocks.peekable();
        for resident in &mut self.resident {
            resident.pinned = wanted.next_if_eq(&resident.block).is_some();
            if resident.pinned {
                self.table.push(resident.slot.idx());
                resident.used = step;
            }
        }
        assert!(wanted.next().is_none(), "block {:?} is attended and not resident", wanted.peek());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(count: u32) -> Vec<SlotLease> {
        kv::SlotPool::new(count).try_reserve(count).unwrap().take_many(count).unwrap()
    }

    #[test]
    fn what_left_the_set_stays_until_its_slot_is_needed() {
        let mut column = Column::default();
        let mut slots = Vec::new();
        for (block, lease) in [4, 1, 7].into_iter().zip(leases(3)) {
            slots.push(column.place(block, lease, 0));
        }
        assert!(column.evict().is_none(), "what is on its way is pinned");
        column.attend([1, 7].into_iter(), 1);
        assert_eq!(column.table(), [slots[1], slots[2]]);
        assert_eq!(column.slot(4), Some(slots[0]), "still resident");
        let lease = column.evict().expect("4 is not attended");
        assert_eq!((lease.idx(), column.slot(4)), (slots[0], None));
        column.place(9, lease, 2);
        assert!(column.evict().is_none(), "1 and 7 are attended, 9 is on its way");
        column.attend([7, 9].into_iter(), 3);
        column.pin(1);
        assert!(column.evict().is_none(), "1 comes back");
        column.unpin(1);
        assert_eq!(column.evict().map(|lease| lease.idx()), Some(slots[1]));
    }

    #[test]
    #[should_panic(expected = "attended and not resident")]
    fn nothing_is_attended_that_is_not_there() {
        let mut column = Column::default();
        column.place(3, leases(1).remove(0), 0);
        column.attend([3, 5].into_iter(), 0);
    }
}
