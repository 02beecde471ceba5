//! Every message that travels by gRPC: bytes to wire form to a validated value, and back.
//!
//! What is accepted is written again, accepted again and written the same. Input: the number of the
//! kind in one byte, then the message. Deliberately no HTTP/2: that is tonic's and h2's own.

use placement::{AdmitRequest, NodeRecord, NodeReport, NodeStatus, Plan, Refused};
use prost::Message;
use proto::cluster::{Register, Registered, WatchEvent};
use proto::storage::{Commit, Committed, Extend, Locate, Located, Place, Placed, Release};
use proto::{InvalidMessage, Shaped, v1};
use remote::{BlockReceipt, Grant, Granted, LocatedBlock, Reservation, ReserveRefused};
use session::{GenerateRequest, PrefillEvent, PrefillRequest, StreamItem};

use crate::Target;

const INPUT_BYTES_MAX: usize = 8192;

pub(crate) const TARGET: Target = Target {
    name: "messages",
    run,
    // A message in memory may be so many times larger than on the wire, thrice.
    heap_bytes_max: 3 * 64 * INPUT_BYTES_MAX,
    input_bytes_max: INPUT_BYTES_MAX,
    words: &[b"node-1", b"127.0.0.1:9", b"\x0a\0", b"\x12\0", b"\x1a\0", b"\xff\xff\xff\xff\x0f"],
};

type Rewrite = fn(&[u8]) -> Option<Vec<u8>>;

fn rewrite<D, W>(bytes: &[u8]) -> Option<Vec<u8>>
where
    W: Shaped + Message + From<D>,
    D: TryFrom<W, Error = InvalidMessage>,
{
    let wire: W = proto::decode(bytes.to_vec().into()).ok()?;
    match D::try_from(wire) {
        Ok(domain) => Some(W::from(domain).encode_to_vec()),
        Err(invalid) => {
            assert!(!invalid.field.is_empty(), "a refusal names its field");
            None
        }
    }
}

macro_rules! kinds {
    ($($wire:ident: $domain:ty;)*) => {
        &[$((stringify!($wire), rewrite::<$domain, v1::$wire>)),*]
    };
}

/// New kinds go to the end: committed inputs name theirs by number.
const KINDS: &[(&str, Rewrite)] = kinds! {
    NodeRecord: NodeRecord;
    NodeReport: NodeReport;
    ObserveRequest: ids::Term;
    RegisterRequest: Register;
    RegisterResponse: Registered;
    KeepAliveResponse: ids::Span;
    WatchEvent: WatchEvent;
    AdmitRequest: AdmitRequest;
    AdmitResponse: Result<Plan, Refused>;
    NodesResponse: Vec<NodeStatus>;
    Grant: Grant;
    ReserveRequest: Reservation;
    ReserveResponse: Result<Granted, ReserveRefused>;
    ExtendRequest: Extend;
    ExtendResponse: ids::Span;
    ReleaseRequest: Release;
    BlockKey: ids::BlockKey;
    BlockReceipt: BlockReceipt;
    LocatedBlock: LocatedBlock;
    PlaceRequest: Place;
    PlaceResponse: Placed;
    CommitRequest: Commit;
    CommitResponse: Committed;
    LocateRequest: Locate;
    LocateResponse: Located;
    GenerateRequest: GenerateRequest;
    GenerateEvent: StreamItem;
    PrefillRequest: PrefillRequest;
    PrefillEvent: PrefillEvent;
};

fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let (name, rewrite) = KINDS[usize::from(*kind) % KINDS.len()];
    if let Some(first) = rewrite(bytes) {
        let second = rewrite(&first);
        assert_eq!(second.as_ref(), Some(&first), "{name} is read otherwise than it was written");
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, run};

    /// The golden lines of the wire are valid inputs of their kinds, and seeds of the corpus.
    #[test]
    fn what_earlier_versions_sent_is_accepted() {
        let golden = include_str!("../../../proto/tests/wire/golden/v1.txt");
        for line in golden.lines() {
            let (label, hex) = line.split_once(' ').unwrap();
            let kind = label.split('/').next().unwrap();
            let number = KINDS.iter().position(|(name, _)| *name == kind).unwrap();
            let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
            assert_eq!((KINDS[number].1)(&bytes).as_ref(), Some(&bytes), "{label}");
            let mut input = vec![u8::try_from(number).unwrap()];
            input.extend(bytes);
            run(&input);
        }
    }
}
