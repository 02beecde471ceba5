//! Chat templates: a dialogue to the one text that the model was trained on.
//!
//! Deliberately sandboxed: the template comes with the checkpoint, so it gets fuel (which bounds
//! time and memory), an output limit, no files, no environment and no clock. Configured as
//! transformers configures Jinja2 (`trim_blocks`, `lstrip_blocks`, loop controls, `generation`
//! blocks, Python's methods, `raise_exception`, `strftime_now`, `tojson` without HTML escapes).
//!
//! The engine charges for what it makes, and `guard` has a template pay for what it only walks
//! through. Not there, as no bound holds for it or no published template has it: `include` and its
//! kin, `autoescape`, `*` before an argument, `loop.changed`, `loop.cycle`, a list as a key.

mod calendar;
mod guard;
mod json;
mod methods;
mod paid;
mod shape;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Object, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

/// One turn of a dialogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or whatever else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// Whether the text ends with the opening of the assistant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// The model is to answer next.
    Add,
    /// The dialogue stands as it is.
    Omit,
}

/// A value that a request hands to the template, such as Qwen3's `enable_thinking`.
#[derive(Clone, Debug, PartialEq)]
pub enum TemplateValue {
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Another number.
    Float(f64),
    /// A text.
    Text(String),
}

impl From<&TemplateValue> for Value {
    fn from(value: &TemplateValue) -> Self {
        match value {
            TemplateValue::Bool(value) => Self::from(*value),
            TemplateValue::Integer(value) => Self::from(*value),
            TemplateValue::Float(value) => Self::from(*value),
            TemplateValue::Text(value) => Self::from(value.as_str()),
        }
    }
}

/// Bounds of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderLimits {
    /// Instructions, and 64 bytes of data each: bounds time and memory.
    pub fuel: u64,
    /// Length of the rendered text.
    pub output_bytes_max: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            // About 64 MB; a dialogue of 8,192 tokens takes a few thousand.
            fuel: 1_000_000,
            output_bytes_max: 8 << 20,
        }
    }
}

/// A template that cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[error("chat_template line {line}: {reason}")]
pub struct ParseTemplateError {
    /// Where, from 1; 0 if unknown.
    line: usize,
    /// What is wrong.
    reason: String,
}

/// Why a dialogue has no text. All but `Template` are the client's to mend.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RenderError {
    /// The template said no, in its own words.
    #[error("{}: {reason}", field(*message))]
    Refused {
        /// Index of the message that the template was looking at, if any.
        message: Option<usize>,
        /// What it said.
        reason: String,
    },
    /// The rendered text is too long.
    #[error("messages: the rendered text is longer than {max} bytes")]
    TooLong {
        /// The limit.
        max: usize,
    },
    /// The dialogue is too long for the template's budget.
    #[error("messages: the dialogue needs more work than the limit of {fuel} steps allows")]
    OutOfFuel {
        /// The limit.
        fuel: u64,
    },
    /// The template itself failed on this dialogue.
    #[error("{}: the model's chat template failed: {reason}", field(*message))]
    Template {
        /// Index of the message that the template was looking at, if any.
        message: Option<usize>,
        /// What failed.
        reason: String,
    },
}

impl RenderError {
    /// The index of the message that the template was looking at, for the error's `param`.
    #[must_use]
    pub fn message_index(&self) -> Option<usize> {
        match self {
            Self::Refused { message, .. } | Self::Template { message, .. } => *message,
            Self::TooLong { .. } | Self::OutOfFuel { .. } => None,
        }
    }
}

fn field(message: Option<usize>) -> String {
    message.map_or_else(|| "messages".to_owned(), |index| format!("messages[{index}]"))
}

/// Marks an error as the template's own refusal, as opposed to a failure of the template.
#[derive(Debug, thiserror::Error)]
#[error("refused by the template")]
struct Raised;

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    /// Texts of special tokens by their names in templates.
    tokens: BTreeMap<String, String>,
    limits: RenderLimits,
}

const NAME: &str = "chat_template";

/// Deepest calls of macros by macros, each of which takes some of the thread's stack.
const RECURSION_MAX: usize = 100;

/// Stack of one rendering: lists in lists are dropped, compared and written by recursion, and fuel
/// lets a template build some 200 thousand levels. A million steps of every kind of nesting stayed
/// within this; only what is used of it takes memory.
const STACK_BYTES: usize = 64 << 20;

/// What every template sees; no request can set it.
const RESERVED: [&str; 10] = [
    "messages",
    "add_generation_prompt",
    "tools",
    "documents",
    "strftime_now",
    "raise_exception",
    "namespace",
    "range",
    "dict",
    "debug",
];

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` are the texts of those tokens, empty if there are none.
    ///
    /// # Errors
    /// [`ParseTemplateError`] with the line and what is wrong with it.
    pub fn parse(
        source: &str,
        bos: &str,
        eos: &str,
        limits: RenderLimits,
    ) -> Result<Self, ParseTemplateError> {
        let refused = shape::refused(source);
        refused.map_or(Ok(()), |(line, reason)| Err(ParseTemplateError { line, reason }))?;
        let mut env = Environment::new();
        env.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .expect("the delimiters are the default ones"),
        );
        env.set_fuel(Some(limits.fuel));
        env.set_recursion_limit(RECURSION_MAX);
        env.set_unknown_method_callback(methods::call);
        env.add_function("raise_exception", raise_exception);
        env.add_filter("tojson", json::tojson);
        methods::add_filters(&mut env);
        paid::add(&mut env);
        let added = env.add_template_owned(NAME, without_generation(source));
        added.map_err(|error| ParseTemplateError {
            line: error.line().unwrap_or(0),
            reason: describe(&error),
        })?;
        let template = env.get_template(NAME).expect("just added");
        let guarded = guard::guarded(&get_compiled_template(&template).instructions).map(drop);
        guarded.map_err(|(line, reason)| ParseTemplateError { line, reason })?;
        let tokens = [("bos_token", bos), ("eos_token", eos)];
        let tokens = tokens.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        Ok(Self { env, tokens, limits })
    }

    /// The template with the texts of more special tokens, by names such as `pad_token`.
    #[must_use]
    pub fn with_tokens<'a>(mut self, tokens: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let tokens = tokens.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned()));
        self.tokens.extend(tokens);
        self
    }

    /// Whether the source spells a word, such as the name of a role.
    #[must_use]
    pub fn mentions(&self, word: &str) -> bool {
        self.env.get_template(NAME).is_ok_and(|template| template.source().contains(word))
    }

    /// Whether a name is the engine's or the checkpoint's, so that no request may set it.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        RESERVED.contains(&name) || self.tokens.contains_key(name)
    }

    /// The text of a dialogue. `now_unix_s` is what the template sees as the time, in UTC.
    ///
    /// # Errors
    /// See [`RenderError`]; the message is named where the template was looking at one.
    pub fn render(
        &self,
        messages: &[Message],
        generation: GenerationPrompt,
        now_unix_s: i64,
    ) -> Result<String, RenderError> {
        self.render_with(messages, generation, now_unix_s, &BTreeMap::new())
    }

    /// As [`ChatTemplate::render`], with values of the request; reserved names are not overwritten.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_with(
        &self,
        messages: &[Message],
        generation: GenerationPrompt,
        now_unix_s: i64,
        values: &BTreeMap<String, TemplateValue>,
    ) -> Result<String, RenderError> {
        stacker::grow(STACK_BYTES, || self.render_here(messages, generation, now_unix_s, values))
    }

    /// On the stack at hand: values are made, walked and dropped here.
    fn render_here(
        &self,
        messages: &[Message],
        generation: GenerationPrompt,
        now_unix_s: i64,
        values: &BTreeMap<String, TemplateValue>,
    ) -> Result<String, RenderError> {
        let looking_at = Arc::new(AtomicUsize::new(NONE));
        let wrapped: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| Watched::wrap(index, message, &looking_at))
            .collect();
        let strftime = move |format: &str| calendar::strftime(format, now_unix_s);
        let mut context: BTreeMap<&str, Value> =
            values.iter().map(|(name, value)| (name.as_str(), value.into())).collect();
        context
            .extend(self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str().into())));
        context.extend([
            ("messages", Value::from(wrapped)),
            ("add_generation_prompt", Value::from(generation == GenerationPrompt::Add)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("strftime_now", Value::from_function(strftime)),
        ]);
        let template = self.env.get_template(NAME).expect("added when parsed");
        let compiled = get_compiled_template(&template);
        let guarded = guard::guarded(&compiled.instructions).expect("accepted when parsed");
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        let (context, blocks) = (Value::from(context), &compiled.blocks);
        let rendered = eval(&self.env, &guarded, context, blocks, &mut out, AutoEscape::None);
        let rendered = rendered.map(drop);
        let message = match looking_at.load(Ordering::Relaxed) {
            NONE => None,
            index => Some(index),
        };
        // Fuel bounds it on the way, to some times as much.
        if text.len() > self.limits.output_bytes_max {
            return Err(RenderError::TooLong { max: self.limits.output_bytes_max });
        }
        rendered.map(|()| text).map_err(|error| self.failure(&error, message))
    }

    fn failure(&self, error: &Error, message: Option<usize>) -> RenderError {
        if error.kind() == ErrorKind::OutOfFuel {
            return RenderError::OutOfFuel { fuel: self.limits.fuel };
        }
        let source = std::error::Error::source(error);
        if source.is_some_and(<dyn std::error::Error>::is::<Raised>) {
            return RenderError::Refused {
                message,
                reason: error.detail().unwrap_or_default().to_owned(),
            };
        }
        RenderError::Template { message, reason: describe(error) }
    }
}

fn raise_exception(state: &State<'_, '_>, text: &Value) -> Result<Value, Error> {
    let text = methods::text_of(state, text)?;
    Err(Error::new(ErrorKind::InvalidOperation, text).with_source(Raised))
}

/// The source with `generation` blocks, which mark the assistant's text for training, as `with`
/// blocks: they give out the same and scope variables the same way.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let Some((inner, _)) = tag.split_once("%}") else {
            rest = tag;
            break;
        };
        let word = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let with = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => word,
        };
        out.push_str(&inner.replacen(word, with, 1));
        rest = &tag[inner.len()..];
    }
    out + rest
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// No message was looked at yet.
const NONE: usize = usize::MAX;

/// A message that notes when the template reads it, so that an error can name it.
#[derive(Debug)]
struct Watched {
    index: usize,
    role: Value,
    content: Value,
    /// Index of the message that was read last, shared by all of one rendering.
    looking_at: Arc<AtomicUsize>,
}

impl Watched {
    fn wrap(index: usize, message: &Message, looking_at: &Arc<AtomicUsize>) -> Value {
        Value::from_object(Self {
            index,
            role: Value::from(message.role.as_str()),
            content: Value::from(message.content.as_str()),
            looking_at: Arc::clone(looking_at),
        })
    }
}

impl Object for Watched {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.looking_at.store(self.index, Ordering::Relaxed);
        match key.as_str()? {
            "role" => Some(self.role.clone()),
            "content" => Some(self.content.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&["role", "content"])
    }
}
