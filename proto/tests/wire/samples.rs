//! A valid value of every domain type that travels.

use ids::{
    BlockHash, BlockIdx, BlockKey, ByteCount, Epoch, Incarnation, ModelDigest, PolicyDigest, Role,
    SessionId, ShardId, SliceChecksum, Span, Tenant, Term, Tier, TokenId,
};
use placement::{
    AdmitRequest, Home, NodeRecord, NodeReport, NodeStatus, Plan, RefuseReason, Refused, Target,
    TierCapacity,
};
use proto::cluster::{Change, LeaseId, Register, Registered, Revision, WatchEvent};
use proto::storage::{Commit, Committed, Extend, Locate, Located, Place, Placed, Release};
use remote::{BlockReceipt, Grant, Granted, LocatedBlock, Reservation, ReserveRefused, SliceRef};
use session::{
    Copied, Finish, GenerateRequest, Generation, Handover, Ledger, Moved, PrefillEvent,
    PrefillRequest, Prompt, Sampling, SealedBlock, StreamItem, Usage,
};

use crate::dice::Dice;

fn pick<T: Copy, const N: usize>(dice: &mut Dice, all: [T; N]) -> T {
    all[dice.within(0, N as u64 - 1) as usize]
}

fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(dice: &mut Dice, prefix: &str) -> T {
    format!("{prefix}-{}", dice.small(999)).parse().expect("a DNS label")
}

fn address(dice: &mut Dice) -> String {
    format!("127.0.0.1:{}", dice.within(1, 65_535))
}

fn session(dice: &mut Dice) -> SessionId {
    SessionId(u128::from_le_bytes(dice.bytes()))
}

fn epoch(dice: &mut Dice) -> Epoch {
    Epoch(dice.within(1, 1 << 40))
}

fn tenant(dice: &mut Dice) -> Tenant {
    if dice.coin() { Tenant::default() } else { Tenant("acme".into()) }
}

pub(crate) fn millis(dice: &mut Dice) -> Span {
    Span::from_millis(dice.within(1, 3_600_000))
}

pub(crate) fn term(dice: &mut Dice) -> Term {
    Term(dice.next())
}

pub(crate) fn record(dice: &mut Dice) -> NodeRecord {
    NodeRecord {
        id: name(dice, "node"),
        role: pick(dice, Role::ALL),
        incarnation: Incarnation(dice.within(1, u64::MAX - 1)),
        control: address(dice),
        bulk: if dice.coin() { address(dice) } else { String::new() },
        numerics_class: if dice.coin() { "host-r1".into() } else { String::new() },
        model: dice.coin().then(|| ModelDigest(dice.bytes())),
        host: name(dice, "host"),
        zone: name(dice, "zone"),
        shards: u16::try_from(dice.small(64)).expect("at most 64"),
        block_bytes: ByteCount(dice.next()),
    }
}

pub(crate) fn report(dice: &mut Dice) -> NodeReport {
    NodeReport {
        tiers: dice.list(4, |dice| {
            let total = dice.within(0, 1 << 45);
            TierCapacity {
                tier: pick(dice, Tier::ALL),
                total: ByteCount(total),
                free: ByteCount(dice.within(0, total)),
            }
        }),
        queued: dice.small(u32::MAX),
        running: dice.small(100),
        accepting: dice.coin(),
    }
}

pub(crate) fn register(dice: &mut Dice) -> Register {
    Register { node: record(dice), ttl: millis(dice) }
}

pub(crate) fn registered(dice: &mut Dice) -> Registered {
    Registered { lease: LeaseId(dice.next()), ttl: millis(dice), revision: Revision(dice.next()) }
}

pub(crate) fn watch_event(dice: &mut Dice) -> WatchEvent {
    let change = match dice.within(0, 2) {
        0 => Change::Joined(record(dice)),
        1 => {
            Change::Gone { node: name(dice, "node"), incarnation: Incarnation(dice.within(1, 99)) }
        }
        _ => Change::SnapshotEnd,
    };
    WatchEvent { revision: Revision(dice.next()), change }
}

fn hashes(dice: &mut Dice, tokens: usize) -> Vec<BlockHash> {
    (0..tokens / ids::BLOCK_TOKENS).map(|_| BlockHash(dice.bytes())).collect()
}

pub(crate) fn admit(dice: &mut Dice) -> AdmitRequest {
    let prompt_tokens = dice.small(99) + 1;
    AdmitRequest {
        session: session(dice),
        tenant: tenant(dice),
        model: ModelDigest(dice.bytes()),
        prompt_tokens,
        max_tokens: dice.small(4_095) + 1,
        hashes: hashes(dice, prompt_tokens as usize),
        policy: PolicyDigest(dice.bytes()),
    }
}

fn target(dice: &mut Dice) -> Target {
    Target {
        node: name(dice, "node"),
        incarnation: Incarnation(dice.within(1, 99)),
        control: address(dice),
        bulk: address(dice),
    }
}

pub(crate) fn plan(dice: &mut Dice) -> Plan {
    let home = |dice: &mut Dice| Home {
        first: BlockIdx(dice.small(1_000)),
        count: dice.small(1_000) + 1,
        shard: ShardId(0),
        nodes: vec![target(dice), target(dice)],
    };
    Plan {
        session: session(dice),
        epoch: epoch(dice),
        term: term(dice),
        sequence: dice.next(),
        tenant: tenant(dice),
        model: ModelDigest(dice.bytes()),
        policy: PolicyDigest(dice.bytes()),
        numerics_class: "host-r1".into(),
        prefill: target(dice),
        decode: target(dice),
        homes: vec![home(dice), home(dice)],
        final_tokens: dice.small(8_000) + 2,
    }
}

fn refused(dice: &mut Dice) -> Refused {
    let reasons = [
        RefuseReason::NoNode,
        RefuseReason::NeverFits,
        RefuseReason::Capacity,
        RefuseReason::UnknownModel,
        RefuseReason::NotLeader,
    ];
    Refused {
        reason: pick(dice, reasons),
        tier: dice.coin().then(|| pick(dice, Tier::ALL)),
        retry_after: dice.coin().then(|| millis(dice)),
        detail: "no room on any decode node".into(),
    }
}

pub(crate) fn answer(dice: &mut Dice) -> Result<Plan, Refused> {
    if dice.coin() { Ok(plan(dice)) } else { Err(refused(dice)) }
}

pub(crate) fn nodes(dice: &mut Dice) -> Vec<NodeStatus> {
    dice.list(3, |dice| NodeStatus {
        record: record(dice),
        report: dice.coin().then(|| report(dice)),
    })
}

pub(crate) fn grant(dice: &mut Dice) -> Grant {
    Grant { session: session(dice), epoch: epoch(dice), secret: dice.bytes() }
}

pub(crate) fn reservation(dice: &mut Dice) -> Reservation {
    Reservation {
        session: session(dice),
        epoch: epoch(dice),
        tenant: tenant(dice),
        slices: dice.small(1 << 20) + 1,
        lease: millis(dice),
    }
}

pub(crate) fn reserved(dice: &mut Dice) -> Result<Granted, ReserveRefused> {
    match dice.within(0, 4) {
        0 => Err(ReserveRefused::NeverFits { wanted: dice.small(99), total: dice.small(99) }),
        1 => Err(ReserveRefused::Full { wanted: dice.small(99), free: dice.small(99) }),
        2 => Err(ReserveRefused::StaleEpoch { given: dice.next(), seen: dice.next() }),
        3 => Err(ReserveRefused::Draining),
        _ => Ok(Granted { grant: grant(dice), lease: millis(dice) }),
    }
}

pub(crate) fn extend(dice: &mut Dice) -> Extend {
    Extend { grant: grant(dice), lease: millis(dice) }
}

pub(crate) fn release(dice: &mut Dice) -> Release {
    Release { session: session(dice), epoch: epoch(dice) }
}

pub(crate) fn key(dice: &mut Dice) -> BlockKey {
    BlockKey { hash: BlockHash(dice.bytes()), generation: dice.small(9) }
}

pub(crate) fn receipt(dice: &mut Dice) -> BlockReceipt {
    let mut checksums = dice.list(5, |dice| SliceChecksum(dice.next()));
    checksums.push(SliceChecksum(7));
    BlockReceipt {
        key: key(dice),
        index: BlockIdx(dice.small(1_000)),
        shard: ShardId(u16::try_from(dice.small(7)).expect("at most 7")),
        tokens: u8::try_from(dice.within(1, 16)).expect("at most 16"),
        checksums: checksums.into(),
    }
}

fn slices(dice: &mut Dice, count: usize) -> Vec<SliceRef> {
    let slice =
        |dice: &mut Dice| SliceRef { slot: dice.small(u32::MAX), generation: dice.small(u32::MAX) };
    (0..count).map(|_| slice(dice)).collect()
}

pub(crate) fn located_block(dice: &mut Dice) -> LocatedBlock {
    let count = dice.within(1, 5) as usize;
    LocatedBlock { key: key(dice), shard: ShardId(1), slices: slices(dice, count).into() }
}

pub(crate) fn place(dice: &mut Dice) -> Place {
    Place { grant: grant(dice), receipts: dice.list(3, receipt) }
}

pub(crate) fn placed(dice: &mut Dice) -> Placed {
    Placed { place: dice.list(3, located_block), held: dice.list(3, key) }
}

pub(crate) fn commit(dice: &mut Dice) -> Commit {
    Commit { grant: grant(dice), keys: dice.list(3, key) }
}

pub(crate) fn committed(dice: &mut Dice) -> Committed {
    Committed { committed: dice.list(3, key), rejected: dice.list(3, key) }
}

pub(crate) fn locate(dice: &mut Dice) -> Locate {
    Locate { grant: grant(dice), keys: dice.list(3, key) }
}

pub(crate) fn located(dice: &mut Dice) -> Located {
    Located { found: dice.list(3, located_block), missing: dice.list(3, key) }
}

fn prompt(dice: &mut Dice) -> Prompt {
    let mut tokens = dice.list(60, |dice| TokenId(dice.small(49_151)));
    tokens.push(TokenId(2));
    Prompt {
        root: BlockHash(dice.bytes()),
        hashes: hashes(dice, tokens.len()).into(),
        tokens: tokens.into(),
    }
}

/// Asks for exactly what its plan reserves.
pub(crate) fn generate(dice: &mut Dice) -> GenerateRequest {
    let prompt = prompt(dice);
    let generation = Generation {
        sampling: Sampling {
            temperature: dice.share() * 2.0,
            top_p: 1.0 - dice.share(),
            top_k: dice.small(100),
            min_p: dice.share(),
            seed: dice.next(),
            choice: dice.small(3),
        },
        max_tokens: dice.small(4_095) + 1,
        stop_tokens: dice.list(3, |dice| TokenId(dice.small(49_151))).into(),
        digest_logits: dice.coin(),
    };
    let mut plan = plan(dice);
    plan.final_tokens = prompt.tokens.len() as u32 + generation.max_tokens;
    GenerateRequest { plan, prompt, generation }
}

fn moved(dice: &mut Dice) -> Moved {
    Moved { from: pick(dice, Tier::ALL), to: pick(dice, Tier::ALL), bytes: ByteCount(dice.next()) }
}

fn ledger(dice: &mut Dice) -> Ledger {
    Ledger {
        usage: Usage {
            prompt_tokens: dice.small(999),
            cached_tokens: dice.small(999),
            completion_tokens: dice.small(999),
        },
        queued: Span(dice.next()),
        prefill: Span(dice.next()),
        handover: Span(dice.next()),
        decode: Span(dice.next()),
        moved: dice.list(3, moved),
        replica_reads: dice.small(9),
        logits_digest: dice.coin().then(|| dice.bytes()),
    }
}

pub(crate) fn stream_item(dice: &mut Dice) -> StreamItem {
    match dice.within(0, 3) {
        0 => StreamItem::Started { cached_tokens: dice.small(999) },
        1 => StreamItem::Token { token: TokenId(dice.small(49_151)), logprob: -dice.share() },
        2 => StreamItem::Finished {
            finish: pick(dice, [Finish::Stop, Finish::Length, Finish::Abort]),
            ledger: Box::new(ledger(dice)),
        },
        _ => StreamItem::Refused(refused(dice)),
    }
}

pub(crate) fn prefill(dice: &mut Dice) -> PrefillRequest {
    PrefillRequest {
        plan: plan(dice),
        prompt: prompt(dice),
        grant: grant(dice),
        home_grants: dice.list(2, |dice| (name(dice, "memory"), grant(dice))),
    }
}

fn sealed(dice: &mut Dice) -> SealedBlock {
    let receipt = receipt(dice);
    let at = slices(dice, receipt.checksums.len()).into();
    SealedBlock { receipt, at }
}

pub(crate) fn prefill_event(dice: &mut Dice) -> PrefillEvent {
    if dice.coin() {
        return PrefillEvent::Sealed(dice.list(3, sealed));
    }
    if dice.coin() {
        let moved = dice.list(3, moved);
        return PrefillEvent::Copied(Copied { moved, blocks: dice.small(99) });
    }
    let mut last_hidden = dice.list(8, |dice| dice.share() - 0.5);
    last_hidden.push(0.5);
    PrefillEvent::Handover(Box::new(Handover {
        tail: dice.coin().then(|| sealed(dice)),
        last_hidden: last_hidden.into(),
        cached_tokens: dice.small(999),
        queued: Span(dice.next()),
        computed: Span(dice.next()),
        moved: dice.list(3, moved),
    }))
}
