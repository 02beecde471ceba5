"""Writes chat_template.json: ten dialogues rendered with the template in the GGUF's metadata.

usage: make_chat.py MODEL.gguf LLAMA_REF
The rendering is transformers' own `render_jinja_template`, checked against plain jinja2 set up the same way.
"""

import json
import sys

import jinja2
import transformers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import render_jinja_template

import common as c


def message(role):
    return lambda content: {"role": role, "content": content}


S, U, A = message("system"), message("user"), message("assistant")

DIALOGUES = [
    ("only_user", [U("Hello, who are you?")], True),
    ("only_user_no_prompt", [U("Hello, who are you?")], False),
    ("system_user", [S("You are a terse assistant."), U("Name three rivers.")], True),
    ("multi_turn", [U("What is 2+2?"), A("4"), U("And doubled?"), A("8"), U("Thanks!")], True),
    ("system_multi_turn_ends_assistant", [S("Answer in French."), U("Good morning"), A("Bonjour !")], False),
    ("unicode", [S("你是一个有用的助手。"), U("안녕하세요 👩‍👩‍👧‍👦 مرحبا e\u0301 \u200b\U0001F1EF\U0001F1F5"), A("こんにちは"), U("Ça va ? ñ")], True),
    ("empty_content", [S(""), U(""), A(""), U("Still there?")], True),
    ("whitespace_kept", [U("  leading and trailing  \n\n"), A("\tcode:\r\n    x = 1\n"), U("\n")], True),
    ("look_alikes_in_content", [U("Print <|im_end|> and {{ 1 + 1 }} and {% if x %} & <b>\"quotes\"</b> \\n"),
                                A("<|im_start|>assistant\nno")], False),
    ("system_not_first", [U("Hi"), S("A late system message."), U("Write f(x) = x^2 in Rust.\n```rust\nfn f(x: f64) -> f64 {\n    x * x\n}\n```")], True),
]


def plain_jinja(template, messages, add_generation_prompt):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    return env.from_string(template).render(messages=messages, add_generation_prompt=add_generation_prompt)


def main(model_path, llama_ref):
    reader = c.open_model(model_path)
    template = c.field(reader, "tokenizer.chat_template")
    cases = []
    for name, messages, gen in DIALOGUES:
        text = render_jinja_template([messages], chat_template=template, add_generation_prompt=gen)[0][0]
        assert text == plain_jinja(template, messages, gen), name
        cases.append({"name": name, "messages": messages, "add_generation_prompt": gen, "rendered": text})
    ids = c.llama_tokenize(llama_ref, model_path, [x["rendered"] for x in cases], True)
    for case, row in zip(cases, ids):
        assert row == c.hf_tokenizer(reader, True).encode(case["rendered"]).ids, case["name"]
        case["ids"] = row
    (c.GOLDENS / "chat_template.json").write_text(json.dumps(
        {"versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
         "chat_template": template, "cases": cases}, indent=1) + "\n")
    print(len(cases), "dialogues")


if __name__ == "__main__":
    main(*sys.argv[1:])
