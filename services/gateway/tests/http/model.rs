//! A GGUF file with letters for a vocabulary and no weights: all that a gateway reads.

use std::io::Write;

use checkpoint::{Resolved, Source};
use gateway::ServedModel;
use ids::ModelDigest;

/// The token that ends a text.
pub(crate) const END: u32 = 1;

const SPECIAL: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

/// The letters of the byte-level alphabet that the tests use, after the special tokens.
fn letters() -> Vec<String> {
    let visible = (0x21..=0x7e).map(|code: u8| char::from(code).to_string());
    visible.chain(["\u{120}".to_owned(), "\u{10a}".to_owned()]).collect()
}

/// The token of one visible letter or space.
pub(crate) fn token_of(letter: char) -> u32 {
    let shown = if letter == ' ' { '\u{120}' } else { letter };
    let at = letters().iter().position(|text| text.starts_with(shown));
    u32::try_from(at.expect("a letter of the alphabet") + SPECIAL.len()).expect("few letters")
}

/// The served model.
pub(crate) fn tiny() -> ServedModel {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("tiny.gguf");
    let bytes = file();
    std::fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("written");
    let resolved = Resolved {
        name: "tiny".to_owned(),
        path,
        source: Source::LocalFile,
        digest: ModelDigest([9; 32]),
        bytes: bytes.len() as u64,
        cached: true,
    };
    ServedModel::open(&resolved).expect("a model")
}

fn file() -> Vec<u8> {
    let tokens: Vec<String> = SPECIAL.map(str::to_owned).into_iter().chain(letters()).collect();
    // 3 is a control token, 1 an ordinary one.
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| if id < SPECIAL.len() { 3 } else { 1 }).collect();
    let mut keys = Keys::default();
    keys.text("general.architecture", "llama");
    for (key, value) in [
        ("llama.context_length", 512),
        ("llama.block_count", 2),
        ("llama.embedding_length", 64),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("tokenizer.ggml.bos_token_id", 0),
        ("tokenizer.ggml.eos_token_id", END),
    ] {
        keys.number(key, value);
    }
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", "smollm");
    keys.text("tokenizer.chat_template", TEMPLATE);
    keys.texts("tokenizer.ggml.tokens", &tokens);
    keys.texts("tokenizer.ggml.merges", &[]);
    keys.integers("tokenizer.ggml.token_type", &types);
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend(keys.count.to_le_bytes());
    out.extend(keys.bytes);
    out
}

/// Metadata in GGUF's form: key, type number, value.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

impl Keys {
    fn key(&mut self, key: &str, kind: u32) {
        self.string(key);
        self.bytes.extend(kind.to_le_bytes());
        self.count += 1;
    }

    fn string(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        self.string(value);
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, 9);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, 8, values.len());
        values.iter().for_each(|value| self.string(value));
    }

    fn integers(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len());
        values.iter().for_each(|value| self.bytes.extend(value.to_le_bytes()));
    }
}
