//! `plan.proto`: the question to the coordinator and its immutable answer.

use ids::{BlockIdx, Span, Term};
use placement::{AdmitRequest, Home, NodeReport, NodeStatus, Plan, RefuseReason, Refused, Target};

use crate::cluster::tier;
use crate::read::{self, as_millis};
use crate::{InvalidMessage, limits, v1};

/// Prompt and generation together.
pub(crate) const TOKENS_FINAL_MAX: u32 =
    limits::TOKENS_PER_PROMPT_MAX as u32 + limits::TOKENS_GENERATED_MAX;

impl TryFrom<v1::AdmitRequest> for AdmitRequest {
    type Error = InvalidMessage;

    fn try_from(wire: v1::AdmitRequest) -> Result<Self, InvalidMessage> {
        let prompt_max = limits::TOKENS_PER_PROMPT_MAX as u32;
        let prompt_tokens = read::within("prompt_tokens", wire.prompt_tokens, 1, prompt_max)?;
        let most = limits::TOKENS_GENERATED_MAX;
        Ok(Self {
            session: read::session("session", &wire.session)?,
            tenant: read::tenant("tenant", wire.tenant)?,
            model: read::model("model_digest", &wire.model_digest)?,
            prompt_tokens,
            max_tokens: read::within("max_tokens", wire.max_tokens, 1, most)?,
            hashes: read::hashes("block_hashes", &wire.block_hashes, prompt_tokens as usize)?,
            policy: read::policy("policy_digest", &wire.policy_digest)?,
        })
    }
}

impl From<AdmitRequest> for v1::AdmitRequest {
    fn from(request: AdmitRequest) -> Self {
        Self {
            session: read::session_bytes(request.session),
            tenant: request.tenant.to_string(),
            model_digest: request.model.0.to_vec().into(),
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            block_hashes: request.hashes.iter().map(|hash| hash.0.to_vec().into()).collect(),
            policy_digest: request.policy.0.to_vec().into(),
        }
    }
}

impl TryFrom<v1::AdmitResponse> for Result<Plan, Refused> {
    type Error = InvalidMessage;

    fn try_from(wire: v1::AdmitResponse) -> Result<Self, InvalidMessage> {
        Ok(match read::present("answer", wire.answer)? {
            v1::admit_response::Answer::Plan(plan) => Ok(read::message("plan", Some(plan))?),
            v1::admit_response::Answer::Refused(refused) => {
                Err(read::message("refused", Some(refused))?)
            }
        })
    }
}

impl From<Result<Plan, Refused>> for v1::AdmitResponse {
    fn from(answer: Result<Plan, Refused>) -> Self {
        let answer = match answer {
            Ok(plan) => v1::admit_response::Answer::Plan(plan.into()),
            Err(refused) => v1::admit_response::Answer::Refused(refused.into()),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<v1::Target> for Target {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Target) -> Result<Self, InvalidMessage> {
        Ok(Self {
            node: read::name("node", &wire.node)?,
            incarnation: read::incarnation("incarnation", wire.incarnation)?,
            control: read::address("control_address", wire.control_address)?,
            bulk: read::optional_address("bulk_address", wire.bulk_address)?,
        })
    }
}

impl From<Target> for v1::Target {
    fn from(target: Target) -> Self {
        Self {
            node: target.node.to_string(),
            incarnation: target.incarnation.0,
            control_address: target.control,
            bulk_address: target.bulk,
        }
    }
}

impl TryFrom<v1::Home> for Home {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Home) -> Result<Self, InvalidMessage> {
        let blocks_max = TOKENS_FINAL_MAX.div_ceil(ids::BLOCK_TOKENS as u32);
        let first = read::within("first_block", wire.first_block, 0, blocks_max)?;
        Ok(Self {
            first: BlockIdx(first),
            count: read::within("block_count", wire.block_count, 1, blocks_max - first)?,
            shard: read::shard("shard", wire.shard)?,
            nodes: read::list("nodes", wire.nodes, limits::NODES_PER_HOME_MAX)?,
        })
    }
}

impl From<Home> for v1::Home {
    fn from(home: Home) -> Self {
        Self {
            first_block: home.first.0,
            block_count: home.count,
            shard: home.shard.0.into(),
            nodes: home.nodes.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Plan> for Plan {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Plan) -> Result<Self, InvalidMessage> {
        let class_max = limits::NUMERICS_CLASS_BYTES_MAX;
        Ok(Self {
            session: read::session("session", &wire.session)?,
            epoch: read::epoch("epoch", wire.epoch)?,
            term: Term(wire.term),
            sequence: wire.sequence,
            tenant: read::tenant("tenant", wire.tenant)?,
            model: read::model("model_digest", &wire.model_digest)?,
            policy: read::policy("policy_digest", &wire.policy_digest)?,
            numerics_class: read::text("numerics_class", wire.numerics_class, class_max)?,
            prefill: read::message("prefill", wire.prefill)?,
            decode: read::message("decode", wire.decode)?,
            homes: read::list("homes", wire.homes, limits::HOMES_PER_PLAN_MAX)?,
            final_tokens: read::within("final_tokens", wire.final_tokens, 2, TOKENS_FINAL_MAX)?,
        })
    }
}

impl From<Plan> for v1::Plan {
    fn from(plan: Plan) -> Self {
        Self {
            session: read::session_bytes(plan.session),
            epoch: plan.epoch.0,
            term: plan.term.0,
            sequence: plan.sequence,
            tenant: plan.tenant.to_string(),
            model_digest: plan.model.0.to_vec().into(),
            policy_digest: plan.policy.0.to_vec().into(),
            numerics_class: plan.numerics_class,
            prefill: Some(plan.prefill.into()),
            decode: Some(plan.decode.into()),
            homes: plan.homes.into_iter().map(Into::into).collect(),
            final_tokens: plan.final_tokens,
        }
    }
}

impl TryFrom<v1::Refused> for Refused {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Refused) -> Result<Self, InvalidMessage> {
        let wait = |ms| read::within("retry_after_ms", ms, 0, limits::RETRY_AFTER_MS_MAX);
        Ok(Self {
            reason: reason("reason", wire.reason)?,
            tier: match wire.tier {
                0 => None,
                value => Some(tier("tier", value)?),
            },
            retry_after: wire.retry_after_ms.map(wait).transpose()?.map(Span::from_millis),
            detail: read::text("detail", wire.detail, limits::DETAIL_BYTES_MAX)?,
        })
    }
}

impl From<Refused> for v1::Refused {
    fn from(refused: Refused) -> Self {
        let tier = refused.tier.map_or(v1::Tier::Unspecified, v1::Tier::from);
        Self {
            reason: v1::RefuseReason::from(refused.reason).into(),
            tier: tier.into(),
            retry_after_ms: refused.retry_after.map(as_millis),
            detail: refused.detail,
        }
    }
}

fn reason(field: &str, value: i32) -> Result<RefuseReason, InvalidMessage> {
    match v1::RefuseReason::try_from(value) {
        Ok(v1::RefuseReason::NoNode) => Ok(RefuseReason::NoNode),
        Ok(v1::RefuseReason::NeverFits) => Ok(RefuseReason::NeverFits),
        Ok(v1::RefuseReason::Capacity) => Ok(RefuseReason::Capacity),
        Ok(v1::RefuseReason::UnknownModel) => Ok(RefuseReason::UnknownModel),
        Ok(v1::RefuseReason::NotLeader) => Ok(RefuseReason::NotLeader),
        Ok(v1::RefuseReason::Unspecified) | Err(_) => {
            Err(InvalidMessage::new(field, format!("{value} is no reason to refuse")))
        }
    }
}

impl From<RefuseReason> for v1::RefuseReason {
    fn from(reason: RefuseReason) -> Self {
        match reason {
            RefuseReason::NoNode => Self::NoNode,
            RefuseReason::NeverFits => Self::NeverFits,
            RefuseReason::Capacity => Self::Capacity,
            RefuseReason::UnknownModel => Self::UnknownModel,
            RefuseReason::NotLeader => Self::NotLeader,
        }
    }
}

impl TryFrom<v1::NodesResponse> for Vec<NodeStatus> {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodesResponse) -> Result<Self, InvalidMessage> {
        read::list("nodes", wire.nodes, limits::NODES_MAX)
    }
}

impl From<Vec<NodeStatus>> for v1::NodesResponse {
    fn from(nodes: Vec<NodeStatus>) -> Self {
        Self { nodes: nodes.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::NodeStatus> for NodeStatus {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodeStatus) -> Result<Self, InvalidMessage> {
        Ok(Self {
            record: read::message("record", wire.record)?,
            report: read::optional::<_, NodeReport>("report", wire.report)?,
        })
    }
}

impl From<NodeStatus> for v1::NodeStatus {
    fn from(status: NodeStatus) -> Self {
        Self { record: Some(status.record.into()), report: status.report.map(Into::into) }
    }
}
