//! A registry of another process, over gRPC.

use ids::Span;
use proto::cluster::{LeaseId, Register, Registered};
use proto::v1;
use proto::v1::membership_client::MembershipClient;
use proto::with_deadline;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::service::{FULL_PREFIX, superseded_by};
use crate::watch::Watch;
use crate::{KeepAliveError, RegisterError, Superseded, Unavailable};

/// What one call may take. A registry answers from memory; a frozen one must be noticed well
/// within the shortest lease.
const CALL: Span = Span::from_secs(1);

/// A client of a remote registry. Clones share the channel.
#[derive(Clone, Debug)]
pub struct Remote(MembershipClient<Channel>);

impl Remote {
    /// Over a channel of `proto::channel`.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self(proto::client::membership(channel))
    }

    pub(crate) async fn register(&self, register: Register) -> Result<Registered, RegisterError> {
        let (node, given) = (register.node.id.clone(), register.node.incarnation);
        let request = with_deadline(v1::RegisterRequest::from(register), CALL);
        match self.0.clone().register(request).await {
            Ok(response) => {
                Registered::try_from(response.into_inner()).map_err(|e| unavailable(&e).into())
            }
            Err(status) if status.code() == Code::AlreadyExists => {
                let seen = superseded_by(&status).unwrap_or(given);
                Err(Superseded { node, given, seen }.into())
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                let limit = status.message().strip_prefix(FULL_PREFIX);
                let nodes_max = limit.and_then(|limit| limit.parse().ok()).unwrap_or_default();
                Err(RegisterError::Full { nodes_max })
            }
            Err(status) => Err(status_unavailable(&status).into()),
        }
    }

    pub(crate) async fn keep_alive(&self, lease: LeaseId) -> Result<Span, KeepAliveError> {
        let request = with_deadline(v1::KeepAliveRequest::from(lease), CALL);
        match self.0.clone().keep_alive(request).await {
            Ok(response) => {
                Span::try_from(response.into_inner()).map_err(|e| unavailable(&e).into())
            }
            Err(status) if status.code() == Code::NotFound => Err(KeepAliveError::Forgotten),
            Err(status) => Err(status_unavailable(&status).into()),
        }
    }

    pub(crate) async fn leave(&self, lease: LeaseId) -> Result<(), Unavailable> {
        let request = with_deadline(v1::LeaveRequest::from(lease), CALL);
        match self.0.clone().leave(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(status_unavailable(&status)),
        }
    }

    pub(crate) async fn watch(&self) -> Result<Watch, Unavailable> {
        let request = v1::WatchRequest { from_revision: 0 };
        match self.0.clone().watch(request).await {
            Ok(response) => Ok(Watch::of_remote(response.into_inner())),
            Err(status) => Err(status_unavailable(&status)),
        }
    }
}

fn unavailable(error: &dyn std::error::Error) -> Unavailable {
    Unavailable { reason: format!("a wrong answer: {error}") }
}

fn status_unavailable(status: &Status) -> Unavailable {
    Unavailable { reason: format!("{:?}: {}", status.code(), status.message()) }
}
