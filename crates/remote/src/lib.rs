//! The memory-node protocol, both halves, sans-IO: what a grant, a receipt and a reservation are,
//! and what a node that holds slices decides about them.
//!
//! Knows no socket, no clock and no block content: bytes are moved by `transfer`, time is a
//! parameter.

mod copies;
mod landing;
mod leases;
mod receipt;
mod reservation;

pub use copies::{Copies, Copy, CopyKey};
pub use landing::{LandedBlock, Landing, NotOpen};
pub use leases::{Denied, LeaseLimits, Leases};
pub use receipt::{BlockReceipt, LocatedBlock, SliceRef};
pub use reservation::{Grant, Granted, Reservation, ReserveRefused};
