//! Copies onto a home: what is confirmed is readable there, anything else is not.

use std::sync::Arc;

use ids::{BlockKey, ByteCount, Tier};
use tiers::{Copied, Copier, CopyBlock, CopyFailure, CopyLimits, CopyStep, FetchBlock};
use tonic::Code;
use transfer::tcp::{ClientLimits, TcpTransport};
use transfer::{BoxFuture, BulkAddress, Credential, Failure, ReadFailed, Slot, SlotMut, SlotRef};
use transfer::{Transport, WriteFailed};

use crate::fetch::{fetcher, limits};
use crate::home::Home;
use crate::samples::{SLICE_BYTES, SLICES, Sample, samples, slab};

const BLOCK_BYTES: u64 = (SLICES * SLICE_BYTES) as u64;

fn copier() -> Copier {
    with(Arc::new(TcpTransport::new(ClientLimits::default())))
}

/// Two blocks a batch, one batch after the other: what is done when one fails is exact.
fn with(transport: Arc<dyn Transport>) -> Copier {
    let limits = CopyLimits {
        batch_slices_max: 2 * SLICES,
        batches_per_call_max: 1,
        ..CopyLimits::default()
    };
    Copier::new(transport, limits)
}

fn to_copy(samples: &[Sample]) -> Vec<CopyBlock> {
    let slab = slab(samples.len());
    samples.iter().map(|sample| sample.to_copy(&slab)).collect()
}

fn keys(samples: &[Sample]) -> Vec<BlockKey> {
    samples.iter().map(|sample| sample.receipt.key).collect()
}

#[tokio::test]
async fn copied_blocks_can_be_read_back_from_the_home() {
    let (samples, home) = (samples(7), Home::start(7).await);
    let grant = home.grant(7);
    let to = home.source("m0", Tier::Remote, &grant);
    let copied = copier().copy(&to, &to_copy(&samples)).await.unwrap();
    assert_eq!(copied.confirmed, keys(&samples));
    assert_eq!((copied.rejected.len(), copied.bytes), (0, ByteCount(7 * BLOCK_BYTES)));
    let blocks: Vec<FetchBlock> = samples.iter().map(|one| one.to_fetch(None)).collect();
    let fetched = fetcher(&slab(7), limits()).fetch(&blocks, &[to]).await.unwrap();
    for (fetched, sample) in fetched.iter().zip(&samples) {
        sample.assert_is(fetched);
    }
}

#[tokio::test]
async fn a_block_that_the_home_holds_is_confirmed_and_not_sent_again() {
    let (samples, home) = (samples(3), Home::start(3).await);
    let grant = home.grant(3);
    home.keep(&grant, &samples[1], None);
    let to = home.source("m0", Tier::Remote, &grant);
    let mut copied = copier().copy(&to, &to_copy(&samples)).await.unwrap();
    copied.confirmed.sort();
    assert_eq!(copied.confirmed, keys(&samples));
    assert_eq!(copied.bytes, ByteCount(2 * BLOCK_BYTES));
    let again = copier().copy(&to, &to_copy(&samples)).await.unwrap();
    assert_eq!((again.confirmed.len(), again.bytes), (3, ByteCount(0)));
}

#[tokio::test]
async fn p2_bytes_that_are_not_the_receipts_are_rejected_and_unreadable() {
    let (samples, home) = (samples(2), Home::start(2).await);
    let grant = home.grant(2);
    let mut blocks = to_copy(&samples);
    let other = Arc::clone(&blocks[1].slices);
    blocks[0].slices = other;
    let to = home.source("m0", Tier::Remote, &grant);
    let copied = copier().copy(&to, &blocks).await.unwrap();
    assert_eq!(copied.confirmed, keys(&samples[1..]));
    assert_eq!(copied.rejected, keys(&samples[..1]));
    assert!(!home.has(&grant, &samples[0]));
    assert_eq!(home.landing(), 0);
}

#[tokio::test]
async fn case_11_a_dead_home_fails_fast_and_confirms_nothing() {
    let (samples, home) = (samples(2), Home::start(2).await);
    let grant = home.grant(2);
    let to = home.source("m0", Tier::Remote, &grant);
    home.kill_bulk().await;
    let error = copier().copy(&to, &to_copy(&samples)).await.unwrap_err();
    let failure = &error.failure;
    assert!(matches!(failure, CopyFailure::Write(Failure::Unreachable(_))), "{failure:?}");
    assert_eq!(error.copied, Copied::default());
    assert!(!home.has(&grant, &samples[0]));
    home.kill_control().await;
    let error = copier().copy(&to, &to_copy(&samples)).await.unwrap_err();
    let failure = &error.failure;
    assert!(
        matches!(failure, CopyFailure::Asked { step: CopyStep::Place, status }
            if status.code() == Code::Unavailable),
        "{failure:?}"
    );
}

#[tokio::test]
async fn what_was_confirmed_before_a_failure_is_told() {
    let (samples, home) = (samples(5), Home::start(5).await);
    let grant = home.grant(3);
    let to = home.source("m0", Tier::Remote, &grant);
    let error = copier().copy(&to, &to_copy(&samples)).await.unwrap_err();
    assert_eq!(error.copied.confirmed, keys(&samples[..2]));
    let failure = &error.failure;
    assert!(
        matches!(failure, CopyFailure::Asked { step: CopyStep::Place, status }
            if status.code() == Code::ResourceExhausted),
        "{failure:?}"
    );
}

#[tokio::test]
async fn a_block_whose_slices_do_not_match_its_receipt_in_number_is_not_sent() {
    let (samples, home) = (samples(1), Home::start(1).await);
    let grant = home.grant(1);
    let mut blocks = to_copy(&samples);
    blocks[0].slices = blocks[0].slices[1..].into();
    let to = home.source("m0", Tier::Remote, &grant);
    let error = copier().copy(&to, &blocks).await.unwrap_err();
    assert!(matches!(error.failure, CopyFailure::Uneven { slices: 5, checksums: 6, .. }));
    assert_eq!(home.landing(), 0);
}

/// TCP, but the home ends the session when the second batch is about to be written.
struct EndsSession {
    tcp: TcpTransport,
    home: Arc<Home>,
    /// When the home keeps so many blocks.
    at_kept: usize,
}

impl Transport for EndsSession {
    fn read<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        landing: Vec<SlotMut>,
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Vec<SlotMut>, ReadFailed>> {
        self.tcp.read(peer, auth, refs, landing, deadline)
    }

    fn write<'a>(
        &'a self,
        peer: &'a BulkAddress,
        auth: &'a Credential,
        refs: &'a [SlotRef],
        sources: &'a [Slot],
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<(), WriteFailed>> {
        if self.home.kept() == self.at_kept {
            self.home.release();
        }
        self.tcp.write(peer, auth, refs, sources, deadline)
    }
}

#[tokio::test]
async fn case_02_a_write_that_is_refused_half_way_is_an_error_and_nothing_of_it_is_readable() {
    let (samples, home) = (samples(4), Arc::new(Home::start(4).await));
    let grant = home.grant(4);
    let to = home.source("m0", Tier::Remote, &grant);
    let transport = EndsSession {
        tcp: TcpTransport::new(ClientLimits::default()),
        home: Arc::clone(&home),
        at_kept: 2,
    };
    let copier = with(Arc::new(transport));
    let error = copier.copy(&to, &to_copy(&samples)).await.unwrap_err();
    assert_eq!(error.copied.confirmed, keys(&samples[..2]));
    let failure = &error.failure;
    assert!(matches!(failure, CopyFailure::Write(Failure::Refused(_))), "{failure:?}");
    assert_eq!((home.landing(), home.kept()), (0, 2));
}
