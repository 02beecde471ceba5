//! What any transport must do, generic over how client and server are made.

use std::sync::Arc;
use std::time::Duration;

use ids::Epoch;
use tokio::time::Instant;
use transfer::{
    BulkAddress, Credential, Failure, Gate, Outcome, Refusal, SlotMut, SlotRef, Transport,
};

use crate::shelf::{AUTH, Shelf, matches, pattern, slab};

/// A transport under test.
pub(crate) trait Make {
    type Client: Transport;

    /// A client, and the address at which `gate` is served for as long as `self` lives.
    fn make(&self, gate: Arc<dyn Gate>) -> (Self::Client, BulkAddress);
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn landing(count: usize, bytes: usize) -> Vec<SlotMut> {
    slab(count.max(1) as u32, bytes).try_alloc_many(count as u32).unwrap()
}

/// Batches of 0 to 5,000 slices of 4, 8 and 16 KiB arrive whole and in order, out and back.
pub(crate) async fn batches_arrive_whole_and_in_order(make: &impl Make) {
    for bytes in [4 << 10, 8 << 10, 16 << 10] {
        for count in [0, 1, 2, 127, 1000, 5000] {
            if bytes > 4 << 10 && count == 1000 {
                continue;
            }
            let shelf = Arc::new(Shelf::new(2 * count.max(1) as u32, bytes));
            let (client, peer) = make.make(shelf.clone());
            let mut refs = shelf.fill(count);
            refs.reverse();
            let read = client.read(&peer, &AUTH, &refs, landing(count, bytes), soon()).await;
            let slots = read.unwrap();
            assert_eq!(slots.len(), count);
            for (n, slot) in slots.iter().rev().enumerate() {
                assert!(matches(n, slot), "slice {n} of {count} with {bytes} bytes");
            }
            let sources: Vec<_> = slots.into_iter().map(SlotMut::seal).collect();
            let targets = shelf.open(count);
            client.write(&peer, &AUTH, &targets, &sources, soon()).await.unwrap();
            assert_eq!(shelf.landed_and_aborted(), (count, 0));
            for (n, at) in targets.iter().rev().enumerate() {
                assert!(matches(n, &shelf.sealed(*at).unwrap()));
            }
        }
    }
}

async fn refused_read(
    client: &impl Transport,
    peer: &BulkAddress,
    auth: Credential,
    refs: &[SlotRef],
) -> Refusal {
    let into = landing(refs.len(), 4096);
    let failed = client.read(peer, &auth, refs, into, soon()).await.unwrap_err();
    assert_eq!(failed.landing.len(), refs.len(), "the landing slots come back");
    assert_eq!(failed.failure.outcome(), Outcome::NothingDone);
    match failed.failure {
        Failure::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

async fn refused_write(
    client: &impl Transport,
    peer: &BulkAddress,
    auth: Credential,
    refs: &[SlotRef],
) -> Refusal {
    let sources: Vec<_> = landing(refs.len(), 4096).into_iter().map(SlotMut::seal).collect();
    let failed = client.write(peer, &auth, refs, &sources, soon()).await.unwrap_err();
    assert_eq!(failed.landed, 0);
    match failed.failure {
        Failure::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Case 13: every bad reference is a typed error, and the connection serves the next batch.
pub(crate) async fn case_13_refusals_are_typed_and_harmless(make: &impl Make) {
    let shelf = Arc::new(Shelf::new(16, 4096));
    let (client, peer) = make.make(shelf.clone());
    let refs = shelf.fill(3);
    let targets = shelf.open(3);
    let stranger = Credential { secret: [0; 16], ..AUTH };
    let fenced = Credential { epoch: Epoch(2), ..AUTH };
    let outside = SlotRef { slot: 4_000_000_000, generation: 1 };
    let stale = |at: SlotRef| SlotRef { generation: at.generation + 1, ..at };
    assert_eq!(refused_read(&client, &peer, stranger, &refs).await, Refusal::NoGrant);
    assert_eq!(refused_write(&client, &peer, stranger, &targets).await, Refusal::NoGrant);
    assert_eq!(refused_read(&client, &peer, fenced, &refs).await, Refusal::StaleEpoch);
    assert_eq!(refused_write(&client, &peer, fenced, &targets).await, Refusal::StaleEpoch);
    let some = [refs[0], outside];
    assert_eq!(refused_read(&client, &peer, AUTH, &some).await, Refusal::NotYours(outside.slot));
    let into_sealed = refused_write(&client, &peer, AUTH, &refs).await;
    assert_eq!(into_sealed, Refusal::NotYours(refs[0].slot), "sealed is immutable");
    let unsealed = refused_read(&client, &peer, AUTH, &targets).await;
    assert_eq!(unsealed, Refusal::NotYours(targets[0].slot), "P2: landing is not readable");
    let old = refused_read(&client, &peer, AUTH, &[stale(refs[1])]).await;
    assert_eq!(old, Refusal::StaleGeneration(refs[1].slot));
    let wrong_size = client.read(&peer, &AUTH, &refs, landing(3, 512), soon()).await.unwrap_err();
    let expected = Refusal::SliceBytes { bytes: 4096 };
    assert!(matches!(wrong_size.failure, Failure::Refused(refusal) if refusal == expected));
    let uneven = client.read(&peer, &AUTH, &refs, landing(2, 4096), soon()).await.unwrap_err();
    assert!(matches!(uneven.failure, Failure::Uneven { refs: 3, slots: 2 }));

    let fine = client.read(&peer, &AUTH, &refs, landing(3, 4096), soon()).await.unwrap();
    assert!(matches(2, &fine[2]), "the connection is still usable");
    assert_eq!(shelf.landed_and_aborted(), (0, 0));
    shelf.expire();
    assert_eq!(refused_read(&client, &peer, AUTH, &refs).await, Refusal::Expired);
}

/// P7: what was being sent or could have been is not reused, and a removed slot is refused.
pub(crate) async fn p7_a_removed_slot_is_refused_not_replaced(make: &impl Make) {
    let shelf = Arc::new(Shelf::new(1, 4096));
    let (client, peer) = make.make(shelf.clone());
    let old = shelf.fill(1);
    shelf.remove(old[0]);
    let new = shelf.fill(1);
    assert_eq!(old[0].slot, new[0].slot, "the one slot was reused");
    let refusal = refused_read(&client, &peer, AUTH, &old).await;
    assert_eq!(refusal, Refusal::StaleGeneration(old[0].slot));
}

/// A right lost between opening and landing: the writer learns that nothing was kept.
pub(crate) async fn p7_a_write_that_lost_its_right_is_not_confirmed(make: &impl Make) {
    let shelf = Arc::new(Shelf::new(8, 4096));
    let (client, peer) = make.make(shelf.clone());
    let targets = shelf.open(2);
    shelf.close();
    assert_eq!(refused_write(&client, &peer, AUTH, &targets).await, Refusal::NoGrant);
    assert_eq!(shelf.landed_and_aborted(), (0, 0));
    assert_eq!(shelf.slab.occupancy().free, 8, "P6: the refused slots are free");
}

/// Many batches of one client at once, more than it has connections.
pub(crate) async fn concurrent_batches_do_not_mix(make: &impl Make) {
    let shelf = Arc::new(Shelf::new(640, 4096));
    let (client, peer) = make.make(shelf.clone());
    let refs = shelf.fill(640);
    let one = |worker: usize| {
        let (client, peer, own) = (&client, &peer, &refs[worker * 20..(worker + 1) * 20]);
        async move {
            for _ in 0..5 {
                let into = landing(20, 4096);
                let slots = client.read(peer, &AUTH, own, into, soon()).await.unwrap();
                for (i, slot) in slots.iter().enumerate() {
                    assert!(matches(worker * 20 + i, slot));
                }
            }
        }
    };
    let mut all = Vec::new();
    for worker in 0..32 {
        all.push(one(worker));
    }
    join(all).await;
}

/// Polls all futures to their end on one task.
async fn join<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut left: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        left.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if left.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Dropping a batch at any await point leaves neither a torn answer nor a leaked slot behind.
pub(crate) async fn p6_a_cancelled_batch_leaves_nothing_behind(make: &impl Make) {
    let shelf = Arc::new(Shelf::new(600, 4096));
    let (client, peer) = make.make(shelf.clone());
    let refs = shelf.fill(300);
    let own = slab(300, 4096);
    for polls in 1..12 {
        let into = own.try_alloc_many(300).unwrap();
        let mut batch = client.read(&peer, &AUTH, &refs, into, soon());
        for _ in 0..polls {
            let ready = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(batch.as_mut().poll(cx).is_ready())
            });
            if ready.await {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(batch);
        assert_eq!(own.occupancy().free, 300, "the landing slots died with the batch");
        let into = own.try_alloc_many(300).unwrap();
        let whole = client.read(&peer, &AUTH, &refs, into, soon()).await.unwrap();
        assert!(whole.iter().enumerate().all(|(n, slot)| matches(n, slot)));
    }
    let mut source = slab(1, 4096).try_alloc().unwrap();
    pattern(1, &mut source);
    let target = shelf.open(1);
    let source = [source.seal()];
    client.write(&peer, &AUTH, &target, &source, soon()).await.unwrap();
    assert!(matches(1, &shelf.sealed(target[0]).unwrap()));
}
