//! What a prefill node counts and shows. Nothing here can fail a request.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use crate::Node;

/// Counters are written where things happen; gauges are refreshed by the node's timer.
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
    sessions: IntGauge,
    cached_blocks: IntGauge,
    rows: IntGauge,
    device_slots: IntGaugeVec,
    host_slots: IntGaugeVec,
    waiting: IntGauge,
    running: IntGauge,
}

impl Metrics {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            daemon::metrics::register(registry, IntCounter::new(name, help))
        };
        let gauge =
            |name: &str, help: &str| daemon::metrics::register(registry, IntGauge::new(name, help));
        let slots = |name: &str, help: &str| {
            let vector = IntGaugeVec::new(Opts::new(name, help), &["state"]);
            daemon::metrics::register(registry, vector)
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
            sessions: gauge(
                "oasiskv_prefill_sessions",
                "Sessions that hold host memory.",
            )?,
            cached_blocks: gauge(
                "oasiskv_prefill_cached_blocks",
                "Sealed blocks in the prefix index.",
            )?,
            rows: gauge("oasiskv_prefill_rows", "Tokens computed since the start.")?,
            device_slots: slots(
                "oasiskv_prefill_device_slots",
                "Device slots by state; one holds K and V of one layer, KV head and block.",
            )?,
            host_slots: slots(
                "oasiskv_prefill_host_slots",
                "Host slots by state; idle ones are cached and can be evicted.",
            )?,
            waiting: gauge("oasiskv_prefill_waiting", "Prompts that wait for the loop.")?,
            running: gauge(
                "oasiskv_prefill_running",
                "Prompts that are being computed.",
            )?,
        })
    }

    /// Brings the gauges up to date.
    pub(crate) fn scrape(&self, node: &Node) {
        let (host, device) = (node.tier.usage(), node.memory.pool().occupancy());
        let state = node.engine.state();
        let set = |gauge: &IntGauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&self.sessions, host.sessions);
        set(&self.cached_blocks, host.cached_blocks);
        set(
            &self.rows,
            usize::try_from(state.rows).unwrap_or(usize::MAX),
        );
        set(&self.waiting, state.waiting as usize);
        set(&self.running, state.running as usize);
        for (name, slots) in [
            ("total", host.total),
            ("free", host.free),
            ("reserved", host.reserved),
            ("idle", host.idle),
        ] {
            set(&self.host_slots.with_label_values(&[name]), slots as usize);
        }
        for (name, slots) in [
            ("total", device.total),
            ("free", device.free),
            ("reserved", device.reserved),
            ("used", device.leased),
        ] {
            set(
                &self.device_slots.with_label_values(&[name]),
                slots as usize,
            );
        }
    }
}
