//! The bulk transport over loopback: any bytes to a server, and any answer to a client.
//!
//! The server is held against a model of the protocol written from its description: what it answers
//! is foretold byte by byte, over several frames of one connection and a grant that may end between
//! them. Input of the server: after how many frames the grant ends, then the client's bytes. Input
//! of the client: what it asks for, then the server's bytes.

mod model;
mod shelf;

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use transfer::tcp::{ClientLimits, ServeLimits, TcpTransport, serve};
use transfer::{BulkAddress, HugePages, Slab, SlotMut, SlotRef, Transport};

use crate::Target;
use shelf::{AUTH, SLICE_BYTES, Shelf};

/// Slots that a server takes in one frame, and their bytes.
const REFS_MAX: u32 = 4;
const FRAME_BYTES_MAX: u64 = 1024;

const WORDS: &[&[u8]] = &[
    b"OKVB\x01\0\x01\0\x01\0\0\0\x40\0\0\0",
    b"OKVB\x01\0\x02\0\x02\0\0\0\x40\0\0\0",
    // The credential: session, epoch, secret.
    b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\
      \x09\x09\x09\x09\x09\x09",
    // Slots: two to read, two to write, each of generation 1.
    b"\0\0\0\0\x01\0\0\0",
    b"\x01\0\0\0\x01\0\0\0",
    b"\x02\0\0\0\x01\0\0\0",
    b"\x03\0\0\0\x01\0\0\0",
    b"\x05\0\0\0",
    b"\x10\0\0\0\0\x01\0\0",
];

pub(crate) const SERVER: Target = Target {
    name: "frames-server",
    run: server,
    // References of one frame, the buffer that skips, the runtime's own.
    heap_bytes_max: 2 << 20,
    input_bytes_max: 4096,
    words: WORDS,
};

pub(crate) const CLIENT: Target = Target {
    name: "frames-client",
    run: client,
    heap_bytes_max: 2 << 20,
    input_bytes_max: 2048,
    words: &[
        b"OKVB\x01\0\0\0\x04\0\0\0\x01\0\0\0",
        b"OKVB\x01\0\x01\0\x02\0\0\0\x40\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"OKVB\x01\0\x02\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"OKVB\x01\0\x03\x01\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ],
};

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_all().build().expect("a runtime is built");
}

fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("loopback has a free port")
}

/// Says all of `bytes` and hears everything until the other side closes or resets.
async fn converse(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut heard = Vec::new();
    let (mut reader, mut writer) = stream.split();
    let say = async {
        // The other side may close in the middle: what it said before counts.
        if writer.write_all(bytes).await.is_ok() {
            drop(writer.shutdown().await);
        }
    };
    let hear = async { drop(reader.read_to_end(&mut heard).await) };
    tokio::join!(say, hear);
    heard
}

fn server(input: &[u8]) {
    let Some((frames, bytes)) = input.split_first() else {
        return;
    };
    let shelf = Arc::new(Shelf::new(*frames));
    let expected = model::answers(*frames, bytes);
    let heard = block_on(async {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let limits = ServeLimits {
            refs_per_frame_max: REFS_MAX,
            frame_bytes_max: FRAME_BYTES_MAX,
            ..ServeLimits::default()
        };
        let gate = Arc::clone(&shelf);
        let serving = serve(listener(), gate, limits, &tracker, stop.clone());
        let address = serving.expect("a bound listener is served").address;
        let stream = TcpStream::connect(address).await.expect("loopback connects");
        let heard = converse(stream, bytes).await;
        stop.cancel();
        tracker.close();
        tracker.wait().await;
        heard
    });
    assert!(expected.bytes.starts_with(&heard), "foretold {expected:?}, heard {heard:?}");
    if expected.clean {
        assert_eq!(heard.len(), expected.bytes.len(), "foretold {expected:?}");
    }
    shelf.check_no_slot_is_lost();
}

fn client(input: &[u8]) {
    let Some((ask, said)) = input.split_first() else {
        return;
    };
    let count = usize::from(ask >> 1) % 6;
    let slab = Slab::try_new(8, SLICE_BYTES, HugePages::Off).expect("half a page is mapped");
    let slots = slab.try_alloc_many(count as u32).expect("the slab is new");
    let refs: Vec<SlotRef> =
        (0..count as u32).map(|slot| SlotRef { slot, generation: 1 }).collect();
    let listener = listener();
    let peer = BulkAddress::from(listener.local_addr().expect("it is bound"));
    block_on(async {
        let tracker = TaskTracker::new();
        listener.set_nonblocking(true).expect("a socket can be nonblocking");
        let listener = tokio::net::TcpListener::from_std(listener).expect("it is bound");
        let bytes = said.to_vec();
        let peer_task = tracker.spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client comes");
            converse(stream, &bytes).await
        });
        let transport = TcpTransport::new(ClientLimits::default());
        let deadline = Instant::now() + Duration::from_secs(5);
        if ask & 1 == 0 {
            let done = transport.read(&peer, &AUTH, &refs, slots, deadline).await;
            if let Ok(slots) = &done {
                check_read(said, slots);
            }
        } else {
            let sources: Vec<_> = slots.into_iter().map(SlotMut::seal).collect();
            let done = transport.write(&peer, &AUTH, &refs, &sources, deadline).await;
            if done.is_ok() {
                let heads = model::accepted_heads(said, count, 2);
                assert!(heads.is_some(), "a write was confirmed by something else");
            }
        }
        peer_task.abort();
        drop(transport);
        tracker.close();
        tracker.wait().await;
    });
    assert_eq!(slab.occupancy().used, 0, "a slot was lost");
}

/// A read that went through holds what the peer said, slice by slice.
fn check_read(said: &[u8], slots: &[SlotMut]) {
    let heads = model::accepted_heads(said, slots.len(), 1).expect("every head is an answer");
    let mut at = heads.into_iter();
    for slot in slots {
        let at = at.next().expect("one place per slot");
        assert_eq!(&**slot, &said[at..at + SLICE_BYTES], "a slot holds something else");
    }
}
