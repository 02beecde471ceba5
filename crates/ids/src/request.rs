//! Identities within one request.

use std::fmt;
use std::sync::Arc;

use crate::digest::{read_hex, write_hex};

/// One request's life, drawn at random by the gateway (128 bits: no two gateways collide).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl std::str::FromStr for SessionId {
    type Err = crate::InvalidHex;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0u8; 16];
        read_hex(text, &mut bytes)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

/// Fences old owners of a session: raised whenever it changes hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A token of the model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

/// Index of a token in its sequence, prompt included, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u32);

/// Who pays for a request; empty when the gateway runs without keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub Arc<str>);

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::SessionId;

    #[test]
    fn session_ids_round_trip_as_hex() {
        let id = SessionId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "0123456789abcdef0011223344556677");
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
    }
}
