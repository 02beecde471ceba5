//! Loading: every way a file can be wrong is refused with the name of what is wrong.

use std::error::Error as _;

use kernels::HostDevice;
use model::{Architecture, LoadError, LoadOptions, Model, Spec, SpecError};

use super::host::{device, open};
use super::tiny::Tiny;
use super::writer::{GgufFile, Random, Stored, Tensor, Value};

fn refused(file: &GgufFile) -> LoadError {
    let loaded: Result<Model<HostDevice>, _> =
        Model::load(&open(file), &device(1, None), LoadOptions::default());
    loaded.unwrap_err()
}

/// The whole chain of messages, as a user sees it.
fn load_error(file: &GgufFile) -> String {
    let error = refused(file);
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn check(file: &GgufFile, parts: &[&str]) {
    let text = load_error(file);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

fn llama() -> GgufFile {
    Tiny::llama(Stored::Q4_1, Stored::Q8_0).file()
}

#[test]
fn the_shape_is_read_from_the_metadata() {
    let spec = Spec::try_new(&open(&llama())).unwrap();
    assert_eq!(spec.architecture, Architecture::Llama);
    assert_eq!((spec.layers, spec.heads, spec.kv_heads, spec.head_dim), (2, 4, 2, 32));
    assert_eq!((spec.width, spec.ffn, spec.vocab, spec.context), (128, 192, 96, 512));
    assert!(spec.tied_embeddings && !spec.qkv_bias);
    assert_eq!((spec.slices_per_block(), spec.slice_bytes()), (4, 2048));
    assert_eq!(spec.block_bytes(), 8192);
    let spec = Spec::try_new(&open(&Tiny::qwen2(Stored::F16).file())).unwrap();
    assert_eq!(spec.architecture, Architecture::Qwen2);
    assert!(!spec.tied_embeddings && spec.qkv_bias);
}

#[test]
fn keys_that_are_wrong_are_named_with_what_was_expected() {
    type Change = fn(&mut GgufFile);
    let cases: [(Change, &[&str]); 9] = [
        (
            |file| file.set("general.architecture", Value::Text("gemma3".to_owned())),
            &["general.architecture", "gemma3", "llama", "qwen2"],
        ),
        (|file| file.unset("llama.block_count"), &["llama.block_count", "missing"]),
        (
            |file| file.set("llama.block_count", Value::U32(0)),
            &["llama.block_count is 0", "at least 1"],
        ),
        (
            |file| file.set("llama.block_count", Value::U32(70_000)),
            &["llama.block_count is 70000", "at most 65535"],
        ),
        (
            |file| file.set("llama.attention.head_count_kv", Value::U32(3)),
            &["llama.attention.head_count_kv is 3", "divisor of the 4"],
        ),
        (
            |file| file.set("llama.attention.head_count", Value::U32(6)),
            &["llama.embedding_length is 128", "multiple of the 6 heads"],
        ),
        (
            |file| file.set("llama.rope.dimension_count", Value::U32(16)),
            &["llama.rope.dimension_count is 16", "32"],
        ),
        (
            |file| file.set("llama.attention.layer_norm_rms_epsilon", Value::F32(-1.0)),
            &["llama.attention.layer_norm_rms_epsilon is -1", "positive"],
        ),
        (|file| file.set("llama.vocab_size", Value::U32(7)), &["llama.vocab_size is 7", "96"]),
    ];
    for (change, parts) in cases {
        let mut file = llama();
        change(&mut file);
        check(&file, parts);
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_not_ignored() {
    let mut file = llama();
    file.set("llama.rope.scaling.type", Value::Text("yarn".to_owned()));
    check(&file, &["llama.rope.scaling.type", "yarn", "not supported"]);
    let mut file = llama();
    file.set("llama.expert_count", Value::U32(8));
    check(&file, &["llama.expert_count is 8", "dense model"]);
    let mut file = llama();
    file.tensors.push(Tensor::gamma(&mut Random(1), "blk.0.attn_q_norm.weight", 32));
    check(&file, &["blk.0.attn_q_norm.weight", "not used"]);
    let mut file = llama();
    file.tensors.push(Tensor::gamma(&mut Random(1), "rope_freqs.weight", 16));
    check(&file, &["rope_freqs.weight", "not supported"]);
}

#[test]
fn a_missing_ill_shaped_or_ill_typed_tensor_is_named_with_what_was_expected() {
    let mut file = llama();
    file.tensors.retain(|tensor| tensor.name != "blk.1.ffn_up.weight");
    check(&file, &["blk.1.ffn_up.weight", "missing", "[128, 192]"]);
    let mut file = llama();
    let tensor = file.tensor_mut("blk.0.attn_k.weight");
    tensor.shape = vec![64, 128];
    check(&file, &["blk.0.attn_k.weight", "[64, 128]", "[128, 64]"]);
    let mut file = llama();
    let wrong = Tensor::random(&mut Random(1), "output_norm.weight", &[128], Stored::F16, 1.0);
    *file.tensor_mut("output_norm.weight") = wrong;
    check(&file, &["output_norm.weight", "F16", "F32"]);
    let mut file = llama();
    let shape = [256, 96];
    let wrong = Tensor::random(&mut Random(1), "token_embd.weight", &shape, Stored::Q2K, 1.0);
    *file.tensor_mut("token_embd.weight") = wrong;
    check(&file, &["token_embd.weight"]);
    let mut file = Tiny::qwen2(Stored::F16).file();
    file.tensors.retain(|tensor| tensor.name != "blk.1.attn_v.bias");
    check(&file, &["blk.1.attn_v.bias", "missing", "[32]"]);
}

#[test]
fn an_unsupported_storage_type_names_the_tensor_and_the_supported_types() {
    let mut tiny = Tiny::llama(Stored::F16, Stored::F16);
    tiny.heads = 8;
    let mut file = tiny.file();
    let shape = [256, 192];
    let wrong = Tensor::random(&mut Random(1), "blk.0.ffn_up.weight", &shape, Stored::Q2K, 1.0);
    *file.tensor_mut("blk.0.ffn_up.weight") = wrong;
    check(&file, &["blk.0.ffn_up.weight", "Q2_K", "Q4_1", "Q6_K"]);
}

#[test]
fn errors_can_be_told_apart_by_type() {
    let mut file = llama();
    file.set("general.architecture", Value::Text("bert".to_owned()));
    let error = refused(&file);
    assert!(matches!(error, LoadError::Spec(SpecError::Architecture { .. })));
}
