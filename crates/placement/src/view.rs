//! What the coordinator believes of the cluster: registrations, the newest reports, and what it
//! has promised since.

use std::collections::BTreeMap;

use ids::{ByteCount, Incarnation, Moment, NodeId, Role, Span, Term, Tier};

use crate::affinity::Affinity;
use crate::node::{NodeRecord, NodeReport, NodeStatus, TierCapacity};
use crate::plan::Target;

/// Bounds of the view and of what it advises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewConfig {
    /// A node whose newest report is older gets no new work.
    pub report_age_max: Span,
    /// A promise counts until a report that came at least this much later: an earlier one may
    /// have been written before the reservation arrived.
    pub settle: Span,
    /// How many blocks the coordinator remembers the prefill node of.
    pub affinity_blocks_max: usize,
    /// When to ask again after `Capacity`.
    pub retry_capacity: Span,
    /// When to ask again after `NoNode`.
    pub retry_no_node: Span,
    /// Blocks of a prompt that go to one home; longer prompts are spread.
    pub blocks_per_home_max: u32,
}

impl Default for ViewConfig {
    fn default() -> Self {
        Self {
            report_age_max: Span::from_secs(5),
            settle: Span::from_millis(200),
            affinity_blocks_max: 1 << 18,
            retry_capacity: Span::from_millis(250),
            retry_no_node: Span::from_secs(1),
            blocks_per_home_max: 256,
        }
    }
}

/// The cluster as one coordinator sees it under one term.
#[derive(Debug)]
pub struct View {
    pub(crate) config: ViewConfig,
    pub(crate) term: Term,
    /// Of the newest plan.
    pub(crate) sequence: u64,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) affinity: Affinity,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) record: NodeRecord,
    /// The newest report and when it came; `None` until the first and after its stream broke.
    report: Option<(NodeReport, Moment)>,
    /// What plans have put there that no report shows yet.
    promises: Vec<Promise>,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    made: Moment,
    tier: Tier,
    bytes: ByteCount,
}

/// What a tier of a node has, now and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free: ByteCount,
    pub(crate) total: ByteCount,
}

impl View {
    /// An empty view.
    #[must_use]
    pub fn new(config: ViewConfig, term: Term) -> Self {
        Self {
            config,
            term,
            sequence: 0,
            nodes: BTreeMap::new(),
            affinity: Affinity::new(config.affinity_blocks_max),
        }
    }

    /// Leadership under which plans are made.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// A node is listed. A later start of it, or one at other addresses, begins without reports.
    pub fn joined(&mut self, record: NodeRecord) {
        let known = self.nodes.get(&record.id);
        if known.is_some_and(|node| node.record == record) {
            return;
        }
        let node = Node { record: record.clone(), report: None, promises: Vec::new() };
        self.nodes.insert(record.id, node);
    }

    /// A start of a node is gone; a later one stays.
    pub fn gone(&mut self, node: &NodeId, incarnation: Incarnation) {
        if self.nodes.get(node).is_some_and(|known| known.record.incarnation <= incarnation) {
            self.nodes.remove(node);
        }
    }

    /// A node's newest report. One of another start is ignored.
    pub fn reported(
        &mut self,
        node: &NodeId,
        incarnation: Incarnation,
        report: NodeReport,
        now: Moment,
    ) {
        let settle = self.config.settle;
        if let Some(known) = self.start_of(node, incarnation) {
            known.promises.retain(|promise| now - promise.made < settle);
            known.report = Some((report, now));
        }
    }

    /// A node's stream broke: no new work for it until it reports again.
    pub fn unheard(&mut self, node: &NodeId, incarnation: Incarnation) {
        if let Some(known) = self.start_of(node, incarnation) {
            known.report = None;
        }
    }

    /// What is known of every node, ascending by name.
    #[must_use]
    pub fn statuses(&self) -> Vec<NodeStatus> {
        let status = |node: &Node| NodeStatus {
            record: node.record.clone(),
            report: node.report.as_ref().map(|(report, _)| report.clone()),
        };
        self.nodes.values().map(status).collect()
    }

    /// How many nodes of a role take new work now.
    #[must_use]
    pub fn live_count(&self, role: Role, now: Moment) -> usize {
        let live = |node: &&Node| node.record.role == role && node.live(now, self.config);
        self.nodes.values().filter(live).count()
    }

    fn start_of(&mut self, node: &NodeId, incarnation: Incarnation) -> Option<&mut Node> {
        self.nodes.get_mut(node).filter(|known| known.record.incarnation == incarnation)
    }
}

impl Node {
    /// Heard of lately, and not draining.
    pub(crate) fn live(&self, now: Moment, config: ViewConfig) -> bool {
        let lately = |at: Moment| now - at <= config.report_age_max;
        self.report.as_ref().is_some_and(|(report, at)| report.accepting && lately(*at))
    }

    /// Room in one of its tiers, less what was promised; none in a tier it does not have.
    pub(crate) fn room(&self, tier: Tier) -> Room {
        let Some(capacity) = self.capacity(tier) else {
            return Room::default();
        };
        let promised = self.promises.iter().filter(|promise| promise.tier == tier);
        let promised = promised.map(|promise| promise.bytes).sum();
        Room { free: capacity.free.saturating_sub(promised), total: capacity.total }
    }

    /// What the node last said of a tier; `None` for one that it does not have.
    pub(crate) fn capacity(&self, tier: Tier) -> Option<&TierCapacity> {
        let (report, _) = self.report.as_ref()?;
        report.tiers.iter().find(|capacity| capacity.tier == tier)
    }

    /// Whether its device can hold a prompt of so many blocks; a node that does not tell can.
    pub(crate) fn computes(&self, blocks: u32) -> bool {
        let bytes = ByteCount(self.record.block_bytes.0.saturating_mul(blocks.into()));
        self.capacity(Tier::Device).is_none_or(|capacity| capacity.total >= bytes)
    }

    /// Requests that are there or on their way.
    pub(crate) fn load(&self) -> u64 {
        let reported = self
            .report
            .as_ref()
            .map_or(0, |(report, _)| u64::from(report.queued) + u64::from(report.running));
        reported + self.promises.len() as u64
    }

    pub(crate) fn promise(&mut self, tier: Tier, bytes: ByteCount, now: Moment) {
        self.promises.push(Promise { made: now, tier, bytes });
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            node: self.record.id.clone(),
            incarnation: self.record.incarnation,
            control: self.record.control.clone(),
            bulk: self.record.bulk.clone(),
        }
    }
}
