//! The real model as a hub checkpoint: config.json and one safetensors file, written here from the
//! dequantised weights of the GGUF file, against the same reference as the file itself.

use std::io::{BufWriter, Write};
use std::path::Path;

use checkpoint::{Checkpoint, GgmlType, TensorInfo};
use half::f16;
use model::Spec;
use serde_json::{Map, Value, json};

use super::golden;
use super::host::real_file;

/// What a tensor of the file is called on the hub.
fn hub_name(name: &str) -> String {
    let outer = [("token_embd.weight", "model.embed_tokens"), ("output_norm.weight", "model.norm")];
    if let Some((_, hub)) = outer.iter().find(|(gguf, _)| *gguf == name) {
        return format!("{hub}.weight");
    }
    let [_, layer, part, kind] = *name.split('.').collect::<Vec<_>>() else {
        panic!("a tensor that this model does not have: {name}");
    };
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => panic!("a tensor that this model does not have: {other}"),
    };
    format!("model.layers.{layer}.{part}.{kind}")
}

/// Values as the reference's weights have them: a product and a sum, each rounded.
fn values(stored: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let unit = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    match stored {
        GgmlType::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        GgmlType::Q8_0 => {
            let block = |block: &[u8; 34]| {
                let unit = unit(block, 0);
                let codes: [u8; 32] = *block.last_chunk().unwrap();
                codes.map(|code| f32::from(code as i8) * unit)
            };
            bytes.as_chunks().0.iter().flat_map(block).collect()
        }
        GgmlType::Q4_1 => {
            let block = |block: &[u8; 20]| {
                let (unit, min) = (unit(block, 0), unit(block, 2));
                std::array::from_fn::<f32, 32, _>(|at| {
                    let pair = block[4 + at % 16];
                    let code = if at < 16 { pair & 15 } else { pair >> 4 };
                    f32::from(code) * unit + min
                })
            };
            bytes.as_chunks().0.iter().flat_map(block).collect()
        }
        other => panic!("a format that this model does not have: {other}"),
    }
}

/// The rows of each head as the hub orders them: first the even ones, then the odd ones.
fn halves(values: &[f32], row: usize, head_dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(row * head_dim) {
        let rows: Vec<&[f32]> = head.chunks_exact(row).collect();
        for first in [0, 1] {
            rows.iter().skip(first).step_by(2).for_each(|row| out.extend_from_slice(row));
        }
    }
    out
}

fn write(gguf: &Checkpoint, folder: &Path) {
    let spec = Spec::try_new(gguf).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": spec.width, "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers, "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads, "max_position_embeddings": spec.context,
        "rms_norm_eps": 1e-5, "rope_theta": spec.rope.theta, "tie_word_embeddings": true,
        "vocab_size": spec.vocab,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut header = Map::new();
    let mut end = 0;
    for tensor in gguf.tensors() {
        let start = end;
        end += 4 * tensor.elements();
        let shape: Vec<u64> = tensor.shape.iter().copied().rev().collect();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(hub_name(&tensor.name), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(std::fs::File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for tensor in gguf.tensors() {
        write_values(&mut file, gguf, tensor, usize::from(spec.head_dim));
        gguf.release(&tensor.name);
    }
    file.into_inner().unwrap();
}

fn write_values(to: &mut impl Write, gguf: &Checkpoint, tensor: &TensorInfo, head_dim: usize) {
    let mut values = values(tensor.ty, gguf.tensor_bytes(&tensor.name).unwrap());
    if tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight") {
        let row = usize::try_from(tensor.shape[0]).unwrap();
        values = halves(&values, row, head_dim);
    }
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    to.write_all(&bytes).unwrap();
}

#[test]
fn the_real_model_as_safetensors_gives_the_logits_of_the_reference() {
    let Some(gguf) = real_file() else { return };
    let folder = tempfile::tempdir().unwrap();
    write(&gguf, folder.path());
    golden::check(&Checkpoint::open(folder.path()).unwrap());
}
