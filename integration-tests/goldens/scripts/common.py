"""The model file, its dequantised weights and the two reference tokenizers."""

import hashlib
import struct
import subprocess
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N_LAYER, N_EMBD, N_FF, N_HEAD, N_KV, HEAD_DIM, N_VOCAB = 30, 576, 1536, 9, 3, 64, 49152
ROPE_BASE, RMS_EPS, N_CTX = 100000.0, float(np.float32(1e-5)), 8192


def open_model(path):
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise SystemExit(f"{path}: sha256 {digest}, expected {MODEL_SHA256}")
    return GGUFReader(path)


def field(reader, key):
    return reader.fields[key].contents()


def weights(reader):
    """name -> float32 array, [out, in] row-major, Q4_1/Q8_0 dequantised."""
    return {t.name: np.array(dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}


def llama_tokenize(llama_ref, model, texts, parse_special):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (t.encode() for t in texts))
    out = subprocess.run([llama_ref, "tokenize", model, "1" if parse_special else "0"],
                         input=data, stdout=subprocess.PIPE, check=True).stdout
    words, ids, i = np.frombuffer(out, "<u4"), [], 0
    while i < len(words):
        n = int(words[i])
        ids.append(words[i + 1:i + 1 + n].tolist())
        i += 1 + n
    assert len(ids) == len(texts)
    return ids


def hf_tokenizer(reader, with_special):
    """The `tokenizers` library set up as SmolLM2's own tokenizer.json, from the GGUF's vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field(reader, "tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tok.decoder = decoders.ByteLevel()
    if with_special:
        types = field(reader, "tokenizer.ggml.token_type")
        tok.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                for t, k in zip(tokens, types) if k == 3])
    return tok
