//! Tiny models with random weights, of all families, as GGUF.

use model::Architecture;

use super::writer::{GgufFile, Random, Stored, Tensor, Value};

/// The shape of a tiny model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) architecture: Architecture,
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) width: u32,
    pub(crate) ffn: u32,
    pub(crate) vocab: u32,
    /// How the matrices are stored.
    pub(crate) stored: Stored,
    /// How the embedding is stored.
    pub(crate) embedding: Stored,
    /// Whether there is no output matrix of its own.
    pub(crate) tied: bool,
    /// Whether rotary positions are stretched fourfold by `YaRN`, from 64.
    pub(crate) yarn: bool,
}

impl Tiny {
    pub(crate) fn llama(stored: Stored, embedding: Stored) -> Self {
        Self {
            architecture: Architecture::Llama,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            width: 128,
            ffn: 192,
            vocab: 96,
            stored,
            embedding,
            tied: true,
            yarn: false,
        }
    }

    /// Wide enough for the formats with blocks of 256.
    pub(crate) fn wide(stored: Stored) -> Self {
        Self { heads: 8, width: 256, ffn: 256, ..Self::llama(stored, stored) }
    }

    pub(crate) fn qwen2(stored: Stored) -> Self {
        Self {
            architecture: Architecture::Qwen2,
            kv_heads: 1,
            tied: false,
            ..Self::llama(stored, stored)
        }
    }

    /// The heads of this family need not fill the width.
    pub(crate) fn qwen3(stored: Stored) -> Self {
        Self { architecture: Architecture::Qwen3, head_dim: 48, ..Self::llama(stored, stored) }
    }

    fn has_qkv_bias(&self) -> bool {
        self.architecture == Architecture::Qwen2
    }

    fn has_head_norms(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }

    pub(crate) fn file(&self) -> GgufFile {
        let mut file = GgufFile::default();
        self.metadata(&mut file);
        self.tensors(&mut file);
        file
    }

    fn metadata(&self, file: &mut GgufFile) {
        let name = self.architecture.name();
        file.set("general.architecture", Value::Text(name.to_owned()));
        let numbers = [
            ("block_count", self.layers),
            ("context_length", 512),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ];
        for (key, number) in numbers {
            file.set(&format!("{name}.{key}"), Value::U32(number));
        }
        let eps = format!("{name}.attention.layer_norm_rms_epsilon");
        file.set(&eps, Value::F32(1e-5));
        file.set(&format!("{name}.rope.freq_base"), Value::F32(10_000.0));
        if self.heads * self.head_dim != self.width {
            file.set(&format!("{name}.attention.key_length"), Value::U32(self.head_dim));
        }
        if self.yarn {
            file.set(&format!("{name}.rope.scaling.type"), Value::Text("yarn".to_owned()));
            file.set(&format!("{name}.rope.scaling.factor"), Value::F32(4.0));
            file.set(&format!("{name}.rope.scaling.original_context_length"), Value::U32(64));
        }
    }

    fn tensors(&self, file: &mut GgufFile) {
        let random = &mut Random(7);
        let width = u64::from(self.width);
        let all = u64::from(self.heads * self.head_dim);
        let (ffn, vocab) = (u64::from(self.ffn), u64::from(self.vocab));
        let kv_width = u64::from(self.kv_heads * self.head_dim);
        let mut out = Vec::new();
        let embedding = [width, vocab];
        out.push(Tensor::random(random, "token_embd.weight", &embedding, self.embedding, 1.0));
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            for norm in ["attn_norm.weight", "ffn_norm.weight"] {
                out.push(Tensor::gamma(random, &name(norm), width));
            }
            let matrices = [
                ("attn_q", width, all),
                ("attn_k", width, kv_width),
                ("attn_v", width, kv_width),
                ("attn_output", all, width),
                ("ffn_gate", width, ffn),
                ("ffn_up", width, ffn),
                ("ffn_down", ffn, width),
            ];
            for (part, inputs, outputs) in matrices {
                let scale = 2.0 / (inputs as f32).sqrt();
                let weight = name(&format!("{part}.weight"));
                out.push(Tensor::random(random, &weight, &[inputs, outputs], self.stored, scale));
            }
            if self.has_head_norms() {
                for norm in ["attn_q_norm.weight", "attn_k_norm.weight"] {
                    out.push(Tensor::gamma(random, &name(norm), u64::from(self.head_dim)));
                }
            }
            if self.has_qkv_bias() {
                for (part, outputs) in [("attn_q", all), ("attn_k", kv_width), ("attn_v", kv_width)]
                {
                    let bias = name(&format!("{part}.bias"));
                    out.push(Tensor::random(random, &bias, &[outputs], Stored::F32, 0.5));
                }
            }
        }
        out.push(Tensor::gamma(random, "output_norm.weight", width));
        if !self.tied {
            out.push(Tensor::random(random, "output.weight", &embedding, self.stored, 0.3));
        }
        file.tensors = out;
    }
}
