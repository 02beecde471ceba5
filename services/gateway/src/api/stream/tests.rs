//! Golden transcripts: scripted events in, the exact bytes of the event stream out.

use std::time::Duration;

use futures::StreamExt;
use ids::{ByteCount, SessionId, Span, Tier};
use session::{Ledger, Moved, Usage};
use tokio::sync::mpsc::channel;

use super::{Encoder, Item, body};
use crate::answer::{Event, Outcome, Reason};
use crate::api::error::ApiError;
use crate::api::shape::{Endpoint, Shape};

fn shape(endpoint: Endpoint) -> Shape {
    Shape {
        endpoint,
        session: SessionId(0xabc),
        created: 1_700_000_000,
        model: "m".to_owned(),
        seed: 7,
        fingerprint: "fp_1".to_owned(),
    }
}

fn outcome(reason: Reason) -> Outcome {
    let usage = Usage { prompt_tokens: 20, cached_tokens: 16, completion_tokens: 2 };
    let moved = Moved { from: Tier::PrefillHost, to: Tier::Device, bytes: ByteCount(4_096) };
    let ledger = Ledger {
        usage,
        queued: Span(1),
        prefill: Span(2),
        handover: Span(3),
        decode: Span(4),
        moved: vec![moved],
        replica_reads: 0,
        logits_digest: Some([0xee; 32]),
    };
    Outcome { reason, usage, ledger: Some(ledger) }
}

fn script(end: Item) -> Vec<Item> {
    let planned = Event::Planned { session: SessionId(0xabc), numerics_class: "c".to_owned() };
    vec![Ok(planned), Ok(Event::Begun), Ok(Event::Text("Hé\n".into())), end]
}

fn done() -> Item {
    Ok(Event::Done(Box::new(outcome(Reason::Length))))
}

fn transcript(endpoint: Endpoint, include_usage: bool, items: &[Item]) -> String {
    let mut encoder = Encoder::new(shape(endpoint), include_usage);
    items.iter().map(|item| encoder.encode(item)).collect()
}

/// A document as it is expected, its common front filled in.
fn data(object: &str, prefix: &str, rest: &str) -> String {
    format!(
        "data: {{\"id\":\"{prefix}-00000000000000000000000000000abc\",\"object\":\"{object}\",\
         \"created\":1700000000,\"model\":\"m\",\"system_fingerprint\":\"fp_1\",{rest}}}\n\n"
    )
}

const EXTENSION: &str = "\"oasiskv\":{\"session\":\"00000000000000000000000000000abc\",\"seed\":7,\
    \"ledger\":{\"queued_ns\":1,\"prefill_ns\":2,\"handover_ns\":3,\"decode_ns\":4,\
    \"moved\":[{\"from\":\"prefill_host\",\"to\":\"device\",\"bytes\":4096}],\
    \"replica_reads\":0},\"logits_digest\":\
    \"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\"}";

const USAGE: &str = "\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2,\"total_tokens\":22,\
    \"prompt_tokens_details\":{\"cached_tokens\":16}}";

fn choice(content: &str, reason: &str) -> String {
    format!("\"choices\":[{{\"index\":0,{content},\"logprobs\":null,\"finish_reason\":{reason}}}]")
}

#[test]
fn a_chat_stream_is_byte_for_byte_openais() {
    let chunk = |rest: &str| data("chat.completion.chunk", "chatcmpl", rest);
    let expected = [
        chunk(&choice("\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null")),
        chunk(&choice("\"delta\":{\"content\":\"Hé\\n\"}", "null")),
        chunk(&format!("{},{EXTENSION}", choice("\"delta\":{}", "\"length\""))),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(transcript(Endpoint::Chat, false, &script(done())), expected.concat());
}

#[test]
fn with_usage_every_chunk_has_the_key_and_the_last_the_numbers() {
    let chunk = |rest: &str| data("chat.completion.chunk", "chatcmpl", rest);
    let null = |choice: String| chunk(&format!("{choice},\"usage\":null"));
    let finish = choice("\"delta\":{}", "\"length\"");
    let expected = [
        null(choice("\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null")),
        null(choice("\"delta\":{\"content\":\"Hé\\n\"}", "null")),
        chunk(&format!("{finish},\"usage\":null,{EXTENSION}")),
        chunk(&format!("\"choices\":[],{USAGE}")),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(transcript(Endpoint::Chat, true, &script(done())), expected.concat());
}

#[test]
fn a_completion_stream_has_text_and_no_roles() {
    let chunk = |rest: &str| data("text_completion", "cmpl", rest);
    let expected = [
        chunk(&choice("\"text\":\"Hé\\n\"", "null")),
        chunk(&format!("{},{EXTENSION}", choice("\"text\":\"\"", "\"length\""))),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(transcript(Endpoint::Completions, false, &script(done())), expected.concat());
}

#[test]
fn an_error_is_the_last_event_and_there_is_no_done() {
    let items = script(Err(ApiError::unavailable("gone")));
    let text = transcript(Endpoint::Chat, true, &items);
    let last = text.trim_end().rsplit("\n\n").next().expect("events");
    let body: serde_json::Value =
        serde_json::from_str(last.strip_prefix("data: ").expect("an event")).expect("JSON");
    assert_eq!(body, ApiError::unavailable("gone").body());
    assert!(!text.contains("[DONE]"), "{text}");
}

#[test]
fn whole_answers_carry_usage_and_extension() {
    let whole = shape(Endpoint::Chat).whole("Hi", &outcome(Reason::Stop));
    let said = choice("\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"}", "\"stop\"");
    let expected = data("chat.completion", "chatcmpl", &format!("{said},{USAGE},{EXTENSION}"));
    assert_eq!(format!("data: {whole}\n\n"), expected);
    let whole = shape(Endpoint::Completions).whole("Hi", &outcome(Reason::Stop));
    let said = choice("\"text\":\"Hi\"", "\"stop\"");
    let expected = data("text_completion", "cmpl", &format!("{said},{USAGE},{EXTENSION}"));
    assert_eq!(format!("data: {whole}\n\n"), expected);
}

#[tokio::test(start_paused = true)]
async fn comments_keep_a_silent_stream_open_and_dropping_it_cancels_p6() {
    let (sender, receiver) = channel(4);
    let open = prometheus::IntGauge::new("open", "Open.").expect("a name");
    let encoder = Encoder::new(shape(Endpoint::Chat), false);
    let every = Duration::from_secs(15);
    let body = body(encoder, vec![Ok(Event::Begun)], receiver, every, open.clone());
    let mut pieces = body.into_data_stream();
    assert_eq!(open.get(), 1);
    let mut next = async || pieces.next().await.map(|piece| piece.expect("no errors"));
    assert!(next().await.expect("a chunk").starts_with(b"data: "));
    assert_eq!(next().await.expect("a comment"), ": keep-alive\n\n");
    sender.send(Ok(Event::Text("x".into()))).await.expect("open");
    assert!(next().await.expect("a chunk").ends_with(b"\n\n"));
    assert!(!sender.is_closed());
    drop(pieces);
    assert!(sender.is_closed(), "the request's task sees it");
    assert_eq!(open.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_vanishes_is_an_error_and_not_an_end() {
    let (sender, receiver) = channel::<Item>(4);
    drop(sender);
    let open = prometheus::IntGauge::new("open", "Open.").expect("a name");
    let encoder = Encoder::new(shape(Endpoint::Chat), false);
    let body = body(encoder, Vec::new(), receiver, Duration::from_secs(1), open);
    let pieces: Vec<_> = body.into_data_stream().collect().await;
    let text: Vec<u8> =
        pieces.into_iter().flat_map(|piece| piece.expect("no errors").to_vec()).collect();
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("server_error") && !text.contains("[DONE]"), "{text}");
}
