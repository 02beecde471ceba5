//! The HTTP API over the real thing: answers, streams, and every kind of bad request.
//! Deliberately not about bits (`same_bits`) or freeing (`cancelled`).

#![expect(clippy::panic, reason = "helpers of tests fail as tests do")]

use hyper::Method;
use integration_tests::{Client, Cluster, Layout};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A dialogue of over 48 tokens, so that a repeat has sealed blocks to hit.
fn dialogue() -> Value {
    let question = "Name the four seasons of the year in their order, and for each of them say in \
        one short sentence what the trees in a northern forest look like at that time.";
    json!([
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": [{"type": "text", "text": question}]},
    ])
}

/// A body of these fields over a valid chat request.
fn chat(model: &str, fields: Value) -> Value {
    let mut body = json!({"model": model, "messages": dialogue(), "max_tokens": 24});
    merge(&mut body, fields);
    body
}

fn merge(body: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else {
        panic!("fields are an object");
    };
    for (key, value) in fields {
        body[key] = value;
    }
}

fn cached(usage: &Value) -> u64 {
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().expect("cached_tokens is there")
}

async fn start() -> Option<Cluster> {
    let model = integration_tests::model::path()?;
    let cluster = Cluster::start(Layout::Together, &model, &[]).await;
    Some(cluster.expect("it starts"))
}

#[tokio::test]
async fn chat_and_completions_answer_whole_and_streamed_alike() {
    let Some(mut cluster) = start().await else {
        return;
    };
    let client = cluster.client;
    let fixed = json!({"temperature": 0, "logits_digest": true});
    let body = chat(&cluster.model, fixed);
    let whole = client.ask(CHAT, &body).await.expect("an answer");
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], cluster.model);
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let text = message["content"].as_str().expect("a text");
    assert!(!text.is_empty());
    let finish = &whole["choices"][0]["finish_reason"];
    assert!(finish == "stop" || finish == "length", "{whole}");
    let usage = &whole["usage"];
    let count = |name: &str| usage[name].as_u64().expect("a count");
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    assert!(count("completion_tokens") <= 24);
    assert_eq!(cached(usage), 0, "nothing was seen before");
    assert!(whole["oasiskv"]["ledger"]["moved"].is_array(), "{whole}");

    let mut streamed = body.clone();
    merge(&mut streamed, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = client.stream(CHAT, &streamed).await.expect("a stream");
    let events = events.all().await.expect("it ends with [DONE]");
    let (last, rest) = events.split_last().expect("events");
    assert_eq!(last["choices"], json!([]), "the usage comes last and alone");
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    let hit = cached(&last["usage"]);
    assert!(hit > 0 && hit.is_multiple_of(16), "a repeat hits whole blocks: {hit}");
    assert!(count("prompt_tokens") - hit >= 32, "the last 32 are computed");
    let mut joined = String::new();
    for event in rest {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], last["id"], "one id for all");
        assert_eq!(event["usage"], Value::Null);
        joined += event["choices"][0]["delta"]["content"].as_str().unwrap_or("");
    }
    assert_eq!(rest[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(joined, text, "streamed and whole are the same text");
    let end = rest.last().expect("events");
    assert_eq!(end["choices"][0]["finish_reason"], *finish);
    let digest = &end["oasiskv"]["logits_digest"];
    assert_eq!(*digest, whole["oasiskv"]["logits_digest"], "the same bits");

    let plain = json!({
        "model": cluster.model, "prompt": "The capital of France is", "max_tokens": 5,
        "temperature": 0,
    });
    let plain = client.ask(COMPLETIONS, &plain).await.expect("an answer");
    assert_eq!(plain["object"], "text_completion");
    let text = plain["choices"][0]["text"].as_str().expect("a text");
    assert!(text.contains("Paris"), "{text:?}");
    cluster.check_health(&[]).expect("no errors");
}

#[tokio::test]
async fn limits_stops_and_seeds_do_what_they_say_p1() {
    let Some(mut cluster) = start().await else {
        return;
    };
    let client = cluster.client;
    let ask = async |fields: Value| {
        let body = chat(&cluster.model, fields);
        client.ask(CHAT, &body).await.expect("an answer")
    };
    let text = |answer: &Value| {
        let text = answer["choices"][0]["message"]["content"].as_str();
        text.expect("a text").to_owned()
    };

    let one = ask(json!({"max_tokens": 1, "ignore_eos": true})).await;
    assert_eq!(one["usage"]["completion_tokens"], 1);
    assert_eq!(one["choices"][0]["finish_reason"], "length");
    let newer = ask(json!({"max_tokens": null, "max_completion_tokens": 3})).await;
    assert!(newer["usage"]["completion_tokens"].as_u64() <= Some(3));

    let free = ask(json!({"temperature": 0})).await;
    let free = text(&free);
    // A piece from the middle of the answer, across token borders.
    let from = free.char_indices().nth(12).expect("a longer answer").0;
    let to = free.char_indices().nth(17).expect("a longer answer").0;
    let stop = &free[from..to];
    let cut = free.find(stop).expect("it is there");
    for stop in [json!(stop), json!(["never in there #", stop])] {
        let stopped = ask(json!({"temperature": 0, "stop": stop})).await;
        assert_eq!(text(&stopped), free[..cut], "cut before the stop text");
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    }

    let drawn = ask(json!({"temperature": 1, "logits_digest": true})).await;
    let seed = drawn["oasiskv"]["seed"].clone();
    assert!(seed.is_i64(), "the drawn seed is returned: {drawn}");
    let again = ask(json!({"temperature": 1, "logits_digest": true, "seed": seed})).await;
    assert_eq!(text(&again), text(&drawn), "the returned seed gives the same text");
    assert_eq!(again["oasiskv"]["logits_digest"], drawn["oasiskv"]["logits_digest"]);
    assert_eq!(again["system_fingerprint"], drawn["system_fingerprint"]);
    let texts: std::collections::BTreeSet<String> = {
        let mut texts = std::collections::BTreeSet::new();
        for seed in [1, 2, -3, i64::MAX] {
            texts.insert(text(&ask(json!({"temperature": 2, "seed": seed})).await));
        }
        texts
    };
    assert!(texts.len() > 1, "different seeds draw differently");
    cluster.check_health(&[]).expect("no errors");
}

/// What a bad request is answered with.
async fn refused(client: Client, path: &str, body: impl Into<Vec<u8>>) -> (u16, Value) {
    let answer = client.send(Method::POST, path, body.into()).await;
    let answer = answer.expect("an answer, and not a closed connection");
    let error = answer.json()["error"].clone();
    for key in ["message", "type", "param", "code"] {
        assert!(error.get(key).is_some(), "no {key} in {}", answer.text);
    }
    assert!(!answer.text.contains("src/"), "internal detail: {}", answer.text);
    (answer.status, error)
}

#[tokio::test]
async fn bad_requests_are_refused_with_field_and_remedy() {
    let Some(mut cluster) = start().await else {
        return;
    };
    let client = cluster.client;
    // Fields over a valid chat request, the parameter that is named, the code.
    let table = [
        (json!({"model": "gpt-9"}), "model", "model_not_found"),
        (json!({"model": null}), "model", "invalid_value"),
        (json!({"messages": []}), "messages", "invalid_value"),
        (json!({"messages": "hi"}), "messages", "invalid_value"),
        (
            json!({"messages": [{"role": "wizard", "content": "hi"}]}),
            "messages[0].role",
            "invalid_value",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "hi"}]}),
            "messages[0].role",
            "unsupported_parameter",
        ),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content", "invalid_value"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": -5}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": 1.5}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": "9"}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": 1e30}), "max_tokens", "invalid_value"),
        (json!({"max_tokens": 1_000_000}), "max_tokens", "context_length_exceeded"),
        (json!({"temperature": -0.1}), "temperature", "invalid_value"),
        (json!({"temperature": 1e300}), "temperature", "invalid_value"),
        (json!({"top_p": 0}), "top_p", "invalid_value"),
        (json!({"top_p": 1.01}), "top_p", "invalid_value"),
        (json!({"top_k": -2}), "top_k", "invalid_value"),
        (json!({"min_p": 2}), "min_p", "invalid_value"),
        (json!({"seed": 1e30}), "seed", "invalid_value"),
        (json!({"seed": "x"}), "seed", "invalid_value"),
        (json!({"stop": ""}), "stop", "invalid_value"),
        (json!({"stop": ["1", "2", "3", "4", "5"]}), "stop", "invalid_value"),
        (json!({"stream": "yes"}), "stream", "invalid_value"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", "invalid_value"),
        (json!({"n": 2}), "n", "unsupported_parameter"),
        (json!({"tools": [{}]}), "tools", "unsupported_parameter"),
        (json!({"logprobs": true}), "logprobs", "unsupported_parameter"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
            "unsupported_parameter",
        ),
        (json!({"frequency_penalty": 1}), "frequency_penalty", "unsupported_parameter"),
        (json!({"lora_request": {"name": "x"}}), "lora_request", "unsupported_parameter"),
        (json!({"temprature": 1}), "temprature", "unknown_parameter"),
    ];
    for (fields, param, code) in table {
        let what = fields.to_string();
        let body = chat(&cluster.model, fields).to_string();
        let (status, error) = refused(client, CHAT, body).await;
        let expected = if code == "model_not_found" { 404 } else { 400 };
        assert_eq!(status, expected, "{what}: {error}");
        let named = error["param"].as_str().unwrap_or_default();
        assert!(named.starts_with(param), "{what} named {named:?}: {error}");
        assert_eq!(error["code"], code, "{what}: {error}");
    }
    cluster.check_health(&[]).expect("no errors");
}

#[tokio::test]
async fn prompts_and_bodies_that_cannot_be_are_refused() {
    let Some(mut cluster) = start().await else {
        return;
    };
    let (client, model) = (cluster.client, cluster.model.clone());
    let completion = |prompt: Value| json!({"model": model, "prompt": prompt}).to_string();
    let texts = [
        (completion(json!("word ".repeat(9_000))), "context_length_exceeded"),
        (completion(json!("")), "invalid_value"),
        (completion(json!([])), "invalid_value"),
        (completion(json!([49_152])), "invalid_value"),
        (completion(json!([-1])), "invalid_value"),
        (completion(json!(["a", "b"])), "unsupported_parameter"),
        (completion(json!(7)), "invalid_value"),
        ("{\"model\": ".to_owned(), "invalid_json"),
        ("{\"model\": NaN}".to_owned(), "invalid_json"),
        ("[]".to_owned(), "invalid_value"),
        (String::new(), "invalid_json"),
    ];
    for (body, code) in texts {
        let what: String = body.chars().take(60).collect();
        let (status, error) = refused(client, COMPLETIONS, body).await;
        assert_eq!((status, error["code"].as_str()), (400, Some(code)), "{what}: {error}");
    }
    let (status, error) = refused(client, CHAT, b"{\"model\": \"\xff\"}".to_vec()).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_utf8")));
    let (status, error) = refused(client, CHAT, vec![b' '; 3 << 20]).await;
    assert_eq!((status, &error["type"]), (413, &json!("invalid_request_error")));
    let (status, error) = refused(client, "/v1/embeddings", "{}").await;
    assert_eq!((status, &error["code"]), (404, &json!("unsupported_endpoint")));
    let (status, _) = refused(client, "/v2/chat", "{}").await;
    assert_eq!(status, 404);
    let (status, _) = refused(client, "/v1/models", "{}").await;
    assert_eq!(status, 405);
    let wrong = client.get(CHAT).await.expect("an answer");
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (405, &Value::Null));
    for probe in ["/livez", "/readyz", "/startupz", "/health", "/metrics"] {
        let page = client.get(probe).await.expect("an answer");
        assert_eq!(page.status, 200, "{probe}: {}", page.text);
    }
    cluster.check_health(&[]).expect("no errors");
}
