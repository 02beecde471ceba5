//! What the parties of a session tell each other.

use std::sync::Arc;

use ids::{BlockHash, ByteCount, NodeId, Span, Tier, TokenId};
use placement::{Plan, Refused};
use remote::{BlockReceipt, Grant, SliceRef};

/// The request's text, encoded and checked once by the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Never empty.
    pub tokens: Arc<[TokenId]>,
    /// Root of the hash chain: model, numerics class, layout, tenant salt, how computed.
    pub root: BlockHash,
    /// One per full block of 16 tokens, chained from the root.
    pub hashes: Arc<[BlockHash]>,
}

/// How tokens are drawn. The random number of a draw is keyed by (seed, choice, position) (P1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Nucleus mass in (0, 1].
    pub top_p: f32,
    /// Keep the k best; 0 means all.
    pub top_k: u32,
    /// Drop tokens below this share of the best one's probability; 0 means none.
    pub min_p: f32,
    /// Drawn by the gateway when the client gave none.
    pub seed: u64,
    /// Which of `n` choices.
    pub choice: u32,
}

/// What decode is asked to do with a planned prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// How to draw.
    pub sampling: Sampling,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Tokens that end the text (and are not part of it).
    pub stop_tokens: Arc<[TokenId]>,
    /// Whether to digest every step's logits (for P1 audits).
    pub digest_logits: bool,
}

/// A block that prefill has sealed, and where the prefill host keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBlock {
    /// What its bytes must hash to.
    pub receipt: BlockReceipt,
    /// Where its slices lie in the prefill host's slab, in the receipt's order.
    pub at: Arc<[SliceRef]>,
}

/// The last message of prefill: with it and the sealed blocks, decode can sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Handover {
    /// The block that the prompt left open; `None` when its length is a multiple of 16.
    pub tail: Option<SealedBlock>,
    /// Residual stream of the last prompt token after the last layer, before the final norm.
    pub last_hidden: Arc<[f32]>,
    /// Prompt tokens that were not computed because a sealed prefix was found.
    pub cached_tokens: u32,
    /// Time spent waiting before the first chunk.
    pub queued: Span,
    /// Time from the first chunk to the last seal.
    pub computed: Span,
    /// What moved between prefill's device and its host tier.
    pub moved: Vec<Moved>,
}

/// How far the copies on the homes got; they never hold up the hand-over (P8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// What moved to the homes.
    pub moved: Vec<Moved>,
    /// Blocks that a home has confirmed.
    pub blocks: u32,
}

/// Bytes that went from one tier to another for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where they were read.
    pub from: Tier,
    /// Where they were written.
    pub to: Tier,
    /// How many.
    pub bytes: ByteCount,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was drawn (or a stop string matched, which only the gateway sees).
    Stop,
    /// `max_tokens` or the context's end.
    Length,
    /// Cancelled or disconnected.
    Abort,
}

/// Token counts as OpenAI's `usage` wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u32,
    /// Of those, not computed.
    pub cached_tokens: u32,
    /// Generated tokens, a stop token included.
    pub completion_tokens: u32,
}

/// What one request did, for its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Token counts.
    pub usage: Usage,
    /// Waiting for reservations and for the prefill queue.
    pub queued: Span,
    /// First chunk to last seal.
    pub prefill: Span,
    /// Last seal to everything resident on the decode device.
    pub handover: Span,
    /// First sample to last.
    pub decode: Span,
    /// Bytes by pair of tiers.
    pub moved: Vec<Moved>,
    /// Slices that had to be read from another copy, with the first one refused or failed.
    pub replica_reads: u32,
    /// Rolling digest of every step's logits, when asked for.
    pub logits_digest: Option<[u8; 32]>,
}

/// What decode streams to the gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// The prompt is resident; sampling begins.
    Started {
        /// Prompt tokens that were not computed.
        cached_tokens: u32,
    },
    /// One sampled token.
    Token {
        /// Which.
        token: TokenId,
        /// Natural logarithm of its probability under the unmodified distribution.
        logprob: f32,
    },
    /// The last item.
    Finished {
        /// Why.
        finish: Finish,
        /// What it took.
        ledger: Box<Ledger>,
    },
    /// The last item too: a reservation was refused and everything taken was given back, so that
    /// asking again is safe.
    Refused(Refused),
}

/// What the gateway asks of decode.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The coordinator's answer; it names this very node as decode.
    pub plan: Plan,
    /// As many tokens as the plan reserves for, less `generation.max_tokens`.
    pub prompt: Prompt,
    /// How to go on from there.
    pub generation: Generation,
}

/// What decode asks of prefill, after every reservation was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefillRequest {
    /// The coordinator's answer; it names this very node as prefill.
    pub plan: Plan,
    /// What to compute.
    pub prompt: Prompt,
    /// What the prefill host granted to the session.
    pub grant: Grant,
    /// What each home granted, by node, ascending: prefill writes the copies.
    pub home_grants: Vec<(NodeId, Grant)>,
}

/// What prefill streams to decode.
#[derive(Clone, Debug, PartialEq)]
pub enum PrefillEvent {
    /// Blocks that are complete and can be fetched from now on, in ascending order.
    Sealed(Vec<SealedBlock>),
    /// The prompt is done; decode can start.
    Handover(Box<Handover>),
    /// The last item, when the copies are as complete as they will be.
    Copied(Copied),
}
