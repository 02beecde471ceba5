//! Logical KV: who may use which device slot, which blocks a sequence has, which sealed blocks can
//! be reused by other requests.
//!
//! A sans-IO core: it holds slot numbers, token ids and hashes, never KV bytes, and knows neither
//! clocks nor threads nor devices. Hashing a prefix is crate `tokens`; moving bytes is `transfer`.

mod block;
mod pool;
mod prefix;
mod shape;
mod table;

pub use block::{BlockFull, FillingBlock, NotFull, SealedBlock, WrongSlotCount};
pub use ids::SlotIdx;
pub use pool::{Occupancy, PoolFull, SlotLease, SlotPool, SlotReservation};
pub use prefix::{InsertRefused, PrefixIndex, RefusedBecause};
pub use shape::{Shape, blocks_for, checksum};
pub use table::{AppendError, BlockTable, PushSealedError, SealError};
