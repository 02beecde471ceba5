//! The served model as the gateway needs it: names, limits, tokenizer, chat template, and the
//! identity of its KV. What it deliberately does not do: touch weights.

mod source;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use checkpoint::{Checkpoint, CheckpointError, Resolved};
use ids::{BLOCK_TOKENS, ModelDigest, TokenId};
use tokens::{
    BlockHashes, BlockNamespace, ChatTemplate, ControlTokens, GenerationPrompt, HowComputed,
    KvLayout, RenderError, SpecialTokens, StreamDecoder, Tokenizer,
};

use crate::api::error::{ApiError, Kind};
use crate::api::request::{Dialogue, Input, Message, Role};

/// A checkpoint that the gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It cannot be read, or a key of a GGUF is missing.
    #[error("cannot read the model {name}")]
    File {
        /// Its name.
        name: String,
        /// What is wrong with the file.
        #[source]
        source: CheckpointError,
    },
    /// It is readable, and this part of it cannot be used.
    #[error("the model {name} cannot be served: {problem}")]
    Content {
        /// Its name.
        name: String,
        /// Which part, and why.
        problem: String,
    },
}

/// A model, ready to encode and decode text.
#[derive(Debug)]
pub struct ServedModel {
    /// What the API calls it.
    name: String,
    digest: ModelDigest,
    /// Most tokens of prompt and answer together.
    context: u32,
    layout: KvLayout,
    tokenizer: Tokenizer,
    /// `None` if the checkpoint has no chat template.
    template: Option<ChatTemplate>,
    end_tokens: Arc<[TokenId]>,
}

/// A prompt as tokens, with the salt of its cache. Clones are cheap.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    /// Never empty.
    tokens: Arc<[TokenId]>,
    salt: Arc<str>,
    answer: Answer,
}

/// What an answer's text is to the prompt's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// A turn of its own in a dialogue: a tokenizer's space before a text is no part of it.
    Turn,
    /// It goes on where the prompt ends: its first space belongs to it.
    GoesOn,
}

impl Encoded {
    /// How many tokens.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("held against the context, which fits")
    }
}

impl ServedModel {
    /// Reads what the gateway needs from a checkpoint. Blocks for a fraction of a second.
    ///
    /// # Errors
    /// [`ModelError`], which names the model and the part of the file.
    pub fn open(resolved: &Resolved) -> Result<Self, ModelError> {
        let name = &resolved.name;
        let file = |source| ModelError::File { name: name.clone(), source };
        let checkpoint = Checkpoint::open(&resolved.path).map_err(file)?;
        let parts = source::read(&checkpoint).map_err(|problem| match problem {
            source::Problem::File(source) => file(source),
            source::Problem::Content(problem) => {
                ModelError::Content { name: name.clone(), problem }
            }
        })?;
        Ok(Self {
            name: name.clone(),
            digest: resolved.digest,
            context: parts.context,
            layout: parts.layout,
            end_tokens: parts.tokenizer.end_tokens().into(),
            tokenizer: parts.tokenizer,
            template: parts.template,
        })
    }

    /// What the API calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of its file.
    #[must_use]
    pub fn digest(&self) -> ModelDigest {
        self.digest
    }

    /// Most tokens of prompt and answer together.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.context
    }

    /// The tokens of a text as a raw prompt, for those who measure.
    ///
    /// # Errors
    /// When the tokenizer cannot encode it.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<TokenId>, tokens::EncodeError> {
        self.tokenizer.encode_prompt(text)
    }

    /// Tokens with which the model itself ends an answer.
    pub(crate) fn end_tokens(&self) -> Arc<[TokenId]> {
        Arc::clone(&self.end_tokens)
    }

    /// A decoder for one answer to a prompt.
    pub(crate) fn decoder(&self, prompt: &Encoded) -> StreamDecoder {
        match prompt.answer {
            Answer::Turn => self.tokenizer.stream_decoder(ControlTokens::Skip),
            Answer::GoesOn => self.tokenizer.continuing_decoder(ControlTokens::Skip),
        }
    }

    /// The tokens of a request's input. `now_unix_s` is for templates that show the date.
    pub(crate) fn encode(
        &self,
        input: Input,
        salt: &str,
        now_unix_s: i64,
    ) -> Result<Encoded, ApiError> {
        let answer = match &input {
            Input::Dialogue(_) => Answer::Turn,
            Input::Text(_) | Input::Tokens(_) => Answer::GoesOn,
        };
        let (param, tokens) = match input {
            Input::Dialogue(dialogue) => ("messages", self.dialogue(dialogue, now_unix_s)?),
            Input::Text(text) => {
                ("prompt", self.tokenizer.encode_prompt(&text).map_err(|e| unencodable(&e))?)
            }
            Input::Tokens(ids) => ("prompt", self.known(ids)?),
        };
        if tokens.is_empty() {
            let message = format!("`{param}` has no tokens: send some text");
            return Err(ApiError::invalid(param, message));
        }
        if tokens.len() >= self.context as usize {
            let message = format!(
                "this model's context is {} tokens and the prompt has {}, which leaves no room \
                 for an answer: shorten the prompt",
                self.context,
                tokens.len()
            );
            return Err(too_long(param, message));
        }
        Ok(Encoded { tokens: tokens.into(), salt: Arc::from(salt), answer })
    }

    fn dialogue(&self, dialogue: Dialogue, now_unix_s: i64) -> Result<Vec<TokenId>, ApiError> {
        let Some(template) = &self.template else {
            let message = "this model has no chat template: use /v1/completions";
            return Err(ApiError::invalid("messages", message));
        };
        let Dialogue { messages, values } = dialogue;
        if let Some(name) = values.keys().find(|name| template.is_reserved(name)) {
            let param = format!("chat_template_kwargs.{name}");
            let message = format!("`{param}` is set by the server: leave it out");
            return Err(ApiError::invalid(&param, message));
        }
        // Most templates know no developer, and some give out nothing for a role that they do not
        // know: to them it is the system, whose newer name it is.
        let developer = match template.mentions("developer") {
            true => Role::Developer,
            false => Role::System,
        };
        let messages = messages.into_iter().map(|Message { role, content }| {
            let role = match role {
                Role::Developer => developer,
                Role::System | Role::User | Role::Assistant => role,
            };
            tokens::Message { role: role.name().to_owned(), content }
        });
        let messages: Vec<_> = messages.collect();
        let text = template
            .render_with(&messages, GenerationPrompt::Add, now_unix_s, &values)
            .map_err(|error| unrenderable(&error))?;
        self.tokenizer.encode(&text, SpecialTokens::Parse).map_err(|e| unencodable(&e))
    }

    fn known(&self, ids: Vec<u32>) -> Result<Vec<TokenId>, ApiError> {
        let count = self.tokenizer.vocabulary_len();
        match ids.iter().position(|id| *id as usize >= count) {
            None => Ok(ids.into_iter().map(TokenId).collect()),
            Some(index) => {
                let name = format!("prompt[{index}]");
                let message = format!(
                    "`{name}` is {}, which is no token: this model has {count}",
                    ids[index]
                );
                Err(ApiError::invalid(&name, message))
            }
        }
    }

    /// How many tokens may be generated: as many as asked for, or the default cut to fit.
    pub(crate) fn room(
        &self,
        prompt: &Encoded,
        asked: Option<u32>,
        default: u32,
    ) -> Result<u32, ApiError> {
        let free = self.context - prompt.len();
        match asked {
            None => Ok(default.min(free)),
            Some(asked) if asked <= free => Ok(asked),
            Some(asked) => {
                let message = format!(
                    "this model's context is {} tokens; the prompt has {} and `max_tokens` asks \
                     for {asked}: shorten the prompt or lower `max_tokens`",
                    self.context,
                    prompt.len()
                );
                Err(too_long("max_tokens", message))
            }
        }
    }

    /// The prompt with its block hashes in a numerics class.
    pub(crate) fn prompt(&self, encoded: &Encoded, numerics_class: &str) -> session::Prompt {
        let namespace = BlockNamespace {
            model: self.digest,
            numerics_class,
            layout: self.layout,
            tenant_salt: encoded.salt.as_bytes(),
            computed: HowComputed::Dense,
        };
        let root = namespace.root();
        let hashes = BlockHashes::from_root(root, &encoded.tokens);
        debug_assert_eq!(hashes.len(), encoded.tokens.len() / BLOCK_TOKENS);
        session::Prompt { tokens: Arc::clone(&encoded.tokens), root, hashes: hashes.into() }
    }

    /// Changes whenever the same seed may give other tokens: with the weights and the numerics
    /// class (P1).
    pub(crate) fn fingerprint(&self, numerics_class: &str) -> String {
        // FNV-1a, 32 bits: a label for people, not an identity.
        let class = numerics_class
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let digest = self.digest.to_string();
        format!("fp_{}{class:08x}", &digest[..8])
    }
}

fn too_long(param: &str, message: String) -> ApiError {
    let code = "context_length_exceeded";
    ApiError::new(Kind::Invalid, code, Some(param), message)
}

fn unencodable(error: &tokens::EncodeError) -> ApiError {
    tracing::warn!(%error, "a prompt was not encoded");
    ApiError::new(Kind::Invalid, "invalid_prompt", None, "the prompt cannot be tokenized")
}

fn unrenderable(error: &RenderError) -> ApiError {
    let param = match error.message_index() {
        Some(index) => format!("messages[{index}]"),
        None => "messages".to_owned(),
    };
    match error {
        RenderError::Refused { .. }
        | RenderError::TooLong { .. }
        | RenderError::OutOfFuel { .. } => ApiError::invalid(&param, error.to_string()),
        RenderError::Template { .. } => {
            tracing::warn!(%error, "the chat template failed");
            ApiError::invalid(&param, "the model's chat template failed on this dialogue")
        }
    }
}
