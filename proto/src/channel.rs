//! Channels with a connect timeout, keepalive and a deadline on each, and clients and servers with
//! the message limit set: nobody builds one without.

use std::collections::VecDeque;
use std::time::Duration;

use ids::Span;
use parking_lot::Mutex;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// How long a peer may be silent before it counts as gone.
///
/// The defaults notice a frozen peer within four seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    /// For the TCP and HTTP/2 handshakes.
    pub connect_timeout: Span,
    /// How often an idle connection is pinged.
    pub keepalive_interval: Span,
    /// How long a ping's answer may take.
    pub keepalive_timeout: Span,
    /// For the head of an answer (streams may go on afterwards), where a call names none.
    pub request_deadline: Span,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Span::from_secs(1),
            keepalive_interval: Span::from_secs(2),
            keepalive_timeout: Span::from_secs(2),
            request_deadline: Span::from_secs(10),
        }
    }
}

/// A text that is no address of a gRPC service.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not the host:port of a gRPC service")]
pub struct InvalidAddress {
    /// What was given, cut to 80 characters.
    pub address: String,
    /// What the parser said.
    #[source]
    pub source: tonic::transport::Error,
}

/// A channel that connects when first used and again after a loss.
///
/// Must be called on a tokio runtime (the channel's worker is spawned there and ends with it).
///
/// # Errors
/// When `address` is not `host:port`.
pub fn channel(address: &str, options: &ChannelOptions) -> Result<Channel, InvalidAddress> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| InvalidAddress { address: address.chars().take(80).collect(), source })?;
    Ok(endpoint
        .connect_timeout(options.connect_timeout.into())
        .http2_keep_alive_interval(options.keepalive_interval.into())
        .keep_alive_timeout(options.keepalive_timeout.into())
        .keep_alive_while_idle(true)
        .timeout(options.request_deadline.into())
        .tcp_nodelay(true)
        .connect_lazy())
}

/// Channels by address, so that sessions with the same peer share a connection.
#[derive(Debug)]
pub struct Channels {
    options: ChannelOptions,
    /// The oldest goes when there are `peers_max`.
    open: Mutex<VecDeque<(String, Channel)>>,
    peers_max: usize,
}

impl Channels {
    /// None yet; at most `peers_max` are kept.
    #[must_use]
    pub fn new(options: ChannelOptions, peers_max: usize) -> Self {
        Self { options, open: Mutex::new(VecDeque::new()), peers_max: peers_max.max(1) }
    }

    /// The channel to `address`, made when there is none.
    ///
    /// # Errors
    /// When `address` is not `host:port`.
    pub fn to(&self, address: &str) -> Result<Channel, InvalidAddress> {
        let mut open = self.open.lock();
        if let Some((_, channel)) = open.iter().find(|(known, _)| known == address) {
            return Ok(channel.clone());
        }
        let made = channel(address, &self.options)?;
        if open.len() >= self.peers_max {
            open.pop_front();
        }
        open.push_back((address.to_owned(), made.clone()));
        Ok(made)
    }
}

/// A request that says how long its caller waits; the server gives up then as well.
pub fn with_deadline<T>(message: T, deadline: Span) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from(deadline));
    request
}

macro_rules! services {
    (
        $($name:ident: $service:ident, $clients:ident $client:ident,
            $servers:ident $server:ident;)*
    ) => {
        /// Clients with the message limit set.
        pub mod client {
            use tonic::transport::Channel;

            use crate::limits::MESSAGE_BYTES_MAX;
            use crate::v1;

            $(
                #[doc = concat!("Of the service `", stringify!($service), "`.")]
                #[must_use]
                pub fn $name(channel: Channel) -> v1::$clients::$client<Channel> {
                    v1::$clients::$client::new(channel)
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .max_encoding_message_size(MESSAGE_BYTES_MAX)
                }
            )*
        }

        /// Servers with the message limit set.
        pub mod server {
            use crate::limits::MESSAGE_BYTES_MAX;
            use crate::v1;

            $(
                #[doc = concat!("Of the service `", stringify!($service), "`.")]
                #[must_use]
                pub fn $name<T: v1::$servers::$service>(service: T) -> v1::$servers::$server<T> {
                    v1::$servers::$server::new(service)
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .max_encoding_message_size(MESSAGE_BYTES_MAX)
                }
            )*
        }
    };
}

services! {
    node: Node, node_client NodeClient, node_server NodeServer;
    membership: Membership, membership_client MembershipClient, membership_server MembershipServer;
    coordinator: Coordinator, coordinator_client CoordinatorClient,
        coordinator_server CoordinatorServer;
    reservations: Reservations, reservations_client ReservationsClient,
        reservations_server ReservationsServer;
    memory_node: MemoryNode, memory_node_client MemoryNodeClient,
        memory_node_server MemoryNodeServer;
    decode: Decode, decode_client DecodeClient, decode_server DecodeServer;
    prefill: Prefill, prefill_client PrefillClient, prefill_server PrefillServer;
}
