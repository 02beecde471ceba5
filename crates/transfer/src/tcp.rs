//! The transport over plain TCP: one request lists the slots, one scatter-gather answer carries
//! them; bytes go straight from slots to the socket and from the socket into slots.
//!
//! No TLS yet, no compression, no multiplexing: a connection carries one frame at a time, and a
//! connection on which anything went wrong is closed, never reused.

mod client;
mod counters;
mod peers;
mod server;
mod stream;

pub use client::{ClientLimits, TcpTransport};
pub use counters::{ClientCounters, Count, ServerCounters};
pub use server::{ServeLimits, Serving, serve};
