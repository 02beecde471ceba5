//! Registries with the labels of a role, the field's bucket tables, and the text exposition.
//! What it deliberately does not do: hold metrics of its own; each component registers its own.

use std::collections::{BTreeMap, HashMap};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Registry, TextEncoder};

/// Seconds to the first token (vLLM 0.33.0, loggers.py, as all tables here).
pub const TTFT_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Seconds between tokens, and per output token.
pub const TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Seconds of a request end to end, in the queue, in prefill, in decode.
pub const REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Tokens of one iteration of the engine.
pub const ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// Tokens of a request: 1, 2, 5 per decade, as the field does for prompts and answers.
pub const REQUEST_TOKENS: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0,
];

/// The parameter `n` of a request.
pub const REQUEST_N: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Preemptions of a request.
pub const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

/// Seconds that a block lives, idles or waits to be used again.
pub const RESIDENCY_SECONDS: [f64; 22] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0,
];

/// The content type of the exposition below.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A registry whose metrics all carry these labels, as in `[("role", "decode")]`.
///
/// # Errors
/// What `prometheus` finds wrong with a label.
pub fn registry(labels: &[(&str, &str)]) -> Result<Registry, prometheus::Error> {
    let labels: HashMap<String, String> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Registry::new_custom(None, Some(labels))
}

/// Registers a metric and gives it back, so that a struct of metrics is built field by field.
///
/// # Errors
/// As `prometheus` has it: the metric is malformed, or its name is taken in this registry.
pub fn register<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: Result<M, prometheus::Error>,
) -> Result<M, prometheus::Error> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// The text exposition (0.0.4) of several registries as one: families of one name are joined,
/// because the format allows each name once.
///
/// # Errors
/// As `prometheus` has it: a family has no metric or no name.
pub fn expose(registries: &[Registry]) -> Result<String, prometheus::Error> {
    let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for mut family in registries.iter().flat_map(Registry::gather) {
        match families.get_mut(family.name()) {
            Some(joined) => joined.mut_metric().extend(family.take_metric()),
            None => {
                families.insert(family.name().to_owned(), family);
            }
        }
    }
    let families: Vec<MetricFamily> = families.into_values().collect();
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    String::from_utf8(text).map_err(|e| prometheus::Error::Msg(e.to_string()))
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounter, IntGauge};

    use super::{expose, register, registry};

    #[test]
    fn registries_of_several_roles_are_one_page() {
        let roles = ["decode", "prefill"].map(|role| registry(&[("role", role)]).expect("labels"));
        for registry in &roles {
            let counter = IntCounter::new("steps_total", "Steps.");
            register(registry, counter).expect("new name").inc();
        }
        register(&roles[0], IntGauge::new("slots", "Slots.")).expect("new name").set(7);
        let page = expose(&roles).expect("valid");
        assert_eq!(page.matches("# TYPE steps_total counter").count(), 1, "{page}");
        assert!(page.contains("steps_total{role=\"decode\"} 1"), "{page}");
        assert!(page.contains("steps_total{role=\"prefill\"} 1"), "{page}");
        assert!(page.contains("slots{role=\"decode\"} 7"), "{page}");
    }
}
