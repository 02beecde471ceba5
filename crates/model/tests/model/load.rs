//! Loading: every way a file can be wrong is refused with the name of what is wrong.

use std::error::Error as _;

use kernels::{HostDevice, RopeScaling, Yarn, YarnAttention};
use model::{Architecture, Biases, LoadError, LoadOptions, Model, Spec, SpecError};

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
    assert!(spec.tied_embeddings && !spec.biases.qkv && !spec.qk_norm);
    assert_eq!((spec.slices_per_block(), spec.slice_bytes()), (4, 2048));
    assert_eq!(spec.block_bytes(), 8192);
    let spec = Spec::try_new(&open(&Tiny::qwen2(Stored::F16).file())).unwrap();
    assert_eq!(spec.architecture, Architecture::Qwen2);
    assert!(!spec.tied_embeddings && spec.biases.qkv);
    let spec = Spec::try_new(&open(&Tiny::qwen3(Stored::F16).file())).unwrap();
    assert_eq!(spec.architecture, Architecture::Qwen3);
    assert!(spec.qk_norm && spec.head_dim == 48 && !spec.biases.qkv);
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
    file.set("llama.rope.scaling.type", Value::Text("longrope".to_owned()));
    check(&file, &["llama.rope.scaling.type", "longrope", "not supported", "yarn"]);
    for key in ["attn_factor", "yarn_ext_factor", "yarn_log_multiplier"] {
        let mut file = llama();
        file.set(&format!("llama.rope.scaling.{key}"), Value::F32(0.5));
        check(&file, &[&format!("llama.rope.scaling.{key} is 0.5"), "not supported"]);
    }
    let mut file = llama();
    file.set("llama.expert_count", Value::U32(8));
    check(&file, &["llama.expert_count is 8", "dense model"]);
    let mut file = llama();
    file.tensors.push(Tensor::gamma(&mut Random(1), "blk.0.attn_q_norm.weight", 32));
    check(&file, &["blk.0.attn_q_norm.weight", "not used"]);
}

#[test]
fn a_window_is_served_up_to_its_width_and_refused_beyond() {
    let mut file = llama();
    file.set("llama.attention.sliding_window", Value::U32(64));
    check(&file, &["sliding window is 64", "model.context_max to at most 64"]);
    let options = LoadOptions { context_max: 64 };
    let model = Model::load(&open(&file), &device(1, None), options).unwrap();
    assert_eq!((model.context(), model.spec().window), (64, Some(64)));
    file.set("llama.attention.sliding_window", Value::U32(512));
    assert_eq!(Spec::try_new(&open(&file)).unwrap().window, None);
}

#[test]
fn scalings_are_read_as_converters_write_them() {
    let scaling = |change: fn(&mut GgufFile)| {
        let mut file = llama();
        change(&mut file);
        Spec::try_new(&open(&file)).unwrap().rope.scaling
    };
    let set = |file: &mut GgufFile, key: &str, value| {
        file.set(&format!("llama.rope.scaling.{key}"), value);
    };
    assert_eq!(scaling(|_| {}), RopeScaling::None);
    let linear = RopeScaling::Linear { factor: 4.0 };
    // Without a type it is linear; the key without "scaling" is the older one.
    assert_eq!(scaling(|file| file.set("llama.rope.scaling.factor", Value::F32(4.0))), linear);
    assert_eq!(scaling(|file| file.set("llama.rope.scale_linear", Value::F32(4.0))), linear);
    let mut file = llama();
    set(&mut file, "type", Value::Text("yarn".to_owned()));
    set(&mut file, "factor", Value::F32(4.0));
    let plain = Yarn {
        factor: 4.0,
        original_context: 512,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention: YarnAttention::Paper,
    };
    let read = |file: &GgufFile| Spec::try_new(&open(file)).unwrap().rope.scaling;
    assert_eq!(read(&file), RopeScaling::Yarn(plain));
    set(&mut file, "original_context_length", Value::U32(128));
    set(&mut file, "yarn_attn_factor", Value::F32(0.5));
    set(&mut file, "yarn_beta_fast", Value::F32(16.0));
    set(&mut file, "yarn_beta_slow", Value::F32(2.0));
    let more = Yarn {
        original_context: 128,
        beta_fast: 16.0,
        beta_slow: 2.0,
        attention: YarnAttention::Given(0.5),
        ..plain
    };
    assert_eq!(read(&file), RopeScaling::Yarn(more));
    set(&mut file, "factor", Value::F32(0.5));
    check(&file, &["rotary positions", "factor 0.5"]);
}

#[test]
fn frequency_divisors_are_checked_like_any_tensor() {
    let mut file = llama();
    file.tensors.push(Tensor::gamma(&mut Random(1), "rope_freqs.weight", 12));
    check(&file, &["rope_freqs.weight", "[12]", "[16]"]);
    file.tensors.pop();
    file.tensors.push(Tensor::gamma(&mut Random(1), "rope_freqs.weight", 16));
    Model::load(&open(&file), &device(1, None), LoadOptions::default()).unwrap();
    file.tensor_mut("rope_freqs.weight").bytes[..4].fill(0);
    check(&file, &["divisor 0 is 0"]);
}

#[test]
fn biases_of_llama_are_used_where_a_file_has_them() {
    let mut file = llama();
    let bias = |name: &str, len| {
        Tensor::random(&mut Random(1), &format!("{name}.bias"), &[len], Stored::F32, 0.1)
    };
    for layer in ["blk.0", "blk.1"] {
        file.tensors.push(bias(&format!("{layer}.attn_output"), 128));
    }
    let biases = Spec::try_new(&open(&file)).unwrap().biases;
    assert_eq!(biases, Biases { qkv: false, attention_output: true, feed_forward: false });
    Model::load(&open(&file), &device(1, None), LoadOptions::default()).unwrap();
    file.tensors.pop();
    check(&file, &["blk.1.attn_output.bias", "missing", "[128]"]);
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
    let wrong = Tensor::random(&mut Random(1), "output_norm.weight", &[128], Stored::Q8_0, 1.0);
    *file.tensor_mut("output_norm.weight") = wrong;
    check(&file, &["output_norm.weight", "Q8_0", "F32"]);
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
    let mut file = Tiny::wide(Stored::F16).file();
    let shape = [256, 256];
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
