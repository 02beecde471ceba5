//! Keeps the view true: follows the membership, and holds one stream of reports per node that
//! holds KV. A stream that breaks or falls silent is how a death is noticed first; the lease is
//! the backstop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use daemon::{OnExit, Role};
use ids::{Incarnation, NodeId};
use membership::{Event, Membership, Watch};
use placement::{NodeRecord, NodeReport};
use proto::v1::node_client::NodeClient;
use proto::{ChannelOptions, v1};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::cluster::Cluster;

/// How nodes are watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) channels: ChannelOptions,
    /// Longest time between two reports.
    pub(crate) silence_max: Duration,
    /// Longest pause before a node is tried again.
    pub(crate) retry_max: Duration,
}

/// Follows the membership for as long as it is polled.
pub(crate) struct Follower {
    pub(crate) membership: Membership,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) role: Role,
    pub(crate) patience: Patience,
    /// One per listed node; dropping the guard ends its stream. As many as the registry's limit.
    pub(crate) observed: BTreeMap<NodeId, (NodeRecord, DropGuard)>,
}

impl Follower {
    /// Ends when the membership closes.
    pub(crate) async fn run(mut self) {
        while let Ok(watch) = self.membership.watch().await {
            self.follow(watch).await;
        }
    }

    async fn follow(&mut self, mut watch: Watch) {
        while let Some(event) = watch.next().await {
            match event {
                Event::Snapshot(records) => self.restart(records),
                Event::Joined(record) => self.joined(record),
                Event::Gone { node, incarnation } => self.gone(&node, incarnation),
            }
        }
    }

    /// Takes a snapshot over: what it does not list is gone.
    fn restart(&mut self, records: Vec<NodeRecord>) {
        let known: Vec<NodeRecord> = self.observed.values().map(|(r, _)| r.clone()).collect();
        for before in known {
            if !records.iter().any(|record| record.id == before.id) {
                self.gone(&before.id, before.incarnation);
            }
        }
        for record in records {
            self.joined(record);
        }
    }

    fn joined(&mut self, record: NodeRecord) {
        if self.observed.get(&record.id).is_some_and(|(known, _)| *known == record) {
            return;
        }
        self.cluster.joined(record.clone());
        match record.role {
            ids::Role::Prefill | ids::Role::Decode | ids::Role::Memory => {}
            ids::Role::Gateway | ids::Role::Coordinator => return,
        }
        let ended = CancellationToken::new();
        let observer = Observer {
            record: record.clone(),
            cluster: Arc::clone(&self.cluster),
            patience: self.patience,
            ended: ended.clone(),
        };
        self.role.spawn("observe a node", OnExit::Ignore, observer.run());
        self.observed.insert(record.id.clone(), (record, ended.drop_guard()));
    }

    fn gone(&mut self, node: &NodeId, incarnation: Incarnation) {
        self.cluster.gone(node, incarnation);
        let known = self.observed.get(node);
        if known.is_some_and(|(record, _)| record.incarnation <= incarnation) {
            self.observed.remove(node);
        }
    }
}

/// Reads the reports of one start of a node until it is gone.
struct Observer {
    record: NodeRecord,
    cluster: Arc<Cluster>,
    patience: Patience,
    ended: CancellationToken,
}

impl Observer {
    async fn run(self) {
        let channel = match proto::channel(&self.record.control, &self.patience.channels) {
            Ok(channel) => channel,
            Err(error) => {
                tracing::error!(node = %self.record.id, %error, "cannot be observed");
                return;
            }
        };
        let mut client = proto::client::node(channel);
        let least = (self.patience.retry_max / 10).max(Duration::from_millis(1));
        let mut pause = least;
        loop {
            let mut heard = false;
            let broken = tokio::select! {
                () = self.ended.cancelled() => return,
                broken = self.listen(&mut client, &mut heard) => broken,
            };
            self.cluster.unheard(&self.record);
            if heard || pause == least {
                tracing::info!(node = %self.record.id, %broken, "a node is not heard; trying on");
            }
            pause = if heard { least } else { (pause * 2).min(self.patience.retry_max) };
            tokio::select! {
                () = self.ended.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Takes reports over until the stream ends; says why it did.
    async fn listen(&self, client: &mut NodeClient<Channel>, heard: &mut bool) -> Status {
        let request = v1::ObserveRequest::from(self.cluster.term());
        let mut stream = match client.observe(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return status,
        };
        loop {
            let report = match timeout(self.patience.silence_max, stream.message()).await {
                Ok(Ok(Some(report))) => report,
                Ok(Ok(None)) => return Status::new(Code::Cancelled, "the node ended the stream"),
                Ok(Err(status)) => return status,
                Err(_) => return Status::deadline_exceeded("no report"),
            };
            match NodeReport::try_from(report) {
                Ok(report) => {
                    *heard = true;
                    self.cluster.reported(&self.record, report);
                }
                Err(invalid) => return invalid.into(),
            }
        }
    }
}
