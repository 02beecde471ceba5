//! What the coordinator tells Prometheus: `oasiskv_coordinator_*`, all series there from the start.

use daemon::metrics::register;
use ids::Role;
use placement::{Plan, RefuseReason, Refused};
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Upper bounds for the time of a decision: it is made in memory, under one lock.
const PLAN_SECONDS: [f64; 8] = [0.000_01, 0.000_03, 0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.1];

/// The coordinator's own series.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    admissions: IntCounter,
    refusals: IntCounterVec,
    nodes: IntGaugeVec,
    plan_seconds: Histogram,
    observations_broken: IntCounterVec,
}

impl Metrics {
    pub(crate) fn try_new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let labelled = |name: &str, help: &str, label: &str| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label]))
        };
        let metrics = Self {
            admissions: register(
                registry,
                IntCounter::new("oasiskv_coordinator_admissions_total", "Requests planned."),
            )?,
            refusals: labelled(
                "oasiskv_coordinator_refusals_total",
                "Requests not planned, by reason.",
                "reason",
            )?,
            nodes: register(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "oasiskv_coordinator_nodes",
                        "Nodes that report and accept work, by role.",
                    ),
                    &["node_role"],
                ),
            )?,
            plan_seconds: register(
                registry,
                Histogram::with_opts(
                    HistogramOpts::new(
                        "oasiskv_coordinator_plan_seconds",
                        "Time of one admission decision.",
                    )
                    .buckets(PLAN_SECONDS.to_vec()),
                ),
            )?,
            observations_broken: labelled(
                "oasiskv_coordinator_observations_broken_total",
                "Streams of reports that ended or fell silent, by role of the node.",
                "node_role",
            )?,
        };
        for reason in RefuseReason::ALL {
            metrics.refusals.with_label_values(&[reason.name()]);
        }
        for role in [Role::Prefill, Role::Decode, Role::Memory] {
            metrics.nodes.with_label_values(&[role.name()]);
            metrics.observations_broken.with_label_values(&[role.name()]);
        }
        Ok(metrics)
    }

    pub(crate) fn decided(&self, answer: &Result<Plan, Refused>, seconds: f64) {
        self.plan_seconds.observe(seconds);
        match answer {
            Ok(_) => self.admissions.inc(),
            Err(refused) => {
                self.refusals.with_label_values(&[refused.reason.name()]).inc();
            }
        }
    }

    pub(crate) fn live(&self, role: Role, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.nodes.with_label_values(&[role.name()]).set(count);
    }

    pub(crate) fn broken(&self, role: Role) {
        self.observations_broken.with_label_values(&[role.name()]).inc();
    }
}
