//! `oasiskv run`: the answer to one prompt through the whole cluster, then a short ledger.

use std::io::Write;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client;
use crate::cluster::Cluster;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: String,
    pub(crate) json: bool,
    /// Complete the text as it is, without the chat template.
    pub(crate) raw: bool,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: f32,
    pub(crate) seed: Option<i64>,
    pub(crate) logits_digest: bool,
}

/// What came back.
#[derive(Default)]
struct Answer {
    text: String,
    usage: Value,
    extension: Value,
    finish_reason: Value,
    /// Seconds to the first piece of text, and to the end.
    first: Option<f64>,
    total: f64,
}

/// Streams the answer to standard output and the ledger to standard error, or prints both as JSON.
pub(crate) async fn run(cluster: &Cluster, ask: &Ask) -> anyhow::Result<()> {
    let mut body = json!({
        "model": cluster.model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": ask.temperature,
        "seed": ask.seed,
        "max_tokens": ask.max_tokens,
        "logits_digest": ask.logits_digest,
    });
    let path = if ask.raw {
        body["prompt"] = json!(ask.prompt);
        "/v1/completions"
    } else {
        body["messages"] = json!([{"role": "user", "content": ask.prompt}]);
        "/v1/chat/completions"
    };
    let began = Instant::now();
    let mut events = client::post(cluster.gateway, path, &body).await?;
    let mut answer = Answer::default();
    let mut out = std::io::stdout();
    while let Some(event) = events.next().await? {
        let choice = &event["choices"][0];
        let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
            answer.first.get_or_insert_with(|| began.elapsed().as_secs_f64());
            answer.text.push_str(piece);
            if !ask.json {
                out.write_all(piece.as_bytes())?;
                out.flush()?;
            }
        }
        for (target, value) in [
            (&mut answer.usage, &event["usage"]),
            (&mut answer.extension, &event["oasiskv"]),
            (&mut answer.finish_reason, &choice["finish_reason"]),
        ] {
            if !value.is_null() {
                target.clone_from(value);
            }
        }
    }
    answer.total = began.elapsed().as_secs_f64();
    if ask.json {
        let document = answer.document();
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(());
    }
    writeln!(out)?;
    std::io::stderr().write_all(answer.ledger().as_bytes()).context("writing the ledger")
}

impl Answer {
    fn completion_tokens(&self) -> u64 {
        self.usage["completion_tokens"].as_u64().unwrap_or_default()
    }

    /// Tokens after the first, by the time they took.
    fn tokens_per_s(&self) -> Option<f64> {
        let rest = self.total - self.first?;
        let tokens = self.completion_tokens().checked_sub(1)?;
        (tokens > 0 && rest > 0.0).then(|| tokens as f64 / rest)
    }

    fn document(&self) -> Value {
        let mut ledger = self.extension["ledger"].clone();
        if ledger.is_null() {
            ledger = json!({});
        }
        ledger["time_to_first_token_s"] = json!(self.first);
        ledger["tokens_per_s"] = json!(self.tokens_per_s());
        ledger["session"] = self.extension["session"].clone();
        ledger["seed"] = self.extension["seed"].clone();
        ledger["logits_digest"] = self.extension["logits_digest"].clone();
        json!({
            "text": self.text,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "ledger": ledger,
        })
    }

    fn ledger(&self) -> String {
        let usage = &self.usage;
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
        let mut text = format!(
            "\nprompt {} tokens ({cached} cached), answer {} tokens\n",
            number(&usage["prompt_tokens"]),
            self.completion_tokens(),
        );
        if let Some(first) = self.first {
            text.push_str(&format!("first token after {:.0} ms", first * 1e3));
        }
        if let Some(rate) = self.tokens_per_s() {
            text.push_str(&format!(", then {rate:.1} tokens/s"));
        }
        text.push('\n');
        for moved in self.extension["ledger"]["moved"].as_array().into_iter().flatten() {
            let name = |key: &str| moved[key].as_str().unwrap_or("?").replace('_', " ");
            let bytes = ids::ByteCount(number(&moved["bytes"]));
            let (from, to) = (name("from"), name("to"));
            text.push_str(&format!("  {bytes:>10}  {from} -> {to}\n"));
        }
        if let Some(digest) = self.extension["logits_digest"].as_str() {
            text.push_str(&format!("logits digest {digest}\n"));
        }
        text
    }
}
