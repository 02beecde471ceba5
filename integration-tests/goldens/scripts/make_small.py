"""Writes ../small: tiny models with random weights as hub checkpoints, their logits by transformers'
own implementation, and some of them as GGUF by llama.cpp's own converter.

usage: make_small.py LLAMA_CPP_SOURCE

Every directory is written with `save_pretrained`, then changed to the spelling of older versions where
the list below says so, and the logits are those of `from_pretrained` on the directory in float32: what
any user of it would get. Prints how far logits move when the scaling is left out, so that a test on
them can fail.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

FOLDER = Path(__file__).resolve().parent.parent / "small"
POSITIONS, FIRST = 160, 64  # logits are kept from FIRST on: all of it beyond the original contexts of 64
VOCAB = 128
SHAPE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, hidden_act="silu",
             max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.02, bos_token_id=1, eos_token_id=2)
WIDE = dict(SHAPE, num_attention_heads=2, num_key_value_heads=1)  # heads of 32


def rope(theta=10000.0, kind="default", **more):
    return {"rope_theta": theta, "rope_type": kind, **more}


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
MODELS = {
    # A head is twice as wide as width / heads.
    "qwen3": (Qwen3Config(**dict(SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                 tie_word_embeddings=True, rope_parameters=rope(1000000.0))), torch.bfloat16),
    "llama3": (LlamaConfig(**WIDE, rope_parameters=rope(kind="llama3", **LLAMA3)), torch.float16),
    "yarn": (LlamaConfig(**WIDE, rope_parameters=rope(kind="yarn", factor=4.0,
                                                      original_max_position_embeddings=64)), torch.float16),
    "linear": (LlamaConfig(**dict(WIDE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
                           rope_parameters=rope(kind="linear", factor=4.0)), torch.float32),
    "mistral": (MistralConfig(**dict(SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                                     sliding_window=None, rope_parameters=rope(1000000.0))), torch.bfloat16),
    "qwen2": (Qwen2Config(**dict(SHAPE, num_attention_heads=4, num_key_value_heads=2, use_sliding_window=False,
                                 sliding_window=64, max_window_layers=1, rope_parameters=rope(1000000.0))),
              torch.float16),
}
OLD_SPELLING = {"llama3": "rope_type", "linear": "type", "qwen2": None}
SHARDED = {"qwen2"}
GGUF = ["qwen3", "llama3", "yarn", "linear"]


def fill(model, seed):
    """Weights that make attention sharp, so that positions matter, and no bias or norm that is nothing."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith(".bias"):
            scale, middle = 0.3, 0.0
        elif weight.dim() == 1:
            scale, middle = 0.2, 1.5 if "q_norm" in name else 1.0
        else:
            gain = 1.6 if "q_proj" in name or "k_proj" in name else 2.5 if "lm_head" in name else 1.0
            scale, middle = gain / weight.shape[1] ** 0.5, 0.0
        if "embed" in name:  # where it is the output matrix too, its own token must not win everywhere
            scale = 0.3 if model.config.tie_word_embeddings else 1.0
        weight.data.copy_(torch.randn(weight.shape, generator=generator) * scale + middle)


def old_spelling(folder, key):
    """config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if key is None else {key: kind, **parameters}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    path.write_text(json.dumps(config, indent=2) + "\n")


def logits(model, ids):
    return model(torch.tensor([ids])).logits[0].double()


def kl(a, b):
    return (a.log_softmax(-1).exp() * (a.log_softmax(-1) - b.log_softmax(-1))).sum(-1).mean().item()


def convert(source, folder, to, dtype):
    """By the converter's own classes; a vocabulary is not needed to run token ids."""
    sys.path[:0] = [str(source), str(Path(source) / "gguf-py")]
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase
    hparams = ModelBase.load_hparams(folder, False)
    base = get_model_class(hparams["architectures"][0])
    base.set_vocab = lambda self: None
    kind = {torch.float32: "ALL_F32", torch.float16: "MOSTLY_F16", torch.bfloat16: "MOSTLY_BF16"}[dtype]
    base(folder, gguf.LlamaFileType[kind], to, model_name=folder.name).write()


def main(source):
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCAB, (POSITIONS,), generator=generator).tolist()
    for seed, (name, (config, dtype)) in enumerate(MODELS.items(), start=1):
        folder = FOLDER / name
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fill(model, seed)
        model.to(dtype).save_pretrained(folder, max_shard_size="100KB" if name in SHARDED else "1GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        if name in OLD_SPELLING:
            old_spelling(folder, OLD_SPELLING[name])
        load = lambda **more: transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", **more).eval()
        truth = logits(load(), ids)[FIRST:]
        truth.numpy().astype("<f4").tofile(folder / "logits.f32")
        theta = (config.rope_parameters or {}).get("rope_theta", 10000.0)
        plain = load(rope_parameters=rope(theta))
        print(name, dtype, sum(f.stat().st_size for f in folder.iterdir()), "bytes;",
              f"largest logit {truth.abs().max():.1f}; KL without scaling {kl(truth, logits(plain, ids)[FIRST:]):.3g};",
              f"KL of theta 20000 {kl(truth, logits(load(rope_parameters=rope(20000.0)), ids)[FIRST:]):.3g}")
        if name in GGUF:
            convert(source, folder, FOLDER / f"{name}.gguf", dtype)
    (FOLDER / "small.json").write_text(json.dumps({
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "reference": "transformers from_pretrained, float32, eager attention, CPU",
        "first_position": FIRST, "vocab": VOCAB, "token_ids": ids, "models": list(MODELS), "gguf": GGUF}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
