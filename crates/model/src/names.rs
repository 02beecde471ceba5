//! What tensors are called: one table per container, from the part of the model to the name.
//!
//! Knows names only; shapes and types are checked in `load`.

/// The names in one container.
#[derive(Debug)]
pub(crate) struct Names {
    /// `[vocab][width]`.
    pub(crate) embedding: &'static str,
    /// `[width]`, before the output matrix.
    pub(crate) output_norm: &'static str,
    /// `[vocab][width]`; tied models may lack it.
    pub(crate) output: &'static str,
    /// `[head_dim / 2]`, by which frequencies are divided; hub checkpoints have none.
    pub(crate) rope_divisors: Option<&'static str>,
    /// Stands before the number of the layer.
    layers: &'static str,
    /// Parts of a layer.
    pub(crate) layer: Parts,
    /// How names of tensors end that hold nothing which is not computed anyway.
    harmless: &'static [&'static str],
}

/// Parts of a layer, without the layer in front and without `.weight` or `.bias` behind.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) attention_norm: &'static str,
    pub(crate) query: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
    pub(crate) query_norm: &'static str,
    pub(crate) key_norm: &'static str,
    pub(crate) attention_output: &'static str,
    pub(crate) feed_forward_norm: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

/// GGUF, all families (llama.cpp's `llama-arch.cpp`).
pub(crate) const GGUF: Names = Names {
    embedding: "token_embd.weight",
    output_norm: "output_norm.weight",
    output: "output.weight",
    rope_divisors: Some("rope_freqs.weight"),
    layers: "blk",
    layer: Parts {
        attention_norm: "attn_norm",
        query: "attn_q",
        key: "attn_k",
        value: "attn_v",
        query_norm: "attn_q_norm",
        key_norm: "attn_k_norm",
        attention_output: "attn_output",
        feed_forward_norm: "ffn_norm",
        gate: "ffn_gate",
        up: "ffn_up",
        down: "ffn_down",
    },
    harmless: &[],
};

/// Checkpoints of the model hub, all families (transformers' `modeling_*.py`).
pub(crate) const HUB: Names = Names {
    embedding: "model.embed_tokens.weight",
    output_norm: "model.norm.weight",
    output: "lm_head.weight",
    rope_divisors: None,
    layers: "model.layers",
    layer: Parts {
        attention_norm: "input_layernorm",
        query: "self_attn.q_proj",
        key: "self_attn.k_proj",
        value: "self_attn.v_proj",
        query_norm: "self_attn.q_norm",
        key_norm: "self_attn.k_norm",
        attention_output: "self_attn.o_proj",
        feed_forward_norm: "post_attention_layernorm",
        gate: "mlp.gate_proj",
        up: "mlp.up_proj",
        down: "mlp.down_proj",
    },
    // Frequencies that older versions of transformers saved with the weights; it computes them
    // from the configuration, whatever the file says.
    harmless: &["rotary_emb.inv_freq"],
};

impl Names {
    /// The name of a part of a layer.
    pub(crate) fn in_layer(&self, layer: u16, part: &str) -> String {
        format!("{}.{layer}.{part}", self.layers)
    }

    /// Whether a tensor may be left unread, because it changes no result.
    pub(crate) fn is_harmless(&self, name: &str) -> bool {
        self.harmless.iter().any(|end| {
            let before = name.strip_suffix(end);
            before.is_some_and(|before| before.ends_with('.'))
        })
    }
}
