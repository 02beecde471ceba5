//! Sparse decode of one sequence: the blocks that it attends to are in device memory, all others in
//! tiers below; a background thread scores and fetches for the next step while this one computes.
//!
//! Which blocks are attended to is `sparse`'s to say; how slices travel is the backing's.

mod backing;
mod column;
mod memory;
mod resident;
mod scorer;

pub use backing::{Arrival, Backing, BackingError, HostBacking, SliceAt, Slices};
pub(crate) use memory::{Summariser, unit};
pub use memory::{SummaryKv, SummaryKvError};
pub(crate) use resident::{Resident, Waker};
pub(crate) use scorer::{Desk, Scorer, Target};
