//! Carries out moves of sealed blocks between nodes: reads them from whoever holds them and
//! verifies every slice ([`Fetcher`]), and puts copies onto homes ([`Copier`]).
//!
//! Nothing is handed out that does not hash to its sealing receipt, whatever the serving node says
//! (P2). Decides neither where blocks should live (`placement`) nor what is needed next; moves
//! bytes by `transfer` and asks by `proto`. Hedged reads are not here yet.

mod copy;
mod fetch;
mod groups;
mod quarantine;
mod room;
mod source;
mod verify;

pub use copy::{Copied, Copier, CopyBlock, CopyError, CopyFailure, CopyLimits, CopyStep};
pub use fetch::{
    Cause, FetchBlock, FetchCounters, FetchError, FetchLimits, FetchedBlock, Fetcher, SourceFailure,
};
pub use source::Source;
