//! Fields that OpenAI's or vLLM's API knows and this server does not support: each is refused by
//! name, unless its value asks for what happens anyway.
//! What it deliberately does not do: ignore anything silently.

use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, whole};

/// The value under which a field asks for nothing special.
#[derive(Clone, Copy)]
enum Harmless {
    /// None: the field alone is a demand.
    Never,
    /// The boolean.
    Bool(bool),
    /// Either boolean: it steers only something that is refused anyway.
    AnyBool,
    /// The number, written 1 or 1.0.
    Number(f64),
    /// An empty array, object or string.
    Empty,
    /// One of the words.
    Word(&'static [&'static str]),
    /// `{"type": "text"}`.
    PlainFormat,
    /// `["text"]`.
    TextOnly,
}

impl Harmless {
    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::Bool(wanted) => value.as_bool() == Some(wanted),
            Self::AnyBool => value.is_boolean(),
            Self::Number(wanted) => value.as_f64() == Some(wanted),
            Self::Empty => match value {
                Value::Array(items) => items.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::String(text) => text.is_empty(),
                Value::Null | Value::Bool(_) | Value::Number(_) => false,
            },
            Self::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Self::PlainFormat => *value == serde_json::json!({ "type": "text" }),
            Self::TextOnly => *value == serde_json::json!(["text"]),
        }
    }
}

use Harmless::{AnyBool, Bool, Empty, Never, Number, PlainFormat, TextOnly, Word};

/// Of both endpoints.
const COMMON: &[(&str, Harmless)] = &[
    // OpenAI
    ("n", Number(1.0)),
    ("frequency_penalty", Number(0.0)),
    ("presence_penalty", Number(0.0)),
    ("logit_bias", Empty),
    ("service_tier", Word(&["auto", "default"])),
    ("prompt_cache_key", Never),
    ("prompt_cache_retention", Never),
    // vLLM
    ("repetition_penalty", Number(1.0)),
    ("length_penalty", Number(1.0)),
    ("use_beam_search", Bool(false)),
    ("early_stopping", Bool(false)),
    ("min_tokens", Number(0.0)),
    ("stop_token_ids", Empty),
    ("bad_words", Empty),
    ("allowed_token_ids", Empty),
    ("include_stop_str_in_output", Bool(false)),
    ("skip_special_tokens", Bool(true)),
    ("spaces_between_special_tokens", Bool(true)),
    ("prompt_logprobs", Never),
    ("truncate_prompt_tokens", Never),
    ("structured_outputs", Never),
    ("guided_json", Never),
    ("guided_regex", Never),
    ("guided_choice", Never),
    ("guided_grammar", Never),
    ("priority", Number(0.0)),
    ("request_id", Never),
    ("return_token_ids", Bool(false)),
    ("return_tokens_as_token_ids", Bool(false)),
    ("logits_processors", Empty),
    ("kv_transfer_params", Never),
    ("vllm_xargs", Empty),
    ("lora_path", Never),
    ("lora_request", Never),
];

/// Of chat alone.
const CHAT: &[(&str, Harmless)] = &[
    ("tools", Empty),
    ("tool_choice", Word(&["none", "auto"])),
    ("parallel_tool_calls", AnyBool),
    ("functions", Empty),
    ("function_call", Word(&["none", "auto"])),
    ("response_format", PlainFormat),
    ("logprobs", Bool(false)),
    ("top_logprobs", Number(0.0)),
    ("modalities", TextOnly),
    ("audio", Never),
    ("prediction", Never),
    ("reasoning_effort", Never),
    ("verbosity", Never),
    ("web_search_options", Never),
    ("add_generation_prompt", Bool(true)),
    ("continue_final_message", Bool(false)),
    ("add_special_tokens", Bool(false)),
    ("chat_template", Never),
    ("documents", Empty),
    ("mm_processor_kwargs", Empty),
    ("echo", Bool(false)),
];

/// Of completions alone.
const COMPLETIONS: &[(&str, Harmless)] = &[
    ("best_of", Number(1.0)),
    ("echo", Bool(false)),
    ("suffix", Empty),
    ("logprobs", Bool(false)),
    ("response_format", PlainFormat),
    ("add_special_tokens", Bool(true)),
    ("prompt_embeds", Never),
];

/// Of one message of a chat.
const MESSAGE: &[(&str, Harmless)] = &[
    ("name", Never),
    ("tool_calls", Empty),
    ("tool_call_id", Never),
    ("function_call", Never),
    ("refusal", Never),
    ("audio", Never),
    ("reasoning_content", Empty),
];

/// Which table applies.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Chat,
    Completions,
    Message,
}

/// Takes every field that is known and unsupported, and refuses the first that asks for something.
pub(crate) fn refuse(fields: &mut Fields, place: Place) -> Result<(), ApiError> {
    let tables: &[&[(&str, Harmless)]] = match place {
        Place::Chat => &[COMMON, CHAT],
        Place::Completions => &[COMMON, COMPLETIONS],
        Place::Message => &[MESSAGE],
    };
    for (key, harmless) in tables.iter().copied().flatten() {
        let Some(value) = fields.take(key) else {
            continue;
        };
        // No choices at all is a mistake, not a feature that is missing.
        if *key == "n" && whole(&value).is_none_or(|n| n < 1) {
            return Err(fields.wrong(key, "a whole number of at least 1", &value));
        }
        if !harmless.admits(&value) {
            let name = fields.name(key);
            let message = format!("`{name}` is not supported yet: remove it");
            return Err(ApiError::unsupported(&name, message));
        }
    }
    Ok(())
}
