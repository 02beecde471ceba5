//! The wire form of everything that crosses a process boundary by gRPC: generated messages and
//! services, and conversions that validate. Inside, a value of a domain type is valid.
//!
//! `TryFrom<v1::X>` reads with limits and names the field that is wrong; `From<X>` writes. Knows
//! no retry and moves no KV. Answers that refuse (`placement::Refused`, `remote::ReserveRefused`)
//! travel in band; a gRPC status means that the question itself failed.

mod channel;
pub mod cluster;
mod codec;
mod incoming;
mod invalid;
pub mod limits;
mod plan;
mod read;
mod session;
pub mod storage;

/// Generated from `oasiskv/v1/*.proto`.
#[allow(warnings, clippy::all, clippy::restriction, clippy::pedantic, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("oasiskv.v1");
}

pub use channel::{
    ChannelOptions, Channels, InvalidAddress, channel, client, server, with_deadline,
};
pub use codec::{BoundedCodec, Shape, Shaped, Undecodable, decode};
pub use incoming::{Connection, incoming};
pub use invalid::InvalidMessage;
