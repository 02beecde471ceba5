//! Reading blocks: first source first, then the next ones, verified, all or an error.
//!
//! ```text
//! fetch ─► room for everything ─► groups, a few at once ─► per group: source by source
//!                                      locate (unless told where) ─► read ─► verify
//!                                      what failed goes on to the next source, the rest is done
//! ```
//! No background work: dropping a future closes its connections and frees its landing slots
//! (those that are being hashed at that moment, when that one batch is hashed).

use std::ops::Range;
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use ids::{Moment, Span, Tier};
use parking_lot::Mutex;
use remote::{BlockReceipt, SliceRef};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use transfer::{Slab, SlabReservation, SlotMut, Transport};

use crate::Source;
use crate::groups::groups;
use crate::quarantine::Quarantine;
use crate::room::Room;

mod attempt;
mod counters;
mod error;

use attempt::Pending;
pub use counters::FetchCounters;
pub use error::{Cause, FetchError, SourceFailure};

/// A block to read.
#[derive(Clone, Debug)]
pub struct FetchBlock {
    /// What its slices must hash to.
    pub receipt: BlockReceipt,
    /// Where the first source keeps it, as it said when it sealed the block, in the receipt's
    /// order; `None` to ask it. Later sources are always asked.
    pub at: Option<Arc<[SliceRef]>>,
}

/// A block that was read.
#[derive(Debug)]
pub struct FetchedBlock {
    /// What was asked for.
    pub receipt: BlockReceipt,
    /// Landing slots, verified, in the receipt's order.
    pub slices: Vec<SlotMut>,
    /// Which kind of memory it came from.
    pub from: Tier,
    /// Whether it came from another source than the first.
    pub replica: bool,
}

/// Bounds of a [`Fetcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// For a whole call, waiting for landing slots included.
    pub call_wait_max: Span,
    /// For one batch at one source: to locate and to read it.
    pub batch_wait_max: Span,
    /// Slices of one batch. A block is never split, so one that has more is a batch of its own.
    pub batch_slices_max: usize,
    /// Batches of one call at once.
    pub batches_per_call_max: usize,
    /// Batches of all calls at once; above the transport's own bound per peer some are refused
    /// as busy.
    pub batches_max: usize,
    /// How long a peer is asked last after a first failure.
    pub quarantine_min: Span,
    /// The longest that it is; each failure doubles.
    pub quarantine_max: Span,
}

impl Default for FetchLimits {
    /// 512 slices are 2 MiB at d = 64: a few milliseconds of a 10 Gbit/s link.
    fn default() -> Self {
        Self {
            call_wait_max: Span::from_secs(30),
            batch_wait_max: Span::from_secs(2),
            batch_slices_max: 512,
            batches_per_call_max: 4,
            batches_max: 32,
            quarantine_min: Span::from_millis(100),
            quarantine_max: Span::from_secs(5),
        }
    }
}

/// Reads blocks into one landing slab.
pub struct Fetcher {
    transport: Arc<dyn Transport>,
    room: Room,
    limits: FetchLimits,
    /// One permit per batch at work.
    batches: Semaphore,
    quarantine: Mutex<Quarantine>,
    /// Moments count from here.
    started: Instant,
    counters: FetchCounters,
}

/// What does not change during one call.
struct Call<'a> {
    blocks: &'a [FetchBlock],
    sources: &'a [Source],
    deadline: Instant,
}

/// Blocks of a call that are read together.
struct Group {
    range: Range<usize>,
    /// Landing slots that the call has reserved for it; without, it waits for its own.
    room: Option<SlabReservation>,
}

impl Fetcher {
    /// A fetcher that lands what it reads in `landing`.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, landing: Slab, limits: FetchLimits) -> Self {
        Self {
            transport,
            room: Room::new(landing),
            limits,
            batches: Semaphore::new(limits.batches_max.clamp(1, Semaphore::MAX_PERMITS)),
            quarantine: Mutex::new(Quarantine::new(limits.quarantine_min, limits.quarantine_max)),
            started: Instant::now(),
            counters: FetchCounters::default(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> &FetchCounters {
        &self.counters
    }

    /// Reads and verifies all blocks, in the order asked, each from the first source that gives
    /// it. All of them are in the landing slab together: [`FetchError::NeverFits`] when the slab
    /// is too small for that; [`Self::fetch_each`] has no such bound.
    ///
    /// # Errors
    /// [`FetchError`]; no landing slot stays taken.
    pub async fn fetch(
        &self,
        blocks: &[FetchBlock],
        sources: &[Source],
    ) -> Result<Vec<FetchedBlock>, FetchError> {
        let call = self.call(blocks, sources)?;
        // For the whole call at once: a call that held half of its slots while waiting for the
        // other half could wait for another one that does the same.
        let wanted = slices_of(blocks);
        let mut room = self.room.reserve(wanted, call.deadline).await?;
        let cut = |range: Range<usize>| {
            let count = u32::try_from(slices_of(&blocks[range.clone()])).ok();
            let own = count.and_then(|count| room.split(count));
            let room = Some(own.expect("reserved for all blocks"));
            Group { range, room }
        };
        let ranges = groups(blocks.iter().map(slice_count), self.limits.batch_slices_max);
        let parts: Vec<Group> = ranges.into_iter().map(cut).collect();
        let mut out: Vec<Option<FetchedBlock>> = Vec::new();
        out.resize_with(blocks.len(), || None);
        self.run(&call, parts, |at, block| out[at] = Some(block)).await?;
        let all = out.into_iter().map(|block| block.expect("run is all or error"));
        Ok(all.collect())
    }

    /// Reads and verifies all blocks and hands each over as soon as it is there, in any order.
    /// Holds at most half the landing slab at once for blocks not yet handed over (or one block),
    /// so it gets through with a slab that is smaller than the request, provided that `deliver`
    /// soon lets the slots go.
    ///
    /// # Errors
    /// [`FetchError`]; what was handed over before is verified and stays with the caller.
    pub async fn fetch_each(
        &self,
        blocks: &[FetchBlock],
        sources: &[Source],
        mut deliver: impl FnMut(FetchedBlock),
    ) -> Result<(), FetchError> {
        let call = self.call(blocks, sources)?;
        // Two groups fit at least, so that one is on the wire while the other is handed over.
        let slices_max = self.limits.batch_slices_max.min(self.room.total() / 2);
        let ranges = groups(blocks.iter().map(slice_count), slices_max);
        let whole = |range| Group { range, room: None };
        let parts: Vec<Group> = ranges.into_iter().map(whole).collect();
        self.run(&call, parts, |_, block| deliver(block)).await
    }

    fn call<'a>(
        &self,
        blocks: &'a [FetchBlock],
        sources: &'a [Source],
    ) -> Result<Call<'a>, FetchError> {
        if sources.is_empty() && !blocks.is_empty() {
            return Err(FetchError::NoSources { blocks: blocks.len() });
        }
        if let Some(empty) = blocks.iter().find(|block| slice_count(block) == 0) {
            return Err(FetchError::NoSlices { index: empty.receipt.index });
        }
        Ok(Call { blocks, sources, deadline: Instant::now() + self.limits.call_wait_max.into() })
    }

    async fn run(
        &self,
        call: &Call<'_>,
        groups: Vec<Group>,
        mut deliver: impl FnMut(usize, FetchedBlock),
    ) -> Result<(), FetchError> {
        let mut waiting = groups.into_iter();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < self.limits.batches_per_call_max.max(1) {
                let Some(group) = waiting.next() else { break };
                running.push(self.group(call, group).boxed());
            }
            let Some(done) = running.next().await else {
                return Ok(());
            };
            for (at, block) in done? {
                deliver(at, block);
            }
        }
    }

    /// Reads a group, source by source, until every block of it is there.
    async fn group(
        &self,
        call: &Call<'_>,
        group: Group,
    ) -> Result<Vec<(usize, FetchedBlock)>, FetchError> {
        let blocks = &call.blocks[group.range.clone()];
        let mut room = match group.room {
            Some(room) => room,
            None => self.room.reserve(slices_of(blocks), call.deadline).await?,
        };
        let pending = |at: usize| {
            let block = &call.blocks[at];
            let count = u32::try_from(slice_count(block)).ok();
            let slots = count.and_then(|count| room.try_alloc_many(count));
            Pending::new(at, block, slots.expect("reserved for the group"))
        };
        let mut left: Vec<Pending<'_>> = group.range.map(pending).collect();
        let permit = timeout_at(call.deadline, self.batches.acquire()).await;
        let _permit = match permit {
            Ok(permit) => permit.expect("never closed"),
            Err(_) => return Err(late(left)),
        };
        let mut done = Vec::with_capacity(left.len());
        for which in self.order(call.sources) {
            if Instant::now() >= call.deadline {
                return Err(late(left));
            }
            let outcome = self.attempt(call, which, left).await?;
            done.extend(outcome.done);
            left = outcome.left;
            if left.is_empty() {
                return Ok(done);
            }
        }
        Err(unreadable(left))
    }

    /// Sources in the order to ask them: as given, but quarantined ones last.
    fn order(&self, sources: &[Source]) -> Vec<usize> {
        let now = self.now();
        let quarantine = self.quarantine.lock();
        let held = |at: &usize| quarantine.is_held(&sources[*at].node, now);
        let (last, mut order): (Vec<usize>, Vec<usize>) = (0..sources.len()).partition(held);
        order.extend(last);
        order
    }

    fn now(&self) -> Moment {
        Moment(0) + Span::from(self.started.elapsed())
    }
}

fn slice_count(block: &FetchBlock) -> usize {
    block.receipt.checksums.len()
}

fn slices_of(blocks: &[FetchBlock]) -> usize {
    blocks.iter().map(slice_count).sum()
}

fn late(left: Vec<Pending<'_>>) -> FetchError {
    let (index, failures) = first_of(left);
    FetchError::Late { index, failures }
}

fn unreadable(left: Vec<Pending<'_>>) -> FetchError {
    let (index, failures) = first_of(left);
    FetchError::Unreadable { index, failures }
}

fn first_of(left: Vec<Pending<'_>>) -> (ids::BlockIdx, Vec<SourceFailure>) {
    let first = left.into_iter().min_by_key(|pending| pending.at);
    let first = first.expect("a group that failed has blocks left");
    (first.block.receipt.index, first.failures)
}
