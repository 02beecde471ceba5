//! Binding of listening sockets under the house's policy (P7): loopback, unless the operator said
//! otherwise. What it deliberately does not do: accept, speak a protocol, or resolve host names.

use std::io;
use std::net::{SocketAddr, TcpListener};

use crate::config::ConfigError;

/// Who may reach a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Only this host: addresses other than loopback are refused.
    Loopback,
    /// Any address: the operator declared the network trusted with `--insecure`.
    Insecure,
}

impl Exposure {
    /// From the configuration field `insecure`.
    #[must_use]
    pub fn from_insecure(insecure: bool) -> Self {
        if insecure { Self::Insecure } else { Self::Loopback }
    }

    /// Whether this address may be bound, for the check of a configuration.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the field, if other hosts could reach the address.
    pub fn check(self, field: &str, address: SocketAddr) -> Result<(), ConfigError> {
        if self.allows(address) {
            return Ok(());
        }
        let problem =
            format!("{address} is reachable from other hosts and nothing protects it yet");
        let remedy = format!(
            "use a loopback address such as 127.0.0.1:{}, or pass --insecure on a trusted network",
            address.port()
        );
        Err(ConfigError::invalid(field, problem, remedy))
    }

    fn allows(self, address: SocketAddr) -> bool {
        match self {
            Self::Loopback => address.ip().to_canonical().is_loopback(),
            Self::Insecure => true,
        }
    }
}

/// A socket to be bound, with what an operator needs to find its setting.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint<'a> {
    /// The role that listens, as in `gateway`.
    pub role: &'a str,
    /// The configuration field that holds the address, as in `listen`.
    pub field: &'a str,
    /// The address; port 0 lets the system choose.
    pub address: SocketAddr,
}

/// Why a socket could not be bound. Nothing was bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address would let other hosts in.
    #[error(
        "{role}: `{field}` = {address} is reachable from other hosts and nothing protects it yet: \
         use a loopback address such as 127.0.0.1:{port}, or pass --insecure on a trusted network",
        port = address.port()
    )]
    Exposed {
        /// The role that wanted to listen.
        role: String,
        /// The configuration field of the address.
        field: String,
        /// The address refused.
        address: SocketAddr,
    },
    /// Another socket listens there.
    #[error(
        "{role}: {address} is in use: stop the process that listens there, or set `{field}` to \
         another address"
    )]
    InUse {
        /// The role that wanted to listen.
        role: String,
        /// The configuration field of the address.
        field: String,
        /// The address taken.
        address: SocketAddr,
    },
    /// The system refused for another reason.
    #[error("{role}: cannot listen on {address}, set by `{field}`")]
    System {
        /// The role that wanted to listen.
        role: String,
        /// The configuration field of the address.
        field: String,
        /// The address refused.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Binds a listening socket, ready to be handed to tokio (non-blocking).
///
/// # Errors
/// [`BindError::Exposed`] for a non-loopback address under [`Exposure::Loopback`], otherwise what
/// the system said.
pub fn bind(endpoint: Endpoint<'_>, exposure: Exposure) -> Result<TcpListener, BindError> {
    let Endpoint { role, field, address } = endpoint;
    let (role, field) = (role.to_owned(), field.to_owned());
    if !exposure.allows(address) {
        return Err(BindError::Exposed { role, field, address });
    }
    let bound = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { role, field, address },
        _ => BindError::System { role, field, address, source },
    })
}

#[cfg(test)]
mod tests {
    use super::{BindError, Endpoint, Exposure, bind};

    fn endpoint(address: &str) -> Endpoint<'_> {
        let address = address.parse().expect("test address");
        Endpoint { role: "gateway", field: "listen", address }
    }

    #[test]
    fn other_hosts_are_kept_out_unless_insecure_p7() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let refused = bind(endpoint(address), Exposure::Loopback).unwrap_err();
            assert!(matches!(refused, BindError::Exposed { .. }), "{refused}");
            assert!(refused.to_string().contains("--insecure"), "{refused}");
            let address = endpoint(address).address;
            let checked = Exposure::Loopback.check("listen", address).unwrap_err().to_string();
            assert!(checked.contains("`listen`") && checked.contains("--insecure"), "{checked}");
        }
        bind(endpoint("127.0.0.1:0"), Exposure::Loopback).expect("loopback is open");
        bind(endpoint("0.0.0.0:0"), Exposure::Insecure).expect("the operator asked for it");
    }

    #[test]
    fn a_taken_port_names_role_address_and_field() {
        let first = bind(endpoint("127.0.0.1:0"), Exposure::Loopback).expect("free port");
        let taken = first.local_addr().expect("bound").to_string();
        let refused = bind(endpoint(&taken), Exposure::Loopback).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, BindError::InUse { .. }), "{text}");
        for part in ["gateway", taken.as_str(), "`listen`", "in use"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
