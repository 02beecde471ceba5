//! What a decode node counts and shows. Nothing here can fail a request.

use std::sync::{Arc, Weak};

use ids::Tier;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tiers::Cause;

use crate::Node;

/// Written where things happen.
pub(crate) struct Metrics {
    /// Tokens sent to gateways.
    pub(crate) tokens: IntCounter,
    ended: IntCounterVec,
}

impl Metrics {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            daemon::metrics::register(registry, IntCounter::new(name, help))
        };
        let ended = Opts::new("oasiskv_decode_sessions_ended_total", "Sessions by how they ended.");
        let ended = daemon::metrics::register(registry, IntCounterVec::new(ended, &["outcome"]))?;
        for outcome in ["finished", "refused", "cancelled", "failed"] {
            ended.with_label_values(&[outcome]);
        }
        Ok(Self {
            tokens: counter("oasiskv_decode_tokens_total", "Tokens sent to gateways.")?,
            ended,
        })
    }

    pub(crate) fn ended(&self, outcome: &str) {
        self.ended.with_label_values(&[outcome]).inc();
    }
}

/// Read from the loop, the pools and the fetcher whenever somebody scrapes.
pub(crate) struct Scraped {
    /// Gone when the node is; then the last values stay.
    node: Weak<Node>,
    sessions: IntGauge,
    waiting: IntGauge,
    running: IntGauge,
    steps: IntCounter,
    rows: IntCounter,
    device_slots: IntGaugeVec,
    landing_slots: IntGaugeVec,
    fetched_bytes: IntCounterVec,
    fetch_failures: IntCounterVec,
    replica_reads: IntCounter,
}

impl Scraped {
    pub(crate) fn register(registry: &Registry, node: &Arc<Node>) -> Result<(), prometheus::Error> {
        let slots = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["state"]);
        let counters = |name: &str, help: &str, label: &str| {
            IntCounterVec::new(Opts::new(name, help), &[label])
        };
        let scraped = Self {
            node: Arc::downgrade(node),
            sessions: IntGauge::new("oasiskv_decode_sessions", "Sessions in whatever phase.")?,
            waiting: IntGauge::new(
                "oasiskv_decode_waiting",
                "Sequences that wait for a place in the batch.",
            )?,
            running: IntGauge::new("oasiskv_decode_running", "Sequences in the batch.")?,
            steps: IntCounter::new("oasiskv_decode_steps_total", "Steps of the loop.")?,
            rows: IntCounter::new("oasiskv_decode_rows_total", "Tokens drawn.")?,
            device_slots: slots(
                "oasiskv_decode_device_slots",
                "Device slots by state; one holds K and V of one layer, KV head and block.",
            )?,
            landing_slots: slots(
                "oasiskv_decode_landing_slots",
                "Slots of the landing slab by state.",
            )?,
            fetched_bytes: counters(
                "oasiskv_decode_fetched_bytes_total",
                "Verified bytes fetched, by the tier that served them.",
                "tier",
            )?,
            fetch_failures: counters(
                "oasiskv_decode_fetch_failures_total",
                "Blocks that a source did not give, by cause.",
                "cause",
            )?,
            replica_reads: IntCounter::new(
                "oasiskv_decode_replica_reads_total",
                "Blocks read from another copy than the first.",
            )?,
        };
        registry.register(Box::new(scraped))
    }

    fn refresh(&self, node: &Node) {
        let follow = |counter: &IntCounter, value: u64| {
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        let state = node.engine.state();
        let sessions = i64::try_from(node.session_count()).unwrap_or(i64::MAX);
        self.sessions.set(sessions);
        self.waiting.set(state.waiting.into());
        self.running.set(state.running.into());
        follow(&self.steps, state.steps);
        follow(&self.rows, state.rows);
        let (device, landing) = (node.memory.pool().occupancy(), node.landing.occupancy());
        for (name, slots) in [
            ("total", device.total),
            ("free", device.free),
            ("reserved", device.reserved),
            ("used", device.leased),
        ] {
            let gauge = self.device_slots.with_label_values(&[name]);
            gauge.set(slots.into());
        }
        for (name, slots) in [
            ("total", landing.total),
            ("free", landing.free),
            ("reserved", landing.reserved),
            ("used", landing.used),
        ] {
            let gauge = self.landing_slots.with_label_values(&[name]);
            gauge.set(slots.into());
        }
        let counters = node.fetcher.counters();
        for tier in [Tier::PrefillHost, Tier::Remote] {
            let counter = self.fetched_bytes.with_label_values(&[tier.name()]);
            follow(&counter, counters.bytes(tier));
        }
        for cause in Cause::ALL {
            let counter = self.fetch_failures.with_label_values(&[cause.name()]);
            follow(&counter, counters.failures(cause));
        }
        follow(&self.replica_reads, counters.replica_reads());
    }

    fn parts(&self) -> [&dyn Collector; 10] {
        [
            &self.sessions,
            &self.waiting,
            &self.running,
            &self.steps,
            &self.rows,
            &self.device_slots,
            &self.landing_slots,
            &self.fetched_bytes,
            &self.fetch_failures,
            &self.replica_reads,
        ]
    }
}

impl Collector for Scraped {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(node) = self.node.upgrade() {
            self.refresh(&node);
        }
        let parts = self.parts().into_iter();
        parts.flat_map(Collector::collect).collect()
    }
}
