//! The asking side: batches become frames, frames go over leased connections.
//!
//! A batch runs over one connection at a time; concurrency comes from concurrent batches.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::counters::ClientCounters;
use super::peers::{Lease, Peers};
use super::stream::{read_all, read_slots, write_parts};
use crate::address::BulkAddress;
use crate::gate::{Credential, SlotRef};
use crate::slab::{Slot, SlotMut};
use crate::transport::{BoxFuture, Failure, ReadFailed, Transport, WriteFailed};
use crate::wire::{
    ANSWER_BYTES, Action, Answer, Malformed, REQUEST_BYTES, Request, SLICE_BYTES_LIMIT, Verdict,
    encode_refs,
};

/// Bounds of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections to one peer at once.
    pub connections_per_peer_max: usize,
    /// Batches that wait or run for one peer at once; more are refused as busy.
    pub batches_per_peer_max: usize,
    /// Peers in use at once.
    pub peers_max: usize,
    /// Slots listed in one frame; the server's own bound counts too.
    pub refs_per_frame_max: u32,
    /// Slice bytes of one frame; the server's own bound counts too.
    pub frame_bytes_max: u64,
    /// Until a connection is open, within the batch's deadline.
    pub connect_wait_max: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connections_per_peer_max: 4,
            batches_per_peer_max: 256,
            peers_max: 1024,
            refs_per_frame_max: 4096,
            frame_bytes_max: 64 << 20,
            connect_wait_max: Duration::from_secs(1),
        }
    }
}

/// The client half of the TCP transport.
pub struct TcpTransport {
    limits: ClientLimits,
    peers: Peers,
    counters: Arc<ClientCounters>,
}

impl TcpTransport {
    /// A client without connections yet.
    #[must_use]
    pub fn new(limits: ClientLimits) -> Self {
        Self { limits, peers: Peers::new(), counters: Arc::default() }
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> Arc<ClientCounters> {
        Arc::clone(&self.counters)
    }

    async fn lease(&self, peer: &BulkAddress) -> Result<Lease, Failure> {
        self.peers.lease(peer, &self.limits, &self.counters).await
    }

    /// Slots per frame on this connection.
    fn frame_refs(&self, lease: &Lease, slice_bytes: u32) -> usize {
        let hello = lease.hello();
        let bytes = self.limits.frame_bytes_max.min(u64::from(hello.frame_kib_max) << 10);
        let refs = self.limits.refs_per_frame_max.min(hello.refs_max);
        let fitting = u32::try_from(bytes / u64::from(slice_bytes)).unwrap_or(u32::MAX);
        refs.min(fitting).max(1) as usize
    }

    async fn read_all_frames(
        &self,
        peer: &BulkAddress,
        auth: &Credential,
        refs: &[SlotRef],
        landing: &mut [SlotMut],
    ) -> Result<(), Failure> {
        let slice_bytes = even(refs, landing.iter().map(|slot| slot.len()))?;
        if refs.is_empty() {
            return Ok(());
        }
        let mut lease = self.lease(peer).await?;
        let frame = self.frame_refs(&lease, slice_bytes);
        for (refs, landing) in refs.chunks(frame).zip(landing.chunks_mut(frame)) {
            let head = head(&mut lease, Action::Read, auth, refs, slice_bytes);
            let asked = head.request;
            write_parts(lease.stream(), &[&head.bytes]).await.map_err(Failure::Broken)?;
            let expected = Verdict::Slices { count: asked.count, slice_bytes };
            lease = verdict(lease, asked, expected).await?;
            read_slots(lease.stream(), landing).await.map_err(Failure::Broken)?;
            self.counters.bytes_read.add(asked.slices_bytes());
        }
        lease.put_back();
        Ok(())
    }

    async fn write_all_frames(
        &self,
        peer: &BulkAddress,
        auth: &Credential,
        refs: &[SlotRef],
        sources: &[Slot],
        landed: &mut usize,
    ) -> Result<(), Failure> {
        let slice_bytes = even(refs, sources.iter().map(|slot| slot.len()))?;
        if refs.is_empty() {
            return Ok(());
        }
        let mut lease = self.lease(peer).await?;
        let frame = self.frame_refs(&lease, slice_bytes);
        for (refs, sources) in refs.chunks(frame).zip(sources.chunks(frame)) {
            let head = head(&mut lease, Action::Write, auth, refs, slice_bytes);
            let asked = head.request;
            let mut parts: Vec<&[u8]> = Vec::with_capacity(sources.len() + 1);
            parts.push(&head.bytes);
            parts.extend(sources.iter().map(|slot| &**slot));
            write_parts(lease.stream(), &parts).await.map_err(Failure::Broken)?;
            let expected = Verdict::Landed { count: asked.count };
            lease = verdict(lease, asked, expected).await?;
            *landed += sources.len();
            self.counters.bytes_written.add(asked.slices_bytes());
        }
        lease.put_back();
        Ok(())
    }

    fn note<T>(&self, result: &Result<T, Failure>) {
        let Err(failure) = result else {
            self.counters.batches_ok.add(1);
            return;
        };
        self.counters.batches_failed.add(1);
        match failure {
            Failure::Refused(_) => self.counters.batches_refused.add(1),
            Failure::Deadline => self.counters.batches_late.add(1),
            Failure::Unreachable(_)
            | Failure::Busy { .. }
            | Failure::TooManyPeers { .. }
            | Failure::Broken(_)
            | Failure::Malformed(_)
            | Failure::Uneven { .. } => {}
        }
    }
}

/// A frame's head as bytes: request and references.
struct Head {
    request: Request,
    bytes: Vec<u8>,
}

fn head(
    lease: &mut Lease,
    action: Action,
    auth: &Credential,
    refs: &[SlotRef],
    slice_bytes: u32,
) -> Head {
    let request = Request {
        action,
        count: u32::try_from(refs.len()).expect("frames are bounded by a u32"),
        slice_bytes,
        id: lease.next_id(),
        auth: *auth,
    };
    let mut bytes = Vec::with_capacity(REQUEST_BYTES + refs.len() * 8);
    bytes.extend_from_slice(&request.encode());
    encode_refs(refs, &mut bytes);
    Head { request, bytes }
}

/// Reads the answer's head. A refusal ends the batch at a frame boundary, so the connection goes
/// back; anything else that was not expected closes it.
async fn verdict(lease: Lease, asked: Request, expected: Verdict) -> Result<Lease, Failure> {
    let mut bytes = [0; ANSWER_BYTES];
    read_all(lease.stream(), &mut bytes).await.map_err(Failure::Broken)?;
    let answer = Answer::decode(&bytes)?;
    if answer.id != asked.id {
        return Err(Malformed::Mismatch.into());
    }
    match answer.verdict {
        verdict if verdict == expected => Ok(lease),
        Verdict::Refused(refusal) => {
            lease.put_back();
            Err(Failure::Refused(refusal))
        }
        Verdict::Slices { .. } | Verdict::Landed { .. } => Err(Malformed::Mismatch.into()),
    }
}

/// The one slice size of a batch.
fn even(refs: &[SlotRef], mut lens: impl ExactSizeIterator<Item = usize>) -> Result<u32, Failure> {
    let uneven = Failure::Uneven { refs: refs.len(), slots: lens.len() };
    if lens.len() != refs.len() {
        return Err(uneven);
    }
    let Some(first) = lens.next() else {
        return Ok(0);
    };
    match u32::try_from(first) {
        Ok(bytes) if bytes <= SLICE_BYTES_LIMIT && lens.all(|len| len == first) => Ok(bytes),
        Ok(_) | Err(_) => Err(uneven),
    }
}

impl Transport for TcpTransport {
    fn read<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        mut landing: Vec<SlotMut>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Vec<SlotMut>, ReadFailed>> {
        Box::pin(async move {
            // On any failure the inner future is gone by the time the slots are given back, and
            // with it the connection: nothing writes to them any more.
            let reading = self.read_all_frames(peer, auth, refs, &mut landing);
            let result = timeout_at(deadline, reading).await.unwrap_or(Err(Failure::Deadline));
            self.note(&result);
            match result {
                Ok(()) => Ok(landing),
                Err(failure) => Err(ReadFailed { landing, failure }),
            }
        })
    }

    fn write<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        sources: &'a [Slot],
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), WriteFailed>> {
        Box::pin(async move {
            let mut landed = 0;
            let writing = self.write_all_frames(peer, auth, refs, sources, &mut landed);
            let result = timeout_at(deadline, writing).await.unwrap_or(Err(Failure::Deadline));
            self.note(&result);
            result.map_err(|failure| WriteFailed { landed, failure })
        })
    }
}
