//! Admission: which nodes serve a request, or why none can. Every tier the request will need is
//! checked for its final length (case 33), and what is planned counts at once (case 44).

use std::collections::BTreeSet;

use ids::{BLOCK_TOKENS, BlockIdx, ByteCount, Epoch, ModelDigest, Moment, NodeId, Role, Tier};

use crate::plan::{AdmitRequest, Home, Plan, RefuseReason, Refused};
use crate::rendezvous::rank;
use crate::view::{Node, Room, View};
use homes::HomeDraft;

mod homes;
#[cfg(test)]
mod tests;

/// What a request that waits or runs on a prefill node is taken to cost a newcomer, in blocks to
/// compute: half of a 2,048-token prompt. It keeps a popular prefix from drowning its node.
const BLOCKS_PER_QUEUED: u64 = 64;

/// Blocks that a request needs in each tier.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// On the decode device, at the final length: in this cut decode holds the full KV there.
    resident: u32,
    /// On the prefill host: the prompt, its open tail included.
    prompt: u32,
    /// On the homes: the prompt's sealed blocks.
    sealed: u32,
}

/// A plan before it is promised to anybody.
struct Draft {
    prefill: NodeId,
    decode: NodeId,
    homes: Vec<HomeDraft>,
    numerics_class: String,
    block_bytes: ByteCount,
    /// For the choice among classes: load and free bytes of the decode node.
    merit: (u64, std::cmp::Reverse<ByteCount>),
}

impl View {
    /// Plans a request, and counts what it will take until the nodes' reports show it.
    ///
    /// # Errors
    /// [`Refused`] says whether asking again helps; nothing was promised then.
    pub fn admit(&mut self, request: &AdmitRequest, now: Moment) -> Result<Plan, Refused> {
        let final_tokens = request.prompt_tokens.saturating_add(request.max_tokens);
        let block = BLOCK_TOKENS as u32;
        let need = Need {
            resident: final_tokens.div_ceil(block),
            prompt: request.prompt_tokens.div_ceil(block),
            sealed: request.prompt_tokens / block,
        };
        let draft = self.draft(request, need, now)?;
        Ok(self.promise(request, need, draft, now))
    }

    fn draft(&self, request: &AdmitRequest, need: Need, now: Moment) -> Result<Draft, Refused> {
        let mut best: Option<Draft> = None;
        let mut refused: Option<Refused> = None;
        for class in self.classes(request.model, now)? {
            match self.draft_in(class, request, need, now) {
                Ok(draft) if best.as_ref().is_none_or(|best| draft.merit < best.merit) => {
                    best = Some(draft);
                }
                Ok(_) => {}
                // Of several refusals the one that may pass with time stands.
                Err(other) => {
                    if refused.as_ref().is_none_or(|refused| refused.retry_after.is_none()) {
                        refused = Some(other);
                    }
                }
            }
        }
        best.ok_or_else(|| refused.unwrap_or_else(|| self.no_node(Role::Decode, now)))
    }

    /// Numerics classes that have live nodes of both computing roles for the model.
    fn classes(&self, model: ModelDigest, now: Moment) -> Result<BTreeSet<&str>, Refused> {
        let computes = |node: &&Node| matches!(node.record.role, Role::Prefill | Role::Decode);
        let mut computing = self.nodes.values().filter(computes).peekable();
        if computing.peek().is_some() && !computing.any(|node| node.record.model == Some(model)) {
            return Err(Refused {
                reason: RefuseReason::UnknownModel,
                tier: None,
                retry_after: None,
                detail: format!("no node serves the model with digest {model}"),
            });
        }
        let of = |role| -> BTreeSet<&str> {
            let nodes = self.computing(role, model, now);
            nodes.map(|node| node.record.numerics_class.as_str()).collect()
        };
        let (prefill, decode) = (of(Role::Prefill), of(Role::Decode));
        let both: BTreeSet<&str> = prefill.intersection(&decode).copied().collect();
        if both.is_empty() {
            let missing = if prefill.is_empty() { Role::Prefill } else { Role::Decode };
            return Err(self.no_node(missing, now));
        }
        Ok(both)
    }

    fn draft_in(
        &self,
        class: &str,
        request: &AdmitRequest,
        need: Need,
        now: Moment,
    ) -> Result<Draft, Refused> {
        let of = |role| {
            let nodes = self.computing(role, request.model, now);
            nodes.filter(|node| node.record.numerics_class == class)
        };
        let device = Tier::Device;
        let decode = self.least(device, need.resident, of(Role::Decode), |node| {
            let free = node.room(device).free;
            (node.load(), std::cmp::Reverse(free), rank(request.session, 0, &node.record.id))
        })?;
        let prefixes = self.affinity.prefixes(&request.hashes);
        let host = Tier::PrefillHost;
        self.prompt_fits(need.prompt, of(Role::Prefill))?;
        let able = of(Role::Prefill).filter(|node| node.computes(need.prompt));
        let prefill = self.least(host, need.prompt, able, |node| {
            let start = (node.record.id.clone(), node.record.incarnation);
            let cached = prefixes.get(&start).copied().unwrap_or(0).min(need.prompt);
            let blocks = u64::from(need.prompt - cached) + node.load() * BLOCKS_PER_QUEUED;
            let free = node.room(host).free;
            (blocks, std::cmp::Reverse(free), rank(request.session, 1, &node.record.id))
        })?;
        Ok(Draft {
            homes: self.homes(request, need.sealed, prefill, now)?,
            numerics_class: class.to_owned(),
            block_bytes: prefill.record.block_bytes,
            merit: (decode.load(), std::cmp::Reverse(decode.room(device).free)),
            prefill: prefill.record.id.clone(),
            decode: decode.record.id.clone(),
        })
    }

    /// The node with room for `blocks` whose cost is least.
    fn least<'a, K: Ord>(
        &self,
        tier: Tier,
        blocks: u32,
        nodes: impl Iterator<Item = &'a Node>,
        cost: impl Fn(&Node) -> K,
    ) -> Result<&'a Node, Refused> {
        let mut best: Option<(K, &Node)> = None;
        let mut short = Room::default();
        let mut wanted = ByteCount::default();
        for node in nodes {
            let room = node.room(tier);
            let bytes = times(node.record.block_bytes, blocks);
            if room.free < bytes {
                short.total = short.total.max(room.total);
                short.free = short.free.max(room.free);
                wanted = bytes;
                continue;
            }
            let cost = cost(node);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, node));
            }
        }
        best.map(|(_, node)| node).ok_or_else(|| self.short(tier, wanted, short))
    }

    /// Prompts wait for a prefill device in turn, so its size counts and not what is free now.
    fn prompt_fits<'a>(
        &self,
        blocks: u32,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Result<(), Refused> {
        let mut short = Room::default();
        let mut wanted = ByteCount::default();
        for node in nodes {
            if node.computes(blocks) {
                return Ok(());
            }
            short.total = short.total.max(node.room(Tier::Device).total);
            wanted = times(node.record.block_bytes, blocks);
        }
        Err(self.short(Tier::Device, wanted, short))
    }

    fn promise(&mut self, request: &AdmitRequest, need: Need, draft: Draft, now: Moment) -> Plan {
        let mut promised = |id: &NodeId, tier, bytes| {
            let node = self.nodes.get_mut(id).expect("a draft names nodes of this view");
            node.promise(tier, bytes, now);
            (node.target(), node.record.incarnation)
        };
        let resident = times(draft.block_bytes, need.resident);
        let (decode, _) = promised(&draft.decode, Tier::Device, resident);
        let prompt = times(draft.block_bytes, need.prompt);
        let (prefill, incarnation) = promised(&draft.prefill, Tier::PrefillHost, prompt);
        let homes = draft.homes.iter().map(|home| Home {
            first: BlockIdx(home.first),
            count: home.count,
            shard: home.shard,
            nodes: vec![promised(&home.node, Tier::Remote, home.bytes).0],
        });
        let homes = homes.collect();
        self.affinity.remember(&request.hashes, &(draft.prefill, incarnation));
        self.sequence += 1;
        Plan {
            session: request.session,
            epoch: Epoch(1),
            term: self.term,
            sequence: self.sequence,
            tenant: request.tenant.clone(),
            model: request.model,
            policy: request.policy,
            numerics_class: draft.numerics_class,
            prefill,
            decode,
            homes,
            final_tokens: request.prompt_tokens.saturating_add(request.max_tokens),
        }
    }

    /// Live nodes of a computing role that serve the model.
    fn computing(
        &self,
        role: Role,
        model: ModelDigest,
        now: Moment,
    ) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(move |node| {
            let record = &node.record;
            let serves = record.model == Some(model) && record.block_bytes > ByteCount(0);
            record.role == role && serves && node.live(now, self.config)
        })
    }

    fn no_node(&self, role: Role, now: Moment) -> Refused {
        let live = self.live_count(role, now);
        let listed = self.nodes.values().filter(|node| node.record.role == role).count();
        Refused {
            reason: RefuseReason::NoNode,
            tier: None,
            retry_after: Some(self.config.retry_no_node),
            detail: format!(
                "no {role} node fits the plan: {listed} registered, {live} reporting and accepting"
            ),
        }
    }

    fn short(&self, tier: Tier, wanted: ByteCount, room: Room) -> Refused {
        let never = wanted > room.total;
        let (reason, retry_after, have, what) = if never {
            (RefuseReason::NeverFits, None, room.total, "exist at most")
        } else {
            (RefuseReason::Capacity, Some(self.config.retry_capacity), room.free, "are free")
        };
        Refused {
            reason,
            tier: Some(tier),
            retry_after,
            detail: format!("{wanted} of tier {tier} wanted, {have} {what}"),
        }
    }
}

fn times(bytes: ByteCount, count: u32) -> ByteCount {
    ByteCount(bytes.0.saturating_mul(count.into()))
}
