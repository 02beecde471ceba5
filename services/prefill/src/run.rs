//! One prompt: from the request to sealed blocks, the hand-over, and the copies on the homes.
//!
//! Dropping the stream of events, or releasing the session, stops the work within the layer at
//! hand (P6). Copies run beside the computation and never hold up the hand-over (P8).

use std::sync::Arc;
use std::time::Duration;

use daemon::OnExit;
use engine::{HostBlock, PrefillEngine, PrefillJob, PrefillOutput, Prefilled, SubmitError};
use ids::{BLOCK_TOKENS, BlockHash, ByteCount, Span, Tier, TokenId};
use kv::SlotReservation;
use prometheus::IntGauge;
use proto::v1;
use remote::SliceRef;
use session::{Copied, Handover, Moved, PrefillEvent, PrefillRequest, SealedBlock};
use tiers::{CopyBlock, Source};
use tokens::BlockHashes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::Node;
use crate::control::denied;
use crate::host::{Ending, NoRoom};

/// Events that a slow decode node may leave unread; then the run waits, and its copies with it.
const EVENTS_MAX: usize = 64;

/// How often the first in the queue looks for room while other prompts have it all.
const TURN_RETRY: Duration = Duration::from_millis(5);

type Events = mpsc::Sender<Result<v1::PrefillEvent, Status>>;

/// Checks the request and starts the run.
///
/// # Errors
/// A status for a request that is not for this node or contradicts itself.
pub(crate) fn start(
    node: Arc<Node>,
    request: PrefillRequest,
) -> Result<ReceiverStream<Result<v1::PrefillEvent, Status>>, Status> {
    check(&node, &request)?;
    let homes = homes(&node, &request)?;
    let ending = node.tier.begin(&request.grant).map_err(no_room)?;
    let (events, stream) = mpsc::channel(EVENTS_MAX);
    node.metrics.runs.inc();
    let role = node.role.clone();
    role.spawn("run", OnExit::Ignore, async move {
        let run = Run { node, request, homes, ending: ending.clone(), events: events.clone() };
        let node = Arc::clone(&run.node);
        let outcome = tokio::select! {
            outcome = run.go() => outcome,
            () = ending.ended.cancelled() => Err(Status::cancelled("session ended")),
            () = events.closed() => Err(Status::cancelled("nobody reads the run")),
        };
        if let Err(status) = outcome {
            node.metrics.runs_cancelled.inc();
            // If nobody listens any more, nobody needs to know.
            drop(events.send(Err(status)).await);
        }
    });
    Ok(ReceiverStream::new(stream))
}

/// P2: what is computed here must be what the plan and the hashes say.
fn check(node: &Node, request: &PrefillRequest) -> Result<(), Status> {
    let (plan, prompt) = (&request.plan, &request.prompt);
    let me = &node.record;
    if plan.prefill.node != me.id || plan.prefill.incarnation != me.incarnation {
        return Err(Status::failed_precondition("the plan names another node or start"));
    }
    if plan.model != node.model || plan.numerics_class != me.numerics_class {
        return Err(Status::failed_precondition("other weights or another numerics class"));
    }
    if BlockHashes::from_root(prompt.root, &prompt.tokens) != *prompt.hashes {
        return Err(Status::invalid_argument("prompt.block_hashes are not those of the tokens"));
    }
    if node.memory.slots_for(length(&prompt.tokens)) > node.memory.pool().occupancy().total {
        return Err(Status::out_of_range("the prompt exceeds the device memory of this node"));
    }
    Ok(())
}

fn no_room(no_room: NoRoom) -> Status {
    match no_room {
        NoRoom::Denied(why) => denied(why),
        NoRoom::Running => Status::already_exists(no_room.to_string()),
        NoRoom::Reservation { .. } => Status::resource_exhausted(no_room.to_string()),
    }
}

fn length(tokens: &[TokenId]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

/// The plan's homes with their block ranges, as far as they granted something.
fn homes(node: &Node, request: &PrefillRequest) -> Result<Vec<(Source, u32, u32)>, Status> {
    let mut homes = Vec::new();
    for home in &request.plan.homes {
        for target in &home.nodes {
            let grant = request.home_grants.iter().find(|(id, _)| *id == target.node);
            let Some((_, grant)) = grant else { continue };
            let bad = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
            let source = Source {
                node: target.node.clone(),
                tier: Tier::Remote,
                control: node.channels.to(&target.control).map_err(|error| bad(&error))?,
                bulk: format!("tcp://{}", target.bulk).parse().map_err(|error| bad(&error))?,
                grant: grant.clone(),
            };
            homes.push((source, home.first.0, home.first.0.saturating_add(home.count)));
        }
    }
    Ok(homes)
}

/// One more prompt in the queue, as long as it lives.
struct Queued<'a>(&'a IntGauge);

impl<'a> Queued<'a> {
    fn new(count: &'a IntGauge) -> Self {
        count.inc();
        Self(count)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Run {
    node: Arc<Node>,
    request: PrefillRequest,
    /// A home, the first block it must hold, and the one after the last.
    homes: Vec<(Source, u32, u32)>,
    ending: Ending,
    events: Events,
}

impl Run {
    async fn go(&self) -> Result<(), Status> {
        let (mut outputs, cached, waited) = self.enter().await?;
        // Room for a batch per block, so that a slow home never holds up the computation (P8).
        let (to_copy, copying) = mpsc::channel(self.request.prompt.hashes.len().max(1));
        let compute = async move {
            self.seal(cached, &to_copy).await?;
            while let Some(output) = outputs.recv().await {
                match output {
                    PrefillOutput::Sealed(blocks) => {
                        self.keep(&blocks);
                        self.seal(blocks, &to_copy).await?;
                    }
                    PrefillOutput::Done(done) => return self.hand_over(*done, waited).await,
                    PrefillOutput::Cancelled => return Err(Status::cancelled("session ended")),
                    PrefillOutput::Failed { detail } => {
                        tracing::error!(detail, "a prefill pass failed");
                        return Err(Status::internal("a prefill pass failed"));
                    }
                }
            }
            Err(Status::unavailable("the prefill loop has ended"))
        };
        // A failure ends the copying as well.
        let ((), copied) = tokio::try_join!(compute, async { Ok(self.copy(copying).await) })?;
        self.send(PrefillEvent::Copied(copied)).await
    }

    /// Waits for device memory and a place in the loop, and takes both. Also gives the prefix that
    /// was found, and how long it took.
    ///
    /// First come, first served, so that small prompts do not starve a large one (P4). As many
    /// wait as there are sessions at most, because a session has one run.
    async fn enter(&self) -> Result<(mpsc::Receiver<PrefillOutput>, Vec<HostBlock>, Span), Status> {
        let began = Instant::now();
        let _queued = Queued::new(&self.node.metrics.queued);
        let _turn = self.node.turn.lock().await;
        let reservation = self.device_memory().await;
        let waited = began.elapsed().into();
        // Only now: while it waited, other prompts may have left more of its prefix.
        let cached = self.cached();
        let outputs = self.submit(cached.clone(), reservation)?;
        Ok((outputs, cached, waited))
    }

    /// The sealed prefix that an earlier prompt left here, without what must be computed anyway.
    fn cached(&self) -> Vec<HostBlock> {
        let prompt = &self.request.prompt;
        let mut cached = self.node.tier.prefix(&prompt.hashes, &prompt.tokens);
        cached.truncate(PrefillEngine::usable_prefix(prompt.tokens.len(), cached.len()));
        let metrics = &self.node.metrics;
        metrics.prefix_queries.inc_by(prompt.tokens.len() as u64);
        metrics.prefix_hits.inc_by((cached.len() * BLOCK_TOKENS) as u64);
        cached
    }

    fn submit(
        &self,
        cached: Vec<HostBlock>,
        reservation: SlotReservation,
    ) -> Result<mpsc::Receiver<PrefillOutput>, Status> {
        let prompt = &self.request.prompt;
        let blocks = kv::blocks_for(prompt.tokens.len()) - cached.len();
        let wanted = u32::try_from(blocks * self.node.memory.shape().slices())
            .map_err(|_| Status::out_of_range("the prompt has too many slices"))?;
        let host = self.node.tier.take(&self.request.grant, wanted);
        let job = PrefillJob {
            tokens: Arc::clone(&prompt.tokens),
            root: prompt.root,
            cached,
            reservation,
            host: host.map_err(no_room)?,
            score: false,
            cancelled: Arc::clone(&self.ending.flag),
        };
        self.node.engine.submit(job).map_err(|error| match error {
            SubmitError::Unfit { .. } => Status::invalid_argument(error.to_string()),
            SubmitError::Full { .. } => Status::resource_exhausted(error.to_string()),
            SubmitError::Stopped => Status::unavailable(error.to_string()),
        })
    }

    /// Waits until the loop takes another prompt and its slots are free; the prompts before this
    /// one give theirs back when they are done.
    async fn device_memory(&self) -> SlotReservation {
        let node = &self.node;
        let wanted = node.memory.slots_for(length(&self.request.prompt.tokens));
        loop {
            if node.engine.has_room()
                && let Ok(reservation) = node.memory.pool().try_reserve(wanted)
            {
                return reservation;
            }
            tokio::time::sleep(TURN_RETRY).await;
        }
    }

    /// Offers sealed blocks to decode and to the homes.
    async fn seal(
        &self,
        blocks: Vec<HostBlock>,
        to_copy: &mpsc::Sender<Vec<HostBlock>>,
    ) -> Result<(), Status> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.publish(&blocks)?;
        let sealed = blocks.iter().map(located).collect();
        self.send(PrefillEvent::Sealed(sealed)).await?;
        if !self.homes.is_empty() {
            // A copy task that has ended keeps nothing from the hand-over.
            drop(to_copy.send(blocks).await);
        }
        Ok(())
    }

    fn publish(&self, blocks: &[HostBlock]) -> Result<(), Status> {
        match self.node.tier.publish(&self.request.grant, blocks) {
            true => Ok(()),
            false => Err(Status::cancelled("session ended")),
        }
    }

    /// Keeps newly sealed blocks for later prompts.
    fn keep(&self, blocks: &[HostBlock]) {
        let prompt = &self.request.prompt;
        self.node.metrics.blocks_sealed.inc_by(blocks.len() as u64);
        for block in blocks {
            let index = block.receipt.index.index();
            let parent: Option<BlockHash> =
                index.checked_sub(1).map(|before| prompt.hashes[before]);
            let tokens = prompt.tokens[index * BLOCK_TOKENS..].first_chunk();
            let tokens = tokens.expect("a sealed block has all its tokens");
            self.node.tier.keep(parent, *tokens, block.clone());
        }
    }

    async fn hand_over(&self, done: Prefilled, waited: Span) -> Result<(), Status> {
        if let Some(tail) = &done.tail {
            self.publish(std::slice::from_ref(tail))?;
        }
        let length = self.request.prompt.tokens.len();
        let cached = done.cached_blocks * BLOCK_TOKENS;
        let blocks = kv::blocks_for(length - cached) as u64;
        let block_bytes = self.node.record.block_bytes.0;
        let moved = Moved {
            from: Tier::Device,
            to: Tier::PrefillHost,
            bytes: ByteCount(blocks * block_bytes),
        };
        self.send(PrefillEvent::Handover(Box::new(Handover {
            cached_tokens: u32::try_from(cached).unwrap_or(u32::MAX),
            tail: done.tail.as_ref().map(located),
            last_hidden: done.last_hidden,
            queued: Span(waited.0.saturating_add(done.queued.0)),
            computed: done.computed,
            moved: vec![moved],
        })))
        .await
    }

    /// Writes what it is given to the homes, one batch after the other.
    async fn copy(&self, mut blocks: mpsc::Receiver<Vec<HostBlock>>) -> Copied {
        let mut copied = Copied::default();
        let mut bytes = ByteCount(0);
        // A home that did not take a batch is not asked again for this prompt: each attempt could
        // wait for its deadline, and re-replication is not this run's business.
        let mut homes: Vec<_> = self.homes.iter().map(|home| (home, true)).collect();
        while let Some(batch) = blocks.recv().await {
            for ((home, first, end), takes) in homes.iter_mut().filter(|(_, takes)| *takes) {
                let batch: Vec<CopyBlock> = batch
                    .iter()
                    .filter(|block| (*first..*end).contains(&block.receipt.index.0))
                    .map(|block| CopyBlock {
                        receipt: block.receipt.clone(),
                        slices: Arc::clone(&block.slices),
                    })
                    .collect();
                let done = match self.node.copier.copy(home, &batch).await {
                    Ok(done) => done,
                    Err(error) => {
                        *takes = false;
                        self.node.metrics.copies_failed.inc();
                        tracing::warn!(%error, home = %home.node, "copies are missing");
                        error.copied
                    }
                };
                bytes += done.bytes;
                copied.blocks += u32::try_from(done.confirmed.len()).unwrap_or(u32::MAX);
            }
        }
        self.node.metrics.blocks_copied.inc_by(u64::from(copied.blocks));
        self.node.metrics.copied_bytes.inc_by(bytes.0);
        if bytes.0 > 0 {
            copied.moved.push(Moved { from: Tier::PrefillHost, to: Tier::Remote, bytes });
        }
        copied
    }

    async fn send(&self, event: PrefillEvent) -> Result<(), Status> {
        let sent = self.events.send(Ok(event.into())).await;
        sent.map_err(|_| Status::cancelled("nobody reads the run"))
    }
}

/// The block as decode learns of it.
fn located(block: &HostBlock) -> SealedBlock {
    let at = |slot: &transfer::Slot| SliceRef { slot: slot.index(), generation: slot.generation() };
    SealedBlock { receipt: block.receipt.clone(), at: block.slices.iter().map(at).collect() }
}
