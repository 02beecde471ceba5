//! Configurations as they are found in the field, and every way they are refused.

use kernels::{RopeScaling, RopeStyle, Yarn, YarnAttention};
use serde_json::{Value, json};

use super::{Section, from_object};
use crate::spec::{Architecture, Biases, Spec, SpecError};

fn read(config: &Value) -> Result<Spec, SpecError> {
    let json = config.as_object().unwrap();
    from_object(&Section { path: "config.json: ".to_owned(), json })
}

/// Llama 3.1 8B as it is published, but for keys that mean nothing here.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 131_072,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "vocab_size": 128_256, "rope_theta": 500_000.0,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        }
    })
}

fn with(changes: &Value) -> Value {
    let mut config = llama();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn without(key: &str) -> Value {
    let mut config = llama();
    config.as_object_mut().unwrap().remove(key);
    config
}

/// Each change of the llama above is refused with all of these words.
fn check(changes: &Value, parts: &[&str]) {
    let text = read(&with(changes)).unwrap_err().to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn llama_3_1_as_published() {
    let spec = read(&llama()).unwrap();
    assert_eq!(spec.architecture, Architecture::Llama);
    assert_eq!((spec.layers, spec.heads, spec.kv_heads, spec.head_dim), (32, 32, 8, 128));
    assert_eq!((spec.width, spec.ffn, spec.vocab, spec.context), (4096, 14336, 128_256, 131_072));
    assert_eq!((spec.rms_eps, spec.tied_embeddings, spec.qk_norm), (1e-5, false, false));
    assert_eq!((spec.rope.theta, spec.rope.style), (5e5, RopeStyle::Halves));
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    assert_eq!((spec.rope.scaling, spec.window), (scaling, None));
    let none = Biases { qkv: false, attention_output: false, feed_forward: false };
    assert_eq!(spec.biases, none);
}

#[test]
fn both_spellings_of_rotary_positions_say_the_same() {
    let mut new = llama();
    let object = new.as_object_mut().unwrap();
    let mut scaling = object.remove("rope_scaling").unwrap();
    scaling["rope_theta"] = object.remove("rope_theta").unwrap();
    new["rope_parameters"] = scaling;
    assert_eq!(read(&new).unwrap(), read(&llama()).unwrap());
    let plain = json!({"rope_scaling": null, "rope_parameters": {"rope_type": "default",
        "rope_theta": 1e6}});
    let rope = read(&with(&plain)).unwrap().rope;
    assert_eq!((rope.theta, rope.scaling), (1e6, RopeScaling::None));
    let old = json!({"rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": null});
    let rope = read(&with(&old)).unwrap().rope;
    assert_eq!((rope.theta, rope.scaling), (1e4, RopeScaling::Linear { factor: 4.0 }));
}

#[test]
fn yarn_with_and_without_its_options() {
    let yarn = |scaling: Value| match read(&with(&json!({"rope_scaling": scaling}))) {
        Ok(Spec { rope: crate::Rope { scaling: RopeScaling::Yarn(yarn), .. }, .. }) => yarn,
        other => panic!("{other:?}"),
    };
    let plain = Yarn {
        factor: 4.0,
        original_context: 32_768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention: YarnAttention::Paper,
    };
    let qwen = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    assert_eq!(yarn(qwen), plain);
    // The stretch follows from the contexts where it is not given: 131072 / 32768.
    let short = json!({"type": "yarn", "original_max_position_embeddings": 32768});
    assert_eq!(yarn(short), plain);
    let all = json!({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
        "beta_fast": 16, "beta_slow": 2, "mscale": 0.707, "mscale_all_dim": 1.0,
        "truncate": false, "finetuned": true});
    let scales = YarnAttention::Scales { mscale: 0.707, mscale_all_dim: 1.0 };
    assert_eq!(
        yarn(all),
        Yarn {
            factor: 40.0,
            original_context: 4096,
            beta_fast: 16.0,
            beta_slow: 2.0,
            truncate: false,
            attention: scales,
        }
    );
    let given = json!({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5,
        "mscale": 0.0, "original_max_position_embeddings": 32768});
    assert_eq!(yarn(given), Yarn { attention: YarnAttention::Given(0.5), ..plain });
}

#[test]
fn families_differ_in_heads_biases_and_norms() {
    let qwen3 = json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024, "num_attention_heads": 16, "rope_scaling": null,
        "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28});
    let spec = read(&with(&qwen3)).unwrap();
    // Published files name head_dim; 128 is the default, whatever the width.
    assert_eq!((spec.architecture, spec.head_dim, spec.qk_norm), (Architecture::Qwen3, 128, true));
    let qwen2 = json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 21});
    let spec = read(&with(&qwen2)).unwrap();
    let biases = Biases { qkv: true, attention_output: false, feed_forward: false };
    assert_eq!((spec.architecture, spec.biases, spec.window), (Architecture::Qwen2, biases, None));
    let all = read(&with(&json!({"attention_bias": true, "mlp_bias": true}))).unwrap().biases;
    assert_eq!(all, Biases { qkv: true, attention_output: true, feed_forward: true });
    let spec = read(&without("num_key_value_heads")).unwrap();
    assert_eq!(spec.kv_heads, spec.heads);
    let nemo = json!({"model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
        "sliding_window": null});
    let spec = read(&with(&nemo)).unwrap();
    assert_eq!((spec.architecture, spec.head_dim), (Architecture::Llama, 128));
}

#[test]
fn windows_count_where_a_family_uses_them() {
    let window = |changes: Value| read(&with(&changes)).unwrap().window;
    let mistral = json!({"model_type": "mistral", "sliding_window": 4096});
    assert_eq!(window(mistral), Some(4096));
    assert_eq!(window(json!({"model_type": "mistral", "sliding_window": 131_072})), None);
    assert_eq!(window(json!({"sliding_window": 4096})), None);
    let qwen = |used: bool, first: u32| {
        json!({"model_type": "qwen2", "use_sliding_window": used, "sliding_window": 4096,
            "max_window_layers": first})
    };
    assert_eq!(window(qwen(true, 28)), Some(4096));
    assert_eq!(window(qwen(true, 32)), None);
    assert_eq!(window(qwen(false, 0)), None);
    let listed = |ty: &str| {
        json!({"model_type": "qwen3", "sliding_window": 4096,
            "layer_types": ["full_attention", ty]})
    };
    assert_eq!(window(listed("full_attention")), None);
    assert_eq!(window(listed("sliding_attention")), Some(4096));
}

#[test]
fn what_is_not_supported_is_refused_by_name_with_a_remedy() {
    for (changes, parts) in [
        (
            json!({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}),
            &["model_type is \"gemma3\"", "Gemma3ForConditionalGeneration", "qwen3"][..],
        ),
        (json!({"model_type": null}), &["model_type is missing", "mistral"]),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            &["architectures", "LlamaForSequenceClassification", "generates text"],
        ),
        (json!({"hidden_act": "gelu"}), &["hidden_act is \"gelu\"", "silu"]),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            &["quantization_config", "gptq", "GGUF"],
        ),
        (json!({"num_local_experts": 8}), &["num_local_experts is 8", "dense"]),
        (json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor is 0.5"]),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            &["rope_scaling.type is \"dynamic\"", "not supported", "yarn"],
        ),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}),
            &["rope_scaling.rope_type is \"longrope\""],
        ),
        (
            json!({"rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}}),
            &["rope_scaling.mrope_section is a list"],
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                "extrapolation_factor": 0.5}}),
            &["rope_scaling.extrapolation_factor is 0.5"],
        ),
        (
            json!({"rope_scaling": {"factor": 4.0}}),
            &["rope_scaling.factor is 4", "name the scheme as rope_type"],
        ),
        (
            json!({"rope_scaling": null,
                "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}),
            &["rope_parameters.full_attention is an object"],
        ),
    ] {
        check(&changes, parts);
    }
}

#[test]
fn numbers_that_cannot_be_are_named_with_what_was_expected() {
    for (changes, parts) in [
        (json!({"hidden_size": 0}), &["config.json: hidden_size is 0", "at least 1"][..]),
        (json!({"hidden_size": -1}), &["hidden_size is -1", "whole number"]),
        (json!({"hidden_size": "4096"}), &["hidden_size is \"4096\"", "whole number"]),
        (json!({"hidden_size": 4097}), &["hidden_size is 4097", "multiple of the 32 heads"]),
        (json!({"num_hidden_layers": 70_000}), &["num_hidden_layers is 70000", "65535"]),
        (json!({"num_key_value_heads": 5}), &["num_key_value_heads is 5", "divisor of the 32"]),
        (json!({"head_dim": 100}), &["head_dim is 100", "multiple of 16 up to 256"]),
        (json!({"head_dim": 512}), &["head_dim is 512", "multiple of 16 up to 256"]),
        (json!({"rms_norm_eps": 0.0}), &["rms_norm_eps is 0", "positive"]),
        (json!({"rope_theta": 1e300}), &["rope_theta", "positive"]),
        (json!({"tie_word_embeddings": 1}), &["tie_word_embeddings is 1", "true or false"]),
        (json!({"rope_scaling": 4}), &["rope_scaling is 4", "an object"]),
        (json!({"rope_scaling": {"type": "linear"}}), &["rope_scaling.factor is missing"]),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.5}}),
            &["rope_scaling.factor is 0.5", "at least 1"],
        ),
        (json!({"vocab_size": null}), &["vocab_size is missing", "incomplete"]),
    ] {
        check(&changes, parts);
    }
    let text = read(&without("max_position_embeddings")).unwrap_err().to_string();
    assert!(text.contains("config.json: max_position_embeddings is missing"), "{text}");
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let spec = read(&with(&json!({"intermediate_size": 11008.0}))).unwrap();
    assert_eq!(spec.ffn, 11008);
}
