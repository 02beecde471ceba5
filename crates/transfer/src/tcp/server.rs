//! The serving side: accepts connections, asks the gate once per frame, moves the bytes.
//!
//! Bounded in connections, references, bytes and time per frame. A peer that sends anything but
//! frames is closed and counted. Who may do what is the gate's decision alone.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counters::ServerCounters;
use super::stream::{
    close_by_force, discard, prepare, read_all, read_slots, read_some, write_parts,
};
use crate::gate::{Credential, Gate, Refusal, SlotRef};
use crate::slab::SlotMut;
use crate::wire::{
    ANSWER_BYTES, Action, Answer, Hello, Malformed, REF_BYTES, REQUEST_BYTES, Request, Verdict,
    decode_refs,
};

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// Connections at once; more are closed as they come.
    pub connections_max: usize,
    /// Slots listed in one frame.
    pub refs_per_frame_max: u32,
    /// Slice bytes of one frame.
    pub frame_bytes_max: u64,
    /// From a frame's first byte to its answer's last.
    pub frame_wait_max: Duration,
    /// Without a frame; then the connection is closed.
    pub idle_wait_max: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            refs_per_frame_max: 4096,
            frame_bytes_max: 64 << 20,
            frame_wait_max: Duration::from_secs(10),
            idle_wait_max: Duration::from_secs(300),
        }
    }
}

/// A server at work. It ends when its token is cancelled, not when this is dropped.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it has done so far.
    pub counters: Arc<ServerCounters>,
}

struct Server {
    gate: Arc<dyn Gate>,
    limits: ServeLimits,
    counters: Arc<ServerCounters>,
}

/// Serves `gate` on a bound listener until `stop`: then all connections are closed at once and
/// their landing slots aborted. Tasks run on `tracker`; call it inside a tokio runtime.
///
/// # Errors
/// When the listener cannot be used by the runtime.
pub fn serve(
    listener: std::net::TcpListener,
    gate: Arc<dyn Gate>,
    limits: ServeLimits,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let serving = Serving { address: listener.local_addr()?, counters: Arc::default() };
    let server = Arc::new(Server { gate, limits, counters: Arc::clone(&serving.counters) });
    tracker.spawn(accept(server, listener, tracker.clone(), stop));
    Ok(serving)
}

async fn accept(
    server: Arc<Server>,
    listener: TcpListener,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => admit(&server, stream, &tracker, &stop),
            Err(error) => {
                // Out of descriptors, mostly: accepting again at once would spin.
                tracing::warn!(%error, "bulk connection not accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn admit(server: &Arc<Server>, stream: TcpStream, tracker: &TaskTracker, stop: &CancellationToken) {
    let counters = &server.counters;
    if counters.connections_open.get() >= server.limits.connections_max as u64 {
        counters.connections_refused.add(1);
        return;
    }
    counters.connections_accepted.add(1);
    let open = Open::new(counters);
    let server = Arc::clone(server);
    let stop = stop.clone();
    tracker.spawn(async move {
        let end = tokio::select! {
            () = stop.cancelled() => End::Stopped,
            end = connection(&server, &stream) => end,
        };
        server.note(&end);
        if !matches!(end, End::Closed) {
            close_by_force(&stream);
        }
        drop(open);
    });
}

/// Counts a connection while it is open.
struct Open(Arc<ServerCounters>);

impl Open {
    fn new(counters: &Arc<ServerCounters>) -> Self {
        counters.connections_open.add(1);
        Self(Arc::clone(counters))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_open.sub(1);
    }
}

/// Why a connection ended.
enum End {
    /// The peer closed between two frames, or was idle for too long.
    Closed,
    /// The server stops.
    Stopped,
    /// The peer broke off or was too slow in the middle of a frame.
    Broken,
    /// The peer's bytes were no frame.
    Malformed(Malformed),
    /// A write frame was over the limits told in the hello; its bytes are not worth reading.
    Oversize,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl Server {
    fn note(&self, end: &End) {
        match end {
            End::Closed | End::Stopped => {}
            End::Broken => self.counters.broken.add(1),
            End::Malformed(why) => {
                tracing::debug!(%why, "bulk connection closed");
                self.counters.malformed.add(1);
            }
            End::Oversize => self.counters.malformed.add(1),
        }
    }
}

/// Serves frames until the connection ends; never returns otherwise.
async fn connection(server: &Server, stream: &TcpStream) -> End {
    let limits = &server.limits;
    let hello = Hello {
        refs_max: limits.refs_per_frame_max,
        frame_kib_max: u32::try_from(limits.frame_bytes_max >> 10).unwrap_or(u32::MAX),
    };
    let greeting = async {
        prepare(stream)?;
        write_parts(stream, &[&hello.encode()]).await
    };
    if !matches!(timeout(limits.frame_wait_max, greeting).await, Ok(Ok(()))) {
        return End::Broken;
    }
    loop {
        let mut head = [0; REQUEST_BYTES];
        let got = match timeout(limits.idle_wait_max, read_some(stream, &mut head)).await {
            Ok(Ok(0)) | Err(_) => return End::Closed,
            Ok(Ok(got)) => got,
            Ok(Err(_)) => return End::Broken,
        };
        let serving = async {
            read_all(stream, &mut head[got..]).await?;
            frame(server, stream, &head).await
        };
        match timeout(limits.frame_wait_max, serving).await {
            Ok(Ok(())) => server.counters.frames.add(1),
            Ok(Err(end)) => return end,
            Err(_) => return End::Broken,
        }
    }
}

async fn frame(server: &Server, stream: &TcpStream, head: &[u8; REQUEST_BYTES]) -> Result<(), End> {
    let request = Request::decode(head).map_err(End::Malformed)?;
    let limits = &server.limits;
    if request.count > limits.refs_per_frame_max || request.slices_bytes() > limits.frame_bytes_max
    {
        return oversize(server, stream, &request).await;
    }
    let mut refs = vec![0; request.count as usize * REF_BYTES];
    read_all(stream, &mut refs).await?;
    let refs = decode_refs(&refs);
    match request.action {
        Action::Read => send(server, stream, &request, &refs).await,
        Action::Write => land(server, stream, &request, refs).await,
    }
}

/// A frame over the configured limits: refused; only a read's small rest is worth skipping.
async fn oversize(server: &Server, stream: &TcpStream, request: &Request) -> Result<(), End> {
    let by_bytes = server.limits.frame_bytes_max / u64::from(request.slice_bytes);
    let max = server.limits.refs_per_frame_max;
    let max = u32::try_from(by_bytes).map_or(max, |by_bytes| by_bytes.min(max));
    match request.action {
        Action::Read => {
            discard(stream, u64::from(request.count) * REF_BYTES as u64).await?;
            refuse(server, stream, request, Refusal::TooMany { max }).await
        }
        Action::Write => {
            refuse(server, stream, request, Refusal::TooMany { max }).await?;
            Err(End::Oversize)
        }
    }
}

async fn refuse(
    server: &Server,
    stream: &TcpStream,
    request: &Request,
    refusal: Refusal,
) -> Result<(), End> {
    server.counters.note_refused(refusal);
    let answer = answer(request, Verdict::Refused(refusal));
    Ok(write_parts(stream, &[&answer]).await?)
}

fn answer(request: &Request, verdict: Verdict) -> [u8; ANSWER_BYTES] {
    let id = request.id;
    Answer { verdict, id }.encode()
}

async fn send(
    server: &Server,
    stream: &TcpStream,
    request: &Request,
    refs: &[SlotRef],
) -> Result<(), End> {
    let opened = server.gate.open_read(&request.auth, refs);
    let slots = match opened.and_then(|slots| sized(slots, request, refs.len())) {
        Ok(slots) => slots,
        Err(refusal) => return refuse(server, stream, request, refusal).await,
    };
    let head =
        answer(request, Verdict::Slices { count: request.count, slice_bytes: request.slice_bytes });
    let mut parts: Vec<&[u8]> = Vec::with_capacity(slots.len() + 1);
    parts.push(&head);
    parts.extend(slots.iter().map(|slot| &**slot));
    write_parts(stream, &parts).await?;
    server.counters.bytes_sent.add(request.slices_bytes());
    Ok(())
}

/// Checks what the gate gave out against what the frame announced.
fn sized<S: std::ops::Deref<Target = [u8]>>(
    slots: Vec<S>,
    request: &Request,
    wanted: usize,
) -> Result<Vec<S>, Refusal> {
    assert_eq!(slots.len(), wanted, "a gate opens all slots or refuses");
    let announced = request.slice_bytes as usize;
    match slots.iter().find(|slot| slot.len() != announced) {
        Some(slot) => {
            Err(Refusal::SliceBytes { bytes: u32::try_from(slot.len()).unwrap_or(u32::MAX) })
        }
        None => Ok(slots),
    }
}

/// Landing slots in the hands of one connection; Drop tells the gate that they are torn.
struct Landing<'a> {
    gate: &'a dyn Gate,
    auth: Credential,
    refs: Vec<SlotRef>,
    /// As many as `refs`, or none when they were handed on.
    slots: Vec<SlotMut>,
}

impl Landing<'_> {
    fn finish(mut self) -> Result<(), Refusal> {
        let slots = std::mem::take(&mut self.slots);
        let pairs = self.refs.drain(..).zip(slots).collect();
        self.gate.landed(&self.auth, pairs)
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            let slots = std::mem::take(&mut self.slots);
            let pairs = self.refs.drain(..).zip(slots).collect();
            self.gate.aborted(&self.auth, pairs);
        }
    }
}

async fn land(
    server: &Server,
    stream: &TcpStream,
    request: &Request,
    refs: Vec<SlotRef>,
) -> Result<(), End> {
    let slots = match server.gate.open_write(&request.auth, &refs) {
        Ok(slots) => slots,
        Err(refusal) => {
            discard(stream, request.slices_bytes()).await?;
            return refuse(server, stream, request, refusal).await;
        }
    };
    let wrong_size = slots.iter().find(|slot| slot.len() != request.slice_bytes as usize);
    let refusal = wrong_size
        .map(|slot| Refusal::SliceBytes { bytes: u32::try_from(slot.len()).unwrap_or(u32::MAX) });
    assert_eq!(slots.len(), refs.len(), "a gate opens all slots or refuses");
    let mut landing = Landing { gate: &*server.gate, auth: request.auth, refs, slots };
    if let Some(refusal) = refusal {
        drop(landing);
        discard(stream, request.slices_bytes()).await?;
        return refuse(server, stream, request, refusal).await;
    }
    read_slots(stream, &mut landing.slots).await?;
    match landing.finish() {
        Ok(()) => {
            server.counters.bytes_landed.add(request.slices_bytes());
            let count = request.count;
            let answer = answer(request, Verdict::Landed { count });
            Ok(write_parts(stream, &[&answer]).await?)
        }
        Err(refusal) => refuse(server, stream, request, refusal).await,
    }
}
