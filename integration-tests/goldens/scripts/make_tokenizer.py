"""Writes tokenizer.jsonl: 1,000 lines of mixed text with the ids of two independent tokenizers.

usage: make_tokenizer.py MODEL.gguf LLAMA_REF
"""

import json
import random
import sys

import common as c

LINES = 1000

CODE = [
    "def f(x: int) -> str:\n    return f\"{x:>08.3f}\" if x != 0 else 'zero'",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}",
    "fn main() -> Result<(), Box<dyn std::error::Error>> { println!(\"{:?}\", &v[1..=3]); Ok(()) }",
    "SELECT a.id, COUNT(*) FROM t AS a LEFT JOIN u ON a.id=u.a_id WHERE u.x IS NOT NULL GROUP BY 1;",
    "const g = async ({a, ...rest}) => (await fetch(`/api/${a}?q=${rest?.q ?? ''}`)).json();",
    "<div class=\"row\" data-id='7'>&nbsp;&lt;b&gt;</div><!-- end -->",
    "#include <vector>\ntemplate<typename T, size_t N> constexpr auto len(T(&)[N]) noexcept { return N; }",
    "if [[ -f \"$HOME/.rc\" ]]; then source $_ 2>/dev/null || exit 1; fi",
    "{\"k\": [1, 2.5e-3, true, null, \"\\u00e9\\n\"], \"nested\": {\"\": {}}}",
    "\\begin{equation} \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\end{equation}",
    "package main\n\nfunc (s *Server) Run(ctx context.Context) error {\n\treturn <-s.errc\n}",
    "(defn fact [n] (reduce *' (range 1 (inc n)))) ; => 120N",
    "main = interact $ unlines . map (show . (+1) . read) . lines -- haskell",
    "    mov     rax, QWORD PTR [rbp-0x18]\n    lea     rdx, [rax+rax*4]",
    "x = x**2 // 3 % 7 ^ ~y & 0xFF | 0b1010_1010 << 3 >>= 1; a->b::c; !!z",
    "- name: build\n  run: |\n    make -j$(nproc) all\n  if: ${{ success() }}",
    "public static void main(String... args) throws IOException { System.out.println(args.length); }",
    "s/\\(foo\\|bar\\)\\+/[\\1]/g; ^(?:\\d{1,3}\\.){3}\\d{1,3}$",
    "| a | b |\n|---|:-:|\n| **bold** | _it_ ~~x~~ `code` |",
    "let mut it = v.iter().filter(|&&x| x > 0).map(|x| x as u64).sum::<u64>();",
]
PROSE = [
    "It was the best of times, it was the worst of times, it was the age of wisdom.",
    "We hold these truths to be self-evident, that all men are created equal;",
    "I'll say they've won; she'd gone, it's late, we're done, I'm sure, can't, won't, y'all'd've.",
    "I'LL SAY THEY'VE WON; SHE'D GONE, IT'S LATE, WE'RE DONE, I'M SURE. DON'T SHOUT!",
    "Curly quotes: \u201cIt\u2019s here,\u201d she said \u2014 and that\u2019s that\u2026",
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX. tHe QuIcK bRoWn FoX.",
    "e.g. Mr. O'Neil-Smith (aged 42) paid $3.50/lb., i.e. 7,700.00 USD in Q3 2024?!",
    "  'tis 's 't 're 've 'm 'll 'd  'S 'T 'RE ''s  x's'd",
    "Visit https://example.com/a/b?c=d&e=%20f#frag or mail me@example.org.",
]
SCRIPTS = {
    "cjk": ["\u4eba\u4eba\u751f\u800c\u81ea\u7531\uff0c\u5728\u5c0a\u4e25\u548c\u6743\u5229\u4e0a\u4e00\u5f8b\u5e73\u7b49\u3002",
            "\u3059\u3079\u3066\u306e\u4eba\u9593\u306f\u3001\u751f\u307e\u308c\u306a\u304c\u3089\u306b\u3057\u3066\u81ea\u7531\u3067\u3042\u308a\u3001\u300c\u30c6\u30b9\u30c8\u300d\uff71\uff72\uff73",
            "\u7e41\u9ad4\u4e2d\u6587\u6e2c\u8a66\u3000\u5168\u5f62\u7a7a\u767d\uff11\uff12\uff13\uff21\uff22\uff23\uff01\uff1f",
            "\U00020000\U0002A6D6\u3400\u9fff\u3007\u3005\u30fc", "GPU\u306e\u901f\u5ea6\u306f3.5\u500d\u3067\u3059\u3002Rust\u8a00\u8a9e\u3092\u4f7f\u3046"],
    "korean": ["\ubaa8\ub4e0 \uc778\uac04\uc740 \ud0dc\uc5b4\ub0a0 \ub54c\ubd80\ud130 \uc790\uc720\ub85c\uc6b0\uba70",
               "\ud55c\uad6d\uc5b4 test 123\uac1c, \ubc18\uac11\uc2b5\ub2c8\ub2e4!", "\u1112\u1161\u11ab\u1100\u1173\u11af \uff76\u3131\u314f"],
    "arabic_hebrew": ["\u064a\u0648\u0644\u062f \u062c\u0645\u064a\u0639 \u0627\u0644\u0646\u0627\u0633 \u0623\u062d\u0631\u0627\u0631\u064b\u0627\u060c \u0661\u0662\u0663\u06f4\u06f5\u06f6",
                      "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f \ufdfa \u200f\u202babc\u202c", "\u05db\u05dc \u05d1\u05e0\u05d9 \u05d4\u05d0\u05d3\u05dd \u05d1\u05b0\u05bc\u05e8\u05b5\u05d0\u05e9\u05b4\u05c1\u05d9\u05ea"],
    "other_scripts": ["\u0412\u0441\u0435 \u043b\u044e\u0434\u0438 \u0440\u043e\u0436\u0434\u0430\u044e\u0442\u0441\u044f \u0441\u0432\u043e\u0431\u043e\u0434\u043d\u044b\u043c\u0438, \u0401\u0436\u0438\u043a \u0456 \u0457\u0436\u0430",
                      "\u038c\u03bb\u03bf\u03b9 \u03bf\u03b9 \u03ac\u03bd\u03b8\u03c1\u03c9\u03c0\u03bf\u03b9 \u1f08\u03c7\u03b9\u03bb\u03bb\u03b5\u03cd\u03c2",
                      "\u0938\u092d\u0940 \u092e\u0928\u0941\u0937\u094d\u092f\u094b\u0902 \u0915\u094b \u0967\u0968\u0969 \u0915\u094d\u0937\u093f",
                      "\u0e21\u0e19\u0e38\u0e29\u0e22\u0e4c\u0e17\u0e31\u0e49\u0e07\u0e2b\u0e25\u0e32\u0e22\u0e40\u0e01\u0e34\u0e14\u0e21\u0e32 \u0e51\u0e52\u0e53",
                      "T\u1ea5t c\u1ea3 m\u1ecdi ng\u01b0\u1eddi sinh ra \u0111\u1ec1u \u0111\u01b0\u1ee3c t\u1ef1 do",
                      "\u10e7\u10d5\u10d4\u10da\u10d0 \u10d0\u10d3\u10d0\u10db\u10d8\u10d0\u10dc\u10d8 \u0533\u0561\u0580\u0578\u0582\u0576 \u12a0\u121b\u122d\u129b",
                      "Stra\u00dfe \u00c6r\u00f8 na\u00efve fa\u00e7ade \u0141\u00f3d\u017a \u0130stanbul \u0131\u015f\u0131k \ufb01ne \u01c5 \u02b0\u02b2",
                      "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41 \u1200\u1208 \u13a0\u13a1 \u16a0\u16a2 \U00010330\U00010331 \U0001d400\U0001d7d8\U0001d7ff"],
    "emoji": ["\U0001F600\U0001F603 \U0001F44D\U0001F3FD \u2764\ufe0f\u200d\U0001F525", "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466 family",
              "\U0001F3F3\ufe0f\u200d\U0001F308 \U0001F1E9\U0001F1EA\U0001F1EF\U0001F1F5 1\ufe0f\u20e3 \U0001F9D1\U0001F3FF\u200d\U0001F680",
              "ok\U0001F44C\U0001F3FB! \u2615\ufe0f\u2b50\u203c\ufe0f \U0001FAE0\U0001FAF6\U0001F3FE", "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F"],
    "combining": ["e\u0301 n\u0303 a\u0308o\u0302 \u00e9 \u00f1", "Z\u0351\u036b\u0343a\u0301\u0316l\u0321\u0489g\u031bo\u0335 \u0301start",
                  "\u0915\u094d\u0930\u093e o\u031b\u0323 \u1ec3 q\u0307\u0323", "\u0a95\u0acd \u20dd\u20e0 x\u20d7 \u1abe"],
    "symbols": ["\u2200x\u2208\u211d: \u2211\u1d62 x\u1d62\u00b2 \u2265 0 \u21d2 \u00bd\u00bc\u2153 \u2160\u2163\u217b \u2460\u2473 \u00b2\u00b3\u2075",
                "\u20ac100 \u00a35 \u00a51\u3001000 \u20b9\u20bf \u00a7\u00b6\u2020 \u00a9\u00ae\u2122 \u00b0C \u00b5m \u2126",
                "\u250c\u2500\u2510\u2502\u2588\u2591\u2514\u2518 \u2190\u2191\u2192 \u266a\u2660 \u2714\u2718 \u2028sep\u2029 \ufeffbom \ufffd",
                "\ue000\uf8ff\U000f0000\U00100000 private", "zero\u200bwidth\u200c\u200d\u2060joiners soft\u00adhyphen"],
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>",
           "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>",
           "<jupyter_code>", "<jupyter_output>", "<jupyter_script>", "<empty_output>"]
LOOK_ALIKE = ["<|im_start", "|im_end|>", "<|IM_START|>", "<| im_start |>", "<<|im_start|>>", "<|im_start|><|im_start|>",
              "<|im_\u200bstart|>", "<|endoftext", "<|end of text|>", "<s>", "</s>", "[INST]", "<|eot_id|>", "<pad>",
              "<fim_prefix>", "<repo_name", "<issue_start><issue_comment>", "&lt;|im_end|&gt;"]
SPACES = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r",
          "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u1680", "\v", "\f", "\x1c", " \n ", "\n    ", "\n\t"]
ASCII = "".join(chr(i) for i in range(32, 127))


def digits(r):
    n = r.choice([1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 20, 32, 64])
    d = "".join(r.choice("0123456789") for _ in range(n))
    return r.choice([d, d, "-" + d, d + ".5", "0x" + d, d + "e-7", f"{int(d):,}", "v" + d, d + "th", "$" + d + "%", " " + d])


def long_word(r):
    n = r.choice([50, 200, 600])
    pool = r.choice(["abcdefghijklmnopqrstuvwxyz", "aab", "a", "ACGT", "!?", "-=", "\u4e00\u4e8c\u4e09", "\u00e9\u00e8", "0123456789abcdef", "xX_1"])
    return "".join(r.choice(pool) for _ in range(n))


def random_char(r):
    while True:
        cp = r.choice([r.randrange(0x80, 0x800), r.randrange(0x800, 0x10000), r.randrange(0x10000, 0x20000),
                       r.randrange(0x20000, 0x110000)])
        if not 0xD800 <= cp < 0xE000:
            return chr(cp)


def cut(r, s):
    a, b = sorted((r.randrange(len(s) + 1), r.randrange(len(s) + 1)))
    return s[a:b]


def anything(r):
    return r.choice([
        lambda: r.choice(CODE), lambda: r.choice(PROSE), lambda: r.choice(r.choice(list(SCRIPTS.values()))),
        lambda: digits(r), lambda: r.choice(SPACES), lambda: r.choice(LOOK_ALIKE), lambda: r.choice(SPECIAL),
        lambda: "".join(r.choice(ASCII) for _ in range(r.randrange(1, 20)))])()


def generate():
    r = random.Random(20260111)
    out = [("edge", s) for s in ["", "\0", "a", " a", "a ", "'", "''", "0", "00", " 0", "\u00e9", "\u0301",
                                 "\u4e00", "\U0001F600", "\u200d", "\ufeff", "\U0010ffff", "<", "<|", "|>"]]
    out += [("code", s) for s in CODE] + [("prose", s) for s in PROSE]
    out += [(k, s) for k, v in SCRIPTS.items() for s in v]
    out += [("special", s) for s in SPECIAL] + [("look_alike", s) for s in LOOK_ALIKE]
    out += [("whitespace", s) for s in SPACES] + [("whitespace", f"a{s}b") for s in SPACES]
    out += [("whitespace", f"{s}x {s} y{s}") for s in SPACES]
    out += [("control", f"a{chr(i)}b {chr(i)}") for i in [*range(32), *range(127, 160)]]
    kinds = {
        "code": lambda: "\n".join(r.choice(CODE) for _ in range(2)).replace("\n", r.choice(["\n", "\r\n", "\n  "])),
        "prose": lambda: " ".join(r.choice(PROSE) for _ in range(r.randrange(1, 4))),
        "digits": lambda: r.choice([" ", "", ", ", "\n"]).join(digits(r) for _ in range(r.randrange(1, 6))),
        "scripts": lambda: r.choice(["", " ", "  "]).join(r.choice(SCRIPTS[k]) for k in r.sample(list(SCRIPTS), 3)),
        "emoji": lambda: cut(r, "".join(r.choice(SCRIPTS["emoji"]) for _ in range(2))),
        "combining": lambda: "".join(r.choice("aeionu ") + chr(r.randrange(0x300, 0x370)) for _ in range(r.randrange(1, 12))),
        "whitespace": lambda: "".join(r.choice(SPACES) + r.choice(["", "", "a", "1", "!", "\u4e00"]) for _ in range(r.randrange(2, 12))),
        "long_word": lambda: r.choice(["", " "]) + long_word(r),
        "special": lambda: "".join(r.choice([r.choice(SPECIAL), r.choice(SPECIAL), r.choice(LOOK_ALIKE), " ", "\n", "user", "1"])
                                   for _ in range(r.randrange(2, 8))),
        "ascii": lambda: "".join(r.choice(ASCII) for _ in range(r.randrange(1, 80))),
        "random_unicode": lambda: "".join(random_char(r) for _ in range(r.randrange(1, 12))),
        "mixed": lambda: "".join(cut(r, anything(r)) if r.random() < 0.5 else anything(r) for _ in range(r.randrange(2, 7))),
    }
    weights = [8, 6, 9, 7, 5, 5, 9, 4, 9, 7, 8, 23]
    seen = {s for _, s in out}
    assert len(seen) == len(out)
    while len(out) < LINES:
        kind = r.choices(list(kinds), weights)[0]
        s = kinds[kind]()
        if s not in seen:
            seen.add(s)
            out.append((kind, s))
    return out


def main(model_path, llama_ref):
    reader = c.open_model(model_path)
    lines = generate()
    texts = [s for _, s in lines]
    special, plain = (c.llama_tokenize(llama_ref, model_path, texts, p) for p in (True, False))
    hf = [[e.ids for e in c.hf_tokenizer(reader, p).encode_batch(texts)] for p in (True, False)]
    differ = {}
    with open(c.GOLDENS / "tokenizer.jsonl", "w") as f:
        for i, (kind, text) in enumerate(lines):
            row = {"kind": kind, "text": text, "ids": special[i], "ids_plain": plain[i]}
            if hf[0][i] != special[i]:
                row["hf_ids"] = hf[0][i]
            if hf[1][i] != plain[i]:
                row["hf_ids_plain"] = hf[1][i]
            if len(row) > 4:
                differ[kind] = differ.get(kind, 0) + 1
            f.write(json.dumps(row, separators=(",", ":")) + "\n")
    print(len(lines), "lines,", sum(map(len, special)), "ids; the two tokenizers differ on", differ)


if __name__ == "__main__":
    main(*sys.argv[1:])
