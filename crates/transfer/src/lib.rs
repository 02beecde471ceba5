//! Moving bytes between hosts: registered slabs of fixed-size slots, and transports that copy
//! batches of slots from one peer's slab to another's.
//!
//! Knows no block, layer or token: a slot is a place with a generation, and who may touch it is
//! the [`Gate`]'s decision. Verifying what arrived (P2), choosing a peer and retrying are the
//! business of the callers. TLS is not here yet; bind to loopback or to links you trust (P7).

#![expect(unsafe_code, reason = "slabs are mmapped; every block has its SAFETY note")]

mod address;
mod gate;
mod slab;
pub mod tcp;
mod transport;
mod wire;

pub use address::{BulkAddress, InvalidAddress};
pub use gate::{Credential, Gate, Refusal, RefusalReason, SlotRef};
pub use slab::{HugePages, Occupancy, Slab, SlabError, SlabFull, SlabReservation, Slot, SlotMut};
pub use transport::{BoxFuture, Failure, Outcome, ReadFailed, Transport, WriteFailed};
pub use wire::{Malformed, REFS_LIMIT, SLICE_BYTES_LIMIT};
