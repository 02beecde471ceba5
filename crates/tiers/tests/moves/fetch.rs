//! Reading: which source gives a block, and that nothing but the sealed bytes is ever given.

use std::sync::Arc;

use ids::{Epoch, Span, Tier};
use remote::{Grant, SliceRef};
use tiers::{Cause, FetchBlock, FetchError, FetchLimits, FetchedBlock, Fetcher, Source};
use transfer::Slab;
use transfer::tcp::{ClientLimits, TcpTransport};

use crate::home::Home;
use crate::samples::{SLICE_BYTES, SLICES, Sample, samples, slab};

/// A source that fails once is asked last for the rest of the test, so counts are exact.
pub(crate) fn limits() -> FetchLimits {
    FetchLimits {
        batch_slices_max: 4 * SLICES,
        quarantine_min: Span::from_secs(3600),
        quarantine_max: Span::from_secs(3600),
        ..FetchLimits::default()
    }
}

pub(crate) fn fetcher(landing: &Slab, limits: FetchLimits) -> Fetcher {
    let transport = Arc::new(TcpTransport::new(ClientLimits::default()));
    Fetcher::new(transport, landing.clone(), limits)
}

/// A prefill host and a memory node, both granted, with the same blocks.
pub(crate) struct Pair {
    pub(crate) samples: Vec<Sample>,
    pub(crate) first: Home,
    pub(crate) second: Home,
    pub(crate) grants: [Grant; 2],
    pub(crate) at: Vec<Arc<[SliceRef]>>,
}

impl Pair {
    pub(crate) async fn with(count: usize) -> Self {
        Self::damaged(count, |_| [None; 2]).await
    }

    /// `flip` says per block which slice has rotted at the first and at the second.
    async fn damaged(count: usize, flip: impl Fn(usize) -> [Option<usize>; 2]) -> Self {
        let samples = samples(count);
        let (first, second) = (Home::start(count).await, Home::start(count).await);
        let grants = [first.grant(count), second.grant(count)];
        let mut at = Vec::new();
        for (n, sample) in samples.iter().enumerate() {
            let [flip_first, flip_second] = flip(n);
            at.push(first.keep(&grants[0], sample, flip_first));
            second.keep(&grants[1], sample, flip_second);
        }
        Self { samples, first, second, grants, at }
    }

    pub(crate) fn sources(&self) -> Vec<Source> {
        let first = self.first.source("p0", Tier::PrefillHost, &self.grants[0]);
        let second = self.second.source("m0", Tier::Remote, &self.grants[1]);
        vec![first, second]
    }

    pub(crate) fn blocks(&self) -> Vec<FetchBlock> {
        let pairs = self.samples.iter().zip(&self.at);
        let pairs = pairs.map(|(sample, at)| sample.to_fetch(Some(Arc::clone(at))));
        pairs.collect()
    }

    pub(crate) fn assert_all(&self, fetched: &[FetchedBlock]) {
        assert_eq!(fetched.len(), self.samples.len());
        for (fetched, sample) in fetched.iter().zip(&self.samples) {
            sample.assert_is(fetched);
        }
    }
}

fn causes(error: &FetchError) -> Vec<(&str, Cause)> {
    match error {
        FetchError::Unreadable { failures, .. } => {
            failures.iter().map(|failure| (failure.node.as_str(), failure.cause)).collect()
        }
        other => panic!("{other}"),
    }
}

fn is_empty(landing: &Slab) -> bool {
    landing.occupancy().free == landing.occupancy().total
}

#[tokio::test]
async fn blocks_come_from_the_first_source_in_the_order_asked() {
    let pair = Pair::with(10).await;
    let landing = slab(10);
    let fetcher = fetcher(&landing, limits());
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    assert!(fetched.iter().all(|block| !block.replica));
    let bytes = (10 * SLICES * SLICE_BYTES) as u64;
    assert_eq!(fetcher.counters().bytes(Tier::PrefillHost), bytes);
    assert_eq!(fetcher.counters().bytes(Tier::Remote), 0);
    drop(fetched);
    assert!(is_empty(&landing));
}

#[tokio::test]
async fn a_first_source_that_says_no_places_is_asked_for_them() {
    let pair = Pair::with(5).await;
    let blocks: Vec<FetchBlock> = pair.samples.iter().map(|one| one.to_fetch(None)).collect();
    let fetcher = fetcher(&slab(5), limits());
    let fetched = fetcher.fetch(&blocks, &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    assert!(fetched.iter().all(|block| block.from == Tier::PrefillHost));
}

#[tokio::test]
async fn p2_one_flipped_bit_in_the_first_source_is_read_from_the_replica() {
    let flip = |n: usize| [(n == 2).then_some(SLICES - 1), None];
    let pair = Pair::damaged(4, flip).await;
    let fetcher = fetcher(&slab(4), limits());
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    let replicas: Vec<bool> = fetched.iter().map(|block| block.replica).collect();
    assert_eq!(replicas, [false, false, true, false]);
    let counters = fetcher.counters();
    assert_eq!(counters.failures(Cause::Corrupt), 1);
    assert_eq!((counters.blocks(), counters.replica_reads()), (4, 1));
    assert_eq!(counters.bytes(Tier::Remote), (SLICES * SLICE_BYTES) as u64);
}

/// Batches of the default size are hashed on another thread.
#[tokio::test]
async fn p2_one_flipped_bit_in_a_large_batch_is_found_too() {
    let pair = Pair::damaged(90, |n| [(n == 50).then_some(1), None]).await;
    let fetcher = fetcher(&slab(90), FetchLimits::default());
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    let counters = fetcher.counters();
    assert_eq!(counters.failures(Cause::Corrupt), 1);
    assert!(fetched[50].replica);
}

#[tokio::test]
async fn case_15_every_copy_damaged_is_an_error_and_never_an_answer() {
    let pair = Pair::damaged(3, |n| [(n == 1).then_some(0); 2]).await;
    let landing = slab(3);
    let fetcher = fetcher(&landing, limits());
    let error = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap_err();
    let expected = [("p0", Cause::Corrupt), ("m0", Cause::Corrupt)];
    assert_eq!(causes(&error), expected);
    assert!(error.to_string().starts_with("block 1 "), "{error}");
    assert!(is_empty(&landing));
}

#[tokio::test]
async fn case_10_a_dead_first_source_is_left_and_then_asked_last() {
    let pair = Pair::with(12).await;
    pair.first.kill_bulk().await;
    let landing = slab(12);
    let fetcher = fetcher(&landing, limits());
    for _ in 0..2 {
        let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
        pair.assert_all(&fetched);
        assert!(fetched.iter().all(|block| block.replica));
        // All three batches of the first call began before it was known; none of the second did.
        let unreachable = fetcher.counters().failures(Cause::Unreachable);
        assert_eq!(unreachable, 12);
    }
}

#[tokio::test]
async fn case_10_the_last_copy_is_read_though_its_node_is_quarantined() {
    let samples = samples(2);
    let home = Home::start(2).await;
    let grant = home.grant(2);
    let bad = samples[0].to_fetch(Some(home.keep(&grant, &samples[0], Some(3))));
    let good = samples[1].to_fetch(Some(home.keep(&grant, &samples[1], None)));
    let sources = [home.source("p0", Tier::PrefillHost, &grant)];
    let fetcher = fetcher(&slab(2), limits());
    let error = fetcher.fetch(&[bad], &sources).await.unwrap_err();
    assert_eq!(causes(&error), [("p0", Cause::Corrupt)]);
    let fetched = fetcher.fetch(&[good], &sources).await.unwrap();
    samples[1].assert_is(&fetched[0]);
}

#[tokio::test]
async fn case_02_a_frozen_first_source_is_left_after_its_deadline() {
    let pair = Pair::with(4).await;
    pair.first.freeze();
    let short = FetchLimits { batch_wait_max: Span::from_secs(1), ..limits() };
    let fetcher = fetcher(&slab(4), short);
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    assert!(fetched.iter().all(|block| block.replica));
    assert_eq!(fetcher.counters().failures(Cause::Timeout), 4);
}

/// One wrong reference or grant each: the first source refuses or sends what is not the block,
/// the second one's bytes are used; without a second one there is no answer.
#[tokio::test]
async fn case_13_bad_references_and_grants_never_give_other_bytes() {
    type Spoil = fn(&mut Source, &mut [SliceRef], &[SliceRef]);
    let table: [(&str, Cause, Spoil); 7] = [
        ("slot out of range", Cause::Refused, |_, at, _| {
            at[1].slot = 1 << 20;
        }),
        ("stale generation", Cause::Refused, |_, at, _| {
            at[1].generation += 1;
        }),
        ("another block's slots", Cause::Corrupt, |_, at, other| {
            at.copy_from_slice(other);
        }),
        ("two slices swapped", Cause::Corrupt, |_, at, _| {
            at.swap(0, 1);
        }),
        ("wrong secret", Cause::Refused, |source, _, _| {
            source.grant.secret = [1; 16];
        }),
        ("old epoch", Cause::Refused, |source, _, _| {
            source.grant.epoch = Epoch(0);
        }),
        ("unknown session", Cause::Refused, |source, _, _| {
            source.grant.session = ids::SessionId(8);
        }),
    ];
    let pair = Pair::with(2).await;
    for (what, cause, spoil) in table {
        let (mut sources, mut at) = (pair.sources(), pair.at[0].to_vec());
        spoil(&mut sources[0], &mut at, &pair.at[1]);
        let block = pair.samples[0].to_fetch(Some(at.into()));
        let landing = slab(2);
        let fetcher = fetcher(&landing, limits());
        let fetched = fetcher.fetch(std::slice::from_ref(&block), &sources).await.unwrap();
        pair.samples[0].assert_is(&fetched[0]);
        assert!(fetched[0].replica, "{what}");
        assert_eq!(fetcher.counters().failures(cause), 1, "{what}");
        let error = fetcher.fetch(&[block], &sources[..1]).await.unwrap_err();
        assert_eq!(causes(&error), [("p0", cause)], "{what}");
        drop(fetched);
        assert!(is_empty(&landing), "{what}");
    }
}

#[tokio::test]
async fn case_13_a_released_session_reads_nothing_from_its_former_references() {
    let pair = Pair::with(3).await;
    pair.first.release();
    let fetcher = fetcher(&slab(3), limits());
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    assert_eq!(fetcher.counters().failures(Cause::Refused), 3);
    // The slab has room for one answer.
    drop(fetched);
    pair.second.release();
    let error = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap_err();
    assert_eq!(causes(&error), [("p0", Cause::Refused), ("m0", Cause::Refused)]);
}

/// The first source lost block 1, the second never had block 2; together they have all.
#[tokio::test]
async fn case_29_a_lost_block_takes_no_other_block_of_its_batch_with_it() {
    let samples = samples(4);
    let (first, second) = (Home::start(4).await, Home::start(4).await);
    let grants = [first.grant(4), second.grant(4)];
    let mut at = first.keep_all(&grants[0], &samples);
    let mut lost = at[1].to_vec();
    lost[SLICES - 1].generation += 1;
    at[1] = lost.into();
    for n in [0, 1, 3] {
        second.keep(&grants[1], &samples[n], None);
    }
    let pair = Pair { samples, first, second, grants, at };
    let fetcher = fetcher(&slab(4), limits());
    let fetched = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    let replicas: Vec<bool> = fetched.iter().map(|block| block.replica).collect();
    assert_eq!(replicas, [false, true, false, false]);
}

#[tokio::test]
async fn case_29_a_block_that_no_source_keeps_is_missing() {
    let pair = Pair::with(1).await;
    let absent = crate::samples::sample(9).to_fetch(None);
    let fetcher = fetcher(&slab(1), limits());
    let error = fetcher.fetch(&[absent], &pair.sources()).await.unwrap_err();
    assert_eq!(causes(&error), [("p0", Cause::Missing), ("m0", Cause::Missing)]);
}

#[tokio::test]
async fn a_dead_control_plane_of_the_replica_is_named() {
    let pair = Pair::with(1).await;
    pair.first.kill_bulk().await;
    pair.second.kill_control().await;
    let fetcher = fetcher(&slab(1), limits());
    let error = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap_err();
    let expected = [("p0", Cause::Unreachable), ("m0", Cause::Unreachable)];
    assert_eq!(causes(&error), expected);
}

#[tokio::test]
async fn senseless_requests_are_refused_with_the_reason() {
    let pair = Pair::with(2).await;
    let fetcher = fetcher(&slab(2), limits());
    assert!(fetcher.fetch(&[], &[]).await.unwrap().is_empty());
    let error = fetcher.fetch(&pair.blocks(), &[]).await.unwrap_err();
    assert!(matches!(error, FetchError::NoSources { blocks: 2 }), "{error}");
    let mut blocks = pair.blocks();
    blocks[1].receipt.checksums = Arc::new([]);
    let error = fetcher.fetch(&blocks, &pair.sources()).await.unwrap_err();
    assert!(matches!(error, FetchError::NoSlices { index } if index.0 == 1), "{error}");
    let mut blocks = pair.blocks();
    blocks[0].at = Some(Arc::new([]));
    let fetched = fetcher.fetch(&blocks, &pair.sources()).await.unwrap();
    pair.assert_all(&fetched);
    assert!(fetched[0].replica);
}
