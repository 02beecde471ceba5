//! One try to read a group of blocks from one source: locate, read, verify.
//!
//! Blocks that fail are handed back with the source's reason; which source is next is decided one
//! level up.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use ids::{BlockKey, ShardId};
use proto::storage::{Locate, Located};
use remote::SliceRef;
use tokio::time::{Instant, timeout_at};
use transfer::{Failure, ReadFailed, Refusal, SlotMut, SlotRef};

use super::{Call, Cause, FetchBlock, FetchError, FetchedBlock, Fetcher, SourceFailure};
use crate::source::{Source, slot_ref};
use crate::verify::{Arrived, verify};

/// A block that is not there yet.
pub(super) struct Pending<'a> {
    /// Its place in the call's list.
    pub(super) at: usize,
    pub(super) block: &'a FetchBlock,
    /// Where it lands, one per slice; empty when a transport kept them after a failure.
    slots: Vec<SlotMut>,
    /// What the sources said that were asked so far.
    pub(super) failures: Vec<SourceFailure>,
}

impl<'a> Pending<'a> {
    pub(super) fn new(at: usize, block: &'a FetchBlock, slots: Vec<SlotMut>) -> Self {
        Self { at, block, slots, failures: Vec::new() }
    }

    fn slice_count(&self) -> usize {
        self.block.receipt.checksums.len()
    }
}

/// A block and where the source keeps it.
type Placed<'a> = (Pending<'a>, Arc<[SliceRef]>);

/// What came of one try.
pub(super) struct Tried<'a> {
    /// By place in the call's list.
    pub(super) done: Vec<(usize, FetchedBlock)>,
    /// Each with one more failure.
    pub(super) left: Vec<Pending<'a>>,
}

/// One try while it runs.
struct Attempt<'a> {
    fetcher: &'a Fetcher,
    source: &'a Source,
    /// Whether the source is another one than the first.
    replica: bool,
    deadline: Instant,
    left: Vec<Pending<'a>>,
}

/// A failure before it is noted for each block that it hits.
struct Why {
    cause: Cause,
    detail: Arc<str>,
}

impl Why {
    fn new(cause: Cause, detail: &str) -> Self {
        let detail = Arc::from(detail);
        Self { cause, detail }
    }

    fn of(cause: Cause, error: &dyn Error) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        Self::new(cause, &text)
    }
}

impl Fetcher {
    pub(super) async fn attempt<'a>(
        &'a self,
        call: &Call<'a>,
        which: usize,
        pending: Vec<Pending<'a>>,
    ) -> Result<Tried<'a>, FetchError> {
        let (began, now) = (self.now(), Instant::now());
        let own = now + self.limits.batch_wait_max.into();
        let mut attempt = Attempt {
            fetcher: self,
            source: &call.sources[which],
            replica: which != 0,
            deadline: own.min(call.deadline),
            left: Vec::new(),
        };
        let placed = attempt.place(pending, which == 0).await;
        let arrived = attempt.read(placed).await?;
        let done = attempt.check(arrived).await?;
        // A try that the call's deadline cut short says nothing about the peer.
        let cut = attempt.deadline < own;
        let bad = attempt.left.iter().filter_map(|block| block.failures.last());
        let counts = |cause: Cause| cause.is_of_peer() && !(cut && cause == Cause::Timeout);
        let node = &attempt.source.node;
        if bad.into_iter().any(|failure| counts(failure.cause)) {
            tracing::debug!(%node, blocks = attempt.left.len(), "a source failed, asked last now");
            self.quarantine.lock().failed(node, began, self.now());
        } else if !done.is_empty() {
            self.quarantine.lock().worked(node, began);
        }
        let left = attempt.left;
        Ok(Tried { done, left })
    }
}

impl<'a> Attempt<'a> {
    /// Finds out where the source keeps the blocks.
    async fn place(&mut self, pending: Vec<Pending<'a>>, first: bool) -> Vec<Placed<'a>> {
        let (mut placed, mut unknown) = (Vec::with_capacity(pending.len()), Vec::new());
        for block in pending {
            match &block.block.at {
                Some(at) if first => {
                    let at = Arc::clone(at);
                    self.fits(block, at, &mut placed);
                }
                Some(_) | None => unknown.push(block),
            }
        }
        if unknown.is_empty() {
            return placed;
        }
        match self.locate(&unknown).await {
            Ok(found) => {
                for block in unknown {
                    let receipt = &block.block.receipt;
                    match found.get(&(receipt.key, receipt.shard)) {
                        Some(at) => self.fits(block, Arc::clone(at), &mut placed),
                        None => self.fail(block, &Why::new(Cause::Missing, "not kept there")),
                    }
                }
            }
            Err(why) => self.fail_all(unknown, &why),
        }
        placed
    }

    /// Takes a place that has as many slots as the block has slices.
    fn fits(&mut self, block: Pending<'a>, at: Arc<[SliceRef]>, placed: &mut Vec<Placed<'a>>) {
        let (slices, slots) = (block.slice_count(), at.len());
        if slots == slices {
            placed.push((block, at));
        } else {
            let detail = format!("it names {slots} slots for {slices} slices");
            self.fail(block, &Why::new(Cause::Corrupt, &detail));
        }
    }

    async fn locate(
        &self,
        blocks: &[Pending<'a>],
    ) -> Result<BTreeMap<(BlockKey, ShardId), Arc<[SliceRef]>>, Why> {
        let mut keys: Vec<BlockKey> = blocks.iter().map(|one| one.block.receipt.key).collect();
        // Two shards of one block are one question.
        keys.dedup();
        let grant = self.source.grant.clone();
        let ask = proto::v1::LocateRequest::from(Locate { grant, keys });
        let wait = self.deadline.saturating_duration_since(Instant::now());
        let mut client = proto::client::memory_node(self.source.control.clone());
        let asking = client.locate(proto::with_deadline(ask, wait.into()));
        let answer = timeout_at(self.deadline, asking)
            .await
            .map_err(|_| Why::new(Cause::Timeout, "locate was not answered in time"))?
            .map_err(|status| Why::new(Cause::of_status(status.code()), status.message()))?;
        let answer = Located::try_from(answer.into_inner());
        let located = answer.map_err(|error| Why::of(Cause::Corrupt, &error))?;
        let places = located.found.into_iter();
        Ok(places.map(|at| ((at.key, at.shard), at.slices)).collect())
    }

    /// Reads all blocks as one batch. A refusal that names a slot takes only the block out that
    /// the slot belongs to; the others are asked for again.
    async fn read(&mut self, mut placed: Vec<Placed<'a>>) -> Result<Vec<Pending<'a>>, FetchError> {
        let auth = self.source.credential();
        while !placed.is_empty() {
            let (refs, landing) = self.batch(&mut placed)?;
            let transport = &self.fetcher.transport;
            let bulk = &self.source.bulk;
            let reading = transport.read(bulk, &auth, &refs, landing, self.deadline);
            let ReadFailed { landing, failure } = match reading.await {
                Ok(landing) => {
                    give_back(&mut placed, landing);
                    return Ok(placed.into_iter().map(|(block, _)| block).collect());
                }
                Err(failed) => failed,
            };
            give_back(&mut placed, landing);
            let why = Why::of(Cause::of_read(&failure), &failure);
            let refused = slot_refused(&failure);
            let names = |(_, at): &Placed<'a>| {
                refused.is_some_and(|slot| at.iter().any(|at| at.slot == slot))
            };
            let (hit, rest): (Vec<_>, Vec<_>) = placed.into_iter().partition(names);
            // A refusal of none of these slots, or of the whole batch, hits all.
            let (hit, rest) = if hit.is_empty() { (rest, hit) } else { (hit, rest) };
            self.fail_all(hit.into_iter().map(|(block, _)| block).collect(), &why);
            placed = rest;
        }
        Ok(Vec::new())
    }

    /// References and landing slots of a batch, block after block.
    fn batch(&self, placed: &mut [Placed<'a>]) -> Result<(Vec<SlotRef>, Vec<SlotMut>), FetchError> {
        let (mut refs, mut landing) = (Vec::new(), Vec::new());
        for (block, at) in placed {
            let count = block.slice_count();
            if block.slots.len() != count {
                block.slots = self.fetcher.room.try_replace(count)?;
            }
            refs.extend(at.iter().map(slot_ref));
            landing.append(&mut block.slots);
        }
        Ok((refs, landing))
    }

    /// Lets only what hashes to its receipt through.
    async fn check(
        &mut self,
        mut arrived: Vec<Pending<'a>>,
    ) -> Result<Vec<(usize, FetchedBlock)>, FetchError> {
        let hash = |block: &mut Pending<'a>| Arrived {
            slots: std::mem::take(&mut block.slots),
            checksums: Arc::clone(&block.block.receipt.checksums),
        };
        let verified = verify(arrived.iter_mut().map(hash).collect())
            .await
            .map_err(|_| FetchError::Stopped)?;
        let mut done = Vec::with_capacity(arrived.len());
        for (mut block, verified) in arrived.into_iter().zip(verified) {
            if let Some(wrong) = verified.wrong {
                block.slots = verified.slots;
                let detail = format!("slice {wrong} does not hash to its receipt");
                self.fail(block, &Why::new(Cause::Corrupt, &detail));
                continue;
            }
            let (from, replica) = (self.source.tier, self.replica);
            let bytes = verified.slots.iter().map(|slot| slot.len()).sum();
            self.fetcher.counters.note_read(from, bytes, replica);
            let fetched = FetchedBlock {
                receipt: block.block.receipt.clone(),
                slices: verified.slots,
                from,
                replica,
            };
            done.push((block.at, fetched));
        }
        Ok(done)
    }

    fn fail_all(&mut self, blocks: Vec<Pending<'a>>, why: &Why) {
        for block in blocks {
            self.fail(block, why);
        }
    }

    fn fail(&mut self, mut block: Pending<'a>, why: &Why) {
        self.fetcher.counters.note_failure(why.cause);
        block.failures.push(SourceFailure {
            node: self.source.node.clone(),
            tier: self.source.tier,
            cause: why.cause,
            detail: Arc::clone(&why.detail),
        });
        self.left.push(block);
    }
}

/// Hands landing slots back to their blocks in order; slots that did not come back stay missing.
fn give_back(placed: &mut [Placed<'_>], landing: Vec<SlotMut>) {
    let mut landing = landing.into_iter();
    for (block, _) in placed {
        let count = block.slice_count();
        block.slots = landing.by_ref().take(count).collect();
    }
}

/// The slot that a peer refused, when the rest of the batch may be fine.
fn slot_refused(failure: &Failure) -> Option<u32> {
    let Failure::Refused(refusal) = failure else {
        return None;
    };
    match refusal {
        Refusal::NotYours(slot) | Refusal::StaleGeneration(slot) => Some(*slot),
        Refusal::NoGrant
        | Refusal::Expired
        | Refusal::StaleEpoch
        | Refusal::TooMany { .. }
        | Refusal::SliceBytes { .. } => None,
    }
}
