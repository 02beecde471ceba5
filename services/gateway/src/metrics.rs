//! What the gateway counts: the families that the field scrapes (names and buckets as vLLM has
//! them) and its own. Every label set exists from the start, so that an alert sees zeros.
//! What it deliberately does not do: engine families such as the prefix cache's; their nodes do.

use std::time::Duration;

use daemon::metrics::{REQUEST_SECONDS, REQUEST_TOKENS, TOKEN_SECONDS, TTFT_SECONDS, register};
use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use session::Usage;

use crate::pressure::Pressure;

/// The labels that vLLM's families carry.
const LABELS: [&str; 2] = ["model_name", "engine"];

/// How a request ended; the label `finished_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    /// The client went away.
    Abort,
    Error,
}

impl End {
    const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// Why a request was turned away; the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// It can never work as it is.
    Invalid,
    /// More requests than the gateway takes at once.
    Concurrency,
    /// More requests than may wait.
    QueueFull,
    /// It waited as long as it may, and the pools are full.
    Capacity,
    /// It waited as long as it may, and a part of the cluster is missing.
    Unavailable,
    /// No node's pool could ever hold it.
    NeverFits,
}

impl Rejection {
    const ALL: [Self; 6] = [
        Self::Invalid,
        Self::Concurrency,
        Self::QueueFull,
        Self::Capacity,
        Self::Unavailable,
        Self::NeverFits,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Concurrency => "concurrency",
            Self::QueueFull => "queue_full",
            Self::Capacity => "capacity",
            Self::Unavailable => "unavailable",
            Self::NeverFits => "never_fits",
        }
    }
}

/// The gateway's metrics for its model.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Being answered.
    pub(crate) running: IntGauge,
    /// Waiting for a plan.
    pub(crate) waiting: IntGauge,
    /// Answers asked for as streams and open now.
    pub(crate) streams_open: IntGauge,
    /// Plans asked for again, after a refusal or a failure.
    pub(crate) replanned: IntCounter,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    generation_tokens: IntCounter,
    ttft: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    queue: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_tokens: Histogram,
    /// From 0 to 1.
    kv_usage: Gauge,
    cache_info: CacheInfo,
    success: Vec<(End, IntCounter)>,
    rejections: Vec<(Rejection, IntCounter)>,
}

impl Metrics {
    /// Registers everything, for a model and the limits that are worth a gauge.
    pub(crate) fn try_new(
        registry: &Registry,
        model: &str,
        limits: &[(&str, u64)],
    ) -> Result<Self, prometheus::Error> {
        let family = Family { registry, values: [model, "0"] };
        let limit = Opts::new("oasiskv_gateway_limit", "Configured bounds of the gateway.");
        let limit = register(registry, IntGaugeVec::new(limit, &["limit"]))?;
        for (name, value) in limits {
            limit.with_label_values(&[*name]).set(i64::try_from(*value).unwrap_or(i64::MAX));
        }
        let success = family.counters(
            "vllm:request_success_total",
            "Requests by how they ended.",
            "finished_reason",
        )?;
        let rejections = family.counters(
            "vllm:admission_rejections_total",
            "Requests turned away, by reason.",
            "reason",
        )?;
        Ok(Self {
            running: family.gauge("vllm:num_requests_running", "Requests being answered.")?,
            waiting: family.gauge("vllm:num_requests_waiting", "Requests waiting for a plan.")?,
            streams_open: family
                .gauge("oasiskv_gateway_streams_open", "Streamed answers that are open.")?,
            replanned: family
                .counter("oasiskv_gateway_replanned_total", "Plans asked for again.")?,
            prompt_tokens: family.counter("vllm:prompt_tokens_total", "Prompt tokens.")?,
            cached_tokens: family
                .counter("vllm:prompt_tokens_cached_total", "Prompt tokens not computed.")?,
            generation_tokens: family
                .counter("vllm:generation_tokens_total", "Generated tokens.")?,
            ttft: family.histogram("vllm:time_to_first_token_seconds", &TTFT_SECONDS)?,
            inter_token: family.histogram("vllm:inter_token_latency_seconds", &TOKEN_SECONDS)?,
            per_output_token: family
                .histogram("vllm:request_time_per_output_token_seconds", &TOKEN_SECONDS)?,
            e2e: family.histogram("vllm:e2e_request_latency_seconds", &REQUEST_SECONDS)?,
            queue: family.histogram("vllm:request_queue_time_seconds", &REQUEST_SECONDS)?,
            request_prompt_tokens: family
                .histogram("vllm:request_prompt_tokens", &REQUEST_TOKENS)?,
            request_generation_tokens: family
                .histogram("vllm:request_generation_tokens", &REQUEST_TOKENS)?,
            request_max_tokens: family
                .histogram("vllm:request_params_max_tokens", &REQUEST_TOKENS)?,
            kv_usage: family.fraction(
                "vllm:kv_cache_usage_perc",
                "Share in use of the fullest tier, 0 to 1.",
            )?,
            cache_info: CacheInfo::try_new(&family)?,
            success: End::ALL.map(|end| (end, success(end.name()))).into(),
            rejections: Rejection::ALL.map(|why| (why, rejections(why.name()))).into(),
        })
    }

    /// A request was taken into work, with this bound on its answer.
    pub(crate) fn accepted(&self, max_tokens: u32) {
        self.request_max_tokens.observe(f64::from(max_tokens));
    }

    /// A request was turned away before it was planned.
    pub(crate) fn rejected(&self, why: Rejection) {
        for (_, counter) in self.rejections.iter().filter(|(reason, _)| *reason == why) {
            counter.inc();
        }
    }

    /// The nodes reported how full they are.
    pub(crate) fn pressure(&self, pressure: Pressure) {
        self.kv_usage.set(pressure.usage);
        self.cache_info.show(pressure.blocks);
    }

    /// A request was planned after this wait.
    pub(crate) fn planned(&self, waited: Duration) {
        self.queue.observe(waited.as_secs_f64());
    }

    /// The first token came this long after the request.
    pub(crate) fn first_token(&self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    /// The next token came this long after the one before.
    pub(crate) fn next_token(&self, after: Duration) {
        self.inter_token.observe(after.as_secs_f64());
    }

    /// A request that was planned ended; called once for each.
    pub(crate) fn ended(&self, end: End, usage: Usage, took: Duration, decoding: Duration) {
        for (_, counter) in self.success.iter().filter(|(reason, _)| *reason == end) {
            counter.inc();
        }
        self.prompt_tokens.inc_by(u64::from(usage.prompt_tokens));
        self.cached_tokens.inc_by(u64::from(usage.cached_tokens));
        self.generation_tokens.inc_by(u64::from(usage.completion_tokens));
        self.e2e.observe(took.as_secs_f64());
        self.request_prompt_tokens.observe(f64::from(usage.prompt_tokens));
        self.request_generation_tokens.observe(f64::from(usage.completion_tokens));
        if usage.completion_tokens > 1 {
            let steps = f64::from(usage.completion_tokens - 1);
            self.per_output_token.observe(decoding.as_secs_f64() / steps);
        }
    }
}

/// Facts as labels of a series that is always 1, as vLLM has it.
#[derive(Debug)]
struct CacheInfo {
    family: IntGaugeVec,
    model: String,
    /// What the one series says; another number replaces it.
    blocks: Mutex<u64>,
}

impl CacheInfo {
    fn try_new(family: &Family<'_>) -> Result<Self, prometheus::Error> {
        let help = "Size of the decode nodes' caches.";
        let options = Opts::new("vllm:cache_config_info", help);
        let labels = [LABELS[0], LABELS[1], "block_size", "num_gpu_blocks"];
        let info = Self {
            family: register(family.registry, IntGaugeVec::new(options, &labels))?,
            model: family.values[0].to_owned(),
            blocks: Mutex::new(0),
        };
        info.series(0).set(1);
        Ok(info)
    }

    fn series(&self, blocks: u64) -> IntGauge {
        let (size, blocks) = (ids::BLOCK_TOKENS.to_string(), blocks.to_string());
        self.family.with_label_values(&[self.model.as_str(), "0", &size, &blocks])
    }

    fn show(&self, blocks: u64) {
        let mut shown = self.blocks.lock();
        if *shown != blocks {
            self.family.reset();
            self.series(blocks).set(1);
            *shown = blocks;
        }
    }
}

/// Makes families with the labels of one model and their values.
struct Family<'a> {
    registry: &'a Registry,
    values: [&'a str; 2],
}

impl Family<'_> {
    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        let family = register(self.registry, IntGaugeVec::new(Opts::new(name, help), &LABELS))?;
        Ok(family.with_label_values(&self.values))
    }

    fn fraction(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        let family = register(self.registry, GaugeVec::new(Opts::new(name, help), &LABELS))?;
        Ok(family.with_label_values(&self.values))
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        let family = register(self.registry, IntCounterVec::new(Opts::new(name, help), &LABELS))?;
        Ok(family.with_label_values(&self.values))
    }

    /// A family with one label more; gives the counter for a value of it.
    fn counters(
        &self,
        name: &str,
        help: &str,
        label: &str,
    ) -> Result<impl Fn(&str) -> IntCounter, prometheus::Error> {
        let labels = [LABELS[0], LABELS[1], label];
        let family = register(self.registry, IntCounterVec::new(Opts::new(name, help), &labels))?;
        let [model, engine] = self.values.map(str::to_owned);
        Ok(move |value: &str| family.with_label_values(&[model.as_str(), engine.as_str(), value]))
    }

    fn histogram(&self, name: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let help = "As vLLM has it, seen from the gateway.";
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let family = register(self.registry, HistogramVec::new(options, &LABELS))?;
        Ok(family.with_label_values(&self.values))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use session::Usage;

    use super::{End, Metrics, Pressure, Rejection};

    #[test]
    fn every_label_set_is_there_before_its_first_event() {
        let registry = daemon::metrics::registry(&[]).expect("no labels");
        let metrics = Metrics::try_new(&registry, "m", &[("waiting_max", 7)]).expect("new names");
        let page = || daemon::metrics::expose(std::slice::from_ref(&registry)).expect("valid");
        let labels = "engine=\"0\",finished_reason=\"abort\",model_name=\"m\"";
        assert!(page().contains(&format!("vllm:request_success_total{{{labels}}} 0")));
        assert!(page().contains("reason=\"queue_full\"} 0"));
        assert!(page().contains("oasiskv_gateway_limit{limit=\"waiting_max\"} 7"));

        let cache = |blocks: u64| {
            let labels = "block_size=\"16\",engine=\"0\",model_name=\"m\"";
            format!("vllm:cache_config_info{{{labels},num_gpu_blocks=\"{blocks}\"}} 1")
        };
        assert!(page().contains(&cache(0)), "{}", page());
        metrics.pressure(Pressure { usage: 0.25, blocks: 96 });
        assert!(page().contains(&cache(96)) && !page().contains(&cache(0)), "one at a time");
        assert!(page().contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25"));

        let usage = Usage { prompt_tokens: 20, cached_tokens: 16, completion_tokens: 3 };
        metrics.rejected(Rejection::QueueFull);
        metrics.ended(End::Abort, usage, Duration::from_secs(2), Duration::from_secs(1));
        assert!(page().contains(&format!("vllm:request_success_total{{{labels}}} 1")));
        assert!(page().contains("reason=\"queue_full\"} 1"));
        assert!(
            page().contains("vllm:prompt_tokens_cached_total{engine=\"0\",model_name=\"m\"} 16")
        );
        assert!(page().contains("vllm:request_prompt_tokens_sum"));
    }
}
