//! What a memory node tells Prometheus: `oasiskv_memory_*`, all series there from the start.
//!
//! Counts events as they happen; gauges are read from the store and the transport when scraped.

use std::sync::{Arc, OnceLock};

use daemon::metrics::register;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use remote::{Granted, ReserveRefused};
use transfer::RefusalReason;
use transfer::tcp::{Count, ServerCounters};

use crate::shelf::{CommitOutcome, Shelf};

/// Counters of what the node decided.
#[derive(Clone)]
pub(crate) struct Events {
    reservations: IntCounter,
    refused: IntCounterVec,
    committed: IntCounter,
    rejected: IntCounter,
    expired: IntCounter,
}

impl Events {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| register(registry, IntCounter::new(name, help));
        let refused = IntCounterVec::new(
            Opts::new("oasiskv_memory_reserve_refused_total", "Reservations refused, by reason."),
            &["reason"],
        );
        let events = Self {
            reservations: counter("oasiskv_memory_reservations_total", "Reservations granted.")?,
            refused: register(registry, refused)?,
            committed: counter("oasiskv_memory_commits_total", "Blocks verified and kept.")?,
            rejected: counter(
                "oasiskv_memory_commits_rejected_total",
                "Blocks that did not arrive whole or did not hash to their receipt.",
            )?,
            expired: counter("oasiskv_memory_leases_expired_total", "Leases that ran out.")?,
        };
        for reason in ["never_fits", "full", "stale_epoch", "draining"] {
            events.refused.with_label_values(&[reason]);
        }
        Ok(events)
    }

    pub(crate) fn reserved(&self, answer: &Result<Granted, ReserveRefused>) {
        let reason = match answer {
            Ok(_) => return self.reservations.inc(),
            Err(ReserveRefused::NeverFits { .. }) => "never_fits",
            Err(ReserveRefused::Full { .. }) => "full",
            Err(ReserveRefused::StaleEpoch { .. }) => "stale_epoch",
            Err(ReserveRefused::Draining) => "draining",
        };
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(crate) fn committed(&self, outcome: &CommitOutcome) {
        self.committed.inc_by(outcome.committed.len() as u64);
        self.rejected.inc_by(outcome.rejected.len() as u64);
    }

    pub(crate) fn expired(&self) {
        self.expired.inc();
    }
}

/// Reads the store and the bulk transport at each scrape.
pub(crate) struct Scraped {
    shelf: Arc<Shelf>,
    /// There once the bulk transport serves.
    bulk: Arc<OnceLock<Arc<ServerCounters>>>,
    slices: IntGaugeVec,
    sessions: IntGauge,
    connections: IntGauge,
    bytes: IntCounterVec,
    refused: IntCounterVec,
    closed: IntCounterVec,
}

impl Scraped {
    /// Registers itself; `bulk` is set later.
    pub(crate) fn register(
        registry: &Registry,
        shelf: Arc<Shelf>,
        bulk: Arc<OnceLock<Arc<ServerCounters>>>,
    ) -> Result<(), prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str| {
            IntCounterVec::new(Opts::new(name, help), &[label])
        };
        let slices = Opts::new("oasiskv_memory_slices", "Slots of the slab, by use.");
        let scraped = Self {
            shelf,
            bulk,
            slices: IntGaugeVec::new(slices, &["use"])?,
            sessions: IntGauge::new("oasiskv_memory_sessions", "Sessions with a reservation.")?,
            connections: IntGauge::new(
                "oasiskv_memory_bulk_connections",
                "Bulk connections open now.",
            )?,
            bytes: counters(
                "oasiskv_memory_bulk_bytes_total",
                "Slice bytes over the bulk transport, by direction.",
                "direction",
            )?,
            refused: counters(
                "oasiskv_memory_bulk_refused_total",
                "Bulk frames refused, by reason.",
                "reason",
            )?,
            closed: counters(
                "oasiskv_memory_bulk_closed_total",
                "Bulk connections closed for a fault, by reason.",
                "reason",
            )?,
        };
        registry.register(Box::new(scraped))
    }

    fn refresh(&self) {
        let counts = self.shelf.counts();
        for (name, value) in [
            ("total", counts.total),
            ("reserved", counts.reserved),
            ("used", counts.used),
            ("landing", counts.landing),
            ("kept", counts.kept),
            ("cached", counts.cached),
        ] {
            self.slices.with_label_values(&[name]).set(value.into());
        }
        self.sessions.set(counts.sessions.into());
        let none = Arc::default();
        let bulk: &ServerCounters = self.bulk.get().unwrap_or(&none);
        let connections = i64::try_from(bulk.connections_open.get()).unwrap_or(i64::MAX);
        self.connections.set(connections);
        let follow = |vec: &IntCounterVec, label: &str, value: u64| {
            let counter = vec.with_label_values(&[label]);
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        let count = |count: &Count| count.get();
        follow(&self.bytes, "out", count(&bulk.bytes_sent));
        follow(&self.bytes, "in", count(&bulk.bytes_landed));
        follow(&self.closed, "malformed", count(&bulk.malformed));
        follow(&self.closed, "broken", count(&bulk.broken));
        follow(&self.closed, "full", count(&bulk.connections_refused));
        for reason in RefusalReason::ALL {
            follow(&self.refused, reason.name(), bulk.refused(reason));
        }
    }

    fn parts(&self) -> [&dyn Collector; 6] {
        [&self.slices, &self.sessions, &self.connections, &self.bytes, &self.refused, &self.closed]
    }
}

impl Collector for Scraped {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
