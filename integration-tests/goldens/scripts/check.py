"""Reads every golden file back with the standard library alone and checks it against the others."""

import array
import json
import math
import sys
from pathlib import Path

DIR = Path(__file__).resolve().parent.parent
assert sys.byteorder == "little"


def load(name, code, count):
    a = array.array(code, (DIR / name).read_bytes())
    assert len(a) == count, (name, len(a))
    return a


m = json.loads((DIR / "logits.json").read_text())
n, top, vocab = m["n_positions"], m["top_k"], m["n_vocab"]
ids = load(m["files"]["top_ids"], "H", n * top)
values = load(m["files"]["top_values"], "f", n * top)
lse = load(m["files"]["lse"], "d", n)
full = load(m["files"]["full"], "f", len(m["full_positions"]) * vocab)
mass, hits = [], 0
for p in range(n):
    v, i = values[p * top:(p + 1) * top], ids[p * top:(p + 1) * top]
    assert all(a >= b for a, b in zip(v, v[1:])) and len(set(i)) == top and max(i) < vocab
    mass.append(sum(math.exp(x - lse[p]) for x in v))
    assert mass[-1] < 1
    hits += i[0] == m["token_ids"][p + 1]
for row, p in enumerate(m["full_positions"]):
    z = full[row * vocab:(row + 1) * vocab]
    order = sorted(range(vocab), key=lambda t: (-z[t], t))[:top]
    assert order == ids[p * top:(p + 1) * top].tolist()
    assert [z[t] for t in order] == values[p * top:(p + 1) * top].tolist()
    high = max(z)
    assert abs(high + math.log(sum(math.exp(x - high) for x in z)) - lse[p]) < 1e-9
lines = [json.loads(x) for x in (DIR / "tokenizer.jsonl").read_text().splitlines()]
assert len(lines) == 1000 and all(0 <= t < vocab for x in lines for t in x["ids"] + x["ids_plain"])
assert all(t > 16 for x in lines for t in x["ids_plain"])
chat = json.loads((DIR / "chat_template.json").read_text())
assert len(chat["cases"]) == 10
greedy = json.loads((DIR / "greedy.json").read_text())
assert all(len(p["new_ids"]) == len(p["gap"]) for p in greedy["prompts"])
print(f"ok: top-{top} mass {min(mass):.4f} to {max(mass):.4f}, mean {sum(mass) / n:.4f}; next token guessed at {hits} of {n};",
      f"{sum(x['ids'] != x['ids_plain'] for x in lines)} tokenizer lines differ between ids and ids_plain")
