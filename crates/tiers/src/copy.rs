//! Putting copies of sealed blocks onto a home: place, bulk write, commit.
//!
//! The home verifies what landed against the receipts before anybody can read it. Nothing is
//! repeated here: what was not confirmed is the caller's to place elsewhere. What a dropped or
//! failed copy leaves landing at the home is freed by commit, or with the session.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use ids::{BlockIdx, BlockKey, ByteCount, NodeId, Span};
use proto::storage::{Commit, Committed, Place, Placed};
use proto::{InvalidMessage, v1};
use remote::BlockReceipt;
use tokio::time::{Instant, timeout_at};
use tonic::{Response, Status};
use transfer::{Failure, Slot, SlotRef, Transport, WriteFailed};

use crate::Source;
use crate::groups::groups;
use crate::source::slot_ref;

/// A sealed block to copy.
#[derive(Clone, Debug)]
pub struct CopyBlock {
    /// What its slices hash to.
    pub receipt: BlockReceipt,
    /// In the receipt's order.
    pub slices: Arc<[Slot]>,
}

/// Bounds of a [`Copier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// For each step of a batch: place, write, commit.
    pub step_wait_max: Span,
    /// Slices of one batch. A block is never split, so one that has more is a batch of its own.
    pub batch_slices_max: usize,
    /// Batches of one call at once.
    pub batches_per_call_max: usize,
}

impl Default for CopyLimits {
    /// Two batches: one on the wire while the home verifies the other.
    fn default() -> Self {
        Self { step_wait_max: Span::from_secs(2), batch_slices_max: 512, batches_per_call_max: 2 }
    }
}

/// What a home has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Verified by the home and readable there, the ones that it held before included.
    pub confirmed: Vec<BlockKey>,
    /// Did not arrive whole or did not hash to the receipt: not there.
    pub rejected: Vec<BlockKey>,
    /// Slices that crossed the wire.
    pub bytes: ByteCount,
}

/// A question in the course of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the calls")]
pub enum CopyStep {
    Place,
    Commit,
}

impl std::fmt::Display for CopyStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Place => "place",
            Self::Commit => "commit",
        })
    }
}

/// Not all blocks could be copied.
#[derive(Debug, thiserror::Error)]
#[error("copying to {home} stopped after {} blocks", .copied.confirmed.len())]
pub struct CopyError {
    /// The home.
    pub home: NodeId,
    /// What it has all the same; anything else is not known to be there.
    pub copied: Copied,
    /// Why the rest is not.
    #[source]
    pub failure: CopyFailure,
}

/// Why a batch of blocks was not copied. Repeating a copy is safe: blocks are placed anew.
#[derive(Debug, thiserror::Error)]
pub enum CopyFailure {
    /// A block's slices and checksums differ in number: nothing of its batch was sent.
    #[error(
        "block {} has {slices} slices and {checksums} checksums; they must be as many",
        .index.0
    )]
    Uneven {
        /// Which block of the sequence.
        index: BlockIdx,
        /// Slices given.
        slices: usize,
        /// Checksums of its receipt.
        checksums: usize,
    },
    /// The home did not answer in time.
    #[error("{step} was not answered in time (step_wait_max)")]
    Late {
        /// Which question.
        step: CopyStep,
    },
    /// The home said no, or could not be asked.
    #[error("{step} failed")]
    Asked {
        /// Which question.
        step: CopyStep,
        /// The answer.
        #[source]
        status: Box<Status>,
    },
    /// The home's answer makes no sense.
    #[error("the answer to {step} is malformed")]
    Malformed {
        /// Which question.
        step: CopyStep,
        /// What is wrong.
        #[source]
        source: InvalidMessage,
    },
    /// The home neither opened slots for a block nor has it.
    #[error("the home did not say where block {} goes", .index.0)]
    Unplaced {
        /// Which block of the sequence.
        index: BlockIdx,
    },
    /// Bytes did not get across.
    #[error("the bulk write failed")]
    Write(#[source] Failure),
}

/// Puts sealed blocks onto homes.
pub struct Copier {
    transport: Arc<dyn Transport>,
    limits: CopyLimits,
}

impl Copier {
    /// A copier over this transport.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, limits: CopyLimits) -> Self {
        Self { transport, limits }
    }

    /// Puts blocks onto one home, a few batches at once. Blocks that it has already are not sent.
    ///
    /// # Errors
    /// [`CopyError`] at the first batch that fails; batches at work then are finished, no new one
    /// is begun.
    pub async fn copy(&self, home: &Source, blocks: &[CopyBlock]) -> Result<Copied, CopyError> {
        let slices = blocks.iter().map(|block| block.receipt.checksums.len());
        let mut waiting = groups(slices, self.limits.batch_slices_max).into_iter();
        let (mut copied, mut failed) = (Copied::default(), None);
        let mut running = FuturesUnordered::new();
        loop {
            while failed.is_none() && running.len() < self.limits.batches_per_call_max.max(1) {
                let Some(range) = waiting.next() else { break };
                running.push(self.batch(home, &blocks[range]).boxed());
            }
            let Some((part, result)) = running.next().await else {
                break;
            };
            copied.confirmed.extend(part.confirmed);
            copied.rejected.extend(part.rejected);
            copied.bytes += part.bytes;
            failed = failed.or(result.err());
        }
        match failed {
            None => Ok(copied),
            Some(failure) => Err(CopyError { home: home.node.clone(), copied, failure }),
        }
    }

    /// One batch; what it achieved is told also when it failed.
    async fn batch(
        &self,
        home: &Source,
        blocks: &[CopyBlock],
    ) -> (Copied, Result<(), CopyFailure>) {
        let mut copied = Copied::default();
        let result = self.try_batch(home, blocks, &mut copied).await;
        (copied, result)
    }

    async fn try_batch(
        &self,
        home: &Source,
        blocks: &[CopyBlock],
        copied: &mut Copied,
    ) -> Result<(), CopyFailure> {
        let order = self.place(home, blocks, copied).await?;
        if order.keys.is_empty() {
            return Ok(());
        }
        let (auth, deadline) = (home.credential(), self.deadline());
        let (refs, slices) = (&order.refs, &order.slices);
        let writing = self.transport.write(&home.bulk, &auth, refs, slices, deadline);
        let written = writing.await;
        let landed = match &written {
            Ok(()) => slices.len(),
            Err(failed) => failed.landed,
        };
        let bytes = slices[..landed].iter().map(|slot| slot.len() as u64);
        copied.bytes += ByteCount(bytes.sum());
        let Err(WriteFailed { failure, .. }) = written else {
            return self.commit(home, order.keys, copied).await;
        };
        // A home that still answers keeps the blocks that arrived whole and drops the others now,
        // not when the session ends. Whether that works changes nothing about the failure.
        match failure {
            Failure::Deadline | Failure::Unreachable(_) => {}
            Failure::Refused(_)
            | Failure::Busy { .. }
            | Failure::TooManyPeers { .. }
            | Failure::Broken(_)
            | Failure::Malformed(_)
            | Failure::Uneven { .. } => {
                if let Err(error) = self.commit(home, order.keys, copied).await {
                    tracing::debug!(%error, node = %home.node, "what landed was not committed");
                }
            }
        }
        Err(CopyFailure::Write(failure))
    }

    /// Asks for slots; notes what the home has already.
    async fn place(
        &self,
        home: &Source,
        blocks: &[CopyBlock],
        copied: &mut Copied,
    ) -> Result<WriteOrder, CopyFailure> {
        for block in blocks {
            let (slices, checksums) = (block.slices.len(), block.receipt.checksums.len());
            if slices != checksums {
                let index = block.receipt.index;
                return Err(CopyFailure::Uneven { index, slices, checksums });
            }
        }
        let step = CopyStep::Place;
        let receipts = blocks.iter().map(|block| block.receipt.clone()).collect();
        let ask = v1::PlaceRequest::from(Place { grant: home.grant.clone(), receipts });
        let mut client = proto::client::memory_node(home.control.clone());
        let asking = client.place(proto::with_deadline(ask, self.limits.step_wait_max));
        let answer = self.answer(step, asking).await?;
        let placed =
            Placed::try_from(answer).map_err(|source| CopyFailure::Malformed { step, source })?;
        let held: BTreeSet<BlockKey> = placed.held.into_iter().collect();
        let places = placed.place.into_iter();
        let mut places: BTreeMap<_, _> = places.map(|at| ((at.key, at.shard), at.slices)).collect();
        let mut order = WriteOrder::default();
        for block in blocks {
            let (key, shard) = (block.receipt.key, block.receipt.shard);
            match places.remove(&(key, shard)) {
                Some(at) if at.len() == block.slices.len() => {
                    order.keys.push(key);
                    order.refs.extend(at.iter().map(slot_ref));
                    order.slices.extend(block.slices.iter().cloned());
                }
                None if held.contains(&key) => copied.confirmed.push(key),
                Some(_) | None => {
                    let index = block.receipt.index;
                    return Err(CopyFailure::Unplaced { index });
                }
            }
        }
        Ok(order)
    }

    async fn commit(
        &self,
        home: &Source,
        keys: Vec<BlockKey>,
        copied: &mut Copied,
    ) -> Result<(), CopyFailure> {
        let step = CopyStep::Commit;
        // Once each: a second question about a key would find nothing landing.
        let asked: BTreeSet<BlockKey> = keys.into_iter().collect();
        let keys = asked.iter().copied().collect();
        let grant = home.grant.clone();
        let ask = v1::CommitRequest::from(Commit { grant, keys });
        let mut client = proto::client::memory_node(home.control.clone());
        let asking = client.commit(proto::with_deadline(ask, self.limits.step_wait_max));
        let answer = self.answer(step, asking).await?;
        let answer = Committed::try_from(answer)
            .map_err(|source| CopyFailure::Malformed { step, source })?;
        let rejected: BTreeSet<BlockKey> = answer.rejected.into_iter().collect();
        let committed: BTreeSet<BlockKey> = answer.committed.into_iter().collect();
        for key in asked {
            // One shard of a block that was rejected spoils the block; silence is a rejection.
            if committed.contains(&key) && !rejected.contains(&key) {
                copied.confirmed.push(key);
            } else {
                copied.rejected.push(key);
            }
        }
        Ok(())
    }

    async fn answer<T>(
        &self,
        step: CopyStep,
        asking: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CopyFailure> {
        let answered = timeout_at(self.deadline(), asking).await;
        let answer = answered.map_err(|_| CopyFailure::Late { step })?;
        let status = |status| CopyFailure::Asked { step, status: Box::new(status) };
        answer.map(Response::into_inner).map_err(status)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limits.step_wait_max.into()
    }
}

/// What to write where, for the blocks that a home does not have.
#[derive(Default)]
struct WriteOrder {
    keys: Vec<BlockKey>,
    /// One per slice, block after block.
    refs: Vec<SlotRef>,
    slices: Vec<Slot>,
}
