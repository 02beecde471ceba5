//! P3 as far as this version keeps it: a process that is killed takes no other with it, what was
//! begun and can go on goes on with the same bits, and what cannot be served now says when to ask
//! again.
//!
//! Deliberately not here: the death of decode or the coordinator in mid-request, which ends the
//! request in this version.

use integration_tests::{Cluster, Layout, Setting};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const TEXT: &str = include_str!("../goldens/logits_text.txt");

/// Short waits, so that a refusal comes soon.
const SETTINGS: [Setting<'static>; 1] = [("gateway", "queue.wait_max", "1s")];

fn request(model: &str, salt: &str, stream: bool) -> Value {
    json!({
        "model": model, "prompt": TEXT, "max_tokens": 120, "ignore_eos": true, "temperature": 0,
        "logits_digest": true, "cache_salt": salt, "stream": stream,
    })
}

/// The digest of an undisturbed answer.
async fn undisturbed(cluster: &Cluster) -> Value {
    let body = request(&cluster.model, "", false);
    let answer = cluster.client.ask(COMPLETIONS, &body).await;
    answer.expect("an answer")["oasiskv"]["logits_digest"].clone()
}

/// Streams the request, kills a role after the first pieces, and gives the digest of the rest.
async fn killed_in_the_middle(cluster: &mut Cluster, role: &str, salt: &str) -> Value {
    let body = request(&cluster.model, salt, true);
    let mut events = cluster.client.stream(COMPLETIONS, &body).await.expect("a stream");
    for _ in 0..3 {
        events.next().await.expect("it goes on").expect("an event");
    }
    cluster.kill(role).await.expect("it is killed");
    let rest = events.all().await.expect("the stream is finished");
    let last = rest.last().expect("more events");
    assert_eq!(last["choices"][0]["finish_reason"], "length", "{last}");
    last["oasiskv"]["logits_digest"].clone()
}

#[tokio::test]
async fn prefill_dies_while_decode_goes_on_and_later_requests_are_told_when_to_return_p3() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let cluster = Cluster::start(Layout::Apart, &model, &SETTINGS).await;
    let mut cluster = cluster.expect("it starts");
    let expected = undisturbed(&cluster).await;
    let survived = killed_in_the_middle(&mut cluster, "prefill", "mid").await;
    assert_eq!(survived, expected, "the death of prefill changed a bit");

    let body = request(&cluster.model, "after", false);
    let answer = cluster.client.post(COMPLETIONS, &body).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(answer.retry_after.is_some_and(|seconds| seconds >= 1));
    assert_eq!(answer.json()["error"]["type"], "service_unavailable");
    let live = cluster.client.get("/livez").await.expect("an answer");
    assert_eq!(live.status, 200, "the gateway went down with prefill");

    cluster.restart("prefill").await.expect("it starts again");
    cluster.ready(2).await.expect("ready again");
    let again = cluster.client.ask(COMPLETIONS, &body).await;
    let again = again.expect("an answer by the new prefill");
    assert_eq!(again["oasiskv"]["logits_digest"], expected);
}

#[tokio::test]
async fn memory_nodes_die_one_by_one_and_no_answer_changes_p3() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let cluster = Cluster::start(Layout::Apart, &model, &SETTINGS).await;
    let mut cluster = cluster.expect("it starts");
    let expected = undisturbed(&cluster).await;
    let survived = killed_in_the_middle(&mut cluster, "memory-0", "mid").await;
    assert_eq!(survived, expected, "the death of a memory node changed a bit");
    // At once: the dead node may still be in the coordinator's view.
    let body = request(&cluster.model, "after", false);
    let answer = cluster.client.ask(COMPLETIONS, &body).await;
    let answer = answer.expect("the other memory node serves");
    assert_eq!(answer["oasiskv"]["logits_digest"], expected);
}
