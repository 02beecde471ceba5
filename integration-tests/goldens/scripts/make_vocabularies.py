"""Writes small_bpe/ and small_spm/: two small vocabularies in the forms of Llama 3 and Llama 2, and what independent
tokenizers make of 500 of the lines of tokenizer.jsonl with them.

usage: make_vocabularies.py LLAMA_REF
Each folder gets tokenizer.json, arrays.json (the same as a GGUF's arrays) and lines.jsonl. The ids are llama.cpp's (from a
GGUF without weights), sentencepiece's (small_spm, special tokens as text only) and those of `tokenizers` for tokenizer.json.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import LlamaConverter

import common as c

LINES, LONGEST = 500, 90
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<jupyter_start>", "<empty_output>"]
USER = ["<repo_name>", "<file_sep>", "<gh_stars>"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")


def texts():
    """The 500 shortest-enough lines, and all of them as the training text."""
    rows = [json.loads(x) for x in (c.GOLDENS / "tokenizer.jsonl").read_text().splitlines()]
    chosen = [i for i, row in enumerate(rows) if len(row["text"].encode()) <= LONGEST][:LINES]
    assert len(chosen) == LINES
    prose = (c.GOLDENS / "logits_text.txt").read_text()
    return chosen, [rows[i]["text"] for i in chosen], [prose] + [row["text"] for row in rows if "special" != row["kind"]]


def write_gguf(path, arrays):
    """A GGUF with a vocabulary and no weights."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model(arrays["model"])
    if arrays["model"] == "gpt2":
        w.add_tokenizer_pre(arrays["pre"])
        w.add_token_merges(arrays["merges"])
    else:
        w.add_token_scores(arrays["scores"])
    w.add_token_list(arrays["tokens"])
    w.add_token_types(arrays["token_types"])
    w.add_bos_token_id(arrays["bos"])
    w.add_eos_token_id(arrays["eos"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def save(folder, tokenizer, arrays, chosen, columns):
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "arrays.json").write_text(json.dumps(arrays, separators=(",", ":")) + "\n")
    with open(folder / "lines.jsonl", "w") as f:
        for i, line in enumerate(chosen):
            row = {"line": line}
            for name, ids in columns.items():
                same = [k for k in ("llama", "llama_plain") if k in row and columns[k][i] == ids[i]]
                if name in ("llama", "llama_plain") or not same:
                    row[name] = ids[i]
                else:
                    row[name] = same[0]
            f.write(json.dumps(row, separators=(",", ":")) + "\n")


def columns(llama_ref, arrays, tokenizer, lines):
    with tempfile.TemporaryDirectory() as d:
        path = str(Path(d) / "vocabulary.gguf")
        write_gguf(path, arrays)
        parsed, plain = (c.llama_tokenize(llama_ref, path, lines, p) for p in (True, False))
    hf = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    tokenizer.encode_special_tokens = True
    hf_plain = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    return {"llama": parsed, "llama_plain": plain, "hf": hf, "hf_plain": hf_plain}


def added(tokenizer):
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in USER])


def bpe(corpus):
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(corpus, trainer)
    data = json.loads(tok.to_str())
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    # Words that no merge makes: they are tokens all the same, as Llama 3's are that were added by hand.
    for word in ["Ġhuman", "printf", "Ġrights", "123", "æĹ¥æľ¬"]:
        vocab.setdefault(word, len(vocab))
    tok = Tokenizer.from_str(json.dumps(data))
    added(tok)
    tok.add_special_tokens([AddedToken("<|begin_of_text|>", special=True, normalized=False)])
    bos = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    tokens = sorted(tok.get_vocab(with_added_tokens=True).items(), key=lambda x: x[1])
    assert [i for _, i in tokens] == list(range(len(tokens)))
    tokens = [t for t, _ in tokens]
    kind = lambda t: 3 if t in CONTROL or t == "<|begin_of_text|>" else 4 if t in USER else 1
    arrays = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "merges": [" ".join(m) for m in merges],
              "token_types": [kind(t) for t in tokens], "bos": bos, "eos": tok.token_to_id("<|im_end|>")}
    return tok, arrays


def spm(corpus):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in corpus for line in text.split("\n") if line.strip()), model_writer=model,
        model_type="bpe", vocab_size=1200, byte_fallback=True, character_coverage=0.98, split_digits=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        user_defined_symbols=USER, control_symbols=CONTROL, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6}  # sentencepiece's types are llama.cpp's
    arrays = {"model": "llama", "tokens": [p.piece for p in proto.pieces], "scores": [p.score for p in proto.pieces],
              "token_types": [kinds[p.type] for p in proto.pieces], "bos": sp.bos_id(), "eos": sp.eos_id()}
    with tempfile.TemporaryDirectory() as d:
        path = Path(d) / "tokenizer.model"
        path.write_bytes(model.getvalue())
        vocab = {t: i for i, t in enumerate(arrays["tokens"])}
        scores = arrays["scores"]
        # As transformers makes merges of scores: all pairs that give a piece, best score of the result first.
        merges = []
        for piece, rank in vocab.items():
            local = [(piece[:i], piece[i:], rank) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
            merges += sorted(local, key=lambda x: (vocab[x[0]], vocab[x[1]]))
        merges = [(a, b) for a, b, rank in sorted(merges, key=lambda x: scores[x[2]], reverse=True) if arrays["token_types"][rank] == 1]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    from tokenizers import normalizers
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(content=" ", left=1, right=0)])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    added(tok)
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", sp.bos_id())])
    return tok, arrays, sp


def main(llama_ref):
    chosen, lines, corpus = texts()
    tok, arrays = bpe(corpus)
    cols = columns(llama_ref, arrays, tok, lines)
    save(c.GOLDENS / "small_bpe", tok, arrays, chosen, cols)
    report("small_bpe", cols)
    tok, arrays, sp = spm(corpus)
    cols = columns(llama_ref, arrays, tok, lines)
    cols["sentencepiece_plain"] = [sp.encode(x) for x in lines]
    save(c.GOLDENS / "small_spm", tok, arrays, chosen, cols)
    report("small_spm", cols)


def report(name, cols):
    n = len(cols["llama"])
    against = lambda a, b: sum(x != y for x, y in zip(cols[a], cols[b]))
    print(name, n, "lines;", "hf differs on", against("llama", "hf"), "plain", against("llama_plain", "hf_plain"),
          "sentencepiece", against("llama_plain", "sentencepiece_plain") if "sentencepiece_plain" in cols else "-")


if __name__ == "__main__":
    main(*sys.argv[1:])
