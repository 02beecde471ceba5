//! What the gateway reads from a checkpoint of either kind: context, KV layout, tokenizer, chat
//! template. What it deliberately does not do: guess; a part that is missing is an error.

use checkpoint::{Checkpoint, CheckpointError, Directory, Gguf, GgufError, Metadata};
use serde_json::Value;
use tokens::{ChatTemplate, HubFiles, KvDtype, KvLayout, RenderLimits, Tokenizer, TokenizerArrays};

/// What it reads.
pub(super) struct Parts {
    /// Most tokens of prompt and answer together, within what a request can carry.
    pub(super) context: u32,
    pub(super) layout: KvLayout,
    pub(super) tokenizer: Tokenizer,
    /// `None` if the checkpoint has no chat template.
    pub(super) template: Option<ChatTemplate>,
}

/// Why a part cannot be had.
pub(super) enum Problem {
    /// The checkpoint cannot be read, or a key of a GGUF is missing.
    File(CheckpointError),
    /// A part cannot be used; the text names it.
    Content(String),
}

impl From<GgufError> for Problem {
    fn from(error: GgufError) -> Self {
        Self::File(error.into())
    }
}

fn content(problem: impl std::fmt::Display) -> Problem {
    Problem::Content(problem.to_string())
}

pub(super) fn read(checkpoint: &Checkpoint) -> Result<Parts, Problem> {
    let (named, context, layout, tokenizer, source) = match checkpoint {
        Checkpoint::Gguf(gguf) => {
            let (context, layout) = gguf_shape(gguf)?;
            let tokenizer = Tokenizer::from_gguf_arrays(arrays(gguf)?).map_err(content)?;
            let source = gguf_template(gguf.metadata())?;
            ("context_length", context, layout, tokenizer, source)
        }
        Checkpoint::Directory(directory) => {
            let (context, layout) = config_shape(directory.config())?;
            let tokenizer = hub_tokenizer(directory)?;
            let source = hub_template(directory)?;
            ("config.json: max_position_embeddings", context, layout, tokenizer, source)
        }
    };
    if context < 2 {
        return Err(content(format!("{named} is {context}, expected at least 2")));
    }
    if layout.head_dim == 0 || layout.layers == 0 || layout.kv_heads == 0 {
        return Err(content("the attention heads have no dimensions, layers or number"));
    }
    // A longer context is the model's; a request's message ends here.
    let longest = u32::try_from(proto::limits::TOKENS_PER_PROMPT_MAX).unwrap_or(u32::MAX);
    let template = source.map(|source| template(&source, &tokenizer)).transpose()?;
    Ok(Parts { context: context.min(longest), layout, tokenizer, template })
}

fn template(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, Problem> {
    let text = |token: Option<ids::TokenId>| {
        token.and_then(|token| tokenizer.token_text(token)).unwrap_or_default()
    };
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    let parsed = ChatTemplate::parse(source, &bos, &eos, RenderLimits::default());
    let named = tokenizer.named_tokens().iter().map(|(name, text)| (*name, text.as_str()));
    Ok(parsed.map_err(content)?.with_tokens(named))
}

/// Context length and KV layout of a GGUF, as the loader of weights reads them too.
fn gguf_shape(gguf: &Gguf) -> Result<(u32, KvLayout), GgufError> {
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

/// Context length and KV layout of a config.json, with the defaults of transformers.
fn config_shape(config: &Value) -> Result<(u32, KvLayout), Problem> {
    let optional = |key: &str| match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let wrong = || content(format!("config.json: {key} is {value}, expected a number"));
            number.ok_or_else(wrong).map(Some)
        }
    };
    let required =
        |key: &str| optional(key)?.ok_or_else(|| content(format!("config.json: {key} is missing")));
    let heads = required("num_attention_heads")?;
    let head_dim = match optional("head_dim")? {
        Some(head_dim) => head_dim,
        None => required("hidden_size")?.checked_div(heads).unwrap_or(0),
    };
    let layout = KvLayout {
        dtype: KvDtype::F16,
        head_dim,
        layers: required("num_hidden_layers")?,
        kv_heads: optional("num_key_value_heads")?.unwrap_or(heads),
    };
    Ok((required("max_position_embeddings")?, layout))
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

/// A GGUF's template. Files with several have the usual one under this key as well, or under the
/// name "default"; the others (such as "tool_use") serve requests that are not supported.
fn gguf_template(metadata: &Metadata) -> Result<Option<String>, GgufError> {
    const KEY: &str = "tokenizer.chat_template";
    let usual = metadata.text_opt(KEY)?;
    let named = metadata.text_opt(&format!("{KEY}.default"))?;
    Ok(usual.or(named).map(str::to_owned))
}

fn hub_tokenizer(directory: &Directory) -> Result<Tokenizer, Problem> {
    let Some(tokenizer) = directory.tokenizer() else {
        return Err(content(
            "tokenizer.json is missing: save the tokenizer with transformers' fast tokenizers, \
             which write it",
        ));
    };
    let files = HubFiles {
        tokenizer,
        tokenizer_config: directory.tokenizer_config(),
        config: Some(directory.config()),
        generation_config: directory.generation_config(),
    };
    Tokenizer::from_hub_files(&files).map_err(content)
}

/// A directory's template: the file of its own wins over tokenizer_config.json, as transformers
/// has it; of a list there, the one called "default".
fn hub_template(directory: &Directory) -> Result<Option<String>, Problem> {
    if let Some(source) = directory.chat_template() {
        return Ok(Some(source.to_owned()));
    }
    let place = "tokenizer_config.json: chat_template";
    let config = directory.tokenizer_config().and_then(|config| config.get("chat_template"));
    match config {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let text =
                |item: &Value, key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
            let default =
                named.iter().find(|item| text(item, "name").as_deref() == Some("default"));
            match default.and_then(|item| text(item, "template")) {
                Some(source) => Ok(Some(source)),
                None => Err(content(format!("{place} is a list without the name \"default\""))),
            }
        }
        Some(_) => Err(content(format!("{place} is neither a text nor a list"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Problem, config_shape};

    fn shape(config: Value) -> Result<(u32, u32, u32, u32), String> {
        match config_shape(&config) {
            Ok((context, layout)) => Ok((context, layout.head_dim, layout.layers, layout.kv_heads)),
            Err(Problem::Content(problem)) => Err(problem),
            Err(Problem::File(error)) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_config_gives_the_layout_with_the_defaults_of_transformers() {
        let mut config = json!({
            "num_attention_heads": 8,
            "hidden_size": 512,
            "num_hidden_layers": 3,
            "max_position_embeddings": 4096,
        });
        assert_eq!(shape(config.clone()), Ok((4096, 64, 3, 8)));
        config["num_key_value_heads"] = json!(2);
        config["head_dim"] = json!(128);
        assert_eq!(shape(config.clone()), Ok((4096, 128, 3, 2)));
        config["head_dim"] = json!("128");
        let error = shape(config.clone()).unwrap_err();
        assert_eq!(error, "config.json: head_dim is \"128\", expected a number");
        config["num_hidden_layers"] = Value::Null;
        config["head_dim"] = Value::Null;
        assert_eq!(shape(config).unwrap_err(), "config.json: num_hidden_layers is missing");
    }
}
