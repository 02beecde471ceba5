//! One request's life as sans-IO state machines, and the facts that travel with it.
//!
//! Time is a parameter, effects are values: the shells in `services` carry them out, and a
//! simulator can carry them out instead.

mod facts;
mod owner;

pub use facts::{
    Copied, Finish, GenerateRequest, Generation, Handover, Ledger, Moved, PrefillEvent,
    PrefillRequest, Prompt, Sampling, SealedBlock, StreamItem, Usage,
};
pub use owner::{Effect, Ended, Event, Holder, LEASE, Owner};
