//! The documents of an answer as OpenAI's clients expect them, whole or in chunks, with our
//! extension under `oasiskv`. Typed, so that the order of keys is fixed.
//! What it deliberately does not do: send them.

use ids::{SessionId, Tier};
use serde::Serialize;
use session::{Ledger, Usage};

use crate::answer::{Outcome, Reason};

/// Which endpoint answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
}

/// What all documents of one answer share.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) endpoint: Endpoint,
    pub(crate) session: SessionId,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// The model's name as it is served.
    pub(crate) model: String,
    /// As given, or as drawn: the same request with it gives the same answer (P1).
    pub(crate) seed: i64,
    /// Changes when the same seed may give other tokens.
    pub(crate) fingerprint: String,
}

#[derive(Serialize)]
struct Document<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<Choice<'a>>,
    /// The outer `None` leaves the key out, the inner one is null.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oasiskv: Option<Extension>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(flatten)]
    content: Content<'a>,
    /// Not supported yet, and always there.
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Content<'a> {
    Delta(Said<'a>),
    Message(Said<'a>),
    Text(&'a str),
}

#[derive(Default, Serialize)]
struct Said<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens.saturating_add(usage.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// What only this server has to say.
#[derive(Serialize)]
struct Extension {
    session: String,
    seed: i64,
    /// Null when a stop text ended the answer.
    ledger: Option<LedgerBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits_digest: Option<String>,
}

#[derive(Serialize)]
struct LedgerBody {
    queued_ns: u64,
    prefill_ns: u64,
    handover_ns: u64,
    decode_ns: u64,
    moved: Vec<MovedBody>,
    replica_reads: u32,
}

#[derive(Serialize)]
struct MovedBody {
    from: &'static str,
    to: &'static str,
    bytes: u64,
}

impl From<&Ledger> for LedgerBody {
    fn from(ledger: &Ledger) -> Self {
        let moved = ledger.moved.iter().map(|moved| MovedBody {
            from: tier(moved.from),
            to: tier(moved.to),
            bytes: moved.bytes.0,
        });
        Self {
            queued_ns: ledger.queued.0,
            prefill_ns: ledger.prefill.0,
            handover_ns: ledger.handover.0,
            decode_ns: ledger.decode.0,
            moved: moved.collect(),
            replica_reads: ledger.replica_reads,
        }
    }
}

/// A tier's name in the API.
pub(crate) fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device",
        Tier::DecodeHost => "decode_host",
        Tier::PrefillHost => "prefill_host",
        Tier::Remote => "remote",
    }
}

impl Shape {
    /// The first chunk of a chat: who speaks. Completions have none.
    pub(crate) fn first(&self, include_usage: bool) -> Option<String> {
        let said = Said { role: Some("assistant"), content: Some("") };
        match self.endpoint {
            Endpoint::Chat => Some(self.chunk(Content::Delta(said), None, include_usage, None)),
            Endpoint::Completions => None,
        }
    }

    /// A chunk with more text.
    pub(crate) fn delta(&self, text: &str, include_usage: bool) -> String {
        self.chunk(self.content(text), None, include_usage, None)
    }

    /// The chunk that says why the answer ended, with our extension.
    pub(crate) fn finish(&self, outcome: &Outcome, include_usage: bool) -> String {
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta(Said::default()),
            Endpoint::Completions => Content::Text(""),
        };
        self.chunk(content, Some(outcome.reason), include_usage, Some(self.extension(outcome)))
    }

    /// The chunk with the usage and no choice.
    pub(crate) fn usage(&self, usage: Usage) -> String {
        let usage = Some(Some(usage.into()));
        text_of(&self.document(Vec::new(), self.chunk_object(), usage, None))
    }

    /// The whole answer in one document.
    pub(crate) fn whole(&self, text: &str, outcome: &Outcome) -> String {
        let (content, object) = match self.endpoint {
            Endpoint::Chat => {
                let said = Said { role: Some("assistant"), content: Some(text) };
                (Content::Message(said), "chat.completion")
            }
            Endpoint::Completions => (Content::Text(text), "text_completion"),
        };
        let usage = Some(Some(outcome.usage.into()));
        let choices = vec![choice(content, Some(outcome.reason))];
        text_of(&self.document(choices, object, usage, Some(self.extension(outcome))))
    }

    fn content<'a>(&self, text: &'a str) -> Content<'a> {
        match self.endpoint {
            Endpoint::Chat => Content::Delta(Said { role: None, content: Some(text) }),
            Endpoint::Completions => Content::Text(text),
        }
    }

    fn chunk(
        &self,
        content: Content<'_>,
        reason: Option<Reason>,
        include_usage: bool,
        extension: Option<Extension>,
    ) -> String {
        let usage = include_usage.then_some(None);
        let choices = vec![choice(content, reason)];
        text_of(&self.document(choices, self.chunk_object(), usage, extension))
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn document<'a>(
        &'a self,
        choices: Vec<Choice<'a>>,
        object: &'static str,
        usage: Option<Option<UsageBody>>,
        oasiskv: Option<Extension>,
    ) -> Document<'a> {
        let prefix = match self.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        Document {
            id: format!("{prefix}-{}", self.session),
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage,
            oasiskv,
        }
    }

    fn extension(&self, outcome: &Outcome) -> Extension {
        let digest = outcome.ledger.as_ref().and_then(|ledger| ledger.logits_digest);
        Extension {
            session: self.session.to_string(),
            seed: self.seed,
            ledger: outcome.ledger.as_ref().map(LedgerBody::from),
            logits_digest: digest.map(|digest| ids::ModelDigest(digest).to_string()),
        }
    }
}

fn choice(content: Content<'_>, reason: Option<Reason>) -> Choice<'_> {
    Choice { index: 0, content, logprobs: None, finish_reason: reason.map(Reason::name) }
}

fn text_of(document: &Document<'_>) -> String {
    serde_json::to_string(document).expect("strings, numbers and lists always have a JSON form")
}
