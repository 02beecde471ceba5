//! Device memory for key summaries: the arena and the pool that says who may use which unit. A unit
//! is the summaries of one block, for all layers and KV heads.

use std::sync::Arc;

use ids::{ByteCount, SlotIdx, SummaryIdx};
use kernels::{Device, DeviceLost, MemoryError, Summarise, SummaryKind, SummaryShape};
use kv::{Shape, SlotLease, SlotPool, SlotReservation};
use model::Model;

use super::scorer::Desk;
use crate::StartError;
use crate::device::DeviceKv;

/// The memory for summaries cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SummaryKvError {
    /// Less than one block.
    #[error("{given} for summaries hold none; the {kind} summary of one block takes {unit}")]
    TooSmall {
        /// What was configured.
        given: ByteCount,
        /// Of which kind.
        kind: SummaryKind,
        /// Bytes of one unit.
        unit: ByteCount,
    },
    /// The device refused it.
    #[error("allocating device memory for summaries")]
    Memory(#[from] MemoryError),
}

/// The summaries' memory of one device. Cheap to clone; all clones are the same memory.
pub struct SummaryKv<D: Device>(Arc<Memory<D>>);

impl<D: Device> Clone for SummaryKv<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Memory<D: Device> {
    units: D::Summaries,
    pool: SlotPool,
    kind: SummaryKind,
    unit_bytes: usize,
}

impl<D: Device> SummaryKv<D> {
    /// As many whole units as fit into `bytes`, allocated now.
    ///
    /// # Errors
    /// [`SummaryKvError`] when that is none, or the device has not got it.
    pub fn try_new(
        device: &D,
        kind: SummaryKind,
        (shape, head_dim): (Shape, usize),
        bytes: ByteCount,
    ) -> Result<Self, SummaryKvError> {
        let unit_bytes = kind.bytes(head_dim) * shape.slices();
        let unit = ByteCount(unit_bytes as u64);
        let count = u32::try_from(bytes.0 / unit.0).unwrap_or(u32::MAX);
        if count == 0 {
            return Err(SummaryKvError::TooSmall { given: bytes, kind, unit });
        }
        let (layers, kv_heads) = (usize::from(shape.layers), usize::from(shape.heads));
        let units = device.summaries(SummaryShape { kind, head_dim, layers, kv_heads, count })?;
        Ok(Self(Arc::new(Memory { units, pool: SlotPool::new(count), kind, unit_bytes })))
    }

    /// The pool that says who may use which unit: unit `i` is slot `i` of it.
    #[must_use]
    pub fn pool(&self) -> &SlotPool {
        &self.0.pool
    }

    /// What its summaries are.
    #[must_use]
    pub fn kind(&self) -> SummaryKind {
        self.0.kind
    }

    /// Bytes of one unit.
    #[must_use]
    pub fn unit_bytes(&self) -> usize {
        self.0.unit_bytes
    }

    /// Brings the summary of a sealed block, which was verified (P2), into a unit of its own;
    /// `None` when the reservation is used up.
    ///
    /// # Errors
    /// When the device is lost.
    ///
    /// # Panics
    /// When the bytes are not those of one unit.
    pub fn load(
        &self,
        device: &D,
        reservation: &mut SlotReservation,
        bytes: &[u8],
    ) -> Result<Option<SlotLease>, DeviceLost> {
        assert_eq!(bytes.len(), self.unit_bytes(), "bytes of a unit");
        let Some(lease) = reservation.take() else { return Ok(None) };
        let mut stream = device.stream()?;
        device.scatter_summaries(&mut stream, &self.0.units, bytes, &[unit(&lease)]);
        device.synchronise(&mut stream)?;
        Ok(Some(lease))
    }

    pub(crate) fn units(&self) -> &D::Summaries {
        &self.0.units
    }
}

/// The unit behind a lease of the pool.
pub(crate) fn unit(lease: &SlotLease) -> SummaryIdx {
    SummaryIdx(lease.idx().0)
}

/// Makes summaries and first masses for the prefill loop.
pub(crate) struct Summariser<D: Device> {
    desk: Desk<D>,
    memory: DeviceKv<D>,
    summaries: SummaryKv<D>,
    stream: D::Stream,
    /// The one that it works in.
    lease: SlotLease,
}

impl<D: Device> Summariser<D> {
    pub(crate) fn try_new(
        model: &Model<D>,
        memory: &DeviceKv<D>,
        summaries: SummaryKv<D>,
    ) -> Result<Self, StartError> {
        let lease = summaries.pool().try_reserve(1).ok().and_then(|mut one| one.take());
        Ok(Self {
            desk: Desk::try_new(model, memory, &summaries)?,
            stream: model.device().stream().map_err(model::ScratchError::from)?,
            memory: memory.clone(),
            lease: lease.ok_or(StartError::Summaries)?,
            summaries,
        })
    }

    pub(crate) fn desk(&mut self) -> &mut Desk<D> {
        &mut self.desk
    }

    /// The summary of a sealed block that lies in these slots, in the shape's order.
    pub(crate) fn bytes_of(&mut self, slots: &[SlotIdx]) -> Result<Arc<[u8]>, DeviceLost> {
        let device = self.memory.device();
        let (units, to) = (self.summaries.units(), [unit(&self.lease)]);
        let launch = Summarise { from: slots, to: &to };
        device.summarise(&mut self.stream, self.memory.slots(), units, launch);
        let mut bytes = vec![0; self.summaries.unit_bytes()];
        device.gather_summaries(&mut self.stream, units, &to, &mut bytes)?;
        Ok(bytes.into())
    }
}
