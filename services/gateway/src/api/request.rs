//! From a body to a valid request: what is asked (a dialogue, a text or tokens) and how.
//! What it deliberately does not do: encode, or decide whether it fits.

use std::collections::BTreeMap;

use serde_json::Value;
use tokens::TemplateValue;

use super::error::ApiError;
use super::fields::{Fields, name_of, shorten, whole};
use super::params::{self, Params};
use super::refused::{self, Place};

#[cfg(test)]
mod tests;

/// A valid request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) input: Input,
    pub(crate) params: Params,
}

/// What the model is to go on from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
    /// Rendered by the chat template.
    Dialogue(Dialogue),
    /// Encoded as it stands.
    Text(String),
    /// Token ids, not yet held against the vocabulary.
    Tokens(Vec<u32>),
}

/// A dialogue and what else its template gets.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dialogue {
    /// Never empty.
    pub(crate) messages: Vec<Message>,
    /// `chat_template_kwargs`: values by the names that the template knows.
    pub(crate) values: BTreeMap<String, TemplateValue>,
}

/// One message of a dialogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
}

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    /// OpenAI's newer name for the system; what it becomes is the template's to say.
    Developer,
    User,
    Assistant,
}

impl Role {
    /// As templates write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// The body of `/v1/chat/completions`.
pub(crate) fn chat(body: Value) -> Result<Request, ApiError> {
    let mut fields = Fields::of(body, "")?;
    let params = params::read(&mut fields)?;
    let values = template_values(&mut fields)?;
    refused::refuse(&mut fields, Place::Chat)?;
    let messages = match fields.require("messages")? {
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => {
            return Err(ApiError::invalid("messages", "`messages` is empty: send at least one"));
        }
        other => return Err(fields.wrong("messages", "an array of messages", &other)),
    };
    fields.finish()?;
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, item)| message(item, &format!("messages[{index}]")));
    let messages = messages.collect::<Result<_, _>>()?;
    Ok(Request { input: Input::Dialogue(Dialogue { messages, values }), params })
}

/// Most values for the template, and the longest text of one.
const TEMPLATE_VALUES_MAX: usize = 16;
const TEMPLATE_TEXT_MAX: usize = 4_096;

/// `chat_template_kwargs`, vLLM's way to hand values to the template: scalars only.
fn template_values(fields: &mut Fields) -> Result<BTreeMap<String, TemplateValue>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    let map = match fields.take(NAME) {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(map)) if map.len() <= TEMPLATE_VALUES_MAX => map,
        Some(Value::Object(map)) => {
            let message = format!(
                "`{NAME}` has {} values, at most {TEMPLATE_VALUES_MAX} are taken",
                map.len()
            );
            return Err(ApiError::invalid(NAME, message));
        }
        Some(other) => return Err(fields.wrong(NAME, "an object", &other)),
    };
    let mut values = BTreeMap::new();
    for (key, value) in map {
        let name = format!("{NAME}.{}", shorten(&key));
        let value = match &value {
            Value::Bool(value) => Some(TemplateValue::Bool(*value)),
            Value::String(text) if text.len() <= TEMPLATE_TEXT_MAX => {
                Some(TemplateValue::Text(text.clone()))
            }
            Value::Number(number) => match number.as_i64() {
                Some(number) => Some(TemplateValue::Integer(number)),
                None => number.as_f64().map(TemplateValue::Float),
            },
            Value::Null => continue,
            Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let Some(value) = value else {
            let message = format!(
                "`{name}` must be true, false, a number or a text of at most \
                 {TEMPLATE_TEXT_MAX} bytes"
            );
            return Err(ApiError::invalid(&name, message));
        };
        values.insert(key, value);
    }
    Ok(values)
}

fn message(item: Value, path: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::of(item, path)?;
    let name = fields.name("role");
    let role = fields.require("role")?;
    let role = match role.as_str() {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some(known @ ("tool" | "function")) => {
            let message = format!("`{name}` {known:?} is not supported yet");
            return Err(ApiError::unsupported(&name, message));
        }
        _ => {
            let message = format!(
                "`{name}` must be \"system\", \"developer\", \"user\" or \"assistant\", not {}",
                name_of(&role)
            );
            return Err(ApiError::invalid(&name, message));
        }
    };
    refused::refuse(&mut fields, Place::Message)?;
    let content = match fields.require("content")? {
        Value::String(text) => text,
        Value::Array(parts) => parts_of(parts, &fields.name("content"))?,
        other => return Err(fields.wrong("content", "a string or an array of parts", &other)),
    };
    fields.finish()?;
    Ok(Message { role, content })
}

/// The texts of a content's parts, joined by line ends as vLLM does for templates that take text.
fn parts_of(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    if parts.is_empty() {
        return Err(ApiError::invalid(path, format!("`{path}` is empty: send at least one part")));
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::of(part, &format!("{path}[{index}]"))?;
        let kind = fields.text("type")?;
        match kind.as_deref() {
            Some("text") => {}
            Some(other) => {
                let name = fields.name("type");
                let message =
                    format!("parts of type {:?} are not supported yet: send text", shorten(other));
                return Err(ApiError::unsupported(&name, message));
            }
            None => {
                let name = fields.name("type");
                return Err(ApiError::invalid(&name, format!("`{name}` is required")));
            }
        }
        match fields.require("text")? {
            Value::String(text) => texts.push(text),
            other => return Err(fields.wrong("text", "a string", &other)),
        }
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}

/// The body of `/v1/completions`.
pub(crate) fn completion(body: Value) -> Result<Request, ApiError> {
    let mut fields = Fields::of(body, "")?;
    let params = params::read(&mut fields)?;
    refused::refuse(&mut fields, Place::Completions)?;
    let input = prompt(fields.require("prompt")?)?;
    fields.finish()?;
    Ok(Request { input, params })
}

fn prompt(value: Value) -> Result<Input, ApiError> {
    let wanted = "`prompt` must be a string or an array of token ids";
    let mut items = match value {
        Value::String(text) => return Ok(Input::Text(text)),
        Value::Array(items) => items,
        other => {
            let message = format!("{wanted}, not {}", name_of(&other));
            return Err(ApiError::invalid("prompt", message));
        }
    };
    match items.first() {
        None => Err(ApiError::invalid("prompt", "`prompt` is empty: send a text or token ids")),
        Some(Value::Number(_)) => tokens(&items).map(Input::Tokens),
        Some(Value::String(_) | Value::Array(_)) if items.len() > 1 => Err(ApiError::unsupported(
            "prompt",
            "several prompts in one request are not supported yet: send one request for each",
        )),
        Some(Value::String(_) | Value::Array(_)) => match items.remove(0) {
            Value::String(text) => Ok(Input::Text(text)),
            Value::Array(ids) if !ids.is_empty() => tokens(&ids).map(Input::Tokens),
            _ => Err(ApiError::invalid("prompt", wanted)),
        },
        Some(Value::Null | Value::Bool(_) | Value::Object(_)) => {
            Err(ApiError::invalid("prompt", wanted))
        }
    }
}

fn tokens(items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let token = |(index, item): (usize, &Value)| {
        whole(item).and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            let name = format!("prompt[{index}]");
            let message = format!("`{name}` must be a token id, not {}", name_of(item));
            ApiError::invalid(&name, message)
        })
    };
    items.iter().enumerate().map(token).collect()
}
