//! The memory-node protocol, both halves, sans-IO: what a grant, a receipt and a reservation are,
//! and (in `store`) what a node that holds slices decides about them.
//!
//! Knows no socket, no clock and no block content: bytes are moved by `transfer`, time is a
//! parameter.

mod receipt;
mod reservation;

pub use receipt::{BlockReceipt, LocatedBlock, SliceRef};
pub use reservation::{Grant, Granted, Reservation, ReserveRefused};
