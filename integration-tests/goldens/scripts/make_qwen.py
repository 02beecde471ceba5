"""Writes ../qwen.json and ../qwen_top.*: qwen2.5-coder-0.5b Q4_K_M by transformers in float32 on the
dequantised weights.

usage: make_qwen.py MODEL.gguf LLAMA_REF
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

import common as c

SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
POSITIONS, TOP, NEW = 64, 256, 32
PROMPT = ("<|im_start|>user\nWrite a python function that adds two numbers.<|im_end|>\n"
          "<|im_start|>assistant\n")
PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def hf_name(name):
    """GGUF keeps rotary pairs of qwen2 half a head apart, as transformers does: only names differ."""
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
             "output.weight": "lm_head.weight"}
    if name in outer:
        return outer[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}"


def hf_model(reader):
    key = lambda name: c.field(reader, f"qwen2.{name}")
    weights = {hf_name(name): value for name, value in c.weights(reader).items()}
    tied = "lm_head.weight" not in weights
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    cfg = transformers.Qwen2Config(
        vocab_size=len(weights["lm_head.weight"]), hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
        max_position_embeddings=key("context_length"), rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=tied, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")})
    cfg._attn_implementation = "eager"
    model = transformers.Qwen2ForCausalLM(cfg).float().eval()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=True)
    return model


def main(path, llama_ref):
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert digest == SHA256, digest
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    reader = gguf.GGUFReader(path)
    text = (c.GOLDENS / "logits_text.txt").read_text()
    text_ids, prompt_ids = c.llama_tokenize(llama_ref, path, [text, PROMPT], True)
    model = hf_model(reader)
    logits = model(torch.tensor([text_ids[:POSITIONS]])).logits[0].double()
    top = logits.topk(TOP)
    top.indices.numpy().astype("<u4").tofile(c.GOLDENS / "qwen_top_ids.u32")
    top.values.numpy().astype("<f4").tofile(c.GOLDENS / "qwen_top_values.f32")
    new, gaps, past, cur = [], [], None, torch.tensor([prompt_ids])
    while len(new) < NEW:
        out = model(cur, past_key_values=past, use_cache=True)
        past, best = out.past_key_values, out.logits[0, -1].topk(2)
        new.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        cur = torch.tensor([[new[-1]]])
    tokens = c.field(reader, "tokenizer.ggml.tokens")
    (c.GOLDENS / "qwen.json").write_text(json.dumps({
        "model": {"file": "qwen2.5-coder-0.5b Q4_K_M", "sha256": SHA256},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "gguf": "0.19.0", "numpy": np.__version__},
        "reference": "transformers Qwen2ForCausalLM, float32, eager attention, CPU, dequantised weights",
        "text": "logits_text.txt", "token_ids": text_ids[:POSITIONS], "top_k": TOP,
        "lse": torch.logsumexp(logits, -1).tolist(),
        "prompt": PROMPT, "prompt_ids": prompt_ids, "new_ids": new, "gap": gaps}, indent=1) + "\n")
    print("".join(tokens[id] for id in new), min(gaps))
    print({t.tensor_type.name for t in reader.tensors})


if __name__ == "__main__":
    main(*sys.argv[1:])
