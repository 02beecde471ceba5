//! The wire form: golden bytes per message, round trips, and what bad messages are answered with.
//!
//! `golden/v1.txt` holds what earlier versions sent; its lines stay for ever, new ones are added.

mod dice;
mod samples;

use std::fmt::Debug;

use dice::Dice;
use ids::{BlockKey, Span, Term};
use placement::{AdmitRequest, NodeRecord, NodeReport, NodeStatus, Plan, Refused};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use prost::Message;
use proto::cluster::{Register, Registered, WatchEvent};
use proto::storage::{Commit, Committed, Extend, Locate, Located, Place, Placed, Release};
use proto::{InvalidMessage, v1};
use remote::{BlockReceipt, Grant, Granted, LocatedBlock, Reservation, ReserveRefused};
use session::{GenerateRequest, PrefillEvent, PrefillRequest, StreamItem};

/// One kind of message: how to make a sample, and how to check bytes that claim to be one.
struct Kind {
    name: &'static str,
    encode: fn(&mut Dice) -> Vec<u8>,
    /// Decodes, validates, writes again: the bytes, or why not.
    rewrite: fn(&[u8]) -> Result<Vec<u8>, String>,
    /// Whether what was read equals what `encode` made of the same dice.
    equals: fn(&mut Dice, &[u8]) -> bool,
}

fn rewrite<D, W>(bytes: &[u8]) -> Result<Vec<u8>, String>
where
    W: Message + Default + From<D>,
    D: TryFrom<W, Error = InvalidMessage>,
{
    let wire = W::decode(bytes).map_err(|error| error.to_string())?;
    let domain = D::try_from(wire).map_err(|error| error.to_string())?;
    Ok(W::from(domain).encode_to_vec())
}

macro_rules! kinds {
    ($($wire:ident: $domain:ty = $sample:path;)*) => {
        vec![$(Kind {
            name: stringify!($wire),
            encode: |dice| v1::$wire::from($sample(dice)).encode_to_vec(),
            rewrite: rewrite::<$domain, v1::$wire>,
            equals: |dice, bytes| {
                let wire = v1::$wire::decode(bytes).expect("a sample's bytes");
                let read = <$domain>::try_from(wire).expect("a sample is valid");
                read == $sample(dice)
            },
        }),*]
    };
}

fn kinds() -> Vec<Kind> {
    kinds! {
        NodeRecord: NodeRecord = samples::record;
        NodeReport: NodeReport = samples::report;
        ObserveRequest: Term = samples::term;
        RegisterRequest: Register = samples::register;
        RegisterResponse: Registered = samples::registered;
        KeepAliveResponse: Span = samples::millis;
        WatchEvent: WatchEvent = samples::watch_event;
        AdmitRequest: AdmitRequest = samples::admit;
        AdmitResponse: Result<Plan, Refused> = samples::answer;
        NodesResponse: Vec<NodeStatus> = samples::nodes;
        Grant: Grant = samples::grant;
        ReserveRequest: Reservation = samples::reservation;
        ReserveResponse: Result<Granted, ReserveRefused> = samples::reserved;
        ExtendRequest: Extend = samples::extend;
        ExtendResponse: Span = samples::millis;
        ReleaseRequest: Release = samples::release;
        BlockKey: BlockKey = samples::key;
        BlockReceipt: BlockReceipt = samples::receipt;
        LocatedBlock: LocatedBlock = samples::located_block;
        PlaceRequest: Place = samples::place;
        PlaceResponse: Placed = samples::placed;
        CommitRequest: Commit = samples::commit;
        CommitResponse: Committed = samples::committed;
        LocateRequest: Locate = samples::locate;
        LocateResponse: Located = samples::located;
        GenerateRequest: GenerateRequest = samples::generate;
        GenerateEvent: StreamItem = samples::stream_item;
        PrefillRequest: PrefillRequest = samples::prefill;
        PrefillEvent: PrefillEvent = samples::prefill_event;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: char| c.to_digit(16).expect("a hex digit") as u8;
    let digits: Vec<u8> = text.chars().map(digit).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

/// Three samples per kind, so that most cases of each `oneof` occur.
#[test]
fn what_earlier_versions_sent_is_read_and_written_the_same() {
    let golden = include_str!("golden/v1.txt");
    let mut absent = Vec::new();
    for kind in kinds() {
        for seed in 0..3 {
            let label = format!("{}/{seed} ", kind.name);
            let bytes = (kind.encode)(&mut Dice(seed));
            let Some(line) = golden.lines().find_map(|line| line.strip_prefix(&label)) else {
                absent.push(format!("{label}{}", hex(&bytes)));
                continue;
            };
            assert_eq!(hex(&bytes), line, "{label}is written otherwise than before");
            assert!((kind.equals)(&mut Dice(seed), &unhex(line)), "{label}is read otherwise");
        }
    }
    assert!(absent.is_empty(), "lines to add to golden/v1.txt:\n{}", absent.join("\n"));
}

#[test]
fn a_message_without_its_fields_is_refused_by_the_name_of_one() {
    fn field<D, W: Default>() -> String
    where
        D: TryFrom<W, Error = InvalidMessage> + Debug,
    {
        D::try_from(W::default()).expect_err("required fields are absent").field
    }
    let fields = [
        (field::<NodeRecord, v1::NodeRecord>(), "id"),
        (field::<Register, v1::RegisterRequest>(), "node"),
        (field::<WatchEvent, v1::WatchEvent>(), "change"),
        (field::<AdmitRequest, v1::AdmitRequest>(), "prompt_tokens"),
        (field::<Result<Plan, Refused>, v1::AdmitResponse>(), "answer"),
        (field::<Plan, v1::Plan>(), "session"),
        (field::<Refused, v1::Refused>(), "reason"),
        (field::<Reservation, v1::ReserveRequest>(), "session"),
        (field::<Result<Granted, ReserveRefused>, v1::ReserveResponse>(), "answer"),
        (field::<BlockReceipt, v1::BlockReceipt>(), "tokens"),
        (field::<Place, v1::PlaceRequest>(), "grant"),
        (field::<GenerateRequest, v1::GenerateRequest>(), "plan"),
        (field::<StreamItem, v1::GenerateEvent>(), "item"),
        (field::<PrefillEvent, v1::PrefillEvent>(), "item"),
    ];
    for (named, expected) in fields {
        assert_eq!(named, expected);
    }
}

#[test]
fn the_path_leads_to_the_wrong_field_in_a_nested_list() {
    let mut plan = v1::Plan::from(samples::plan(&mut Dice(1)));
    plan.homes[0].nodes[0].node = "Not A Name".into();
    let wire = v1::AdmitResponse { answer: Some(v1::admit_response::Answer::Plan(plan)) };
    let invalid = Result::<Plan, Refused>::try_from(wire).unwrap_err();
    assert_eq!(invalid.field, "plan.homes[0].nodes[0].node");
    let status = tonic::Status::from(invalid);
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
}

#[test]
fn more_tokens_than_the_plan_reserves_for_are_refused_p4() {
    let mut wire = v1::GenerateRequest::from(samples::generate(&mut Dice(3)));
    wire.generation.as_mut().unwrap().max_tokens += 1;
    let invalid = GenerateRequest::try_from(wire).unwrap_err();
    assert_eq!(invalid.field, "generation.max_tokens");
}

#[test]
fn parallel_lists_of_unequal_length_are_refused_case_13() {
    let mut wire = v1::LocatedBlock::from(samples::located_block(&mut Dice(3)));
    wire.generations.pop();
    assert_eq!(LocatedBlock::try_from(wire).unwrap_err().field, "generations");
}

#[test]
fn numbers_that_would_poison_the_sampler_are_refused() {
    let sample = v1::Generation::from(samples::generate(&mut Dice(3)).generation);
    let broken = |change: fn(&mut v1::Generation)| {
        let mut wire = sample.clone();
        change(&mut wire);
        session::Generation::try_from(wire).unwrap_err().field
    };
    assert_eq!(broken(|wire| wire.temperature = f32::NAN), "temperature");
    assert_eq!(broken(|wire| wire.temperature = -1.0), "temperature");
    assert_eq!(broken(|wire| wire.temperature = f32::INFINITY), "temperature");
    assert_eq!(broken(|wire| wire.top_p = 0.0), "top_p");
    assert_eq!(broken(|wire| wire.top_p = f32::NAN), "top_p");
    assert_eq!(broken(|wire| wire.min_p = 1.5), "min_p");
    assert_eq!(broken(|wire| wire.max_tokens = 0), "max_tokens");
}

proptest! {
    #[test]
    fn every_message_round_trips(seed: u64) {
        for kind in kinds() {
            let bytes = (kind.encode)(&mut Dice(seed));
            prop_assert!((kind.equals)(&mut Dice(seed), &bytes), "{}", kind.name);
        }
    }

    /// Case 53: bytes from the network never panic, and what is accepted means what it says.
    #[test]
    fn case_53_damaged_messages_are_refused_or_read_consistently(
        seed: u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for kind in kinds() {
            let mut bytes = (kind.encode)(&mut Dice(seed));
            for (at, value) in &damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
            }
            consistent(&kind, &bytes)?;
        }
    }

    #[test]
    fn case_53_arbitrary_bytes_are_refused_or_read_consistently(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        for kind in kinds() {
            consistent(&kind, &bytes)?;
        }
    }
}

/// What was accepted, written again, is accepted and written the same.
fn consistent(kind: &Kind, bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(first) = (kind.rewrite)(bytes) {
        prop_assert_eq!((kind.rewrite)(&first), Ok(first), "{}", kind.name);
    }
    Ok(())
}
