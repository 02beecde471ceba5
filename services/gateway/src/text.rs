//! The served model as the gateway needs it: names, limits, tokenizer, chat template, and the
//! identity of its KV. What it deliberately does not do: touch weights.

use std::fmt::Display;
use std::sync::Arc;

use checkpoint::{Gguf, GgufError, Resolved};
use ids::{BLOCK_TOKENS, ModelDigest, TokenId};
use tokens::{
    BlockHashes, BlockNamespace, ChatTemplate, ControlTokens, GenerationPrompt, HowComputed,
    KvDtype, KvLayout, RenderError, RenderLimits, SpecialTokens, StreamDecoder, Tokenizer,
    TokenizerArrays,
};

use crate::api::error::{ApiError, Kind};
use crate::api::request::{Input, Message};

/// A checkpoint that the gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is not a readable GGUF, or a key is missing.
    #[error("cannot read the model {name}")]
    File {
        /// Its name.
        name: String,
        /// What is wrong with the file.
        #[source]
        source: GgufError,
    },
    /// The file is readable, and this part of it cannot be used.
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
        let content = |problem: &dyn Display| ModelError::Content {
            name: name.clone(),
            problem: problem.to_string(),
        };
        let gguf = Gguf::open(&resolved.path).map_err(file)?;
        let (context, layout) = shape(&gguf).map_err(file)?;
        let longest = proto::limits::TOKENS_PER_PROMPT_MAX;
        if context < 2 || context as usize > longest || layout.head_dim == 0 {
            let problem = format!("context_length {context} is not within 2 and {longest}");
            return Err(content(&problem));
        }
        let arrays = arrays(&gguf).map_err(file)?;
        let tokenizer = Tokenizer::from_gguf_arrays(arrays).map_err(|e| content(&e))?;
        let text = |token: Option<TokenId>| {
            token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let source = gguf.metadata().text_opt("tokenizer.chat_template").map_err(file)?;
        let template = source
            .map(|source| ChatTemplate::parse(source, &bos, &eos, RenderLimits::default()))
            .transpose()
            .map_err(|e| content(&e))?;
        Ok(Self {
            name: name.clone(),
            digest: resolved.digest,
            context,
            layout,
            end_tokens: tokenizer.end_tokens().into(),
            tokenizer,
            template,
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

    /// Tokens with which the model itself ends an answer.
    pub(crate) fn end_tokens(&self) -> Arc<[TokenId]> {
        Arc::clone(&self.end_tokens)
    }

    /// A decoder for one answer.
    pub(crate) fn decoder(&self) -> StreamDecoder {
        self.tokenizer.stream_decoder(ControlTokens::Skip)
    }

    /// The tokens of a request's input. `now_unix_s` is for templates that show the date.
    pub(crate) fn encode(
        &self,
        input: Input,
        salt: &str,
        now_unix_s: i64,
    ) -> Result<Encoded, ApiError> {
        let (param, tokens) = match input {
            Input::Dialogue(messages) => ("messages", self.dialogue(messages, now_unix_s)?),
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
        Ok(Encoded { tokens: tokens.into(), salt: Arc::from(salt) })
    }

    fn dialogue(&self, messages: Vec<Message>, now_unix_s: i64) -> Result<Vec<TokenId>, ApiError> {
        let Some(template) = &self.template else {
            let message = "this model has no chat template: use /v1/completions";
            return Err(ApiError::invalid("messages", message));
        };
        let messages = messages.into_iter().map(|Message { role, content }| tokens::Message {
            role: role.name().to_owned(),
            content,
        });
        let messages: Vec<_> = messages.collect();
        let text = template
            .render(&messages, GenerationPrompt::Add, now_unix_s)
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

/// Context length and KV layout, as the loader of weights reads them too.
fn shape(gguf: &Gguf) -> Result<(u32, KvLayout), GgufError> {
    let metadata = gguf.metadata();
    let architecture = metadata.text("general.architecture")?;
    let key = |name: &str| format!("{architecture}.{name}");
    let heads = metadata.u32(&key("attention.head_count"))?;
    let kv_heads = metadata.u32_opt(&key("attention.head_count_kv"))?.unwrap_or(heads);
    let head_dim = match metadata.u32_opt(&key("attention.key_length"))? {
        Some(head_dim) => head_dim,
        None => metadata.u32(&key("embedding_length"))?.checked_div(heads).unwrap_or(0),
    };
    let layers = metadata.u32(&key("block_count"))?;
    let layout = KvLayout { dtype: KvDtype::F16, head_dim, layers, kv_heads };
    Ok((metadata.u32(&key("context_length"))?, layout))
}

fn arrays(gguf: &Gguf) -> Result<TokenizerArrays, GgufError> {
    let metadata = gguf.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let model = metadata.text(&key("model"))?.to_owned();
    // Merges and scores are the two kinds' own; each is missing in the other.
    let (merges, scores) = match model.as_str() {
        "llama" => (Vec::new(), metadata.f32s(&key("scores"))?.to_vec()),
        _ => (metadata.texts(&key("merges"))?.to_vec(), Vec::new()),
    };
    Ok(TokenizerArrays {
        model,
        pre: metadata.text_opt(&key("pre"))?.unwrap_or_default().to_owned(),
        tokens: metadata.texts(&key("tokens"))?.to_vec(),
        merges,
        scores,
        token_types: metadata.i32s(&key("token_type"))?.to_vec(),
        bos: metadata.u32_opt(&key("bos_token_id"))?,
        eos: metadata.u32_opt(&key("eos_token_id"))?,
        eot: metadata.u32_opt(&key("eot_token_id"))?,
        unknown: metadata.u32_opt(&key("unknown_token_id"))?,
        padding: metadata.u32_opt(&key("padding_token_id"))?,
        add_bos: metadata.bool_opt(&key("add_bos_token"))?,
        add_space_prefix: metadata.bool_opt(&key("add_space_prefix"))?,
    })
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
