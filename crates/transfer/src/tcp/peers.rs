//! Connections by peer: a bounded pool each, and the guard that decides between reuse and close.
//!
//! Opens connections when asked for one; keeps none alive and probes none in the background.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::ClientLimits;
use super::counters::ClientCounters;
use super::stream::{close_by_force, prepare, read_all};
use crate::address::BulkAddress;
use crate::transport::Failure;
use crate::wire::{HELLO_BYTES, Hello};

/// All peers of a client.
pub(super) struct Peers {
    /// At most `peers_max`; idle ones make room.
    by_address: Mutex<BTreeMap<BulkAddress, Arc<Peer>>>,
}

/// One peer.
struct Peer {
    /// One permit per connection, in use or being opened.
    permits: Arc<Semaphore>,
    /// Connections at a frame boundary, the one used last at the end.
    idle: Mutex<Vec<Connection>>,
    /// One permit per batch that waits or runs.
    batches: Arc<Semaphore>,
}

/// A connection that has said hello.
struct Connection {
    stream: TcpStream,
    hello: Hello,
    /// Id of the next request on it.
    next_id: u64,
}

impl Connection {
    /// Whether nothing arrived since the last frame: no close, no stray bytes.
    fn is_quiet(&self) -> bool {
        let mut probe = [0; 1];
        let got = self.stream.try_read(&mut probe);
        got.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Peers {
    pub(super) fn new() -> Self {
        Self { by_address: Mutex::new(BTreeMap::new()) }
    }

    fn peer(&self, address: &BulkAddress, limits: &ClientLimits) -> Result<Arc<Peer>, Failure> {
        let mut peers = self.by_address.lock();
        if let Some(peer) = peers.get(address) {
            return Ok(Arc::clone(peer));
        }
        if peers.len() >= limits.peers_max {
            // Nobody else can hold a peer of strong count 1: clones are made under this lock.
            peers.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if peers.len() >= limits.peers_max {
            return Err(Failure::TooManyPeers { peers: peers.len() });
        }
        let peer = Arc::new(Peer {
            permits: Arc::new(Semaphore::new(limits.connections_per_peer_max)),
            idle: Mutex::new(Vec::new()),
            batches: Arc::new(Semaphore::new(limits.batches_per_peer_max)),
        });
        peers.insert(address.clone(), Arc::clone(&peer));
        Ok(peer)
    }

    /// A connection of this peer, alone in the caller's hands; waits while all are in use.
    pub(super) async fn lease(
        &self,
        address: &BulkAddress,
        limits: &ClientLimits,
        counters: &Arc<ClientCounters>,
    ) -> Result<Lease, Failure> {
        let peer = self.peer(address, limits)?;
        let batch = Arc::clone(&peer.batches)
            .try_acquire_owned()
            .map_err(|_| Failure::Busy { waiting: limits.batches_per_peer_max })?;
        let permit =
            Arc::clone(&peer.permits).acquire_owned().await.expect("the semaphore is never closed");
        let reusable = loop {
            let next = peer.idle.lock().pop();
            match next {
                Some(connection) if !connection.is_quiet() => {}
                other => break other,
            }
        };
        let connection = match reusable {
            Some(connection) => connection,
            None => connect(address, limits, counters).await?,
        };
        Ok(Lease {
            connection: Some(connection),
            peer,
            counters: Arc::clone(counters),
            _permit: permit,
            _batch: batch,
        })
    }
}

async fn connect(
    address: &BulkAddress,
    limits: &ClientLimits,
    counters: &ClientCounters,
) -> Result<Connection, Failure> {
    let BulkAddress::Tcp(authority) = address;
    let opening = async {
        let stream = TcpStream::connect(&**authority).await.map_err(Failure::Unreachable)?;
        prepare(&stream).map_err(Failure::Unreachable)?;
        let mut bytes = [0; HELLO_BYTES];
        // A server that is full closes at once: nothing was asked, nothing was done.
        read_all(&stream, &mut bytes).await.map_err(Failure::Unreachable)?;
        let hello = Hello::decode(&bytes)?;
        Ok::<_, Failure>(Connection { stream, hello, next_id: 1 })
    };
    let opened = tokio::time::timeout(limits.connect_wait_max, opening).await;
    let connection = opened.map_err(|_| Failure::Unreachable(io::ErrorKind::TimedOut.into()))??;
    counters.connections_opened.add(1);
    Ok(connection)
}

/// A connection in use. Unless it is put back at a frame boundary, Drop closes it by force.
pub(super) struct Lease {
    /// Always there until Drop or `put_back`.
    connection: Option<Connection>,
    peer: Arc<Peer>,
    counters: Arc<ClientCounters>,
    _permit: OwnedSemaphorePermit,
    _batch: OwnedSemaphorePermit,
}

impl Lease {
    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("taken by put_back and Drop only")
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.connection().stream
    }

    pub(super) fn hello(&self) -> Hello {
        self.connection().hello
    }

    /// A request id that this connection has not used.
    pub(super) fn next_id(&mut self) -> u64 {
        let connection = self.connection.as_mut().expect("taken by put_back and Drop only");
        connection.next_id += 1;
        connection.next_id - 1
    }

    /// Gives the connection back for reuse. Only at a frame boundary.
    pub(super) fn put_back(mut self) {
        self.peer.idle.lock().extend(self.connection.take());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            close_by_force(&connection.stream);
            self.counters.connections_broken.add(1);
        }
    }
}
