//! Frames round trip, their bytes are pinned, and no bytes make the parser panic.

use ids::{Epoch, SessionId};
use proptest::prelude::*;

use super::{
    ANSWER_BYTES, Action, Answer, HELLO_BYTES, Hello, Malformed, REFS_LIMIT, REQUEST_BYTES,
    Request, SLICE_BYTES_LIMIT, Verdict, decode_refs, encode_refs,
};
use crate::gate::{Credential, Refusal, SlotRef};

fn request() -> Request {
    Request {
        action: Action::Write,
        count: 3,
        slice_bytes: 4096,
        id: 9,
        auth: Credential { session: SessionId(0x0102), epoch: Epoch(5), secret: [0xab; 16] },
    }
}

/// Golden bytes: an old build must be able to tell that a new one differs.
#[test]
fn frames_have_pinned_bytes() {
    let bytes = request().encode();
    assert_eq!(&bytes[..8], b"OKVB\x01\0\x02\0");
    assert_eq!(bytes[8..16], [3, 0, 0, 0, 0, 16, 0, 0]);
    assert_eq!(bytes[16..25], [9, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(bytes[40], 5);
    assert_eq!(bytes[48..64], [0xab; 16]);
    let refused = Answer { verdict: Verdict::Refused(Refusal::NotYours(7)), id: 9 };
    let bytes = refused.encode();
    assert_eq!(&bytes[..8], b"OKVB\x01\0\x03\x04");
    assert_eq!(bytes[24..28], [7, 0, 0, 0]);
}

#[test]
fn all_verdicts_round_trip() {
    let refusals = [
        Refusal::NoGrant,
        Refusal::Expired,
        Refusal::StaleEpoch,
        Refusal::NotYours(1),
        Refusal::StaleGeneration(2),
        Refusal::TooMany { max: 3 },
        Refusal::SliceBytes { bytes: 4 },
    ];
    let slices = Verdict::Slices { count: REFS_LIMIT, slice_bytes: SLICE_BYTES_LIMIT };
    let others = [slices, Verdict::Landed { count: 0 }];
    for verdict in refusals.map(Verdict::Refused).into_iter().chain(others) {
        let answer = Answer { verdict, id: u64::MAX };
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }
}

#[test]
fn case_53_lengths_and_versions_are_checked_before_use() {
    let good = request();
    let decode = |request: Request| Request::decode(&request.encode()).unwrap_err();
    let count = REFS_LIMIT + 1;
    assert_eq!(decode(Request { count, ..good }), Malformed::Refs(count));
    for slice_bytes in [0, SLICE_BYTES_LIMIT + 1] {
        let error = decode(Request { slice_bytes, ..good });
        assert_eq!(error, Malformed::SliceBytes(slice_bytes));
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = good.encode();
        bytes[at] = byte;
        Request::decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b'G'), Malformed::Magic(*b"GKVB"));
    assert_eq!(with(4, 2), Malformed::Version { theirs: 2 });
    assert_eq!(with(6, 9), Malformed::Kind(9));
    assert_eq!(with(7, 1), Malformed::Reserved);
}

proptest! {
    #[test]
    fn case_53_no_bytes_make_a_parser_panic(
        mut bytes in prop::array::uniform32(any::<u8>()),
        mut long in prop::collection::vec(any::<u8>(), REQUEST_BYTES),
        with_magic in any::<bool>(),
    ) {
        if with_magic {
            bytes[..6].copy_from_slice(b"OKVB\x01\0");
            long[..6].copy_from_slice(b"OKVB\x01\0");
        }
        let hello: [u8; HELLO_BYTES] = bytes[..HELLO_BYTES].try_into().unwrap();
        if let Ok(hello_read) = Hello::decode(&hello) {
            prop_assert_eq!(hello_read.encode(), hello);
        }
        let answer: [u8; ANSWER_BYTES] = bytes;
        if let Ok(read) = Answer::decode(&answer) {
            prop_assert_eq!(Answer::decode(&read.encode()), Ok(read));
        }
        let request: [u8; REQUEST_BYTES] = long.try_into().unwrap();
        if let Ok(read) = Request::decode(&request) {
            prop_assert_eq!(read.encode(), request);
        }
    }

    #[test]
    fn references_round_trip(pairs in prop::collection::vec(any::<(u32, u32)>(), 0..50)) {
        let pairs = pairs.into_iter();
        let refs: Vec<SlotRef> =
            pairs.map(|(slot, generation)| SlotRef { slot, generation }).collect();
        let mut bytes = Vec::new();
        encode_refs(&refs, &mut bytes);
        prop_assert_eq!(decode_refs(&bytes), refs);
    }
}
