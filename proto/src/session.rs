//! `session.proto`: one request's way through prefill and decode.

use std::sync::Arc;

use bytes::Bytes;
use ids::{BlockHash, ByteCount, Span, TokenId};
use session::{
    Copied, Finish, GenerateRequest, Generation, Handover, Ledger, Moved, PrefillEvent,
    PrefillRequest, Prompt, Sampling, SealedBlock, StreamItem, Usage,
};

use crate::cluster::tier;
use crate::{InvalidMessage, limits, read, v1};

impl TryFrom<v1::GenerateRequest> for GenerateRequest {
    type Error = InvalidMessage;

    fn try_from(wire: v1::GenerateRequest) -> Result<Self, InvalidMessage> {
        let request = Self {
            plan: read::message("plan", wire.plan)?,
            prompt: read::message("prompt", wire.prompt)?,
            generation: read::message("generation", wire.generation)?,
        };
        let planned = u64::from(request.plan.final_tokens);
        let asked = request.prompt.tokens.len() as u64 + u64::from(request.generation.max_tokens);
        if asked > planned {
            let reason = format!("{asked} tokens with the prompt, the plan reserves {planned}");
            return Err(InvalidMessage::new("generation.max_tokens", reason));
        }
        Ok(request)
    }
}

impl From<GenerateRequest> for v1::GenerateRequest {
    fn from(request: GenerateRequest) -> Self {
        Self {
            plan: Some(request.plan.into()),
            prompt: Some(request.prompt.into()),
            generation: Some(request.generation.into()),
        }
    }
}

impl TryFrom<v1::Prompt> for Prompt {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Prompt) -> Result<Self, InvalidMessage> {
        read::within("tokens", wire.tokens.len(), 1, limits::TOKENS_PER_PROMPT_MAX)?;
        let hashes = read::hashes("block_hashes", &wire.block_hashes, wire.tokens.len())?;
        Ok(Self {
            tokens: wire.tokens.into_iter().map(TokenId).collect(),
            root: BlockHash(read::digest("root", &wire.root)?),
            hashes: hashes.into(),
        })
    }
}

impl From<Prompt> for v1::Prompt {
    fn from(prompt: Prompt) -> Self {
        Self {
            tokens: prompt.tokens.iter().map(|token| token.0).collect(),
            root: prompt.root.0.to_vec().into(),
            block_hashes: prompt.hashes.iter().map(|hash| hash.0.to_vec().into()).collect(),
        }
    }
}

impl TryFrom<v1::Generation> for Generation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Generation) -> Result<Self, InvalidMessage> {
        read::bounded("stop_tokens", wire.stop_tokens.len(), limits::STOP_TOKENS_MAX)?;
        if wire.top_p <= 0.0 {
            let reason = format!("{} must be above 0 and at most 1", wire.top_p);
            return Err(InvalidMessage::new("top_p", reason));
        }
        Ok(Self {
            sampling: Sampling {
                temperature: read::within("temperature", wire.temperature, 0.0, f32::MAX)?,
                top_p: read::within("top_p", wire.top_p, 0.0, 1.0)?,
                top_k: wire.top_k,
                min_p: read::within("min_p", wire.min_p, 0.0, 1.0)?,
                seed: wire.seed,
                choice: wire.choice,
            },
            max_tokens: read::within(
                "max_tokens",
                wire.max_tokens,
                1,
                limits::TOKENS_GENERATED_MAX,
            )?,
            stop_tokens: wire.stop_tokens.into_iter().map(TokenId).collect(),
            digest_logits: wire.digest_logits,
        })
    }
}

impl From<Generation> for v1::Generation {
    fn from(generation: Generation) -> Self {
        let sampling = generation.sampling;
        Self {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            choice: sampling.choice,
            max_tokens: generation.max_tokens,
            stop_tokens: generation.stop_tokens.iter().map(|token| token.0).collect(),
            digest_logits: generation.digest_logits,
        }
    }
}

impl TryFrom<v1::GenerateEvent> for StreamItem {
    type Error = InvalidMessage;

    fn try_from(wire: v1::GenerateEvent) -> Result<Self, InvalidMessage> {
        use v1::generate_event::Item;
        Ok(match read::present("item", wire.item)? {
            Item::Started(v1::Started { cached_tokens }) => Self::Started { cached_tokens },
            Item::Token(v1::Token { token, logprob }) => {
                Self::Token { token: TokenId(token), logprob }
            }
            Item::Finished(finished) => Self::Finished {
                finish: finish("finished.reason", finished.reason)?,
                ledger: Box::new(
                    read::message("ledger", finished.ledger).map_err(|e| e.within("finished"))?,
                ),
            },
            Item::Refused(refused) => Self::Refused(read::message("refused", Some(refused))?),
        })
    }
}

impl From<StreamItem> for v1::GenerateEvent {
    fn from(item: StreamItem) -> Self {
        use v1::generate_event::Item;
        let item = match item {
            StreamItem::Started { cached_tokens } => Item::Started(v1::Started { cached_tokens }),
            StreamItem::Token { token, logprob } => {
                Item::Token(v1::Token { token: token.0, logprob })
            }
            StreamItem::Finished { finish, ledger } => Item::Finished(v1::Finished {
                reason: v1::FinishReason::from(finish).into(),
                ledger: Some((*ledger).into()),
            }),
            StreamItem::Refused(refused) => Item::Refused(refused.into()),
        };
        Self { item: Some(item) }
    }
}

fn finish(field: &str, value: i32) -> Result<Finish, InvalidMessage> {
    match v1::FinishReason::try_from(value) {
        Ok(v1::FinishReason::Stop) => Ok(Finish::Stop),
        Ok(v1::FinishReason::Length) => Ok(Finish::Length),
        Ok(v1::FinishReason::Abort) => Ok(Finish::Abort),
        Ok(v1::FinishReason::Unspecified) | Err(_) => {
            Err(InvalidMessage::new(field, format!("{value} is no reason to finish")))
        }
    }
}

impl From<Finish> for v1::FinishReason {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop => Self::Stop,
            Finish::Length => Self::Length,
            Finish::Abort => Self::Abort,
        }
    }
}

impl TryFrom<v1::Ledger> for Ledger {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Ledger) -> Result<Self, InvalidMessage> {
        Ok(Self {
            usage: Usage {
                prompt_tokens: wire.prompt_tokens,
                cached_tokens: wire.cached_tokens,
                completion_tokens: wire.completion_tokens,
            },
            queued: Span(wire.queued_ns),
            prefill: Span(wire.prefill_ns),
            handover: Span(wire.handover_ns),
            decode: Span(wire.decode_ns),
            moved: read::list("moved", wire.moved, limits::MOVED_MAX)?,
            replica_reads: wire.replica_reads,
            logits_digest: match wire.logits_digest.as_ref() {
                [] => None,
                _ => Some(read::digest("logits_digest", &wire.logits_digest)?),
            },
        })
    }
}

impl From<Ledger> for v1::Ledger {
    fn from(ledger: Ledger) -> Self {
        Self {
            prompt_tokens: ledger.usage.prompt_tokens,
            cached_tokens: ledger.usage.cached_tokens,
            completion_tokens: ledger.usage.completion_tokens,
            queued_ns: ledger.queued.0,
            prefill_ns: ledger.prefill.0,
            handover_ns: ledger.handover.0,
            decode_ns: ledger.decode.0,
            moved: ledger.moved.into_iter().map(Into::into).collect(),
            replica_reads: ledger.replica_reads,
            logits_digest: ledger.logits_digest.map(|d| d.to_vec().into()).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Moved> for Moved {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Moved) -> Result<Self, InvalidMessage> {
        Ok(Self {
            from: tier("from", wire.from)?,
            to: tier("to", wire.to)?,
            bytes: ByteCount(wire.bytes),
        })
    }
}

impl From<Moved> for v1::Moved {
    fn from(moved: Moved) -> Self {
        Self {
            from: v1::Tier::from(moved.from).into(),
            to: v1::Tier::from(moved.to).into(),
            bytes: moved.bytes.0,
        }
    }
}

impl TryFrom<v1::PrefillRequest> for PrefillRequest {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PrefillRequest) -> Result<Self, InvalidMessage> {
        read::bounded("home_grants", wire.home_grants.len(), limits::NODES_MAX)?;
        let home_grants = wire.home_grants.into_iter().enumerate().map(|(index, granted)| {
            let at = |invalid: InvalidMessage| invalid.within_at("home_grants", index);
            let node = read::name("node", &granted.node).map_err(at)?;
            Ok((node, read::message("grant", granted.grant).map_err(at)?))
        });
        Ok(Self {
            home_grants: home_grants.collect::<Result<_, InvalidMessage>>()?,
            plan: read::message("plan", wire.plan)?,
            prompt: read::message("prompt", wire.prompt)?,
            grant: read::message("grant", wire.grant)?,
        })
    }
}

impl From<PrefillRequest> for v1::PrefillRequest {
    fn from(request: PrefillRequest) -> Self {
        let granted = |(node, grant): (ids::NodeId, remote::Grant)| v1::HomeGrant {
            node: node.to_string(),
            grant: Some(grant.into()),
        };
        Self {
            plan: Some(request.plan.into()),
            prompt: Some(request.prompt.into()),
            grant: Some(request.grant.into()),
            home_grants: request.home_grants.into_iter().map(granted).collect(),
        }
    }
}

impl TryFrom<v1::PrefillEvent> for PrefillEvent {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PrefillEvent) -> Result<Self, InvalidMessage> {
        use v1::prefill_event::Item;
        Ok(match read::present("item", wire.item)? {
            Item::Sealed(sealed) => Self::Sealed(
                read::list("blocks", sealed.blocks, limits::BLOCKS_PER_MESSAGE_MAX)
                    .map_err(|invalid| invalid.within("sealed"))?,
            ),
            Item::Handover(handover) => {
                Self::Handover(Box::new(read::message("handover", Some(handover))?))
            }
            Item::Copied(copied) => Self::Copied(read::message("copied", Some(copied))?),
        })
    }
}

impl From<PrefillEvent> for v1::PrefillEvent {
    fn from(event: PrefillEvent) -> Self {
        use v1::prefill_event::Item;
        let item = match event {
            PrefillEvent::Sealed(blocks) => Item::Sealed(v1::SealedBlocks {
                blocks: blocks.into_iter().map(Into::into).collect(),
            }),
            PrefillEvent::Handover(handover) => Item::Handover((*handover).into()),
            PrefillEvent::Copied(copied) => Item::Copied(copied.into()),
        };
        Self { item: Some(item) }
    }
}

impl TryFrom<v1::SealedBlock> for SealedBlock {
    type Error = InvalidMessage;

    fn try_from(wire: v1::SealedBlock) -> Result<Self, InvalidMessage> {
        let receipt: remote::BlockReceipt = read::message("receipt", wire.receipt)?;
        let at: remote::LocatedBlock = read::message("at", wire.at)?;
        if at.key != receipt.key || at.shard != receipt.shard {
            return Err(InvalidMessage::new("at.key", "not the block of the receipt"));
        }
        if at.slices.len() != receipt.checksums.len() {
            let (slots, checksums) = (at.slices.len(), receipt.checksums.len());
            let reason = format!("{slots} entries, must be {checksums} as in receipt.checksums");
            return Err(InvalidMessage::new("at.slots", reason));
        }
        Ok(Self { receipt, at: at.slices })
    }
}

impl From<SealedBlock> for v1::SealedBlock {
    fn from(sealed: SealedBlock) -> Self {
        let at = remote::LocatedBlock {
            key: sealed.receipt.key,
            shard: sealed.receipt.shard,
            slices: sealed.at,
        };
        Self { receipt: Some(sealed.receipt.into()), at: Some(at.into()) }
    }
}

impl TryFrom<v1::Handover> for Handover {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Handover) -> Result<Self, InvalidMessage> {
        Ok(Self {
            tail: read::optional("tail", wire.tail)?,
            last_hidden: floats("last_hidden", &wire.last_hidden)?,
            cached_tokens: wire.cached_tokens,
            queued: Span(wire.queued_ns),
            computed: Span(wire.computed_ns),
            moved: read::list("moved", wire.moved, limits::MOVED_MAX)?,
        })
    }
}

impl TryFrom<v1::Copied> for Copied {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Copied) -> Result<Self, InvalidMessage> {
        let moved = read::list("moved", wire.moved, limits::MOVED_MAX)?;
        Ok(Self { moved, blocks: wire.blocks })
    }
}

impl From<Copied> for v1::Copied {
    fn from(copied: Copied) -> Self {
        let moved = copied.moved.into_iter().map(Into::into).collect();
        Self { moved, blocks: copied.blocks }
    }
}

impl From<Handover> for v1::Handover {
    fn from(handover: Handover) -> Self {
        let hidden: Vec<u8> = handover.last_hidden.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self {
            tail: handover.tail.map(Into::into),
            last_hidden: hidden.into(),
            cached_tokens: handover.cached_tokens,
            queued_ns: handover.queued.0,
            computed_ns: handover.computed.0,
            moved: handover.moved.into_iter().map(Into::into).collect(),
        }
    }
}

/// Little-endian f32 values; one that is not finite would make every logit meaningless.
fn floats(field: &str, bytes: &Bytes) -> Result<Arc<[f32]>, InvalidMessage> {
    let (values, rest) = bytes.as_chunks::<4>();
    if values.is_empty() || !rest.is_empty() || values.len() > limits::MODEL_WIDTH_MAX {
        let most = limits::MODEL_WIDTH_MAX * 4;
        let reason = format!("{} bytes, must be a multiple of 4 up to {most}", bytes.len());
        return Err(InvalidMessage::new(field, reason));
    }
    let values: Arc<[f32]> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    if !values.iter().all(|value| value.is_finite()) {
        return Err(InvalidMessage::new(field, "a value is not finite"));
    }
    Ok(values)
}
