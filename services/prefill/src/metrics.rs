//! What a prefill node counts and shows. Nothing here can fail a request.

use std::sync::{Arc, Weak};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use crate::Node;

/// Written where things happen.
pub(crate) struct Metrics {
    /// Prompt tokens that were looked up in the prefix index.
    pub(crate) prefix_queries: IntCounter,
    /// Of those, found and not computed.
    pub(crate) prefix_hits: IntCounter,
    /// Prompts begun.
    pub(crate) runs: IntCounter,
    /// Prompts that ended without a hand-over.
    pub(crate) runs_cancelled: IntCounter,
    /// Blocks sealed.
    pub(crate) blocks_sealed: IntCounter,
    /// Blocks whose copy a home confirmed.
    pub(crate) blocks_copied: IntCounter,
    /// Copies that failed; the prefill host's is then the only one.
    pub(crate) copies_failed: IntCounter,
    /// Bytes written to homes.
    pub(crate) copied_bytes: IntCounter,
    /// Sessions whose lease ran out.
    pub(crate) sessions_expired: IntCounter,
    /// Prompts in the queue for device memory.
    pub(crate) queued: IntGauge,
}

impl Metrics {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            daemon::metrics::register(registry, IntCounter::new(name, help))
        };
        Ok(Self {
            prefix_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix index.",
            )?,
            prefix_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix index and not computed.",
            )?,
            runs: counter("oasiskv_prefill_runs_total", "Prompts begun.")?,
            runs_cancelled: counter(
                "oasiskv_prefill_runs_cancelled_total",
                "Prompts that ended without a hand-over.",
            )?,
            blocks_sealed: counter("oasiskv_prefill_blocks_sealed_total", "Blocks sealed.")?,
            blocks_copied: counter(
                "oasiskv_prefill_blocks_copied_total",
                "Blocks whose copy a memory node confirmed.",
            )?,
            copies_failed: counter(
                "oasiskv_prefill_copies_failed_total",
                "Batches of copies that a memory node did not take.",
            )?,
            copied_bytes: counter(
                "oasiskv_prefill_copied_bytes_total",
                "Bytes written to memory nodes.",
            )?,
            sessions_expired: counter(
                "oasiskv_prefill_sessions_expired_total",
                "Sessions whose lease ran out.",
            )?,
            queued: daemon::metrics::register(
                registry,
                IntGauge::new("oasiskv_prefill_queued", "Prompts in the queue for device memory."),
            )?,
        })
    }
}

/// Read from the tier and the loop whenever somebody scrapes.
pub(crate) struct Scraped {
    /// Gone when the node is; then the last values stay.
    node: Weak<Node>,
    sessions: IntGauge,
    cached_blocks: IntGauge,
    waiting: IntGauge,
    running: IntGauge,
    rows: IntCounter,
    chunks: IntCounter,
    device_slots: IntGaugeVec,
    host_slots: IntGaugeVec,
}

impl Scraped {
    pub(crate) fn register(registry: &Registry, node: &Arc<Node>) -> Result<(), prometheus::Error> {
        let slots = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["state"]);
        let scraped = Self {
            node: Arc::downgrade(node),
            sessions: IntGauge::new("oasiskv_prefill_sessions", "Sessions that hold host memory.")?,
            cached_blocks: IntGauge::new(
                "oasiskv_prefill_cached_blocks",
                "Sealed blocks in the prefix index.",
            )?,
            waiting: IntGauge::new("oasiskv_prefill_waiting", "Prompts that wait for the loop.")?,
            running: IntGauge::new("oasiskv_prefill_running", "Prompts that are being computed.")?,
            rows: IntCounter::new("oasiskv_prefill_rows_total", "Tokens computed.")?,
            chunks: IntCounter::new("oasiskv_prefill_chunks_total", "Passes through the model.")?,
            device_slots: slots(
                "oasiskv_prefill_device_slots",
                "Device slots by state; one holds K and V of one layer, KV head and block.",
            )?,
            host_slots: slots(
                "oasiskv_prefill_host_slots",
                "Host slots by state; idle ones are cached and can be evicted.",
            )?,
        };
        registry.register(Box::new(scraped))
    }

    fn refresh(&self, node: &Node) {
        let (host, device) = (node.tier.usage(), node.memory.pool().occupancy());
        let state = node.engine.state();
        let set = |gauge: &IntGauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let follow = |counter: &IntCounter, value: u64| {
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        set(&self.sessions, host.sessions);
        set(&self.cached_blocks, host.cached_blocks);
        set(&self.waiting, state.waiting as usize);
        set(&self.running, state.running as usize);
        follow(&self.rows, state.rows);
        follow(&self.chunks, state.steps);
        for (name, slots) in [
            ("total", host.total),
            ("free", host.free),
            ("reserved", host.reserved),
            ("idle", host.idle),
        ] {
            let gauge = self.host_slots.with_label_values(&[name]);
            gauge.set(slots.into());
        }
        for (name, slots) in [
            ("total", device.total),
            ("free", device.free),
            ("reserved", device.reserved),
            ("used", device.leased),
        ] {
            let gauge = self.device_slots.with_label_values(&[name]);
            gauge.set(slots.into());
        }
    }

    fn parts(&self) -> [&dyn Collector; 8] {
        [
            &self.sessions,
            &self.cached_blocks,
            &self.waiting,
            &self.running,
            &self.rows,
            &self.chunks,
            &self.device_slots,
            &self.host_slots,
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
