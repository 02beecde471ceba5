//! The prefill host's tier: leases, what a session may read, and what the cache gives up.

use std::time::Duration;

use ids::{BlockIdx, ShardId};
use remote::BlockReceipt;
use tokens::BlockHashes;
use transfer::HugePages;

use super::*;

const SLICES: usize = 4;
const SLICE_BYTES: usize = 64;
const ROOT: BlockHash = BlockHash([1; 32]);

fn tier(blocks: u32) -> HostTier {
    let slots = blocks * SLICES as u32;
    let slab = Slab::try_new(slots, SLICE_BYTES, HugePages::Off).unwrap();
    let limits = LeaseLimits { sessions_max: 64, lease_max: Span::from_secs(30) };
    HostTier::new(slab, limits, blocks as usize)
}

fn request(session: u128, blocks: u32) -> Reservation {
    Reservation {
        session: SessionId(session),
        epoch: Epoch(1),
        tenant: ids::Tenant::default(),
        slices: blocks * SLICES as u32,
        lease: Span::from_secs(10),
    }
}

fn reserve(tier: &HostTier, session: u128, blocks: u32) -> Result<Grant, ReserveRefused> {
    let granted = tier.reserve(&request(session, blocks), [session as u8; 16]);
    granted.map(|granted| granted.grant)
}

/// A prompt of full blocks.
fn prompt(seed: u32, blocks: usize) -> (Vec<TokenId>, Vec<BlockHash>) {
    let tokens: Vec<TokenId> =
        (0..blocks * BLOCK_TOKENS).map(|at| TokenId(seed * 1000 + at as u32)).collect();
    let hashes = BlockHashes::from_root(ROOT, &tokens).clone();
    (tokens, hashes)
}

/// Does for a prompt what a run does: looks up, takes, "computes", publishes and keeps. Returns
/// every block.
fn run(tier: &HostTier, grant: &Grant, seed: u32, blocks: usize) -> Vec<HostBlock> {
    let (tokens, hashes) = prompt(seed, blocks);
    let mut all = tier.prefix(&hashes, &tokens);
    let missing = (blocks - all.len()) * SLICES;
    let mut slots = tier.take(grant, u32::try_from(missing).unwrap()).unwrap();
    for index in all.len()..blocks {
        let slices = slots.drain(..SLICES).map(|mut slot| {
            slot.fill(seed as u8 ^ index as u8);
            slot.seal()
        });
        let block = HostBlock {
            receipt: BlockReceipt {
                key: BlockKey { hash: hashes[index], generation: 0 },
                index: BlockIdx(index as u32),
                shard: ShardId(0),
                tokens: 16,
                checksums: vec![ids::SliceChecksum(0); SLICES].into(),
            },
            slices: slices.collect(),
            summary: None,
        };
        let parent = index.checked_sub(1).map(|before| hashes[before]);
        let own = tokens[index * BLOCK_TOKENS..].first_chunk().unwrap();
        tier.keep(parent, *own, block.clone());
        all.push(block);
    }
    assert!(tier.publish(grant, &all));
    all
}

fn refs(blocks: &[HostBlock]) -> Vec<SlotRef> {
    let slots = blocks.iter().flat_map(|block| block.slices.iter());
    slots.map(reference).collect()
}

fn credential(grant: &Grant) -> Credential {
    Credential { session: grant.session, epoch: grant.epoch, secret: grant.secret }
}

fn read(tier: &HostTier, grant: &Grant, refs: &[SlotRef]) -> Result<Vec<u8>, Refusal> {
    let slots = tier.open_read(&credential(grant), refs)?;
    Ok(slots.iter().map(|slot| slot[0]).collect())
}

#[tokio::test]
async fn p7_a_session_reads_what_was_published_to_it_and_nothing_else() {
    let tier = tier(8);
    let (mine, other) = (reserve(&tier, 1, 2).unwrap(), reserve(&tier, 2, 2).unwrap());
    let blocks = refs(&run(&tier, &mine, 1, 2));
    let theirs = refs(&run(&tier, &other, 2, 2));
    assert_eq!(read(&tier, &mine, &blocks).unwrap(), [1, 1, 1, 1, 0, 0, 0, 0]);
    let not_mine = Err(Refusal::NotYours(theirs[0].slot));
    assert_eq!(read(&tier, &mine, &theirs), not_mine);
    let wrong = Grant { secret: [9; 16], ..mine.clone() };
    assert_eq!(read(&tier, &wrong, &blocks), Err(Refusal::NoGrant));
    let stale = Grant { epoch: Epoch(0), ..mine.clone() };
    assert_eq!(read(&tier, &stale, &blocks), Err(Refusal::StaleEpoch));
    let beyond = SlotRef { slot: u32::MAX, generation: 0 };
    assert_eq!(read(&tier, &mine, &[beyond]), Err(Refusal::NotYours(u32::MAX)));
    let write = tier.open_write(&credential(&mine), &blocks);
    assert_eq!(write.err(), Some(Refusal::NotYours(blocks[0].slot)));
}

#[tokio::test]
async fn case_13_a_reference_of_before_the_slots_were_used_again_opens_nothing() {
    let tier = tier(2);
    let first = reserve(&tier, 1, 2).unwrap();
    let old = refs(&run(&tier, &first, 1, 2));
    tier.release(first.session, first.epoch);
    assert_eq!(read(&tier, &first, &old), Err(Refusal::NoGrant));
    // The next prompt takes the very slots of the first.
    let second = reserve(&tier, 2, 2).unwrap();
    let new = refs(&run(&tier, &second, 2, 2));
    let slots = |refs: &[SlotRef]| {
        let mut slots: Vec<u32> = refs.iter().map(|at| at.slot).collect();
        slots.sort_unstable();
        slots
    };
    assert_eq!(slots(&old), slots(&new));
    for at in &old {
        let refused = Err(Refusal::NotYours(at.slot));
        assert_eq!(read(&tier, &second, &[*at]), refused);
    }
    assert!(read(&tier, &second, &new).is_ok());
}

#[tokio::test]
async fn case_29_a_block_is_found_as_long_as_it_can_be_read_and_missed_after_its_eviction() {
    let tier = tier(4);
    let (tokens, hashes) = prompt(1, 3);
    let first = reserve(&tier, 1, 3).unwrap();
    run(&tier, &first, 1, 3);
    tier.release(first.session, first.epoch);
    assert_eq!(tier.prefix(&hashes, &tokens).len(), 3);
    // The second prompt hits, and reads what the first has left.
    let second = reserve(&tier, 2, 1).unwrap();
    let blocks = refs(&run(&tier, &second, 1, 3));
    assert!(read(&tier, &second, &blocks).is_ok());
    tier.release(second.session, second.epoch);
    // The third needs room for three: the deepest blocks of the first go, not its beginning.
    let third = reserve(&tier, 3, 3).unwrap();
    assert_eq!(tier.prefix(&hashes, &tokens).len(), 1);
    tier.release(third.session, third.epoch);
    assert_eq!(tier.prefix(&hashes, &tokens).len(), 1);
}

#[tokio::test]
async fn p4_cached_blocks_count_as_free_and_read_ones_are_never_evicted() {
    let tier = tier(4);
    let reader = reserve(&tier, 1, 2).unwrap();
    let blocks = refs(&run(&tier, &reader, 1, 2));
    let idle = reserve(&tier, 2, 2).unwrap();
    run(&tier, &idle, 2, 2);
    assert_eq!(tier.capacity().free, ByteCount(0));
    tier.release(idle.session, idle.epoch);
    let two = ByteCount((2 * SLICES * SLICE_BYTES) as u64);
    assert_eq!(tier.capacity().free, two);
    // Three blocks cannot be had, so that the cache must not lose its two.
    let refused = reserve(&tier, 3, 3).unwrap_err();
    assert_eq!(refused, ReserveRefused::Full { wanted: 12, free: 8 });
    assert_eq!(tier.usage().cached_blocks, 4);
    reserve(&tier, 4, 2).unwrap();
    assert_eq!(tier.usage().cached_blocks, 2);
    assert!(read(&tier, &reader, &blocks).is_ok());
}

#[tokio::test]
async fn case_33_a_session_gets_room_for_its_whole_prompt_or_is_refused_at_once() {
    let tier = tier(4);
    let never = reserve(&tier, 1, 5).unwrap_err();
    assert_eq!(never, ReserveRefused::NeverFits { wanted: 20, total: 16 });
    let first = reserve(&tier, 1, 3).unwrap();
    let full = reserve(&tier, 2, 2).unwrap_err();
    assert_eq!(full, ReserveRefused::Full { wanted: 8, free: 4 });
    // What was reserved is there, whatever others ask for meanwhile.
    reserve(&tier, 3, 1).unwrap();
    assert_eq!(run(&tier, &first, 1, 3).len(), 3);
    let more = tier.take(&first, 1).unwrap_err();
    assert_eq!(more, NoRoom::Reservation { wanted: 1, left: 0 });
}

#[tokio::test(start_paused = true)]
async fn p6_release_and_expiry_stop_the_run_and_free_its_slots() {
    let tier = tier(4);
    for ends_by_lease in [false, true] {
        let grant = reserve(&tier, 1 + u128::from(ends_by_lease), 3).unwrap();
        let ending = tier.begin(&grant).unwrap();
        assert_eq!(tier.begin(&grant).err(), Some(NoRoom::Running));
        let slots = tier.take(&grant, 8).unwrap();
        if ends_by_lease {
            tokio::time::advance(Duration::from_secs(9)).await;
            assert_eq!(tier.expire(), 0);
            tokio::time::advance(Duration::from_secs(2)).await;
            // Over, even before the timer has acted.
            assert_eq!(read(&tier, &grant, &[]), Err(Refusal::Expired));
            assert_eq!(tier.expire(), 1);
        } else {
            tier.release(grant.session, grant.epoch);
        }
        assert!(ending.ended.is_cancelled() && ending.flag.load(Ordering::Acquire));
        assert_eq!(tier.begin(&grant).err(), Some(Denied::NoSession.into()));
        assert!(!tier.publish(&grant, &[run_nothing()]));
        drop(slots);
        let usage = tier.usage();
        assert_eq!((usage.free, usage.reserved, usage.sessions), (usage.total, 0, 0));
    }
}

/// A block without slices.
fn run_nothing() -> HostBlock {
    let key = BlockKey { hash: ROOT, generation: 0 };
    let receipt = BlockReceipt {
        key,
        index: BlockIdx(0),
        shard: ShardId(0),
        tokens: 16,
        checksums: Vec::new().into(),
    };
    let slices = Arc::new([]);
    HostBlock { receipt, slices, summary: None }
}

#[tokio::test(start_paused = true)]
async fn case_1_a_reservation_that_its_own_release_overtook_is_refused() {
    let tier = tier(2);
    tier.release(SessionId(1), Epoch(1));
    let refused = reserve(&tier, 1, 1).unwrap_err();
    assert_eq!(refused, ReserveRefused::StaleEpoch { given: 1, seen: 1 });
    tier.emptied().await;
}

#[tokio::test]
async fn case_6_a_drain_waits_for_the_last_session() {
    let tier = tier(2);
    let grant = reserve(&tier, 1, 1).unwrap();
    let mut emptied = Box::pin(tier.emptied());
    let early = std::future::poll_fn(|cx| std::task::Poll::Ready(emptied.as_mut().poll(cx))).await;
    assert!(early.is_pending());
    tier.release(grant.session, grant.epoch);
    emptied.await;
}

#[tokio::test]
async fn case_31_a_thousand_sessions_with_hits_evictions_and_aborts_leave_nothing_held() {
    let tier = tier(12);
    let mut live: Vec<Grant> = Vec::new();
    for i in 0..1000u32 {
        let blocks = 1 + i as usize % 5;
        let session = u128::from(i) + 1;
        if let Ok(grant) = reserve(&tier, session, u32::try_from(blocks).unwrap()) {
            // One in five is given up before its run.
            if i % 5 > 0 {
                tier.begin(&grant).unwrap();
                let all = run(&tier, &grant, i % 7, blocks);
                assert!(read(&tier, &grant, &refs(&all)).is_ok());
            }
            live.push(grant);
        }
        while live.len() > i as usize % 4 {
            let grant = live.remove(i as usize % live.len());
            tier.release(grant.session, grant.epoch);
        }
    }
    for grant in live {
        tier.release(grant.session, grant.epoch);
    }
    let usage = tier.usage();
    assert_eq!((usage.sessions, usage.reserved), (0, 0));
    assert_eq!(usage.free + usage.idle, usage.total);
    // And all of it can be had.
    reserve(&tier, 5000, 12).unwrap();
    assert_eq!(tier.usage().cached_blocks, 0);
}
