//! One device memory: the slot arena, the pool that says who may use which slot, and the copies
//! between slots and host slices.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ids::{BLOCK_TOKENS, BlockHash, BlockKey, ByteCount, SlotIdx, TokenId};
use kernels::{Device, DeviceLost, MemoryError, SlotShape};
use kv::{BlockTable, FillingBlock, Shape, SlotPool, SlotReservation, blocks_for};
use parking_lot::Mutex;
use tokens::BlockHashes;

/// The device memory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DeviceKvError {
    /// Less than one block.
    #[error("device memory of {given} holds no block; one block of this model takes {block}")]
    TooSmall {
        /// What was configured.
        given: ByteCount,
        /// Bytes of one block.
        block: ByteCount,
    },
    /// The host refused it.
    #[error("allocating device memory")]
    Memory(#[from] MemoryError),
    /// The device failed.
    #[error(transparent)]
    Lost(#[from] DeviceLost),
}

/// Slices could not be brought onto the device. Unless the device is lost, the table is unchanged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The sequence's reservation has too few slots left.
    #[error("the reservation has {left} device slots left, a block needs {wanted}")]
    Reservation {
        /// Slots of one block.
        wanted: usize,
        /// Slots left.
        left: u32,
    },
    /// Not one slice per (layer, KV head).
    #[error("a block of this model has {wanted} slices, got {got}")]
    Slices {
        /// Slices of the shape.
        wanted: usize,
        /// What was given.
        got: usize,
    },
    /// Sealed blocks come first.
    #[error("a sealed block cannot follow an open one")]
    Order,
    /// An open block has 1 to 15 tokens.
    #[error("an open block has 1 to 15 tokens, got {got}")]
    Tokens {
        /// What was given.
        got: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Lost(#[from] DeviceLost),
}

/// The KV memory of one device. Cheap to clone; all clones are the same memory.
pub struct DeviceKv<D: Device>(Arc<Memory<D>>);

impl<D: Device> Clone for DeviceKv<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Memory<D: Device> {
    device: D,
    slots: D::Slots,
    /// Copies between slots and the host go through here, beside the stream of the steps.
    copies: Mutex<D::Stream>,
    pool: SlotPool,
    shape: Shape,
    slot_bytes: usize,
}

impl<D: Device> DeviceKv<D> {
    /// As many whole slots as fit into `bytes`, allocated now.
    ///
    /// # Errors
    /// [`DeviceKvError`] when that is less than one block, or the host has not got it.
    pub fn try_new(
        device: &D,
        shape: Shape,
        head_dim: usize,
        bytes: ByteCount,
    ) -> Result<Self, DeviceKvError> {
        let slot = kernels::slot_bytes(head_dim) as u64;
        let block = ByteCount(slot * shape.slices() as u64);
        if bytes < block {
            return Err(DeviceKvError::TooSmall { given: bytes, block });
        }
        let count = u32::try_from(bytes.0 / slot).unwrap_or(u32::MAX);
        Ok(Self(Arc::new(Memory {
            slots: device.slots(SlotShape { head_dim, count })?,
            copies: Mutex::new(device.stream()?),
            device: device.clone(),
            pool: SlotPool::new(count),
            shape,
            slot_bytes: kernels::slot_bytes(head_dim),
        })))
    }

    /// Who may use which slot.
    #[must_use]
    pub fn pool(&self) -> &SlotPool {
        &self.0.pool
    }

    /// Layers and KV heads of one block.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.0.slot_bytes
    }

    /// Slots that a sequence of `tokens` tokens takes.
    #[must_use]
    pub fn slots_for(&self, tokens: u32) -> u32 {
        let slots = blocks_for(tokens as usize) * self.0.shape.slices();
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    pub(crate) fn device(&self) -> &D {
        &self.0.device
    }

    pub(crate) fn slots(&self) -> &D::Slots {
        &self.0.slots
    }

    /// Brings a sealed block onto the device and appends it to the table.
    ///
    /// `slices` are in the shape's order, [`Self::slot_bytes`] each, and were verified (P2).
    ///
    /// # Errors
    /// [`LoadError`], and the table is unchanged.
    pub fn load_sealed<S: Deref<Target = [u8]>>(
        &self,
        table: &mut BlockTable,
        reservation: &mut SlotReservation,
        identity: (BlockKey, &[TokenId; BLOCK_TOKENS]),
        slices: &[S],
    ) -> Result<(), LoadError> {
        self.check_count(slices.len())?;
        if table.filling().len() > 0 {
            return Err(LoadError::Order);
        }
        let (key, tokens) = identity;
        let wanted = self.0.shape.slices();
        let count = u32::try_from(wanted).unwrap_or(u32::MAX);
        let left = reservation.left();
        let leases = reservation.take_many(count).ok_or(LoadError::Reservation { wanted, left })?;
        let mut block =
            FillingBlock::try_new(self.0.shape, leases).expect("one lease per slice was taken");
        for token in tokens {
            block.push(*token).expect("an empty block takes 16 tokens");
        }
        let slots: Vec<SlotIdx> = block.slots().collect();
        self.scatter(&slots, slices)?;
        let block = block.seal(key).expect("16 tokens were pushed");
        table.push_sealed(Arc::new(block)).map_err(|_| LoadError::Order)
    }

    /// Brings the open block of a prompt onto the device: `tokens` are its 1 to 15 tokens.
    ///
    /// # Errors
    /// [`LoadError`], and the table is unchanged.
    pub fn load_open<S: Deref<Target = [u8]>>(
        &self,
        table: &mut BlockTable,
        reservation: &mut SlotReservation,
        tokens: &[TokenId],
        slices: &[S],
    ) -> Result<(), LoadError> {
        self.check_count(slices.len())?;
        if table.filling().len() > 0 {
            return Err(LoadError::Order);
        }
        if !(1..BLOCK_TOKENS).contains(&tokens.len()) {
            let got = tokens.len();
            return Err(LoadError::Tokens { got });
        }
        let (wanted, left) = (self.0.shape.slices(), reservation.left());
        table.append(tokens, reservation).map_err(|_| LoadError::Reservation { wanted, left })?;
        let open = table.filling().last().expect("tokens were appended");
        let slots: Vec<SlotIdx> = open.slots().collect();
        self.scatter(&slots, slices)
    }

    /// Copies slots to host slices, one each, in order.
    pub(crate) fn gather<S: DerefMut<Target = [u8]>>(
        &self,
        slots: &[SlotIdx],
        slices: &mut [S],
    ) -> Result<(), DeviceLost> {
        let Memory { device, copies, slots: memory, .. } = &*self.0;
        let mut stream = copies.lock();
        for (slot, slice) in slots.iter().zip(slices) {
            device.gather(&mut stream, memory, std::slice::from_ref(slot), slice)?;
        }
        Ok(())
    }

    /// Copies host slices to slots, one each, and waits: the slices may go and a step may read the
    /// slots as soon as this returns.
    pub(crate) fn scatter<S: Deref<Target = [u8]>>(
        &self,
        slots: &[SlotIdx],
        slices: &[S],
    ) -> Result<(), LoadError> {
        let Memory { device, copies, slots: memory, .. } = &*self.0;
        let mut stream = copies.lock();
        for (slot, slice) in slots.iter().zip(slices) {
            device.scatter(&mut stream, memory, slice, std::slice::from_ref(slot));
        }
        Ok(device.synchronise(&mut stream)?)
    }

    fn check_count(&self, got: usize) -> Result<(), LoadError> {
        let wanted = self.0.shape.slices();
        if got == wanted { Ok(()) } else { Err(LoadError::Slices { wanted, got }) }
    }
}

/// Sequence-wide facts that both loops need to seal blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Hash of the newest sealed block, or the root.
    pub(crate) parent: BlockHash,
}

impl Chain {
    /// Identity of the next dense block, and the chain behind it.
    pub(crate) fn next(&mut self, tokens: &[TokenId; BLOCK_TOKENS]) -> BlockKey {
        self.parent = BlockHashes::from_root(self.parent, tokens)[0];
        BlockKey { hash: self.parent, generation: 0 }
    }
}
