//! The way of a session, and that it gives back everything from wherever it ends.

use std::sync::Arc;

use ids::{
    BlockHash, BlockIdx, BlockKey, Epoch, Incarnation, ModelDigest, Moment, PolicyDigest,
    SessionId, ShardId, SliceChecksum, Span, Tenant, Term, TokenId,
};
use placement::{Home, Plan, RefuseReason, Target};
use proptest::prelude::*;
use remote::{BlockReceipt, Grant, Granted, ReserveRefused, SliceRef};

use super::{Effect, Ended, Event, Holder, Owner};
use crate::{
    Finish, GenerateRequest, Generation, Handover, Prompt, Sampling, SealedBlock, StreamItem,
};

const SLICES: u32 = 6;

fn target(name: &str) -> Target {
    Target {
        node: name.parse().unwrap(),
        incarnation: Incarnation(1),
        control: "127.0.0.1:1".into(),
        bulk: "127.0.0.1:2".into(),
    }
}

/// 35 prompt tokens: two full blocks and a tail; copies on memory-b and memory-a.
fn request() -> GenerateRequest {
    let home = Home {
        first: BlockIdx(0),
        count: 2,
        shard: ShardId(0),
        nodes: vec![target("memory-b"), target("memory-a")],
    };
    let plan = Plan {
        session: SessionId(1),
        epoch: Epoch(1),
        term: Term(1),
        sequence: 1,
        tenant: Tenant::default(),
        model: ModelDigest([0; 32]),
        policy: PolicyDigest([0; 16]),
        numerics_class: "host-1".into(),
        prefill: target("prefill-0"),
        decode: target("decode-0"),
        homes: vec![home],
        final_tokens: 45,
    };
    let sampling =
        Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 1, choice: 0 };
    GenerateRequest {
        plan,
        prompt: Prompt {
            tokens: vec![TokenId(1); 35].into(),
            root: BlockHash([0; 32]),
            hashes: vec![BlockHash([1; 32]), BlockHash([2; 32])].into(),
        },
        generation: Generation {
            sampling,
            max_tokens: 10,
            stop_tokens: Arc::new([]),
            digest_logits: false,
        },
    }
}

fn granted() -> Event {
    let grant = Grant { session: SessionId(1), epoch: Epoch(1), secret: [0; 16] };
    Event::Reserved(Some(Granted { grant, lease: super::LEASE }))
}

fn sealed(index: u32) -> SealedBlock {
    let receipt = BlockReceipt {
        key: BlockKey { hash: BlockHash([index as u8 + 1; 32]), generation: 0 },
        index: BlockIdx(index),
        shard: ShardId(0),
        tokens: 16,
        checksums: vec![SliceChecksum(0); SLICES as usize].into(),
    };
    SealedBlock { receipt, at: vec![SliceRef { slot: 0, generation: 1 }; SLICES as usize].into() }
}

/// The three tokens behind the full blocks.
fn tail() -> SealedBlock {
    let mut tail = sealed(2);
    tail.receipt.tokens = 3;
    tail
}

fn handover() -> Event {
    Event::Handover(Box::new(Handover {
        tail: Some(tail()),
        last_hidden: Arc::new([0.5]),
        cached_tokens: 0,
        queued: Span(0),
        computed: Span(7),
        moved: vec![],
    }))
}

fn resident(index: u32) -> Event {
    Event::Resident { index: BlockIdx(index), moved: vec![], replica: false }
}

fn finished() -> Event {
    Event::EngineFinished {
        finish: Finish::Length,
        sampled: 10,
        elapsed: Span(5),
        logits_digest: None,
    }
}

/// The events of a quiet run.
fn quiet() -> Vec<Event> {
    vec![
        Event::Begin,
        granted(),
        granted(),
        granted(),
        Event::Reserved(None),
        Event::Sealed(vec![sealed(0), sealed(1)]),
        resident(0),
        handover(),
        resident(1),
        resident(2),
        Event::Token { token: TokenId(5), logprob: -0.5 },
        finished(),
    ]
}

fn owner() -> Owner {
    Owner::new(&request(), SLICES, Moment(0))
}

fn run(owner: &mut Owner, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    events.into_iter().flat_map(|event| owner.on(event, Moment(1))).collect()
}

fn holders(effects: &[Effect], release: bool) -> Vec<Holder> {
    let holder = |effect: &Effect| match effect {
        Effect::Reserve { holder, .. } if !release => Some(holder.clone()),
        Effect::Release(holder) if release => Some(holder.clone()),
        _ => None,
    };
    effects.iter().filter_map(holder).collect()
}

#[test]
fn p4_reservations_are_taken_in_the_one_order_and_for_the_final_length() {
    let mut owner = owner();
    let effects = run(&mut owner, quiet());
    let order = [
        Holder::Home(target("memory-a")),
        Holder::Home(target("memory-b")),
        Holder::PrefillHost(target("prefill-0")),
        Holder::Device,
    ];
    assert_eq!(holders(&effects, false), order);
    let slices: Vec<u32> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Reserve { slices, .. } => Some(*slices),
            _ => None,
        })
        .collect();
    assert_eq!(slices, [12, 12, 18, 18], "2 full blocks, 3 with the tail, 45 tokens in the end");
    let mut back = holders(&effects, true);
    back.reverse();
    assert_eq!(back, order);
    assert_eq!(effects.last(), Some(&Effect::End(Ended::Finished)));
}

#[test]
fn decoding_starts_when_every_block_is_resident_and_not_before() {
    let mut owner = owner();
    let events = quiet();
    let before = run(&mut owner, events[..9].to_vec());
    assert!(!before.iter().any(|effect| matches!(effect, Effect::Decode(_))));
    let now = owner.on(events[9].clone(), Moment(1));
    assert!(matches!(
        now.as_slice(),
        [Effect::Emit(StreamItem::Started { cached_tokens: 0 }), Effect::Decode(_)]
    ));
}

#[test]
fn p6_case_32_cancelled_in_any_phase_everything_taken_is_given_back() {
    for cut in 0..quiet().len() {
        let mut owner = owner();
        let mut effects = run(&mut owner, quiet().into_iter().take(cut));
        effects.extend(owner.on(Event::Cancelled, Moment(2)));
        let mut back = holders(&effects, true);
        back.reverse();
        assert_eq!(back, holders(&effects, false), "cancelled before event {cut}");
        assert_eq!(effects.last(), Some(&Effect::End(Ended::Cancelled)));
        assert!(run(&mut owner, quiet()).is_empty(), "nothing happens after the end");
        assert_eq!(owner.wake_at(), None);
    }
}

#[test]
fn a_refusal_gives_back_what_was_taken_and_says_whether_to_ask_again() {
    let full = ReserveRefused::Full { wanted: 18, free: 3 };
    let never = ReserveRefused::NeverFits { wanted: 18, total: 3 };
    for (refused, reason, again) in
        [(full, RefuseReason::Capacity, true), (never, RefuseReason::NeverFits, false)]
    {
        let mut owner = owner();
        run(&mut owner, [Event::Begin, granted(), granted(), granted()]);
        let effects = owner.on(Event::ReserveRefused(refused), Moment(1));
        let Some(Effect::Emit(StreamItem::Refused(told))) = effects.first() else {
            panic!("{effects:?}")
        };
        assert_eq!((told.reason, told.retry_after.is_some()), (reason, again));
        assert_eq!(holders(&effects, true).len(), 3, "the device took nothing");
    }
}

#[test]
fn case_01_a_reservation_of_unknown_outcome_is_released_too() {
    let mut owner = owner();
    run(&mut owner, [Event::Begin]);
    let effects = owner.on(Event::ReserveUnknown { detail: "deadline".into() }, Moment(1));
    assert_eq!(holders(&effects, true), [Holder::Home(target("memory-a"))]);
}

#[test]
fn p2_blocks_out_of_turn_end_the_session_instead_of_being_used() {
    for wrong in
        [vec![sealed(1)], vec![sealed(0), sealed(0)], vec![sealed(0), sealed(1), sealed(2)]]
    {
        let mut owner = owner();
        run(&mut owner, quiet().into_iter().take(5));
        let effects = owner.on(Event::Sealed(wrong), Moment(1));
        assert!(matches!(effects.last(), Some(Effect::End(Ended::Failed { .. }))), "{effects:?}");
    }
    let mut owner = owner();
    run(&mut owner, quiet().into_iter().take(5));
    let effects = run(&mut owner, [Event::Sealed(vec![sealed(0)]), handover()]);
    assert!(matches!(effects.last(), Some(Effect::End(Ended::Failed { .. }))), "one is missing");
}

#[test]
fn p2_blocks_of_another_prompt_or_shape_are_not_used() {
    let changed = |change: &dyn Fn(&mut BlockReceipt)| {
        let mut block = sealed(0);
        change(&mut block.receipt);
        block
    };
    for wrong in [
        changed(&|receipt| receipt.key.hash = BlockHash([7; 32])),
        changed(&|receipt| receipt.tokens = 15),
        changed(&|receipt| receipt.checksums = Arc::new([])),
    ] {
        let mut owner = owner();
        run(&mut owner, quiet().into_iter().take(5));
        let effects = owner.on(Event::Sealed(vec![wrong]), Moment(1));
        assert!(matches!(effects.last(), Some(Effect::End(Ended::Failed { .. }))), "{effects:?}");
    }
    let mut owner = owner();
    run(&mut owner, quiet().into_iter().take(7));
    let mut short = tail();
    short.receipt.tokens = 2;
    let Event::Handover(mut handover) = handover() else { panic!("it is one") };
    handover.tail = Some(short);
    let effects = owner.on(Event::Handover(handover), Moment(1));
    assert!(matches!(effects.last(), Some(Effect::End(Ended::Failed { .. }))), "{effects:?}");
}

#[test]
fn a_short_lease_is_extended_in_time() {
    let mut owner = owner();
    run(&mut owner, [Event::Begin]);
    let grant = Grant { session: SessionId(1), epoch: Epoch(1), secret: [0; 16] };
    let short = Granted { grant, lease: Span::from_millis(300) };
    owner.on(Event::Reserved(Some(short)), Moment(1));
    assert!(owner.wake_at().unwrap() <= Moment(1) + Span::from_millis(200));
}

#[test]
fn leases_are_extended_when_a_third_of_them_is_left() {
    let mut owner = owner();
    run(&mut owner, quiet().into_iter().take(5));
    assert!(owner.on(Event::Tick, Moment(1)).is_empty(), "not due");
    let due = owner.wake_at().unwrap();
    let effects = owner.on(Event::Tick, due);
    let [Effect::Extend(held)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(held.len(), 3, "the device has no lease");
    assert!(owner.wake_at().unwrap() > due);
}

proptest! {
    /// Whatever happens in whatever order, what was taken is released once, and the end comes once.
    #[test]
    fn p6_any_order_of_events_ends_balanced(picks in prop::collection::vec(0usize..16, 0..40)) {
        let mut pool = quiet();
        pool.extend([
            Event::ReserveRefused(ReserveRefused::Draining),
            Event::PrefillFailed { detail: String::new() },
            Event::FetchFailed { detail: String::new() },
            Event::Tick,
        ]);
        let mut owner = owner();
        let mut effects = Vec::new();
        for pick in picks {
            effects.extend(owner.on(pool[pick].clone(), Moment(1)));
        }
        effects.extend(owner.on(Event::Cancelled, Moment(1)));
        let refused = effects.iter().any(|effect| matches!(
            effect, Effect::Emit(StreamItem::Refused(_))
        ));
        let (asked, back) = (holders(&effects, false), holders(&effects, true));
        prop_assert_eq!(asked.len(), back.len() + usize::from(refused));
        let ends = effects.iter().filter(|effect| matches!(effect, Effect::End(_))).count();
        prop_assert_eq!(ends, 1);
    }
}
