//! The rest of the cluster as the gateway sees it: the coordinator that plans, the decode nodes
//! that answer. Every call has a deadline, every failure says whether asking again is safe.
//! What it deliberately does not do: wait for room; `generate` does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ids::{ModelDigest, Role, Span};
use parking_lot::Mutex;
use placement::{AdmitRequest, NodeStatus, Plan, RefuseReason, Refused};
use proto::v1;
use session::{GenerateRequest, StreamItem};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::api::error::{ApiError, Kind};
use crate::config::CoordinatorConfig;
use crate::metrics::Rejection;

/// Open channels to decode nodes; more than a cluster of the largest size has means that old
/// addresses have piled up, and all are dropped.
const CHANNELS_MAX: usize = proto::limits::NODES_MAX;

/// What asking again waits at least, so that a refusal without advice is no busy loop.
const PAUSE: Duration = Duration::from_millis(50);

/// Why an attempt led to no answer. Nothing is held anywhere, or what is runs out by itself.
#[derive(Debug)]
pub(crate) enum Setback {
    /// Asking again is useless.
    Final { error: ApiError, why: Rejection },
    /// Ask again after `pause`; `error` is for the client if there is no time left.
    Again { pause: Duration, error: ApiError, why: Rejection },
}

/// Clients of the cluster's services.
#[derive(Debug)]
pub(crate) struct Cluster {
    coordinator: Channel,
    deadline: Span,
    /// By control address.
    decodes: Mutex<BTreeMap<String, Channel>>,
}

impl Cluster {
    /// Connects lazily; inside a runtime only.
    pub(crate) fn try_new(config: &CoordinatorConfig) -> Result<Self, proto::InvalidAddress> {
        let coordinator = proto::channel(&config.address, &proto::ChannelOptions::default())?;
        let deadline = config.deadline.duration().into();
        Ok(Self { coordinator, deadline, decodes: Mutex::default() })
    }

    /// All nodes that the coordinator knows.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeStatus>, Status> {
        let request = proto::with_deadline(v1::NodesRequest {}, self.deadline);
        let mut client = proto::client::coordinator(self.coordinator.clone());
        let response = within(self.deadline, client.nodes(request)).await?;
        Ok(response.into_inner().try_into()?)
    }

    /// Asks for a plan.
    pub(crate) async fn admit(&self, request: AdmitRequest) -> Result<Plan, Setback> {
        let request = proto::with_deadline(v1::AdmitRequest::from(request), self.deadline);
        let mut client = proto::client::coordinator(self.coordinator.clone());
        let response = within(self.deadline, client.admit(request)).await;
        let response = response.map_err(|status| failed("coordinator", &status))?;
        let answer: Result<Plan, Refused> =
            response.into_inner().try_into().map_err(|error| unreadable("coordinator", &error))?;
        answer.map_err(refused)
    }

    /// Starts the answer on the plan's decode node. Dropping the stream cancels it there.
    pub(crate) async fn generate(&self, request: GenerateRequest) -> Result<Answer, Setback> {
        let channel = self.decode(&request.plan.decode.control)?;
        let mut client = proto::client::decode(channel);
        let call = client.generate(v1::GenerateRequest::from(request));
        let response = within(self.deadline, call).await;
        let stream = response.map_err(|status| failed("decode node", &status))?.into_inner();
        Ok(Answer { stream })
    }

    fn decode(&self, address: &str) -> Result<Channel, Setback> {
        let mut decodes = self.decodes.lock();
        if let Some(channel) = decodes.get(address) {
            return Ok(channel.clone());
        }
        let channel = proto::channel(address, &proto::ChannelOptions::default());
        let channel = channel.map_err(|error| unreadable("coordinator", &error))?;
        if decodes.len() >= CHANNELS_MAX {
            decodes.clear();
        }
        decodes.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// The items of one answer.
#[derive(Debug)]
pub(crate) struct Answer {
    stream: Streaming<v1::GenerateEvent>,
}

impl Answer {
    /// The next item, within `silence_max`. An answer that ends without a last item is lost.
    pub(crate) async fn next(&mut self, silence_max: Duration) -> Result<StreamItem, Setback> {
        let message = within(silence_max.into(), self.stream.message()).await;
        let message = message.map_err(|status| failed("decode node", &status))?;
        let Some(message) = message else {
            let status = Status::unavailable("the stream ended without a last item");
            return Err(failed("decode node", &status));
        };
        message.try_into().map_err(|error: proto::InvalidMessage| unreadable("decode node", &error))
    }
}

async fn within<T>(
    limit: Span,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit.into(), call).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    }
}

/// A call that failed. What the peer said is logged and not passed on.
fn failed(peer: &'static str, status: &Status) -> Setback {
    let (code, message) = (status.code(), status.message());
    match code {
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::DataLoss => {
            tracing::debug!(peer, ?code, message, "a call failed");
            let error = ApiError::unavailable(format!("the {peer} does not answer: try again"));
            Setback::Again { pause: 4 * PAUSE, error, why: Rejection::Unavailable }
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => {
            tracing::error!(peer, ?code, message, "a call was rejected");
            Setback::Final { error: ApiError::internal(), why: Rejection::Unavailable }
        }
    }
}

fn unreadable(peer: &'static str, error: &dyn std::error::Error) -> Setback {
    tracing::error!(peer, error = %error, "an answer does not make sense");
    Setback::Final { error: ApiError::internal(), why: Rejection::Unavailable }
}

/// A refusal of the coordinator, or of a node of its plan; nothing is held.
pub(crate) fn refused(refused: Refused) -> Setback {
    let advice = refused.retry_after.map_or(PAUSE, Duration::from);
    let pause = advice.max(PAUSE);
    tracing::debug!(reason = ?refused.reason, tier = ?refused.tier, detail = refused.detail,
        "not planned");
    let tier = refused.tier.map_or_else(|| "of some tier".to_owned(), |tier| tier.to_string());
    match refused.reason {
        RefuseReason::Capacity => {
            let retry_after_s = u32::try_from(pause.as_secs_f64().ceil() as u64).unwrap_or(1);
            let kind = Kind::Busy { retry_after_s: retry_after_s.max(1) };
            let message = format!("the memory {tier} is full now: try again later");
            let error = ApiError::new(kind, "rate_limit_exceeded", None, message);
            Setback::Again { pause, error, why: Rejection::Capacity }
        }
        RefuseReason::NoNode | RefuseReason::NotLeader => {
            let message = "no node for this model is ready now: try again later";
            let error = ApiError::unavailable(message);
            Setback::Again { pause: pause.max(4 * PAUSE), error, why: Rejection::Unavailable }
        }
        RefuseReason::NeverFits => {
            let message = format!(
                "prompt and answer never fit the memory {tier} of this deployment: lower \
                 `max_tokens` or shorten the prompt"
            );
            let error = ApiError::new(Kind::Invalid, "kv_never_fits", Some("max_tokens"), message);
            Setback::Final { error, why: Rejection::NeverFits }
        }
        RefuseReason::UnknownModel => {
            let message = "no node serves this model";
            let error = ApiError::new(Kind::NotFound, "model_not_found", Some("model"), message);
            Setback::Final { error, why: Rejection::Invalid }
        }
    }
}

/// What the nodes say together: the numerics class to expect for a model, or what is missing.
pub(crate) fn survey(nodes: &[NodeStatus], model: ModelDigest) -> Result<String, String> {
    let usable = |role: Role| {
        let nodes = nodes.iter().filter(move |node| node.record.role == role);
        nodes.filter(|node| node.report.as_ref().is_some_and(|report| report.accepting))
    };
    let computing = |role: Role| {
        let nodes = usable(role).filter(|node| node.record.model == Some(model));
        nodes.map(|node| node.record.numerics_class.as_str()).collect::<BTreeSet<_>>()
    };
    let (prefills, decodes) = (computing(Role::Prefill), computing(Role::Decode));
    let both = prefills.intersection(&decodes).next();
    let missing = if prefills.is_empty() {
        "no prefill node is ready for this model"
    } else if decodes.is_empty() {
        "no decode node is ready for this model"
    } else if usable(Role::Memory).next().is_none() {
        "no memory node is ready"
    } else {
        "no prefill and decode node share a numerics class"
    };
    match both {
        Some(class) if usable(Role::Memory).next().is_some() => Ok((*class).to_owned()),
        _ => Err(missing.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use ids::{ByteCount, Incarnation, ModelDigest, Role, Tier};
    use placement::{NodeRecord, NodeReport, NodeStatus, RefuseReason, Refused};
    use tonic::Status;

    use super::{Setback, failed, refused, survey};

    const MODEL: ModelDigest = ModelDigest([7; 32]);

    fn node(role: Role, class: &str, accepting: bool) -> NodeStatus {
        let model = matches!(role, Role::Prefill | Role::Decode).then_some(MODEL);
        let record = NodeRecord {
            id: "n".parse().expect("a name"),
            role,
            incarnation: Incarnation(1),
            control: String::new(),
            bulk: String::new(),
            numerics_class: class.to_owned(),
            model,
            host: "h".parse().expect("a name"),
            zone: "z".parse().expect("a name"),
            shards: 1,
            block_bytes: ByteCount(1),
        };
        NodeStatus { record, report: Some(NodeReport { accepting, ..NodeReport::default() }) }
    }

    #[test]
    fn ready_means_all_roles_in_one_numerics_class_p1() {
        let memory = node(Role::Memory, "", true);
        let mut nodes = vec![node(Role::Prefill, "b", true), node(Role::Prefill, "a", true)];
        assert!(survey(&nodes, MODEL).unwrap_err().contains("decode"));
        nodes.push(node(Role::Decode, "c", true));
        assert!(survey(&nodes, MODEL).unwrap_err().contains("memory"));
        nodes.push(memory);
        assert!(survey(&nodes, MODEL).unwrap_err().contains("numerics class"));
        nodes.push(node(Role::Decode, "b", false));
        assert!(survey(&nodes, MODEL).is_err(), "a draining node does not count");
        nodes.push(node(Role::Decode, "b", true));
        assert_eq!(survey(&nodes, MODEL), Ok("b".to_owned()));
        assert!(survey(&nodes, ModelDigest([8; 32])).is_err());
    }

    fn refusal(reason: RefuseReason) -> Setback {
        let detail = "node prefill-3 at 10.0.0.7 has 3 slots".to_owned();
        refused(Refused { reason, tier: Some(Tier::Remote), retry_after: None, detail })
    }

    #[test]
    fn refusals_have_their_status_and_keep_internals_to_themselves_p4() {
        for (reason, status, again) in [
            (RefuseReason::Capacity, 429, true),
            (RefuseReason::NoNode, 503, true),
            (RefuseReason::NotLeader, 503, true),
            (RefuseReason::NeverFits, 400, false),
            (RefuseReason::UnknownModel, 404, false),
        ] {
            let (error, repeated) = match refusal(reason) {
                Setback::Final { error, .. } => (error, false),
                Setback::Again { error, .. } => (error, true),
            };
            assert_eq!((error.status().as_u16(), repeated), (status, again), "{reason:?}");
            assert!(!error.message.contains("10.0.0.7"), "{}", error.message);
            let later = matches!(status, 429 | 503);
            assert_eq!(error.retry_after_s().is_some(), later, "{reason:?}");
        }
    }

    #[test]
    fn a_peer_that_is_gone_is_asked_again_and_a_mistake_is_not() {
        let gone = failed("decode node", &Status::unavailable("connection refused"));
        assert!(matches!(gone, Setback::Again { .. }));
        let mistake = failed("decode node", &Status::invalid_argument("plan.epoch: missing"));
        let Setback::Final { error, .. } = mistake else { panic!("asked again") };
        assert!(!error.message.contains("epoch"), "{}", error.message);
    }
}
