//! Chat templates: a dialogue to the one text that the model was trained on.
//!
//! Deliberately sandboxed: the template comes with the checkpoint, so it gets fuel (which bounds
//! time and memory), an output limit, no files, no environment and no clock. Configured as
//! transformers configures Jinja2 (`trim_blocks`, `lstrip_blocks`, loop controls, Python's string
//! methods, `raise_exception`, `strftime_now`, `tojson` without HTML escapes).

mod calendar;
mod json;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Object, Value};
use minijinja::{Environment, Error, ErrorKind, context};

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
#[error("tokenizer.chat_template line {line}: {reason}")]
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
    bos: String,
    eos: String,
    limits: RenderLimits,
}

const NAME: &str = "chat_template";

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
        let mut env = Environment::new();
        env.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .expect("the delimiters are the default ones"),
        );
        env.set_fuel(Some(limits.fuel));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text).with_source(Raised))
        });
        env.add_filter("tojson", json::tojson);
        let added = env.add_template_owned(NAME, source.to_owned());
        added.map_err(|error| ParseTemplateError {
            line: error.line().unwrap_or(0),
            reason: describe(&error),
        })?;
        Ok(Self { env, bos: bos.to_owned(), eos: eos.to_owned(), limits })
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
        let looking_at = Arc::new(AtomicUsize::new(NONE));
        let wrapped: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| Watched::wrap(index, message, &looking_at))
            .collect();
        let strftime = move |format: String| calendar::strftime(&format, now_unix_s);
        let values = context! {
            messages => wrapped,
            add_generation_prompt => generation == GenerationPrompt::Add,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => Value::from(()),
            documents => Value::from(()),
            strftime_now => Value::from_function(strftime),
        };
        let mut out = Bounded { bytes: Vec::new(), max: self.limits.output_bytes_max, full: false };
        let template = self.env.get_template(NAME).expect("added when parsed");
        let rendered = template.render_captured_to(values, &mut out).map(drop);
        let message = match looking_at.load(Ordering::Relaxed) {
            NONE => None,
            index => Some(index),
        };
        match rendered {
            Ok(()) => Ok(String::from_utf8(out.bytes).expect("templates write text")),
            Err(_) if out.full => Err(RenderError::TooLong { max: out.max }),
            Err(error) => Err(self.failure(&error, message)),
        }
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

/// Takes text up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    /// Set when something was refused.
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(text.len()) > self.max {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
