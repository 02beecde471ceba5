//! The mind of sparse decode: which blocks a request attends to, and how good that is.
//!
//! A sans-IO core: masses (attention shares per block, made by the kernels from key summaries) come
//! in, sets of block indices and counts come out. It holds no KV, no slots and no summaries, and
//! knows nothing of tiers, links, clocks or threads, nor of what is resident. Every answer is a
//! pure function of the calls' arguments since the request began (P1): no other request, no
//! arrival of a slice and no load can change a set.
//!
//! One step of the engine, per layer and KV head:
//!
//! ```text
//!  Selection::repair    own query, where the actual token was not covered: up to R blocks enter
//!  Selection::attended  what attention reads
//!  Selection::observe   behind the layer: plans up to C blocks for the next step, measures misses
//!  Selection::pending   what to fetch meanwhile
//!  Meter::record        what was missed
//! once per step:
//!  State::end_step      the guard judges, limits change, the sequence grows, the sets flip
//! ```

mod covered;
mod guard;
mod meter;
mod policy;
mod selection;
mod snapshot;

pub use covered::Covered;
pub use guard::{Decision, Guard, Reason, Stage};
pub use meter::{Attended, Meter, Totals};
pub use policy::{
    AUTO_TABLE, Accept, Attention, Budgets, Drafts, Facts, Guarding, InvalidPolicy, Late, Policy,
    Predictor, Ratio, Source, Sparse, Summary,
};
pub use selection::{Change, Limits, Observed, Rows, Selection};
pub use snapshot::{InvalidSnapshot, State};
