//! Hub checkpoints that are not quite as `save_pretrained` leaves them: what is harmless is passed
//! over, what would change a result is used or refused by name.

use std::path::Path;

use checkpoint::Checkpoint;
use model::{LoadError, LoadOptions, Model};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::host::device;
use super::small::{Golden, KL_MAX, small};

/// A safetensors file taken apart.
struct Weights {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Weights {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        let Value::Object(mut header) = serde_json::from_slice(&rest[..length]).unwrap() else {
            panic!("a header that is no object");
        };
        header.remove("__metadata__");
        Self { header, data: rest[length..].to_vec() }
    }

    fn write(&self, path: &Path) {
        let header = Value::Object(self.header.clone()).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header.as_bytes(), &self.data].concat();
        std::fs::write(path, bytes).unwrap();
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let at = |index: usize| {
            let offset = self.header[name]["data_offsets"][index].as_u64().unwrap();
            usize::try_from(offset).unwrap()
        };
        self.data[at(0)..at(1)].to_vec()
    }

    fn add(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let offsets = [start, self.data.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        self.header.insert(name.to_owned(), entry);
    }
}

/// A copy of a small model with other weights or another config.json.
fn changed(name: &str, change: impl FnOnce(&mut Weights, &mut Value)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = small().join(name);
    let mut weights = Weights::read(&from.join("model.safetensors"));
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut weights, &mut config);
    weights.write(&dir.path().join("model.safetensors"));
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

fn refused(dir: &TempDir, parts: &[&str]) {
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let loaded = Model::load(&checkpoint, &device(1, None), LoadOptions::default());
    let text = loaded.map(|_| ()).unwrap_err().to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn frequencies_that_older_files_carry_are_passed_over() {
    let dir = changed("llama3", |weights, _| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        weights.add(name, "F32", &[16], &[0; 64]);
    });
    let (same, kl) = Golden::read().distance("llama3", dir.path());
    assert!(same >= 0.99 && kl <= KL_MAX, "{same} {kl}");
}

#[test]
fn a_tensor_that_no_layer_uses_is_refused_by_name() {
    let name = "model.layers.0.self_attn.sinks";
    let dir = changed("llama3", |weights, _| weights.add(name, "F32", &[16], &[0; 64]));
    refused(&dir, &[name, "not used"]);
}

#[test]
fn a_tied_checkpoint_with_an_output_matrix_is_taken_as_transformers_takes_it() {
    let golden = Golden::read();
    let embedding = "model.embed_tokens.weight";
    let same_values = changed("qwen3", |weights, _| {
        let bytes = weights.bytes(embedding);
        weights.add("lm_head.weight", "BF16", &[128, 64], &bytes);
    });
    let (same, kl) = golden.distance("qwen3", same_values.path());
    assert!(same >= 0.99 && kl <= KL_MAX, "equal values: {same} {kl}");
    let others = changed("qwen3", |weights, _| {
        let mut bytes = weights.bytes(embedding);
        bytes.rotate_left(1280);
        weights.add("lm_head.weight", "BF16", &[128, 64], &bytes);
    });
    let (_, kl) = golden.distance("qwen3", others.path());
    assert!(kl > 0.1, "other values are used, not the embedding's: {kl}");
}

#[test]
fn an_untied_checkpoint_without_an_output_matrix_is_incomplete() {
    let dir = changed("qwen3", |_, config| config["tie_word_embeddings"] = json!(false));
    refused(&dir, &["lm_head.weight is missing", "[64, 128]"]);
}

#[test]
fn a_config_of_another_model_is_told_by_tensor_and_shape() {
    let dir = changed("qwen3", |_, config| config["head_dim"] = json!(16));
    refused(&dir, &["model.layers.0.self_attn.q_proj.weight", "[64, 128]", "[64, 64]"]);
    let dir = changed("qwen3", |_, config| config["num_hidden_layers"] = json!(3));
    refused(&dir, &["model.layers.2.input_layernorm.weight is missing"]);
    let dir = changed("qwen3", |_, config| config["num_hidden_layers"] = json!(1));
    refused(&dir, &["model.layers.1.", "not used"]);
    let dir = changed("qwen3", |_, config| config["vocab_size"] = json!(129));
    refused(&dir, &["model.embed_tokens.weight", "[64, 128]", "[64, 129]"]);
}

#[test]
fn weights_that_are_no_numbers_are_refused_where_they_stand() {
    for (model, name, at, size, bits) in [
        ("qwen3", "model.norm.weight", 3, 2, 0x7fc0),
        ("qwen3", "model.layers.1.mlp.up_proj.weight", 2049, 2, 0xff80),
        ("llama3", "lm_head.weight", 8191, 2, 0x7c00),
        ("linear", "model.embed_tokens.weight", 1024, 4, 0x7f80_0000u32),
    ] {
        let dir = changed(model, |weights, _| {
            let offset = weights.header[name]["data_offsets"][0].as_u64().unwrap();
            let start = usize::try_from(offset).unwrap() + at * size;
            weights.data[start..start + size].copy_from_slice(&bits.to_le_bytes()[..size]);
        });
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let loaded = Model::load(&checkpoint, &device(1, None), LoadOptions::default());
        match loaded.map(|_| ()).unwrap_err() {
            LoadError::NotFinite { name: found, at: place, .. } => {
                assert_eq!((&*found, place), (name, at));
            }
            other => panic!("{other}"),
        }
    }
}
