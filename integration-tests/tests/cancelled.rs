//! P6: a client that goes away, at whatever moment and whether it asked for a stream or not, leaves
//! nothing behind on any node, and is counted once as aborted.
//!
//! Read from the metrics of every process. The measured times are printed; the assertion is
//! deliberately loose, because a shared machine's clock is no judge.

#![expect(clippy::panic, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use integration_tests::{Cluster, Layout, Page};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// The promise is 100 ms or the current tile; gauges lag by up to 50 ms more, and a shared machine
/// by some.
const FREED_WITHIN: Duration = Duration::from_secs(1);

const TEXT: &str = include_str!("../goldens/logits_text.txt");

/// Every gauge of a role that must be zero when no request is there: family and label.
fn held(role: &str) -> Vec<(&'static str, &'static str)> {
    match role {
        "gateway" => vec![
            ("vllm:num_requests_running", ""),
            ("vllm:num_requests_waiting", ""),
            ("oasiskv_gateway_streams_open", ""),
        ],
        "decode" => vec![
            ("oasiskv_decode_sessions", ""),
            ("oasiskv_decode_waiting", ""),
            ("oasiskv_decode_running", ""),
            ("oasiskv_decode_device_slots", "state=\"reserved\""),
            ("oasiskv_decode_device_slots", "state=\"used\""),
            ("oasiskv_decode_landing_slots", "state=\"reserved\""),
            ("oasiskv_decode_landing_slots", "state=\"used\""),
        ],
        "prefill" => vec![
            ("oasiskv_prefill_sessions", ""),
            ("oasiskv_prefill_waiting", ""),
            ("oasiskv_prefill_running", ""),
            ("oasiskv_prefill_device_slots", "state=\"reserved\""),
            ("oasiskv_prefill_device_slots", "state=\"used\""),
            ("oasiskv_prefill_host_slots", "state=\"reserved\""),
        ],
        _ => vec![
            ("oasiskv_memory_sessions", ""),
            ("oasiskv_memory_slices", "use=\"reserved\""),
            ("oasiskv_memory_slices", "use=\"landing\""),
        ],
    }
}

fn busy(role: &str, page: &Page) -> Vec<String> {
    let value = |(family, label): &(&str, &str)| page.value(family, &[label]);
    let gauges = held(role).into_iter();
    let busy = gauges.filter(|gauge| value(gauge) != 0.0);
    busy.map(|(family, label)| format!("{role}: {family}{{{label}}}")).collect()
}

/// Device slots are free or belong to somebody: a leak would hide in neither.
fn whole(page: &Page, family: &str) -> bool {
    page.value(family, &["state=\"free\""]) == page.value(family, &["state=\"total\""])
}

fn aborted(page: &Page) -> f64 {
    page.value("vllm:request_success_total", &["finished_reason=\"abort\""])
}

/// Waits until no role holds anything, and says for how long it did.
async fn freed(cluster: &Cluster, what: &str) -> Duration {
    let since = Instant::now();
    for role in ["decode", "prefill", "memory-0", "memory-1", "gateway"] {
        let mut last = Vec::new();
        let quiet = cluster.until(role, |page| {
            last = busy(role, page);
            last.is_empty()
        });
        let quiet = timeout(FREED_WITHIN, quiet).await;
        quiet.unwrap_or_else(|_| panic!("{what}: still held: {last:?}")).expect("pages");
    }
    let page = cluster.page("decode").await.expect("a page");
    assert!(whole(&page, "oasiskv_decode_device_slots"), "{}", page.text());
    assert!(whole(&page, "oasiskv_decode_landing_slots"), "{}", page.text());
    let page = cluster.page("prefill").await.expect("a page");
    assert!(whole(&page, "oasiskv_prefill_device_slots"), "{}", page.text());
    since.elapsed()
}

/// When the client of the request goes away.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// After the first piece of text of a stream.
    AfterFirstChunk,
    /// While the answer is being generated, which it wanted whole.
    WaitingForTheWhole,
    /// While the prompt is being computed.
    InPrefill,
}

fn request(model: &str, leaves: Leaves, salt: &str) -> Value {
    let prompt = match leaves {
        Leaves::InPrefill => TEXT.repeat(10),
        Leaves::AfterFirstChunk | Leaves::WaitingForTheWhole => TEXT.to_owned(),
    };
    json!({
        "model": model, "prompt": prompt, "max_tokens": 600, "ignore_eos": true, "temperature": 0,
        "stream": matches!(leaves, Leaves::AfterFirstChunk), "cache_salt": salt,
    })
}

/// Makes the request and drops its connection at that moment.
async fn leave(cluster: &Cluster, leaves: Leaves, salt: &str) {
    let body = request(&cluster.model, leaves, salt);
    let client = cluster.client;
    match leaves {
        Leaves::AfterFirstChunk => {
            let mut events = client.stream("/v1/completions", &body).await.expect("a stream");
            loop {
                let event = events.next().await.expect("it goes on").expect("an event");
                let text = event["choices"][0]["text"].as_str().unwrap_or_default();
                if !text.is_empty() {
                    break;
                }
            }
            // The gauges must have seen it, or their return would show nothing.
            let seen = |page: &Page| !busy("decode", page).is_empty();
            cluster.until("decode", seen).await.expect("it is seen");
        }
        Leaves::WaitingForTheWhole | Leaves::InPrefill => {
            let (role, family) = match leaves {
                Leaves::InPrefill => ("prefill", "oasiskv_prefill_running"),
                _ => ("decode", "oasiskv_decode_running"),
            };
            // The gauges must have seen it, or their return would show nothing.
            let begun = async {
                let begun = cluster.until(role, |page| page.value(family, &[]) > 0.0);
                begun.await?;
                let seen = |page: &Page| !busy("decode", page).is_empty();
                cluster.until("decode", seen).await
            };
            tokio::select! {
                answer = client.post("/v1/completions", &body) => {
                    panic!("it ended before it could be left: {answer:?}")
                }
                begun = begun => begun.expect("it begins"),
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_every_pool_of_every_process_p6() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let settings = [("prefill", "batch.chunk_tokens", "128")];
    let cluster = Cluster::start(Layout::Apart, &model, &settings).await;
    let mut cluster = cluster.expect("it starts");
    let moments = [
        Leaves::AfterFirstChunk,
        Leaves::WaitingForTheWhole,
        Leaves::InPrefill,
        Leaves::InPrefill,
        Leaves::AfterFirstChunk,
    ];
    for (round, leaves) in moments.into_iter().enumerate() {
        let before = aborted(&cluster.page("gateway").await.expect("a page"));
        leave(&cluster, leaves, &format!("round {round}")).await;
        let took = freed(&cluster, &format!("{leaves:?}")).await;
        println!("{leaves:?}: every pool on every node was free after {took:?}");
        let after = aborted(&cluster.page("gateway").await.expect("a page"));
        assert_eq!(after, before + 1.0, "{leaves:?} is counted once");
    }
    // Nothing is broken: the next request is answered.
    let body = json!({"model": cluster.model, "prompt": "One, two,", "max_tokens": 4});
    let next = cluster.client.ask("/v1/completions", &body).await;
    next.expect("an answer");
    freed(&cluster, "the end").await;
    cluster.check_health(&[]).expect("no errors");
}
