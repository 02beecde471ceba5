//! P4: templates that want all time, memory or stack get an error soon. In a process of its own, so
//! that its peak memory says something.

use std::fmt::Write as _;

use tokens::{ChatTemplate, GenerationPrompt, Message, RenderError, RenderLimits};

/// Each asks for far more than any machine has, or for ever.
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

/// A value that holds itself twice, sixty times over, as `x`: what an operator or a filter makes of
/// it would take for ever.
const SHARED: [&str; 3] = ["[x, x]", "(x, x)", "{'a': x, 'b': x}"];
const ON_SHARED: &[&str] = &[
    "{{ x ~ '' }}",
    "{{ '' ~ x }}",
    "{{ x }}",
    "{{ x == y }}",
    "{{ x != y }}",
    "{{ x < y }}",
    "{{ x >= y }}",
    "{{ x in [y] }}",
    "{{ x not in [y] }}",
    "{{ 1 < 2 == x == y }}",
    "{{ x is eq y }}",
    "{{ x is in [y] }}",
    "{{ {} [x] }}",
    "{{ 'a' in 'b' ~ x }}",
    "{{ [x, y] | sort | length }}",
    "{{ [x, y] | unique | list | length }}",
    "{{ [x, y] | min | length }}",
    "{{ [x, y] | groupby(0) | length }}",
    "{{ {'a': x, 'b': y} | dictsort(by='value') | length }}",
    "{{ [y] | select('eq', x) | list | length }}",
    "{{ [x] | map('string') | list | length }}",
    "{{ [x] | map('upper') | list | length }}",
    "{{ [[x, y]] | map('sort') | list | length }}",
    "{{ x | upper | length }}{{ x | trim | length }}{{ x | replace('a', 'b') | length }}",
    "{{ 'a' | replace(x, x) | length }}{{ ['a', 'b'] | join(x) | length }}",
    "{{ 'a' | default(x) | escape | length }}{{ x | escape | length }}",
    "{{ [y].count(x) }}",
    "{{ {'a': 1}.get(x) }}",
    "{{ 'a'.replace(x, 'b') }}{{ 'a'.split(x) }}",
    "{{ raise_exception(x) }}",
    "{{ messages[x] }}",
    "{{ 'a'.format(x) }}",
    "{% set n.x = x %}",
    "{{ dict(**{'a': x}) == dict(**{'a': y}) }}",
    "{% filter replace('a', x) %}a{% endfilter %}",
];

/// Programs of which each step is cheap, and there are as many as the fuel allows.
const SLOW: &[&str] = &[
    // Lists of lists of lists, each lazy: a step through the last is one through all.
    "{% set n = namespace(x=range(9)) %}{% for i in range(99999) %}{% set n.x = n.x[1:] + [i] %}\
     {% for a in n.x %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x=range(9)) %}{% for i in range(99999) %}{% set n.x = n.x | reverse %}\
     {% endfor %}{% for i in range(99999) %}{% for a in n.x %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x * 2 %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x + n.x %}\
     {{ n.x | length }}{% endfor %}",
    "{% set x = 'x' * 10**6 %}{% for i in range(99999) %}{{ x[99999] }}{{ x[9:10] }}{% endfor %}",
    "{% set x = 'x' * 10**6 %}{% for i in range(99999) %}{% for c in x %}{% break %}{% endfor %}\
     {% endfor %}",
    "{% set x = 'x' * 10**6 ~ 'y' %}{% set y = 'x' * 10**6 ~ 'z' %}{% for i in range(99999) %}\
     {{ x == y }}{{ x < y }}{{ x is eq y }}{{ x is lower }}{{ x in [y] }}{% endfor %}",
    "{% set x = range(9999) | list %}{% set y = range(9999) | list %}{% for i in range(99999) %}\
     {{ x == y }}{{ x in [y] }}{{ x is eq y }}{% endfor %}",
    "{% set x = dict() %}{% for i in range(99999) %}{% set y = namespace(messages[0]) %}\
     {% set z = dict(messages[0], **{'a': i}) %}{% endfor %}",
];

/// What the engine has and cannot be bounded, or panics: refused by name.
const REFUSED: &[(&str, &str)] = &[
    ("{{ ([[]] * 99999) | sum(start=[]) }}", "only numbers can be added up"),
    ("{{ (['xxxx'] * 99999) | sum(start='') }}", "only numbers can be added up"),
    ("{{ [[1], [2]] | sum(none, []) }}", "only numbers can be added up"),
    ("{{ strftime_now([1]) }}", "not a string"),
    ("{{ debug() }}", "debug is unknown"),
    ("{{ [1] | chain([2]) }}", "chain is unknown"),
    ("{{ [1] | zip([2]) }}", "zip is unknown"),
    ("{{ [1] | nothing }}{{ 1 is nothing }}", "filter nothing is unknown"),
    ("{{ 1 is nothing }}", "test nothing is unknown"),
    ("{{ {[1]: 2} }}", "the key of a map is a sequence"),
    ("{% for a in [1] %}{{ loop.changed(a) }}{% endfor %}", "`loop.changed`"),
    ("{% for a in [1] %}{{ loop.cycle() }}{% endfor %}", "`loop.cycle`"),
    ("{{ range(*[1]) }}", "`*` before an argument"),
    ("{% autoescape true %}{% endautoescape %}", "`autoescape`"),
    ("{% include 'chat_template' %}", "include"),
    ("{% set n = namespace() %}{% set n.x = n %}", "a namespace can hold no"),
    ("{% set n = namespace() %}{% set n.x = {'a': [n]} %}", "a namespace can hold no"),
    (
        "{% set n = namespace() %}{% for a in [n] %}{% set n.x = (loop,) %}{% endfor %}",
        "a namespace can hold no",
    ),
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

/// Method: a template of either kind that is not bounded does not end while anyone waits.
#[test]
fn p4_lists_that_hold_themselves_end_with_an_error() {
    on_a_small_stack(|| {
        for level in SHARED {
            for last in ON_SHARED {
                // Written out: a namespace does not take it.
                let x = format!("{{% set x = {level} %}}").repeat(60);
                let y = x.replace('x', "y");
                let source = format!(
                    "{{% set n = namespace() %}}{{% set x = [1] %}}{x}{{% set y = [1] %}}{y}{last}"
                );
                runs_out_of_fuel(&source);
            }
        }
    });
}

#[test]
fn p4_many_cheap_steps_end_with_an_error() {
    on_a_small_stack(|| SLOW.iter().for_each(|source| runs_out_of_fuel(source)));
}

/// A namespace that holds itself is never dropped, and would fill the memory over many requests.
#[test]
fn p4_what_cannot_be_bounded_is_refused_by_name() {
    for (source, expected) in REFUSED {
        let text = match ChatTemplate::parse(source, "", "", RenderLimits::default()) {
            Ok(template) => {
                let rendered = template.render(&dialogue(), GenerationPrompt::Add, 0);
                rendered.expect_err(source).to_string()
            }
            Err(error) => error.to_string(),
        };
        assert!(text.contains(expected), "{source}: {text}");
    }
}

fn runs_out_of_fuel(source: &str) {
    let limits = RenderLimits::default();
    let template = ChatTemplate::parse(source, "", "", limits).expect(source);
    let rendered = template.render(&dialogue(), GenerationPrompt::Add, 0);
    assert_eq!(rendered, Err(RenderError::OutOfFuel { fuel: limits.fuel }), "{source}");
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
