//! The owner of a session, on its decode node: from the plan to the last token.
//!
//! ```text
//!  Planned --Begin--> Reserving --all granted--> Prefilling --Handover--> Fetching
//!                                                                            |
//!                               Ended <--EngineFinished-- Decoding <--all resident
//! ```
//! Any phase goes to `Ended` on a refusal, a failure, or `Cancelled`; then everything that was
//! taken, or may have been taken, is released in reverse order (P6). Reservations are taken one at
//! a time in the one order of all sessions: homes by node id, prefill host, device (P4). The
//! decode host's memory is staging in this version and is not reserved.
//!
//! The machine moves no bytes and draws no token: it says what is to be done, in order.

use std::sync::Arc;

use ids::{BLOCK_TOKENS, BlockHash, BlockIdx, Moment, NodeId, Span, Tier, TokenId};
use placement::{RefuseReason, Refused, Target};
use remote::{Grant, Granted, ReserveRefused};

use crate::facts::{
    Copied, Finish, GenerateRequest, Handover, Ledger, Moved, SealedBlock, StreamItem, Usage,
};

#[cfg(test)]
mod tests;

/// How long holders keep what was reserved without hearing of the session.
pub const LEASE: Span = Span::from_secs(15);

/// Leases are prolonged when a third of the shortest is left.
const fn extend_after(lease: Span) -> Span {
    Span(lease.0 / 3 * 2)
}

/// When a refused client may ask again.
const RETRY_AFTER: Span = Span::from_millis(500);

/// Something that holds memory for the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A memory node.
    Home(Target),
    /// The prefill node's host memory.
    PrefillHost(Target),
    /// This node's device.
    Device,
}

impl Holder {
    /// The tier whose bytes it holds.
    #[must_use]
    pub fn tier(&self) -> Tier {
        match self {
            Self::Home(_) => Tier::Remote,
            Self::PrefillHost(_) => Tier::PrefillHost,
            Self::Device => Tier::Device,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The session begins.
    Begin,
    /// The pending reservation was taken; `None` from the device, which needs no grant.
    Reserved(Option<Granted>),
    /// The pending reservation was refused: nothing was taken there.
    ReserveRefused(ReserveRefused),
    /// Nobody knows whether the pending reservation was taken.
    ReserveUnknown {
        /// What was seen, for the log.
        detail: String,
    },
    /// Prefill has sealed these, in order.
    Sealed(Vec<SealedBlock>),
    /// Prefill is done.
    Handover(Box<Handover>),
    /// The copies are as complete as they will be.
    Copied(Copied),
    /// The prefill stream ended early, or said what it may not.
    PrefillFailed {
        /// For the log.
        detail: String,
    },
    /// A block is verified and on the device.
    Resident {
        /// Which.
        index: BlockIdx,
        /// What moved for it.
        moved: Vec<Moved>,
        /// Whether another copy than the first had to serve it.
        replica: bool,
    },
    /// A block is to be had from nobody.
    FetchFailed {
        /// For the log.
        detail: String,
    },
    /// A token was drawn.
    Token {
        /// Which.
        token: TokenId,
        /// Natural logarithm of its probability.
        logprob: f32,
    },
    /// The engine is done with the sequence.
    EngineFinished {
        /// Why.
        finish: Finish,
        /// Tokens drawn, a stop token included.
        sampled: u32,
        /// First step to last.
        elapsed: Span,
        /// When asked for.
        logits_digest: Option<[u8; 32]>,
    },
    /// The engine gave the sequence up.
    EngineFailed {
        /// For the log.
        detail: String,
    },
    /// The time of [`Owner::wake_at`] has come.
    Tick,
    /// Nobody waits for the session any more.
    Cancelled,
}

/// What is to be done, in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask this holder; exactly one `Reserved`, `ReserveRefused` or `ReserveUnknown` follows.
    Reserve {
        /// Whom.
        holder: Holder,
        /// For how many slices.
        slices: u32,
    },
    /// Give back; must be repeated by the shell until it was heard or the lease has ended.
    Release(Holder),
    /// Start prefill with what was granted.
    StartPrefill {
        /// By the prefill host.
        grant: Grant,
        /// By the homes, ascending by node.
        home_grants: Vec<(NodeId, Grant)>,
    },
    /// Bring these to the device, in this order, behind those asked for before.
    Fetch(Vec<SealedBlock>),
    /// Everything is resident: start drawing.
    Decode(Box<Handover>),
    /// Prolong the leases of these.
    Extend(Vec<(Holder, Grant)>),
    /// Tell the gateway.
    Emit(StreamItem),
    /// The session is over.
    End(Ended),
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With its last token.
    Finished,
    /// A reservation was refused; the client was told.
    Refused,
    /// Nobody waited any more.
    Cancelled,
    /// Something failed that this version cannot recover from.
    Failed {
        /// For the log, not for the client.
        detail: String,
    },
}

/// Where a session stands; each variant holds what exists in that phase.
#[derive(Debug)]
enum Phase {
    Planned,
    Reserving {
        /// Index of the holder that was asked.
        asked: usize,
    },
    Prefilling {
        /// Blocks announced.
        sealed: u32,
        /// Blocks on the device.
        resident: u32,
    },
    Fetching {
        handover: Box<Handover>,
        resident: u32,
        since: Moment,
    },
    Decoding,
    Ended,
}

/// The machine.
#[derive(Debug)]
pub struct Owner {
    phase: Phase,
    /// In the order of reservation, with the slices wanted.
    holders: Vec<(Holder, u32)>,
    /// What was taken, or may have been, in order.
    held: Vec<(Holder, Option<Grant>)>,
    /// Hashes of the prompt's full blocks: what prefill must have sealed (P2).
    hashes: Arc<[BlockHash]>,
    /// Tokens in the open block behind them; 0 when there is none.
    tail_tokens: u8,
    slices_per_block: usize,
    ledger: Ledger,
    began: Moment,
    /// The shortest lease that was granted.
    lease: Span,
    extend_at: Moment,
}

impl Owner {
    /// A session with a plan. `slices_per_block` is the model's.
    #[must_use]
    pub fn new(request: &GenerateRequest, slices_per_block: u32, now: Moment) -> Self {
        let prompt_tokens = u32::try_from(request.prompt.tokens.len()).unwrap_or(u32::MAX);
        let per_block = BLOCK_TOKENS as u32;
        let (blocks, tail_tokens) = (prompt_tokens / per_block, prompt_tokens % per_block);
        let slices = |blocks: u32| blocks.saturating_mul(slices_per_block);
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let with_tail = slices(blocks + u32::from(tail_tokens > 0));
        let mut holders = homes(request, slices_per_block);
        holders.push((Holder::PrefillHost(request.plan.prefill.clone()), with_tail));
        // The last token drawn is never run, but the plan reserved for it as well.
        let final_blocks = request.plan.final_tokens.div_ceil(per_block);
        holders.push((Holder::Device, slices(final_blocks)));
        Self {
            phase: Phase::Planned,
            holders,
            held: Vec::new(),
            hashes: Arc::clone(&request.prompt.hashes),
            tail_tokens: u8::try_from(tail_tokens).expect("below the tokens of a block"),
            slices_per_block: slices_per_block as usize,
            ledger: Ledger { usage, ..Ledger::default() },
            began: now,
            lease: LEASE,
            extend_at: now + extend_after(LEASE),
        }
    }

    /// When [`Event::Tick`] is due; `None` after the end.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        (!self.is_ended()).then_some(self.extend_at)
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// What is to be done about what happened. After the end nothing is, whatever happens: what was
    /// pending then counted as taken and was released, and holders refuse a reservation that
    /// arrives after its own release.
    pub fn on(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Begin => self.begin(&mut effects),
            Event::Reserved(granted) => self.reserved(granted, now, &mut effects),
            Event::ReserveRefused(refused) => self.refused(&refused, &mut effects),
            Event::ReserveUnknown { detail } => self.fail(detail, &mut effects),
            Event::Sealed(blocks) => self.sealed(blocks, &mut effects),
            Event::Handover(handover) => self.handed_over(handover, now, &mut effects),
            Event::Copied(copied) => self.add_moved(&copied.moved),
            Event::PrefillFailed { detail } => match self.phase {
                Phase::Prefilling { .. } => self.fail(detail, &mut effects),
                // The hand-over is all that decode needs.
                Phase::Planned
                | Phase::Reserving { .. }
                | Phase::Fetching { .. }
                | Phase::Decoding
                | Phase::Ended => {}
            },
            Event::Resident { moved, replica, .. } => {
                self.add_moved(&moved);
                self.ledger.replica_reads += u32::from(replica);
                self.resident(now, &mut effects);
            }
            Event::FetchFailed { detail } | Event::EngineFailed { detail } => {
                self.fail(detail, &mut effects);
            }
            Event::Token { token, logprob } => {
                if matches!(self.phase, Phase::Decoding) {
                    effects.push(Effect::Emit(StreamItem::Token { token, logprob }));
                }
            }
            Event::EngineFinished { finish, sampled, elapsed, logits_digest } => {
                if matches!(self.phase, Phase::Decoding) {
                    self.ledger.usage.completion_tokens = sampled;
                    self.ledger.decode = elapsed;
                    self.ledger.logits_digest = logits_digest;
                    let ledger = Box::new(self.ledger.clone());
                    effects.push(Effect::Emit(StreamItem::Finished { finish, ledger }));
                    self.end(Ended::Finished, &mut effects);
                }
            }
            Event::Tick => self.tick(now, &mut effects),
            Event::Cancelled => self.end(Ended::Cancelled, &mut effects),
        }
        effects
    }

    fn begin(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Planned) {
            self.ask(0, effects);
        }
    }

    /// Asks the holder at `index`. It counts as held from now on: it may take the reservation
    /// and its answer be lost.
    fn ask(&mut self, index: usize, effects: &mut Vec<Effect>) {
        let (holder, slices) = self.holders[index].clone();
        self.held.push((holder.clone(), None));
        self.phase = Phase::Reserving { asked: index };
        effects.push(Effect::Reserve { holder, slices });
    }

    fn reserved(&mut self, granted: Option<Granted>, now: Moment, effects: &mut Vec<Effect>) {
        let Phase::Reserving { asked } = self.phase else {
            return;
        };
        if let (Some(granted), Some((_, grant))) = (granted, self.held.last_mut()) {
            *grant = Some(granted.grant);
            // A node may grant less than was asked.
            self.lease = self.lease.min(granted.lease);
            self.extend_at = self.extend_at.min(now + extend_after(granted.lease));
        }
        if asked + 1 < self.holders.len() {
            return self.ask(asked + 1, effects);
        }
        self.ledger.queued = now - self.began;
        self.phase = Phase::Prefilling { sealed: 0, resident: 0 };
        let mut home_grants = Vec::new();
        let mut prefill_grant = None;
        for (holder, grant) in &self.held {
            match (holder, grant) {
                (Holder::Home(target), Some(grant)) => {
                    home_grants.push((target.node.clone(), grant.clone()));
                }
                (Holder::PrefillHost(_), Some(grant)) => prefill_grant = Some(grant.clone()),
                (Holder::Home(_) | Holder::PrefillHost(_) | Holder::Device, _) => {}
            }
        }
        match prefill_grant {
            Some(grant) => effects.push(Effect::StartPrefill { grant, home_grants }),
            None => self.fail("the prefill host granted nothing".to_owned(), effects),
        }
    }

    fn refused(&mut self, refused: &ReserveRefused, effects: &mut Vec<Effect>) {
        let Phase::Reserving { asked } = self.phase else {
            return;
        };
        // Nothing was taken there.
        self.held.pop();
        let tier = self.holders[asked].0.tier();
        let (reason, retry_after) = match refused {
            ReserveRefused::NeverFits { .. } => (RefuseReason::NeverFits, None),
            ReserveRefused::Full { .. }
            | ReserveRefused::StaleEpoch { .. }
            | ReserveRefused::Draining => (RefuseReason::Capacity, Some(RETRY_AFTER)),
        };
        let detail = format!("{tier}: {refused}");
        let refused = Refused { reason, tier: Some(tier), retry_after, detail };
        effects.push(Effect::Emit(StreamItem::Refused(refused)));
        self.end(Ended::Refused, effects);
    }

    fn sealed(&mut self, blocks: Vec<SealedBlock>, effects: &mut Vec<Effect>) {
        let Phase::Prefilling { sealed, .. } = &mut self.phase else {
            return;
        };
        for block in &blocks {
            let receipt = &block.receipt;
            let hash = self.hashes.get(*sealed as usize);
            let right = receipt.index == BlockIdx(*sealed)
                && hash == Some(&receipt.key.hash)
                && usize::from(receipt.tokens) == BLOCK_TOKENS
                && receipt.checksums.len() == self.slices_per_block;
            if !right {
                let detail = format!("prefill sealed {receipt:?} as block {sealed} of the prompt");
                return self.fail(detail, effects);
            }
            *sealed += 1;
        }
        effects.push(Effect::Fetch(blocks));
    }

    /// Whether prefill hands over what is left of the prompt behind its full blocks.
    fn is_right(&self, tail: Option<&SealedBlock>) -> bool {
        match tail {
            None => self.tail_tokens == 0,
            Some(tail) => {
                tail.receipt.tokens == self.tail_tokens
                    && tail.receipt.index.index() == self.hashes.len()
                    && tail.receipt.checksums.len() == self.slices_per_block
            }
        }
    }

    fn handed_over(&mut self, handover: Box<Handover>, now: Moment, effects: &mut Vec<Effect>) {
        let Phase::Prefilling { sealed, resident } = self.phase else {
            return;
        };
        if sealed as usize != self.hashes.len() || !self.is_right(handover.tail.as_ref()) {
            let detail = format!("hand-over after {sealed} of {} blocks", self.hashes.len());
            return self.fail(detail, effects);
        }
        self.ledger.queued = Span(self.ledger.queued.0.saturating_add(handover.queued.0));
        self.ledger.prefill = handover.computed;
        self.ledger.usage.cached_tokens = handover.cached_tokens;
        self.add_moved(&handover.moved);
        effects.extend(handover.tail.clone().map(|tail| Effect::Fetch(vec![tail])));
        self.phase = Phase::Fetching { handover, resident, since: now };
        self.start_when_resident(now, effects);
    }

    fn resident(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Prefilling { resident, .. } | Phase::Fetching { resident, .. } => *resident += 1,
            Phase::Planned | Phase::Reserving { .. } | Phase::Decoding | Phase::Ended => {}
        }
        self.start_when_resident(now, effects);
    }

    fn start_when_resident(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let wanted = self.hashes.len() + usize::from(self.tail_tokens > 0);
        let Phase::Fetching { resident, since, .. } = self.phase else {
            return;
        };
        if (resident as usize) < wanted {
            return;
        }
        self.ledger.handover = now - since;
        let cached_tokens = self.ledger.usage.cached_tokens;
        effects.push(Effect::Emit(StreamItem::Started { cached_tokens }));
        if let Phase::Fetching { handover, .. } =
            std::mem::replace(&mut self.phase, Phase::Decoding)
        {
            effects.push(Effect::Decode(handover));
        }
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if self.is_ended() || now < self.extend_at {
            return;
        }
        self.extend_at = now + extend_after(self.lease);
        let granted = self.held.iter().filter_map(|(holder, grant)| {
            grant.as_ref().map(|grant| (holder.clone(), grant.clone()))
        });
        let granted: Vec<_> = granted.collect();
        if !granted.is_empty() {
            effects.push(Effect::Extend(granted));
        }
    }

    fn fail(&mut self, detail: String, effects: &mut Vec<Effect>) {
        self.end(Ended::Failed { detail }, effects);
    }

    fn end(&mut self, ended: Ended, effects: &mut Vec<Effect>) {
        if self.is_ended() {
            return;
        }
        self.phase = Phase::Ended;
        let held = std::mem::take(&mut self.held);
        effects.extend(held.into_iter().rev().map(|(holder, _)| Effect::Release(holder)));
        effects.push(Effect::End(ended));
    }

    fn add_moved(&mut self, moved: &[Moved]) {
        for new in moved {
            let same = |old: &&mut Moved| (old.from, old.to) == (new.from, new.to);
            match self.ledger.moved.iter_mut().find(same) {
                Some(old) => old.bytes += new.bytes,
                None => self.ledger.moved.push(*new),
            }
        }
    }
}

/// The memory nodes of the plan, ascending by node, each with the slices it is to hold.
fn homes(request: &GenerateRequest, slices_per_block: u32) -> Vec<(Holder, u32)> {
    let mut homes: Vec<(Target, u32)> = Vec::new();
    for home in &request.plan.homes {
        let slices = home.count.saturating_mul(slices_per_block);
        for target in &home.nodes {
            match homes.iter_mut().find(|(known, _)| known.node == target.node) {
                Some((_, known)) => *known = known.saturating_add(slices),
                None => homes.push((target.clone(), slices)),
            }
        }
    }
    homes.sort_by(|(a, _), (b, _)| a.node.cmp(&b.node));
    homes.into_iter().map(|(target, slices)| (Holder::Home(target), slices)).collect()
}
