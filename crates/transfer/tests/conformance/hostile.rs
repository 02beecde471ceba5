//! Peers that lie, stall and break off, on raw sockets.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use transfer::tcp::{ClientLimits, ServeLimits, Serving, TcpTransport};
use transfer::{BulkAddress, Failure, Outcome, Refusal, RefusalReason, SlotMut, Transport};

use crate::shelf::{AUTH, Shelf, matches, slab};
use crate::suite::{Make, soon};
use crate::tcp::Loopback;

/// Version 1, 4,096 slots and 64 MiB a frame.
const HELLO: [u8; 16] = *b"OKVB\x01\0\0\0\0\x10\0\0\0\0\x01\0";

/// Head of a frame that asks for `count` slices of 4 KiB with the good credential.
fn request(kind: u8, count: u32) -> Vec<u8> {
    let mut bytes = Vec::from(*b"OKVB\x01\0");
    bytes.extend([kind, 0]);
    bytes.extend(count.to_le_bytes());
    bytes.extend(4096u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(AUTH.session.0.to_le_bytes());
    bytes.extend(AUTH.epoch.0.to_le_bytes());
    bytes.extend(AUTH.secret);
    bytes
}

async fn hello(serving: &Serving) -> TcpStream {
    let mut stream = TcpStream::connect(serving.address).await.unwrap();
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).await.unwrap();
    stream
}

/// Waits until the server has closed the connection.
async fn closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is as good as an end.
    drop(stream.read_to_end(&mut rest).await);
}

/// Waits, without a clock, until the tasks of a loopback server have seen what was sent.
async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn case_53_bad_frames_close_the_connection_and_are_counted() {
    let loopback = Loopback::new();
    let shelf = Arc::new(Shelf::new(4, 4096));
    let serving = loopback.serve(shelf.clone());
    let with = |at: usize, byte: u8| {
        let mut bytes = request(1, 1);
        bytes[at] = byte;
        bytes
    };
    let bad = [
        with(0, b'G'),
        with(4, 9),
        with(6, 77),
        request(1, u32::MAX),
        request(2, (1 << 16) + 1),
        b"GET / HTTP/1.1\r\nHost: kv.example.com\r\nUser-Agent: a browser, why not\r\n\r\n"
            .to_vec(),
    ];
    let count = bad.len() as u64;
    for bytes in bad {
        let mut stream = hello(&serving).await;
        stream.write_all(&bytes).await.unwrap();
        closed(stream).await;
    }
    assert_eq!(serving.counters.malformed.get(), count);
    let client = TcpTransport::new(ClientLimits::default());
    let refs = shelf.fill(1);
    let into = slab(1, 4096).try_alloc_many(1).unwrap();
    client.read(&serving.address.into(), &AUTH, &refs, into, soon()).await.unwrap();
}

#[tokio::test]
async fn case_53_a_truncated_write_is_aborted_and_its_slots_are_not_sealed() {
    let loopback = Loopback::new();
    let shelf = Arc::new(Shelf::new(4, 4096));
    let serving = loopback.serve(shelf.clone());
    let target = shelf.open(1)[0];
    let mut stream = hello(&serving).await;
    let mut bytes = request(2, 1);
    bytes.extend(target.slot.to_le_bytes());
    bytes.extend(target.generation.to_le_bytes());
    bytes.extend([1; 100]);
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    closed(stream).await;
    until(|| serving.counters.broken.get() == 1).await;
    assert_eq!(shelf.landed_and_aborted(), (0, 1));
    assert!(shelf.sealed(target).is_none(), "P2: a torn slice is never readable");
    assert_eq!(shelf.slab.occupancy().free, 4);
}

#[tokio::test]
async fn p4_more_references_than_configured_are_refused_with_the_bound() {
    let mut loopback = Loopback::new();
    loopback.serve.refs_per_frame_max = 8;
    let shelf = Arc::new(Shelf::new(40, 4096));
    let serving = loopback.serve(shelf.clone());
    let mut stream = hello(&serving).await;
    let mut bytes = request(1, 9);
    bytes.extend([0; 9 * 8]);
    stream.write_all(&bytes).await.unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[6..8], [3, 6], "refused, too many");
    assert_eq!(answer[24..28], [8, 0, 0, 0]);
    assert_eq!(serving.counters.refused(RefusalReason::TooMany), 1);
    // A client that listens to the hello splits its batch instead.
    let client = TcpTransport::new(loopback.client);
    let refs = shelf.fill(40);
    let into = slab(40, 4096).try_alloc_many(40).unwrap();
    let slots = client.read(&serving.address.into(), &AUTH, &refs, into, soon()).await.unwrap();
    assert!(slots.iter().enumerate().all(|(n, slot)| matches(n, slot)));
}

#[tokio::test]
async fn p4_connections_are_bounded_and_a_full_server_is_unreachable() {
    let mut loopback = Loopback::new();
    loopback.serve.connections_max = 1;
    let shelf = Arc::new(Shelf::new(4, 4096));
    let serving = loopback.serve(shelf.clone());
    let first = hello(&serving).await;
    let client = TcpTransport::new(loopback.client);
    let refs = shelf.fill(1);
    let peer = serving.address.into();
    let into = slab(1, 4096).try_alloc_many(1).unwrap();
    let failed = client.read(&peer, &AUTH, &refs, into, soon()).await.unwrap_err();
    assert!(matches!(failed.failure, Failure::Unreachable(_)));
    assert_eq!(failed.failure.outcome(), Outcome::NothingDone);
    drop(first);
    until(|| serving.counters.connections_open.get() == 0).await;
    client.read(&peer, &AUTH, &refs, failed.landing, soon()).await.unwrap();
}

/// A listener that answers every connection with `bytes` and then does what `then` says.
async fn fake(bytes: Vec<u8>, then: Then) -> (BulkAddress, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = listener.local_addr().unwrap().into();
    let tracker = tokio_util::task::TaskTracker::new();
    let serving = tracker.spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(&bytes).await.unwrap();
            match then {
                Then::Freeze => held.push(stream),
                Then::Close => stream.shutdown().await.unwrap(),
            }
        }
    });
    (peer, serving)
}

#[derive(Clone, Copy)]
enum Then {
    Freeze,
    Close,
}

async fn read_from(peer: &BulkAddress) -> (Failure, Vec<SlotMut>) {
    let client = TcpTransport::new(ClientLimits {
        connect_wait_max: Duration::from_secs(600),
        ..ClientLimits::default()
    });
    let shelf = Shelf::new(2, 4096);
    let refs = shelf.fill(2);
    let into = slab(2, 4096).try_alloc_many(2).unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    let failed = client.read(peer, &AUTH, &refs, into, deadline).await.unwrap_err();
    (failed.failure, failed.landing)
}

/// Answer's head for two slices of 4 KiB.
fn answer(kind: u8, id: u8) -> Vec<u8> {
    let mut bytes = HELLO.to_vec();
    bytes.extend(*b"OKVB\x01\0");
    bytes.extend([kind, 0, 2, 0, 0, 0, 0, 16, 0, 0, id, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0; 8]);
    bytes
}

/// On paused time: the clock moves on when nothing else can.
#[tokio::test(start_paused = true)]
async fn p3_a_frozen_peer_costs_the_deadline_and_no_more() {
    let torn = [answer(1, 1), vec![5; 5000]].concat();
    for said in [vec![], HELLO.to_vec(), torn] {
        let (peer, serving) = fake(said, Then::Freeze).await;
        let start = Instant::now();
        let (failure, landing) = read_from(&peer).await;
        assert!(matches!(failure, Failure::Deadline), "{failure:?}");
        assert_eq!(failure.outcome(), Outcome::Unknown);
        assert_eq!(landing.len(), 2);
        assert!(start.elapsed() < Duration::from_secs(3), "on the paused clock");
        serving.abort();
    }
}

#[tokio::test]
async fn p3_a_peer_that_closes_in_the_middle_is_an_error_at_once() {
    let torn = [answer(1, 1), vec![5; 5000]].concat();
    for said in [HELLO.to_vec(), torn] {
        let (peer, serving) = fake(said, Then::Close).await;
        let (failure, _) = read_from(&peer).await;
        assert!(matches!(failure, Failure::Broken(_)), "{failure:?}");
        serving.abort();
    }
    let (peer, serving) = fake(vec![], Then::Close).await;
    let (failure, _) = read_from(&peer).await;
    assert!(matches!(failure, Failure::Unreachable(_)), "{failure:?}");
    serving.abort();
}

#[tokio::test]
async fn p2_an_answer_to_another_question_is_malformed() {
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let mut version = HELLO.to_vec();
    version[4] = 2;
    for said in [answer(1, 9), answer(2, 1), answer(7, 1), http, version] {
        let (peer, serving) = fake(said, Then::Freeze).await;
        let (failure, _) = read_from(&peer).await;
        assert!(matches!(failure, Failure::Malformed(_)), "{failure:?}");
        serving.abort();
    }
}

/// A restarted server: the connections of the old one are noticed before they are used.
#[tokio::test]
async fn p3_a_stale_connection_is_not_used() {
    let loopback = Loopback::new();
    let shelf = Arc::new(Shelf::new(4, 4096));
    let (client, peer) = loopback.make(shelf.clone());
    let refs = shelf.fill(1);
    let into = slab(1, 4096).try_alloc_many(1).unwrap();
    let slots = client.read(&peer, &AUTH, &refs, into, soon()).await.unwrap();
    loopback.tracker.close();
    loopback.stop.cancel();
    loopback.tracker.wait().await;
    let BulkAddress::Tcp(authority) = &peer;
    let again = Loopback::new();
    // SO_REUSEADDR is set by tokio, not by std: bind there.
    let listener = TcpListener::bind(&**authority).await.unwrap().into_std().unwrap();
    let served = transfer::tcp::serve(
        listener,
        shelf,
        ServeLimits::default(),
        &again.tracker,
        again.stop.clone(),
    );
    served.unwrap();
    let slots = client.read(&peer, &AUTH, &refs, slots, soon()).await.unwrap();
    assert!(matches(0, &slots[0]));
}

#[tokio::test]
async fn p4_too_many_peers_and_batches_are_refused_by_name() {
    let loopback = Loopback::new();
    let shelf = Arc::new(Shelf::new(4, 4096));
    let serving = loopback.serve(shelf.clone());
    let client = TcpTransport::new(ClientLimits {
        peers_max: 1,
        batches_per_peer_max: 1,
        ..ClientLimits::default()
    });
    let refs = shelf.fill(1);
    let (frozen, faking) = fake(HELLO.to_vec(), Then::Freeze).await;
    let own = slab(4, 4096);
    let one = || own.try_alloc_many(1).unwrap();
    let mut stuck = client.read(&frozen, &AUTH, &refs, one(), soon());
    let pending =
        std::future::poll_fn(|cx| std::task::Poll::Ready(stuck.as_mut().poll(cx).is_pending()));
    assert!(pending.await);
    let busy = client.read(&frozen, &AUTH, &refs, one(), soon()).await.unwrap_err();
    assert!(matches!(busy.failure, Failure::Busy { waiting: 1 }));
    let other = serving.address.into();
    let many = client.read(&other, &AUTH, &refs, one(), soon()).await.unwrap_err();
    assert!(matches!(many.failure, Failure::TooManyPeers { peers: 1 }));
    drop(stuck);
    client.read(&other, &AUTH, &refs, one(), soon()).await.unwrap();
    faking.abort();
}

/// A write over several frames that is refused half-way says how much landed.
#[tokio::test]
async fn p7_a_half_refused_write_says_what_landed() {
    let mut loopback = Loopback::new();
    loopback.serve.refs_per_frame_max = 2;
    let shelf = Arc::new(Shelf::new(8, 4096));
    let (client, peer) = loopback.make(shelf.clone());
    let mut targets = shelf.open(4);
    targets[3].generation += 1;
    let sources: Vec<_> = slab(4, 4096).try_alloc_many(4).unwrap();
    let sources: Vec<_> = sources.into_iter().map(SlotMut::seal).collect();
    let failed = client.write(&peer, &AUTH, &targets, &sources, soon()).await.unwrap_err();
    assert_eq!(failed.landed, 2);
    let stale = Refusal::StaleGeneration(targets[3].slot);
    assert!(matches!(failed.failure, Failure::Refused(refusal) if refusal == stale));
}
