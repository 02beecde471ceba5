//! What a decode node counts and shows. Nothing here can fail a request.

use ids::Tier;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tiers::Cause;

use crate::Node;

/// Counters are written where things happen; gauges are refreshed by the node's timer.
pub(crate) struct Metrics {
    /// Tokens sent to gateways.
    pub(crate) tokens: IntCounter,
    ended: IntCounterVec,
    sessions: IntGauge,
    steps: IntGauge,
    waiting: IntGauge,
    running: IntGauge,
    device_slots: IntGaugeVec,
    landing_slots: IntGaugeVec,
    fetched_bytes: IntGaugeVec,
    fetch_failures: IntGaugeVec,
    replica_reads: IntGauge,
}

impl Metrics {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            daemon::metrics::register(registry, IntCounter::new(name, help))
        };
        let gauge =
            |name: &str, help: &str| daemon::metrics::register(registry, IntGauge::new(name, help));
        let gauges = |name: &str, help: &str, label: &str| {
            let vector = IntGaugeVec::new(Opts::new(name, help), &[label]);
            daemon::metrics::register(registry, vector)
        };
        let ended = Opts::new(
            "oasiskv_decode_sessions_ended_total",
            "Sessions by how they ended.",
        );
        let ended = daemon::metrics::register(registry, IntCounterVec::new(ended, &["outcome"]))?;
        for outcome in ["finished", "refused", "cancelled", "failed"] {
            ended.with_label_values(&[outcome]);
        }
        Ok(Self {
            tokens: counter("oasiskv_decode_tokens_total", "Tokens sent to gateways.")?,
            ended,
            sessions: gauge("oasiskv_decode_sessions", "Sessions in whatever phase.")?,
            steps: gauge("oasiskv_decode_steps", "Steps of the loop since the start.")?,
            waiting: gauge(
                "oasiskv_decode_waiting",
                "Sequences that wait for the batch.",
            )?,
            running: gauge("oasiskv_decode_running", "Sequences in the batch.")?,
            device_slots: gauges(
                "oasiskv_decode_device_slots",
                "Device slots by state; one holds K and V of one layer, KV head and block.",
                "state",
            )?,
            landing_slots: gauges(
                "oasiskv_decode_landing_slots",
                "Slots of the landing slab by state.",
                "state",
            )?,
            fetched_bytes: gauges(
                "oasiskv_decode_fetched_bytes",
                "Verified bytes fetched since the start, by the tier that served them.",
                "tier",
            )?,
            fetch_failures: gauges(
                "oasiskv_decode_fetch_failures",
                "Blocks that a source did not give since the start, by cause.",
                "cause",
            )?,
            replica_reads: gauge(
                "oasiskv_decode_replica_reads",
                "Blocks read from another copy than the first since the start.",
            )?,
        })
    }

    pub(crate) fn ended(&self, outcome: &str) {
        self.ended.with_label_values(&[outcome]).inc();
    }

    /// Brings the gauges up to date.
    pub(crate) fn scrape(&self, node: &Node) {
        let set = |gauge: &IntGauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let state = node.engine.state();
        set(&self.sessions, node.session_count() as u64);
        set(&self.steps, state.steps);
        set(&self.waiting, state.waiting.into());
        set(&self.running, state.running.into());
        let (device, landing) = (node.memory.pool().occupancy(), node.landing.occupancy());
        for (name, slots) in [
            ("total", device.total),
            ("free", device.free),
            ("reserved", device.reserved),
            ("used", device.leased),
        ] {
            set(&self.device_slots.with_label_values(&[name]), slots.into());
        }
        for (name, slots) in [
            ("total", landing.total),
            ("free", landing.free),
            ("reserved", landing.reserved),
            ("used", landing.used),
        ] {
            set(&self.landing_slots.with_label_values(&[name]), slots.into());
        }
        let counters = node.fetcher.counters();
        for tier in [Tier::PrefillHost, Tier::Remote] {
            set(
                &self.fetched_bytes.with_label_values(&[tier.name()]),
                counters.bytes(tier),
            );
        }
        for cause in Cause::ALL {
            set(
                &self.fetch_failures.with_label_values(&[cause.name()]),
                counters.failures(cause),
            );
        }
        set(&self.replica_reads, counters.replica_reads());
    }
}
