//! A chat template and a dialogue from any text: compiled and rendered under small limits.
//!
//! Fuel is to bound time and memory, so the heap's bound is a small multiple of what the fuel pays
//! for. Input: the template, then after a NUL byte the content of the messages, apart by NUL.

use tokens::{ChatTemplate, GenerationPrompt, Message, RenderLimits};

use crate::Target;

const LIMITS: RenderLimits = RenderLimits { fuel: 50_000, output_bytes_max: 1 << 20 };

/// What one step of fuel pays for.
const BYTES_PER_FUEL: usize = 64;

pub(crate) const TARGET: Target = Target {
    name: "template",
    run,
    // Messages add to the fuel; values and the compiled template are charged by estimate.
    heap_bytes_max: 4 * BYTES_PER_FUEL * (LIMITS.fuel as usize + 10_000),
    input_bytes_max: 4096,
    words: &[
        b"{% for m in messages %}",
        b"{% endfor %}",
        b"{% set x = ",
        b"{% set ns = namespace(x=[1]) %}",
        b"{% set ns.x = [ns.x] %}",
        b"{% if ",
        b"{% elif ",
        b"{% else %}",
        b"{% endif %}",
        b"{% macro f(x) %}",
        b"{% endmacro %}",
        b"{{ f(1) }}",
        b"{{ messages",
        b" %}",
        b" }}",
        b"m['content']",
        b"messages[0].content",
        b"range(100000)",
        b"*100000",
        b"|join('x')",
        b"|center(9)",
        b"|indent(9)",
        b"|tojson",
        b"|list",
        b"|sort",
        b"|unique",
        b"|batch(2)",
        b"|slice(2)",
        b"|replace('a','b')",
        b".join(",
        b".split(",
        b".count(",
        b".format(",
        b".replace(",
        b".items()",
        b"'%s'|format(1)",
        b"strftime_now('%d %b %Y')",
        b"raise_exception('x')",
        b"loop.index",
        b"loop(",
        b" recursive ",
        b"{% break %}",
        b"{% generation %}",
        b"{% set x = [x, x] %}",
        b"{% set x = {'a': x, 'b': x} %}",
        b" == ",
        b" not in ",
        b" ~ ",
        b" + ",
        b"**{'a': 1}",
        b"[1:]",
        b"|map('string')",
        b"|select('eq', x)",
        b"|reverse",
        b"|sum",
        b"|groupby(0)",
        b"[::-1]",
        b"((((",
        b"[[[[",
        b"not not ",
        b"\0",
    ],
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.split('\0');
    let source = parts.next().unwrap_or_default();
    let roles = ["system", "user", "assistant", "user", "tool"].map(str::to_owned);
    let messages: Vec<_> = roles
        .into_iter()
        .zip(parts)
        .map(|(role, content)| Message { role, content: content.to_owned() })
        .collect();
    let Ok(template) = ChatTemplate::parse(source, "<s>", "</s>", LIMITS) else {
        return;
    };
    for generation in [GenerationPrompt::Add, GenerationPrompt::Omit] {
        let first = template.render(&messages, generation, 1_796_054_461);
        if let Ok(text) = &first {
            assert!(text.len() <= LIMITS.output_bytes_max);
        }
        // P1: the prompt depends on nothing but the dialogue.
        assert_eq!(first, template.render(&messages, generation, 1_796_054_461));
    }
}
