//! Landing slots: requests larger than the slab, calls that compete for it, calls that are dropped.

use std::sync::Arc;

use futures::future::{join_all, select};
use ids::Span;
use tiers::{FetchError, FetchLimits};

use crate::fetch::{Pair, fetcher, limits};
use crate::samples::{SLICES, slab};

#[tokio::test]
async fn p4_a_request_larger_than_the_slab_gets_through_piece_by_piece() {
    let pair = Pair::with(40).await;
    let landing = slab(3);
    let fetcher = fetcher(&landing, limits());
    let error = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap_err();
    let (all, room) = (40 * SLICES, 3 * SLICES as u32);
    assert!(
        matches!(error, FetchError::NeverFits { wanted, total } if wanted == all && total == room),
        "{error}"
    );
    let mut seen = [false; 40];
    let deliver = |block: tiers::FetchedBlock| {
        let n = block.receipt.index.index();
        pair.samples[n].assert_is(&block);
        assert!(!std::mem::replace(&mut seen[n], true), "delivered once");
    };
    fetcher.fetch_each(&pair.blocks(), &pair.sources(), deliver).await.unwrap();
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(landing.occupancy().free, room);
}

#[tokio::test]
async fn p4_calls_that_do_not_fit_together_wait_for_each_other_and_all_finish() {
    let pair = Pair::with(10).await;
    let landing = slab(15);
    let fetcher = fetcher(&landing, limits());
    let (blocks, sources) = (pair.blocks(), pair.sources());
    let one = async || {
        let fetched = fetcher.fetch(&blocks, &sources).await.unwrap();
        pair.assert_all(&fetched);
    };
    join_all((0..8).map(|_| one())).await;
    assert_eq!(landing.occupancy().free, landing.occupancy().total);
}

#[tokio::test]
async fn p4_a_slab_that_stays_full_is_an_error_by_name() {
    let pair = Pair::with(2).await;
    let landing = slab(2);
    let held = landing.try_alloc_many(SLICES as u32).unwrap();
    let short = FetchLimits { call_wait_max: Span::from_millis(20), ..limits() };
    let fetcher = fetcher(&landing, short);
    let error = fetcher.fetch(&pair.blocks(), &pair.sources()).await.unwrap_err();
    let free_then = SLICES as u32;
    assert!(matches!(error, FetchError::NoRoom { free, .. } if free == free_then), "{error}");
    drop(held);
    assert_eq!(landing.occupancy().free, landing.occupancy().total);
}

#[tokio::test]
async fn p6_a_dropped_call_frees_its_landing_slots_and_lets_the_next_one_in() {
    let pair = Pair::with(6).await;
    pair.first.freeze();
    let landing = slab(6);
    let fetcher = Arc::new(fetcher(&landing, limits()));
    let (blocks, sources) = (pair.blocks(), pair.sources());
    {
        let reading = Box::pin(fetcher.fetch(&blocks, &sources));
        let stuck = Box::pin(pair.first.stuck());
        let first = select(reading, stuck).await;
        assert!(matches!(first, futures::future::Either::Right(_)), "it is stuck");
        assert_eq!(landing.occupancy().free, 0);
        drop(first);
    }
    assert_eq!(landing.occupancy().free, landing.occupancy().total);
    let unplaced: Vec<_> = pair.samples.iter().map(|one| one.to_fetch(None)).collect();
    let fetched = fetcher.fetch(&unplaced, &sources[1..]).await.unwrap();
    pair.assert_all(&fetched);
}

#[test]
fn calls_can_run_on_any_thread() {
    fn is_send<T: Send>(_: &T) {}
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let fetcher = fetcher(&slab(1), limits());
    is_send(&fetcher.fetch(&[], &[]));
    is_send(&fetcher.fetch_each(&[], &[], drop));
}
