//! A directory in the hub's layout as the served model: what it encodes, and what it refuses.

use std::path::Path;

use checkpoint::{Resolved, Source};
use ids::{ModelDigest, TokenId};
use serde_json::{Value, json};
use tokens::TemplateValue;

use super::{ModelError, ServedModel};
use crate::api::request::{Dialogue, Input, Message, Role};

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}\
                        {% endfor %}{% if shout %}!{% endif %}";

/// Writes a checkpoint whose weights are one number: the gateway reads none.
fn write(folder: &Path, files: &[(&str, String)]) {
    let header = json!({ "x": { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } });
    let header = header.to_string();
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.bytes());
    weights.extend([0; 4]);
    std::fs::write(folder.join("model.safetensors"), weights).expect("written");
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("written");
    }
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_attention_heads": 4,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
    })
}

/// The golden vocabulary in Llama 2's form.
fn tokenizer() -> String {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/goldens");
    std::fs::read_to_string(goldens.join("small_spm/tokenizer.json")).expect("a golden file")
}

fn open(more: &[(&str, String)]) -> Result<ServedModel, ModelError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = [
        ("config.json", config().to_string()),
        ("tokenizer.json", tokenizer()),
        (
            "tokenizer_config.json",
            json!({ "bos_token": "<s>", "chat_template": TEMPLATE }).to_string(),
        ),
    ];
    write(folder.path(), &files);
    write(folder.path(), more);
    ServedModel::open(&Resolved {
        name: "small".to_owned(),
        path: folder.path().to_owned(),
        source: Source::LocalFile,
        digest: ModelDigest([7; 32]),
        bytes: 0,
        cached: true,
    })
}

fn dialogue(role: Role, values: &[(&str, TemplateValue)]) -> Input {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let messages = vec![Message { role, content: "hold".to_owned() }];
    Input::Dialogue(Dialogue { messages, values: values.collect() })
}

/// What the model reads of an input, special tokens shown.
fn shown(model: &ServedModel, input: Input) -> String {
    let encoded = model.encode(input, "", 0).expect("valid");
    model.tokenizer.decode(&encoded.tokens, tokens::ControlTokens::Show)
}

#[test]
fn a_directory_is_served_with_its_template_and_one_beginning() {
    let model = open(&[]).expect("a model");
    assert_eq!(model.context(), 256);
    assert_eq!(model.layout.head_dim, 16);
    assert_eq!(&*model.end_tokens(), [TokenId(2)]);
    assert_eq!(shown(&model, dialogue(Role::User, &[])), "<s> [user]hold");
    assert_eq!(shown(&model, Input::Text("hold".into())), "<s> hold");
}

#[test]
fn a_developer_is_the_system_unless_the_template_knows_one() {
    let model = open(&[]).expect("a model");
    assert_eq!(shown(&model, dialogue(Role::Developer, &[])), "<s> [system]hold");
    let knows = TEMPLATE.replace("{{ bos_token }}", "{% if x == 'developer' %}{% endif %}");
    let model = open(&[("chat_template.jinja", knows)]).expect("a model");
    assert_eq!(shown(&model, dialogue(Role::Developer, &[])), "[developer]hold");
}

#[test]
fn requests_hand_values_to_the_template_but_none_of_the_servers_own() {
    let model = open(&[]).expect("a model");
    let given = dialogue(Role::User, &[("shout", TemplateValue::Bool(true))]);
    assert_eq!(shown(&model, given), "<s> [user]hold!");
    for name in ["messages", "tools", "bos_token"] {
        let given = dialogue(Role::User, &[(name, TemplateValue::Bool(true))]);
        let error = model.encode(given, "", 0).expect_err("reserved");
        assert_eq!(error.param, Some(format!("chat_template_kwargs.{name}")));
    }
}

/// The space that SentencePiece puts before a text belongs to a completion, not to an answer.
#[test]
fn completions_keep_their_first_space_and_answers_do_not() {
    let model = open(&[]).expect("a model");
    let text = |input: Input| {
        let prompt = model.encode(input, "", 0).expect("valid");
        let mut decoder = model.decoder(&prompt);
        let answer = model.tokenizer.encode("hold", tokens::SpecialTokens::AsText).expect("text");
        answer.iter().map(|id| decoder.push(*id)).collect::<String>()
    };
    assert_eq!(text(dialogue(Role::User, &[])), "hold");
    assert_eq!(text(Input::Text("We".into())), " hold");
    assert_eq!(text(Input::Tokens(vec![1, 5])), " hold");
}

#[test]
fn of_several_templates_the_default_is_taken_and_a_file_of_its_own_wins() {
    let list = |name: &str| {
        let templates = json!([
            { "name": "tool_use", "template": "tools" },
            { "name": name, "template": "from the list" },
        ]);
        ("tokenizer_config.json", json!({ "chat_template": templates }).to_string())
    };
    let model = open(&[list("default")]).expect("a model");
    assert_eq!(shown(&model, dialogue(Role::User, &[])), "from the list");
    let own = ("chat_template.jinja", "from the file".to_owned());
    let model = open(&[list("default"), own]).expect("a model");
    assert_eq!(shown(&model, dialogue(Role::User, &[])), "from the file");
    let error = open(&[list("rag")]).expect_err("no default").to_string();
    assert!(error.ends_with("chat_template is a list without the name \"default\""), "{error}");
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let error = |name: &str, text: &str| {
        open(&[(name, text.to_owned())]).expect_err("must be refused").to_string()
    };
    let broken = error("tokenizer.json", "{}");
    assert!(broken.contains("small cannot be served: tokenizer.json: missing field"), "{broken}");
    let broken = error("config.json", "{}");
    assert!(broken.contains("config.json: num_attention_heads is missing"), "{broken}");
    let broken = error("chat_template.jinja", "{% if %}");
    assert!(broken.contains("chat_template line 1: "), "{broken}");
}
