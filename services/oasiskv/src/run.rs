//! `oasiskv run`: the answer to one prompt through the whole cluster, then a short ledger.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use serde_json::json;

use crate::answer::{Answer, printable};
use crate::client::Gateway;
use crate::cluster::Cluster;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) prompt: String,
    pub(crate) json: bool,
    /// Complete the text as it is, without the chat template.
    pub(crate) raw: bool,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: f64,
    pub(crate) seed: Option<i64>,
    pub(crate) logits_digest: bool,
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
    let mut out = std::io::stdout();
    let terminal = out.is_terminal();
    let mut answer = Answer::begin();
    let show = |piece: &str| {
        if ask.json {
            return Ok(());
        }
        match terminal {
            true => out.write_all(printable(piece).as_bytes())?,
            false => out.write_all(piece.as_bytes())?,
        }
        out.flush()
    };
    answer.follow(&Gateway::at(cluster.gateway), path, &body, show).await?;
    if ask.json {
        let document = answer.document();
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(());
    }
    writeln!(out)?;
    let ledger = format!("\n{}", answer.ledger());
    std::io::stderr().write_all(ledger.as_bytes()).context("writing the ledger")
}
