//! Where a peer serves its slots.
//!
//! Only the text form and its check; resolving and connecting is the transport's part.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A text that is no bulk address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bulk address {text:?} must look like tcp://host:port")]
pub struct InvalidAddress {
    /// What was given, cut to 80 characters.
    pub text: String,
}

/// The bulk endpoint of a peer; the scheme names the transport that reaches it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BulkAddress {
    /// `tcp://host:port`; the host may be a name, resolved at each connect.
    Tcp(Arc<str>),
}

impl FromStr for BulkAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress { text: text.chars().take(80).collect() };
        let authority = text.strip_prefix("tcp://").ok_or_else(invalid)?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(invalid)?;
        let port_ok = port.parse::<u16>().is_ok_and(|port| port != 0);
        let host_ok = !host.is_empty() && !host.contains(['/', ' ']) && host.len() <= 255;
        if !(port_ok && host_ok) {
            return Err(invalid());
        }
        Ok(Self::Tcp(Arc::from(authority)))
    }
}

impl fmt::Display for BulkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "tcp://{authority}"),
        }
    }
}

impl From<std::net::SocketAddr> for BulkAddress {
    fn from(addr: std::net::SocketAddr) -> Self {
        Self::Tcp(addr.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::BulkAddress;

    #[test]
    fn bulk_addresses_round_trip_and_bad_ones_are_named() {
        for good in ["tcp://127.0.0.1:7000", "tcp://[::1]:1", "tcp://memory-0.kv:65535"] {
            assert_eq!(good.parse::<BulkAddress>().unwrap().to_string(), good);
        }
        for bad in ["", "127.0.0.1:1", "tcp://:1", "tcp://a:0", "tcp://a:65536", "tcp://a/b:1"] {
            assert!(bad.parse::<BulkAddress>().is_err(), "{bad}");
        }
    }
}
