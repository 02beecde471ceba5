//! The bounded device memory for KV: an arena of slots, allocated once. A slot holds one slice,
//! the K and V of one (layer, KV head, block of 16 tokens), and attention can read KV from
//! nothing else. Which slot is free, and whose, is not known here: crate `kv` decides that.
//!
//! A slot is K transposed `[head_dim][16]` in half precision, then V `[16][head_dim]`. Lanes of a
//! block that holds fewer than 16 tokens are zero.

use ids::{BLOCK_TOKENS, SlotIdx};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::memory::{HugePages, MemoryError, Region};

/// The widest head; it bounds the accumulator of one query.
pub(crate) const HEAD_DIM_MAX: usize = 256;

/// What an arena is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    /// Width of one head; a multiple of 16 up to 256.
    pub head_dim: usize,
    /// Number of slots.
    pub count: u32,
}

/// Bytes of one slot: K and V of 16 tokens in half precision.
#[must_use]
pub const fn slot_bytes(head_dim: usize) -> usize {
    2 * 2 * BLOCK_TOKENS * head_dim
}

/// The slots of the host device.
///
/// Launches that read (attend, gather) share the arena, those that write (kv_write, zero, scatter)
/// have it to themselves while they run, so a background thread may fill spare slots between the
/// launches of a step.
#[derive(Debug)]
pub struct SlotArena {
    shape: SlotShape,
    /// Values of one slot: slot_bytes / 2.
    stride: usize,
    memory: RwLock<Region<u16>>,
}

impl SlotArena {
    pub(crate) fn try_new(shape: SlotShape, pages: HugePages) -> Result<Self, MemoryError> {
        let SlotShape { head_dim, count } = shape;
        if head_dim == 0 || head_dim % 16 != 0 || head_dim > HEAD_DIM_MAX {
            return Err(MemoryError::HeadDim { head_dim });
        }
        let stride = slot_bytes(head_dim) / 2;
        let count = count as usize;
        let values = stride.checked_mul(count).ok_or(MemoryError::TooLarge {
            what: "slots",
            count,
            unit_bytes: slot_bytes(head_dim),
        })?;
        let memory = RwLock::new(Region::zeroed(values, pages)?);
        Ok(Self { shape, stride, memory })
    }

    /// What it was made of.
    #[must_use]
    pub fn shape(&self) -> SlotShape {
        self.shape
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        slot_bytes(self.shape.head_dim)
    }

    /// Bytes of all slots together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slot_bytes() * self.shape.count as usize
    }

    pub(crate) fn read(&self) -> SlotsRead<'_> {
        SlotsRead { memory: self.memory.read(), stride: self.stride, shape: self.shape }
    }

    pub(crate) fn write(&self) -> SlotsWrite<'_> {
        SlotsWrite { memory: self.memory.write(), stride: self.stride, shape: self.shape }
    }
}

/// Shared access to all slots while a launch reads.
pub(crate) struct SlotsRead<'a> {
    memory: RwLockReadGuard<'a, Region<u16>>,
    stride: usize,
    shape: SlotShape,
}

impl SlotsRead<'_> {
    /// The view that tiles share; it cannot outlive the guard.
    pub(crate) fn view(&self) -> SlotsView<'_> {
        SlotsView { values: self.memory.as_slice(), stride: self.stride, shape: self.shape }
    }
}

/// All slots, readable.
#[derive(Clone, Copy)]
pub(crate) struct SlotsView<'a> {
    values: &'a [u16],
    stride: usize,
    shape: SlotShape,
}

impl<'a> SlotsView<'a> {
    pub(crate) fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    /// The values of a slot, K then V.
    #[inline]
    pub(crate) fn slot(&self, id: SlotIdx) -> &'a [u16] {
        check(self.shape, id);
        let at = id.0 as usize * self.stride;
        &self.values[at..at + self.stride]
    }
}

/// Exclusive access to all slots while a launch writes.
pub(crate) struct SlotsWrite<'a> {
    memory: RwLockWriteGuard<'a, Region<u16>>,
    stride: usize,
    shape: SlotShape,
}

impl SlotsWrite<'_> {
    pub(crate) fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    pub(crate) fn slot(&mut self, id: SlotIdx) -> &mut [u16] {
        check(self.shape, id);
        let at = id.0 as usize * self.stride;
        &mut self.memory.as_mut_slice()[at..at + self.stride]
    }
}

/// Ids come from our own allocator, so one out of range is a fault of ours and stops the step.
#[inline]
fn check(shape: SlotShape, id: SlotIdx) {
    assert!(id.0 < shape.count, "slot {} of an arena of {}", id.0, shape.count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_four_kibibytes_at_width_64_and_other_widths_are_checked() {
        assert_eq!(slot_bytes(64), 4096);
        let arena = SlotArena::try_new(SlotShape { head_dim: 64, count: 3 }, HugePages::Off);
        assert_eq!(arena.unwrap().bytes(), 3 * 4096);
        for head_dim in [0, 8, 72, 272] {
            let refused = SlotArena::try_new(SlotShape { head_dim, count: 1 }, HugePages::Off);
            assert!(refused.unwrap_err().to_string().contains(&head_dim.to_string()));
        }
    }

    #[test]
    #[should_panic(expected = "slot 3 of an arena of 3")]
    fn a_slot_out_of_range_stops_the_launch() {
        let arena =
            SlotArena::try_new(SlotShape { head_dim: 64, count: 3 }, HugePages::Off).unwrap();
        let read = arena.read();
        read.view().slot(SlotIdx(3));
    }
}
