//! How a node that holds KV enters the cluster: what it is called, where it stands, and the
//! registration that its readiness depends on. One way for prefill, decode and memory nodes.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use daemon::{ConfigError, OnExit};
use ids::{ByteCount, Incarnation, InvalidName, Role};
use placement::NodeRecord;
use proto::ChannelOptions;
use serde::{Deserialize, Serialize};

use crate::{Membership, Remote, Standing};

/// What the node is called and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Its name, stable over restarts: 1 to 63 of a-z, 0-9 and '-'.
    pub id: String,
    /// Failure domain: the machine. Copies of a block go to different ones.
    pub host: String,
    /// Failure domain: the zone.
    pub zone: String,
    /// Host name that other nodes connect to, where that differs from what is bound (a pod's
    /// name, say); empty is the bound address. The ports are those that were bound.
    pub advertise_host: String,
}

/// Where the node registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JoinConfig {
    /// gRPC address of the coordinator that hosts the membership, `host:port`.
    pub coordinator: String,
    /// How long the listing lasts without a sign of life.
    pub ttl: daemon::Span,
}

impl Default for JoinConfig {
    fn default() -> Self {
        Self { coordinator: "127.0.0.1:7400".to_owned(), ttl: daemon::Span::secs(5) }
    }
}

impl JoinConfig {
    /// Checks what can be told without a network.
    ///
    /// # Errors
    /// [`ConfigError::invalid`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.ttl.is_zero() {
            return Err(ConfigError::invalid("membership.ttl", "must be above zero", "raise it"));
        }
        Ok(())
    }
}

/// Where a node was bound.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// gRPC services.
    pub control: SocketAddr,
    /// Bulk transport; `None` for a node that serves none.
    pub bulk: Option<SocketAddr>,
}

impl NodeConfig {
    /// The defaults of a role's first node, as in `prefill-0`.
    #[must_use]
    pub fn first_of(role: Role) -> Self {
        Self {
            id: format!("{role}-0"),
            host: "localhost".to_owned(),
            zone: "default".to_owned(),
            advertise_host: String::new(),
        }
    }

    /// Checks the names.
    ///
    /// # Errors
    /// [`ConfigError::invalid`].
    pub fn check(&self) -> Result<(), ConfigError> {
        named::<ids::NodeId>("node.id", &self.id)?;
        named::<ids::Domain>("node.host", &self.host)?;
        named::<ids::Domain>("node.zone", &self.zone).map(drop)
    }

    /// The registration of a node that loads no model; one that does fills in the rest.
    ///
    /// # Errors
    /// [`ConfigError::invalid`] for a name that is none.
    pub fn record(&self, role: Role, bound: Bound) -> Result<NodeRecord, ConfigError> {
        let advertise = |bound: SocketAddr| match self.advertise_host.as_str() {
            "" => bound.to_string(),
            host => format!("{host}:{}", bound.port()),
        };
        Ok(NodeRecord {
            id: named("node.id", &self.id)?,
            role,
            incarnation: incarnation(),
            control: advertise(bound.control),
            bulk: bound.bulk.map(advertise).unwrap_or_default(),
            numerics_class: String::new(),
            model: None,
            host: named("node.host", &self.host)?,
            zone: named("node.zone", &self.zone)?,
            shards: 1,
            block_bytes: ByteCount(0),
        })
    }
}

fn named<T: FromStr<Err = InvalidName>>(field: &str, text: &str) -> Result<T, ConfigError> {
    let named = text.parse();
    named.map_err(|error| ConfigError::invalid(field, error, "use a lower-case DNS label"))
}

/// The incarnation of a process that starts now: later starts have higher ones, also after a
/// restart of the host.
#[must_use]
pub fn incarnation() -> Incarnation {
    #[expect(clippy::disallowed_methods, reason = "the edge: the one use of the wall clock here")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Incarnation(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1))
}

/// Keeps the node listed until its role drains, and its readiness condition `membership` true to
/// that. To be called last, when everything that is registered answers.
///
/// # Errors
/// [`ConfigError::invalid`] for a coordinator address that is none.
pub fn join(
    config: &JoinConfig,
    role: &daemon::Role,
    record: NodeRecord,
) -> Result<(), ConfigError> {
    let channel =
        proto::channel(&config.coordinator, &ChannelOptions::default()).map_err(|error| {
            let remedy = "use the coordinator's gRPC address, such as 127.0.0.1:7400";
            ConfigError::invalid("membership.coordinator", error, remedy)
        })?;
    let membership = Membership::Remote(Remote::new(channel));
    let (registration, keeper) = membership.register(record, config.ttl.duration().into());
    let listed = role.readiness().condition("membership");
    let mut standing = registration.standing();
    role.spawn("membership", OnExit::Shutdown, keeper);
    role.spawn("membership standing", OnExit::Ignore, async move {
        loop {
            let now = *standing.borrow_and_update();
            match now {
                Standing::Listed => listed.hold(),
                Standing::Seeking => listed.fail("the coordinator does not list this node yet"),
                Standing::Ended => listed.fail("this node has left"),
            }
            if now == Standing::Ended || standing.changed().await.is_err() {
                return;
            }
        }
    });
    role.on_drain("leave the membership", registration.leave());
    Ok(())
}
