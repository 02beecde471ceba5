//! Bodies in, valid requests or errors out: every parameter's range, every unsupported field by
//! name, nothing ignored.

use serde_json::{Value, json};

use std::collections::BTreeMap;

use tokens::TemplateValue;

use super::{Dialogue, Input, Message, Role, chat, completion};
use crate::api::error::ApiError;
use crate::api::params::{Delivery, Params};

/// A valid chat with one field set.
fn with(key: &str, value: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    body[key] = value;
    body
}

fn params(key: &str, value: Value) -> Params {
    chat(with(key, value)).expect("valid").params
}

fn refusal(body: Value) -> ApiError {
    chat(body).expect_err("must be refused")
}

/// The refusal's parameter and code.
fn refused(key: &str, value: Value) -> (String, &'static str) {
    let error = refusal(with(key, value));
    assert_eq!(error.status().as_u16(), 400);
    (error.param.unwrap_or_default(), error.code)
}

#[test]
fn defaults_are_those_of_openai() {
    let params = params("user", json!("someone"));
    assert_eq!(params.model, "m");
    assert_eq!((params.temperature, params.top_p, params.min_p), (1.0, 1.0, 0.0));
    assert_eq!((params.top_k, params.seed, params.max_tokens), (0, None, None));
    assert_eq!(params.delivery, Delivery::Whole);
    assert!(params.stops.is_empty() && !params.ignore_eos && !params.logits_digest);
}

#[test]
fn values_at_the_edges_of_their_ranges_are_taken() {
    assert_eq!(params("temperature", json!(0)).temperature, 0.0);
    assert_eq!(params("temperature", json!(2)).temperature, 2.0);
    assert_eq!(params("top_p", json!(1)).top_p, 1.0);
    assert_eq!(params("top_k", json!(-1)).top_k, 0);
    assert_eq!(params("top_k", json!(40)).top_k, 40);
    assert_eq!(params("min_p", json!(0.1)).min_p, 0.1);
    assert_eq!(params("seed", json!(i64::MIN)).seed, Some(i64::MIN));
    assert_eq!(params("max_tokens", json!(1)).max_tokens, Some(1));
    assert_eq!(params("max_completion_tokens", json!(16.0)).max_tokens, Some(16));
    assert_eq!(params("stop", json!("x")).stops, ["x"]);
    assert_eq!(params("stop", json!(["a", "b"])).stops, ["a", "b"]);
    assert_eq!(params("cache_salt", json!("tenant")).salt, "tenant");
}

#[test]
fn null_is_as_good_as_absent() {
    for key in ["temperature", "stop", "tools", "n", "stream_options", "max_tokens", "user"] {
        chat(with(key, Value::Null)).unwrap_or_else(|error| panic!("{key}: {error:?}"));
    }
}

#[test]
fn values_out_of_range_name_their_field() {
    let wrong = [
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_p", json!(0)),
        ("top_p", json!(1e-60)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(2)),
        ("seed", json!(1e30)),
        ("seed", json!("7")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!(1e12)),
        ("max_tokens", json!(true)),
        ("max_completion_tokens", json!([])),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!(7)),
        ("stream", json!("yes")),
        ("ignore_eos", json!(1)),
        ("metadata", json!("x")),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("cache_salt", json!("x".repeat(1_000))),
        ("stream_options", json!({ "include_usage": true })),
    ];
    for (key, value) in wrong {
        assert_eq!(refused(key, value.clone()), (key.to_owned(), "invalid_value"), "{value}");
    }
    let error = refusal(with("top_p", json!(7)));
    assert!(error.message.contains("above 0, at most 1"), "{}", error.message);
    assert_eq!(refused("stop", json!([""])).0, "stop[0]");
    assert_eq!(refused("stop", json!(["a", 1])).0, "stop[1]");
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    let demands = [
        ("n", json!(2)),
        ("tools", json!([{ "type": "function" }])),
        ("tool_choice", json!("required")),
        ("functions", json!([{}])),
        ("response_format", json!({ "type": "json_object" })),
        ("logit_bias", json!({ "5": 1 })),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(3)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(-1)),
        ("repetition_penalty", json!(1.1)),
        ("modalities", json!(["audio"])),
        ("guided_json", json!({})),
        ("lora_path", json!("a")),
        ("store", json!(true)),
        ("echo", json!(true)),
    ];
    for (key, value) in demands {
        assert_eq!(refused(key, value), (key.to_owned(), "unsupported_parameter"));
    }
    let harmless = [
        ("n", json!(1)),
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("response_format", json!({ "type": "text" })),
        ("presence_penalty", json!(0.0)),
        ("logprobs", json!(false)),
        ("logit_bias", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("store", json!(false)),
        ("metadata", json!({ "a": "b" })),
    ];
    for (key, value) in harmless {
        chat(with(key, value)).unwrap_or_else(|error| panic!("{key}: {error:?}"));
    }
}

#[test]
fn unknown_fields_are_named() {
    assert_eq!(refused("temprature", json!(1)), ("temprature".into(), "unknown_parameter"));
    let options = json!({ "include_usage": true, "x": 1 });
    let mut body = with("stream", json!(true));
    body["stream_options"] = options;
    assert_eq!(refusal(body).param.as_deref(), Some("stream_options.x"));
}

#[test]
fn the_two_names_of_max_tokens_must_agree() {
    let mut body = with("max_tokens", json!(5));
    body["max_completion_tokens"] = json!(6);
    assert_eq!(refusal(body.clone()).param.as_deref(), Some("max_completion_tokens"));
    body["max_completion_tokens"] = json!(5);
    assert_eq!(chat(body).expect("valid").params.max_tokens, Some(5));
}

#[test]
fn messages_are_read_with_their_roles_and_parts() {
    let messages = json!([
        { "role": "system", "content": "be brief" },
        { "role": "developer", "content": "be kind" },
        { "role": "user", "content": [
            { "type": "text", "text": "a" },
            { "type": "text", "text": "b" },
        ]},
        { "role": "assistant", "content": "", "tool_calls": null },
    ]);
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let expected = vec![
        message(Role::System, "be brief"),
        message(Role::Developer, "be kind"),
        message(Role::User, "a\nb"),
        message(Role::Assistant, ""),
    ];
    let request = chat(with("messages", messages)).expect("valid");
    let expected = Dialogue { messages: expected, values: BTreeMap::new() };
    assert_eq!(request.input, Input::Dialogue(expected));
}

#[test]
fn values_for_the_template_are_scalars() {
    let given = json!({ "enable_thinking": false, "n": 3, "x": 0.5, "date": "today", "no": null });
    let request = chat(with("chat_template_kwargs", given)).expect("valid");
    let Input::Dialogue(Dialogue { values, .. }) = request.input else {
        panic!("a dialogue");
    };
    let expected = [
        ("date", TemplateValue::Text("today".into())),
        ("enable_thinking", TemplateValue::Bool(false)),
        ("n", TemplateValue::Integer(3)),
        ("x", TemplateValue::Float(0.5)),
    ];
    assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)).into());
    let many: serde_json::Map<_, _> = (0..17).map(|i| (i.to_string(), json!(i))).collect();
    for (given, param) in [
        (json!([]), "chat_template_kwargs"),
        (json!(many), "chat_template_kwargs"),
        (json!({ "a": [] }), "chat_template_kwargs.a"),
        (json!({ "a": "x".repeat(5_000) }), "chat_template_kwargs.a"),
    ] {
        assert_eq!(refused("chat_template_kwargs", given), (param.to_owned(), "invalid_value"));
    }
}

#[test]
fn wrong_messages_name_their_place() {
    let wrong = [
        (json!([7]), "messages[0]"),
        (json!([{ "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "robot", "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "tool", "content": "x" }]), "messages[0].role"),
        (json!([{ "role": 1, "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "user", "content": null }]), "messages[0].content"),
        (json!([{ "role": "user", "content": 3 }]), "messages[0].content"),
        (json!([{ "role": "user", "content": [] }]), "messages[0].content"),
        (json!([{ "role": "user", "content": ["x"] }]), "messages[0].content[0]"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
            "messages[0].content[0].type",
        ),
        (
            json!([{ "role": "user", "content": [{ "type": "text" }] }]),
            "messages[0].content[0].text",
        ),
        (json!([{ "role": "user", "content": "x", "name": "bob" }]), "messages[0].name"),
        (json!([{ "role": "user", "content": "x", "colour": 1 }]), "messages[0].colour"),
    ];
    for (messages, param) in wrong {
        let error = refusal(with("messages", messages));
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }
    let image = json!([{ "role": "user", "content": [{ "type": "image_url" }] }]);
    assert_eq!(refusal(with("messages", image)).code, "unsupported_parameter");
}

#[test]
fn prompts_are_one_text_or_one_list_of_tokens() {
    let read = |prompt: Value| completion(json!({ "model": "m", "prompt": prompt }));
    assert_eq!(read(json!("hi")).expect("valid").input, Input::Text("hi".into()));
    assert_eq!(read(json!(["hi"])).expect("valid").input, Input::Text("hi".into()));
    assert_eq!(read(json!([1, 2.0])).expect("valid").input, Input::Tokens(vec![1, 2]));
    assert_eq!(read(json!([[3]])).expect("valid").input, Input::Tokens(vec![3]));
    for (prompt, param, code) in [
        (json!(["a", "b"]), "prompt", "unsupported_parameter"),
        (json!([[1], [2]]), "prompt", "unsupported_parameter"),
        (json!([]), "prompt", "invalid_value"),
        (json!([[]]), "prompt", "invalid_value"),
        (json!([1, -1]), "prompt[1]", "invalid_value"),
        (json!([1, 1.5]), "prompt[1]", "invalid_value"),
        (json!([1, "a"]), "prompt[1]", "invalid_value"),
        (json!({}), "prompt", "invalid_value"),
        (json!(null), "prompt", "invalid_value"),
        (json!([null]), "prompt", "invalid_value"),
    ] {
        let error = read(prompt.clone()).expect_err("must be refused");
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{prompt}");
    }
    for (key, value) in [("suffix", json!("x")), ("best_of", json!(2)), ("logprobs", json!(5))] {
        let mut body = json!({ "model": "m", "prompt": "hi" });
        body[key] = value;
        let error = completion(body).expect_err("must be refused");
        assert_eq!((error.param.as_deref(), error.code), (Some(key), "unsupported_parameter"));
    }
}

#[test]
fn bodies_that_are_no_request_are_refused() {
    for body in [json!([]), json!("x"), json!(7), json!(null)] {
        let error = chat(body).expect_err("must be refused");
        assert!(error.message.contains("the body must be an object"), "{}", error.message);
    }
    let error = chat(json!({ "messages": [] })).expect_err("no model");
    assert_eq!(error.param.as_deref(), Some("model"));
}
