//! P1 through the wire: the same request gives the same tokens and the same digest of all logits,
//! whatever the cluster looks like and whatever else it does.
//!
//! Everything is compared with one cold run in one process. Deliberately not about the numbers
//! being right: the goldens of `model` and `tokens` hold that.

use integration_tests::{Client, Cluster, Layout, Setting};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// Real text of 1,520 tokens or more; which is the last character decides the length.
const TEXT: &str = include_str!("../goldens/logits_text.txt");

/// What must not differ.
#[derive(Clone, Debug, PartialEq)]
struct Same {
    text: Value,
    digest: Value,
    fingerprint: Value,
    tokens: Value,
}

/// The request under test. `salt` makes it cold where it was seen before: it separates caches and
/// is no part of the numbers.
fn request(model: &str, salt: &str) -> Value {
    // The text twice: 1,146 tokens, and so many that neither 16 nor a chunk divides them.
    json!({
        "model": model, "prompt": format!("{TEXT}\n{TEXT}\n{}", &TEXT[..1_300]), "max_tokens": 24,
        "temperature": 0.7, "seed": 11, "ignore_eos": true, "logits_digest": true,
        "cache_salt": salt,
    })
}

/// Its answer, and how many prompt tokens were not computed.
async fn answer(client: Client, request: &Value) -> (Same, u64) {
    let answer = client.ask(COMPLETIONS, request).await.expect("an answer");
    let usage = &answer["usage"];
    let prompt = usage["prompt_tokens"].as_u64().expect("a count");
    assert!(prompt >= 1_500, "{prompt} tokens");
    assert_ne!(prompt % 16, 0, "{prompt} tokens");
    assert!(answer["oasiskv"]["logits_digest"].is_string(), "{answer}");
    let same = Same {
        text: answer["choices"][0]["text"].clone(),
        digest: answer["oasiskv"]["logits_digest"].clone(),
        fingerprint: answer["system_fingerprint"].clone(),
        tokens: usage["completion_tokens"].clone(),
    };
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    (same, cached.as_u64().expect("a count"))
}

/// The one cold run in one process that all others are held to.
async fn reference(model: &std::path::Path) -> Same {
    let cluster = Cluster::start(Layout::Together, model, &[]).await;
    let mut cluster = cluster.expect("it starts");
    let request = request(&cluster.model, "");
    let (cold, cached) = answer(cluster.client, &request).await;
    assert_eq!(cached, 0);
    let (warm, cached) = answer(cluster.client, &request).await;
    assert!(cached >= 1_400, "only {cached} cached");
    assert_eq!(warm, cold, "a prefix hit changed something");
    cluster.check_health(&[]).expect("no errors");
    cold
}

#[tokio::test]
async fn one_process_and_six_give_the_same_bits_cold_hit_and_in_a_batch_of_eight_p1() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let reference = reference(&model).await;
    // Room for the neighbours' longest.
    let settings = [("decode", "device.bytes", "1GiB")];
    let cluster = Cluster::start(Layout::Apart, &model, &settings).await;
    let mut cluster = cluster.expect("it starts");
    let client = cluster.client;
    let request_cold = request(&cluster.model, "");
    let (cold, cached) = answer(client, &request_cold).await;
    assert_eq!((&cold, cached), (&reference, 0), "six processes, cold");
    let (hit, cached) = answer(client, &request_cold).await;
    assert!(cached >= 1_400, "only {cached} cached");
    assert_eq!(hit, reference, "six processes, prefix hit");

    // Seven neighbours of different lengths that decode all the while.
    let mut neighbours = tokio::task::JoinSet::new();
    for index in 0..7 {
        let body = json!({
            "model": cluster.model, "prompt": &TEXT[index * 90..][..200 + 130 * index],
            "max_tokens": 3_000, "ignore_eos": true, "temperature": 1.0, "seed": index,
            "stream": true,
        });
        neighbours.spawn(async move {
            let mut events = client.stream(COMPLETIONS, &body).await.expect("a stream");
            while let Some(event) = events.next().await.expect("it goes on") {
                assert!(event["error"].is_null(), "{event}");
            }
            panic!("a neighbour ended before the request under test");
        });
    }
    let running = |count: f64| {
        cluster.until("decode", move |page| page.value("oasiskv_decode_running", &[]) >= count)
    };
    running(7.0).await.expect("the neighbours decode");
    for (salt, what) in [("", "prefix hit"), ("cold", "cold")] {
        let body = request(&cluster.model, salt);
        let (eight, beside) = tokio::join!(running(8.0), answer(client, &body));
        eight.expect("all eight decode in one batch");
        assert_eq!(beside.0, reference, "beside seven neighbours, {what}");
    }
    assert!(neighbours.try_join_next().is_none(), "a neighbour ended");
    neighbours.shutdown().await;
    cluster.check_health(&[]).expect("no errors");
}

#[tokio::test]
async fn chunks_threads_and_instruction_sets_change_no_bit_p1() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let reference = reference(&model).await;
    let mut ways = vec![("64", "1", "auto"), ("1024", "2", "auto")];
    #[cfg(target_arch = "x86_64")]
    {
        let offered = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avx512", is_x86_feature_detected!("avx512f")),
        ];
        for (isa, here) in offered {
            if here {
                ways.push(("256", "2", isa));
            }
        }
    }
    for (chunk, threads, isa) in ways {
        let settings: Vec<Setting<'_>> = ["prefill", "decode"]
            .iter()
            .flat_map(|&role| [(role, "model.threads", threads), (role, "model.isa", isa)])
            .chain([("prefill", "batch.chunk_tokens", chunk)])
            .collect();
        let cluster = Cluster::start(Layout::Apart, &model, &settings).await;
        let mut cluster = cluster.expect("it starts");
        let (cold, cached) = answer(cluster.client, &request(&cluster.model, "")).await;
        let what = format!("chunks of {chunk}, {threads} threads, {isa}");
        assert_eq!((&cold, cached), (&reference, 0), "{what}");
        cluster.check_health(&[]).expect("no errors");
    }
}

#[tokio::test]
async fn the_portable_kernels_give_the_same_bits_p1() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let mut digests = Vec::new();
    for isa in ["auto", "portable"] {
        let cluster = Cluster::start(Layout::Together, &model, &[("", "model.isa", isa)]).await;
        let mut cluster = cluster.expect("it starts");
        // A short prompt: these kernels make six tokens a second.
        let body = json!({
            "model": cluster.model, "prompt": &TEXT[..330], "max_tokens": 4, "temperature": 0,
            "ignore_eos": true, "logits_digest": true,
        });
        let answer = cluster.client.ask(COMPLETIONS, &body).await;
        digests.push(answer.expect("an answer")["oasiskv"]["logits_digest"].clone());
        cluster.check_health(&[]).expect("no errors");
    }
    assert!(digests[0].is_string());
    assert_eq!(digests[0], digests[1]);
}
