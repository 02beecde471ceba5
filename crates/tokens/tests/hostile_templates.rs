//! P4: templates that want all time, memory or stack get an error soon. In a process of its own, so
//! that its peak memory says something.

use std::fmt::Write as _;

use tokens::{ChatTemplate, GenerationPrompt, Message, RenderLimits};

/// Each asks for far more than any machine has, or for ever. The engine has no hook for operators:
/// lists that hold themselves twice, many times over, are here with filters only (see `template`).
const GREEDY: &[&str] = &[
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{{ range(10**12) | list | length }}",
    "{{ range(10**9) | sum }}{{ range(10**9) | join }}",
    "{{ 'x' * 10**9 }}",
    "{{ ('x' * 10**7) * 10**7 }}",
    "{{ ([0] * 10**9) | length }}",
    "{% set x = 'x' * 10**7 %}{% for i in range(99) %}{% set x = x ~ x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
     {% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
     {% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
     {% endfor %}{{ ns.x | string | length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
     {% endfor %}{{ ns.x | pprint }}",
    "{% set ns = namespace(x={'a': 1}) %}{% for i in range(60) %}\
     {% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson(indent=8) }}",
    "{% set ns = namespace(x={'a': 1}) %}{% for i in range(60) %}\
     {% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | urlencode }}{{ ns.x }}",
    "{% set s = 'x' * 10**6 %}{{ ([s] * 10**6) | join }}",
    "{% set s = 'x' * 10**6 %}{{ s.join([s] * 10**4) }}",
    "{% set s = 'x' * 10**6 %}{{ ''.join([s] * 10**6) }}",
    "{% set s = 'x' * 10**6 %}{{ s.replace('x', s) | length }}",
    "{% set s = 'x' * 10**6 %}{{ s.replace('', s) | length }}",
    "{% set s = 'x' * 10**6 %}{{ s | replace('x', s) | length }}",
    "{% set s = 'x' * 10**7 %}{% for i in range(999) %}{{ s.split('x') | length }}{% endfor %}",
    "{% set s = '\n' * 10**7 %}{% for i in range(999) %}{{ s.splitlines() | length }}{% endfor %}",
    "{% set s = 'x' * 10**6 %}{{ ('{0}' * 10**5).format(s) | length }}",
    "{{ '{:>4000000000}'.format('x') | length }}",
    "{{ '%4000000000d' | format(1) | length }}",
    "{{ '%.4000000000f' | format(1.5) | length }}",
    "{{ ('%s' * 10**5) | format(*(['x' * 10**6] * 10**5)) | length }}",
    "{{ ('x\n' * 10**5) | indent(10**6) | length }}",
    "{{ 'x' | indent(10**12, true) | length }}",
    "{{ 'x' | center(10**10) | length }}",
    "{{ ('x ' * 10**6) | wordwrap(1) | length }}{{ 'x' | batch(10**10, 'y') | list }}",
    "{{ [1] | batch(10**10, 0) | list | length }}{{ [1] | slice(10**10, 0) | list | length }}",
    "{{ range(10**9) | batch(3) | list | length }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% call g() %}{{ f() }}{% endcall %}{% endmacro %}{% macro g() %}\
     {{ caller() }}{% endmacro %}{{ f() }}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ 10 ** 10 ** 10 ** 10 }}{{ 9999999999 ** 99999999999 }}",
    "{{ lipsum(n=10**9) }}",
    "{{ messages | map('upper') | tojson(indent=10**9) }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}",
    "{% set ns = namespace() %}{% for i in range(10**9) %}{% set ns.x = [ns.x] %}{% endfor %}",
    "{% set x = 'x' * 10**7 %}{% for i in range(10**6) %}\
     {{ x | trim | upper | reverse | length }}{% endfor %}",
    "{% for i in range(10**6) %}{{ strftime_now('%B' * 10**6) | length }}{% endfor %}",
    "{{ ('é' * 10**6) | list | sort | unique | list | length }}{{ range(10**8) | list }}",
    "{% set x %}{% for i in range(10**9) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}\
     {% endset %}",
    "{% filter upper %}{% for i in range(10**9) %}x{% endfor %}{% endfilter %}",
    "{% include 'chat_template' %}{% import 'chat_template' as x %}",
    "{{ dict(a=1) | items | list }}{{ raise_exception('x' * 10**10) }}",
    "{{ '%*d' | format(10**10, 1) }}{{ '{:{}}'.format('x', 10**10) }}",
];

fn dialogue() -> Vec<Message> {
    let message =
        |role: &str, content: &str| Message { role: role.into(), content: content.into() };
    vec![message("user", "hi"), message("assistant", "ho")]
}

/// Peak resident memory of this process so far, in megabytes.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    kilobytes.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Runs on half of the stack that the runtime's threads have.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(test);
    thread.expect("a thread").join().expect("no panic");
}

#[test]
fn p4_greedy_templates_end_with_an_error_in_bounded_memory() {
    on_a_small_stack(greedy);
}

fn greedy() {
    let mut worst = String::new();
    for source in GREEDY {
        let before = peak_mb();
        let Ok(template) = ChatTemplate::parse(source, "", "", RenderLimits::default()) else {
            continue;
        };
        let rendered = template.render(&dialogue(), GenerationPrompt::Add, 0);
        let after = peak_mb();
        if after > before + 50 {
            writeln!(worst, "{} MB: {source}", after - before).expect("a string");
        }
        assert!(rendered.is_err(), "{source} ended well");
    }
    // A million units of fuel stand for 64 MB of data; a result is charged after it was made, and
    // lists take more than what is charged for.
    assert!(peak_mb() < 700, "peak {} MB\n{worst}", peak_mb());
}

/// Deep nesting and long chains meet a limit, not the end of the stack.
#[test]
fn p4_deep_sources_do_not_exhaust_the_stack() {
    // As deep as one tag may be, and far deeper.
    for deep in [140, 400, 600, 950, 100_000] {
        on_a_small_stack(move || deep_sources(deep));
    }
}

fn deep_sources(deep: usize) {
    let sources = [
        format!("{{{{ {}1{} }}}}", "(".repeat(deep), ")".repeat(deep)),
        format!("{{{{ {}1{} }}}}", "[".repeat(deep), "]".repeat(deep)),
        format!("{{{{ {}1 }}}}", "-".repeat(deep)),
        format!("{{{{ {}1 }}}}", "not ".repeat(deep)),
        format!("{}{}", "{% if 1 %}".repeat(deep), "{% endif %}".repeat(deep)),
        format!("{}{}", "{% for a in b %}".repeat(deep), "{% endfor %}".repeat(deep)),
        format!("{}{}", "{% generation %}".repeat(deep), "{% endgeneration %}".repeat(deep)),
        format!("{{{{ x{} }}}}", ".a".repeat(deep)),
        format!("{{{{ x{} }}}}", "|upper".repeat(deep)),
        format!("{{{{ x{} }}}}", "[0]".repeat(deep)),
        format!("{{{{ 1{} }}}}", "+1".repeat(deep)),
        format!("{{{{ 1{} }}}}", "**1".repeat(deep)),
        format!("{{{{ x{} }}}}", " if 1 else x".repeat(deep)),
        "{% if 1 %}x{% else %}".repeat(deep),
        format!("{{% if 0 %}}x{}{{% endif %}}", "{% elif 0 %}x".repeat(deep)),
        format!("{{{{ {}x }}}}", "x and ".repeat(deep)),
        format!("{{{{ {}x }}}}", "x ~ ".repeat(deep)),
        format!("{{{{ {}x }}}}", "x == ".repeat(deep)),
        format!("{{{{ x{} }}}}", "(1)".repeat(deep)),
        format!("{{{{ x{} }}}}", " is defined".repeat(deep)),
        format!("{}{}", "{% macro f() %}".repeat(deep), "{% endmacro %}".repeat(deep)),
        format!("{}{}", "{% set x %}".repeat(deep), "{% endset %}".repeat(deep)),
        "x".repeat(2 << 20),
    ];
    for source in sources {
        if let Ok(template) = ChatTemplate::parse(&source, "", "", RenderLimits::default()) {
            drop(template.render(&dialogue(), GenerationPrompt::Add, 0));
        }
    }
}
