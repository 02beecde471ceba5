//! One streamed answer of the gateway: its text as it comes, then usage, ledger and times.
//! What it deliberately does not do: print, or know what was asked.

use std::io;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::Gateway;

/// What came so far. Whoever drops the future of [`Answer::follow`] keeps the part that was there.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) text: String,
    usage: Value,
    extension: Value,
    finish_reason: Value,
    began: Instant,
    /// Seconds to the first piece of text; `None` before it.
    first: Option<f64>,
    /// Seconds to the newest piece, or to the end.
    total: f64,
}

impl Answer {
    /// Nothing yet; the clock starts.
    pub(crate) fn begin() -> Self {
        Self {
            text: String::new(),
            usage: Value::Null,
            extension: Value::Null,
            finish_reason: Value::Null,
            began: Instant::now(),
            first: None,
            total: 0.0,
        }
    }

    /// Asks, and reads events until the answer is whole; `show` gets each piece of text.
    pub(crate) async fn follow(
        &mut self,
        gateway: &Gateway,
        path: &str,
        body: &Value,
        mut show: impl FnMut(&str) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut events = gateway.post(path, body).await?;
        while let Some(event) = events.next().await? {
            let choice = &event["choices"][0];
            let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            self.total = self.began.elapsed().as_secs_f64();
            if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
                self.first.get_or_insert(self.total);
                self.text.push_str(piece);
                show(piece)?;
            }
            for (target, value) in [
                (&mut self.usage, &event["usage"]),
                (&mut self.extension, &event["oasiskv"]),
                (&mut self.finish_reason, &choice["finish_reason"]),
            ] {
                if !value.is_null() {
                    target.clone_from(value);
                }
            }
        }
        self.total = self.began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether a limit ended it rather than the model.
    pub(crate) fn is_cut(&self) -> bool {
        self.finish_reason == "length"
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.usage["prompt_tokens"].as_u64().unwrap_or_default()
    }

    pub(crate) fn completion_tokens(&self) -> u64 {
        self.usage["completion_tokens"].as_u64().unwrap_or_default()
    }

    /// The seed of its draws.
    pub(crate) fn seed(&self) -> Option<i64> {
        self.extension["seed"].as_i64()
    }

    /// Tokens after the first, by the time they took.
    fn tokens_per_s(&self) -> Option<f64> {
        let rest = self.total - self.first?;
        let tokens = self.completion_tokens().checked_sub(1)?;
        (tokens > 0 && rest > 0.0).then(|| tokens as f64 / rest)
    }

    /// All of it as JSON.
    pub(crate) fn document(&self) -> Value {
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

    /// What it took, in a few lines for people.
    pub(crate) fn ledger(&self) -> String {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let cached = number(&self.usage["prompt_tokens_details"]["cached_tokens"]);
        let mut text = format!(
            "prompt {} tokens ({cached} cached), answer {} tokens\n",
            self.prompt_tokens(),
            self.completion_tokens(),
        );
        if let Some(first) = self.first {
            text.push_str(&format!("first token after {:.0} ms", first * 1e3));
            if let Some(rate) = self.tokens_per_s() {
                text.push_str(&format!(", then {rate:.1} tokens/s"));
            }
            text.push('\n');
        }
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

/// Text as a terminal may have it: a model's text is not trusted to move the cursor, rename the
/// window or fill the clipboard, so control characters other than newline and tab are dropped.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|&c| c == '\n' || c == '\t' || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn a_models_text_cannot_command_the_terminal() {
        assert_eq!(printable("a\tb\nä\u{1b}]0;x\u{7}\u{9b}2J\r"), "a\tb\nä]0;x2J");
    }
}
