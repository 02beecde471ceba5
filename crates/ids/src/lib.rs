//! Newtypes for identities and units, so that a block index cannot be passed for a byte count.
//!
//! No behaviour beyond parsing, printing and the arithmetic that a unit allows. Knows no clock:
//! [`Moment`] is handed in by whoever owns one.

mod block;
mod cluster;
mod digest;
mod place;
mod request;
mod units;

pub use block::{BLOCK_TOKENS, BlockHash, BlockIdx, BlockKey, SliceChecksum};
pub use cluster::{Domain, Incarnation, InvalidName, NodeId, Role, Term, Tier};
pub use digest::{InvalidHex, ModelDigest, PolicyDigest};
pub use place::{KvHeadIdx, LayerIdx, ShardId, SliceId, SlotIdx, SummaryIdx};
pub use request::{Epoch, Position, SessionId, Tenant, TokenId};
pub use units::{ByteCount, Moment, Span};
