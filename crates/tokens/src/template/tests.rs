//! Tests of chat templates; the comparison with the reference is in tests/golden.rs.

use super::{ChatTemplate, GenerationPrompt, Message, RenderError, RenderLimits};

const SMALL: RenderLimits = RenderLimits { fuel: 2_000, output_bytes_max: 100 };

fn parse(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, "<s>", "</s>", RenderLimits::default()).unwrap()
}

fn dialogue(turns: &[(&str, &str)]) -> Vec<Message> {
    let message = |(role, content): &(&str, &str)| Message {
        role: (*role).to_owned(),
        content: (*content).to_owned(),
    };
    turns.iter().map(message).collect()
}

fn render(source: &str, turns: &[(&str, &str)]) -> Result<String, RenderError> {
    parse(source).render(&dialogue(turns), GenerationPrompt::Add, 1_796_054_461)
}

fn check(source: &str, expected: &str) {
    let turns = [("system", "be brief"), ("user", " hi <&'> ")];
    assert_eq!(render(source, &turns).unwrap(), expected, "{source}");
}

/// Method: each line is a construct of published templates, with what Jinja2 makes of it.
#[test]
fn constructs_of_published_templates_render_as_in_jinja2() {
    check(
        "{{ bos_token }}{{ messages[0]['role'] }}{{ messages[1].content.strip() }}",
        "<s>systemhi <&'>",
    );
    check("{% for m in messages[1:] %}{{ loop.index0 }}{{ m.role }}{% endfor %}", "0user");
    check("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}.{% endfor %}", ".");
    check("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb");
    check(
        "{{ messages | length }}{{ 'role' in messages[0] }}{{ none }}{{ tools is none }}",
        "2TrueNoneTrue",
    );
    check("{{ messages[1].content | tojson }}", "\" hi <&'> \"");
    check("{{ '\\\\u003c<' | tojson }}", "\"\\\\u003c<\"");
    check("{{ {'a': [1, true]} | tojson }}", "{\"a\": [1, true]}");
    check("{{ messages[0] | tojson }}", "{\"role\": \"system\", \"content\": \"be brief\"}");
    check("{{ strftime_now('%d %b %Y') }}", "30 Nov 2026");
    check(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}\
         {{ ns.n }}",
        "2",
    );
    check("{{ messages[0].content.split(' ')[-1] }}{{ 'x'.upper() }}", "briefX");
    check(
        "{{ messages[0].tool_calls is defined }}{{ messages[0].get('name', 'anon') }}",
        "Falseanon",
    );
    check("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') }}", "[a]");
    check("{{ messages[-1]['role'] == 'user' and add_generation_prompt }}", "True");
}

#[test]
fn a_refusal_names_the_message_that_the_template_was_looking_at() {
    let source = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}\
                  {{ raise_exception('unknown role ' + m.role) }}{% endif %}{% endfor %}";
    let error = render(source, &[("user", "a"), ("wizard", "b"), ("user", "c")]).unwrap_err();
    assert_eq!(error.to_string(), "messages[1]: unknown role wizard");
    assert_eq!(error.message_index(), Some(1));
    let empty = render("{{ raise_exception('no messages') }}", &[]).unwrap_err();
    assert_eq!(empty.to_string(), "messages: no messages");
}

#[test]
fn a_failing_template_is_told_apart_from_a_refusal() {
    let error = render("{{ messages[0].role }}{{ 1 + messages }}", &[("user", "")]).unwrap_err();
    assert!(matches!(&error, RenderError::Template { message: Some(0), .. }), "{error}");
    let bad = ChatTemplate::parse("a\n{% if %}", "", "", RenderLimits::default());
    let text = bad.unwrap_err().to_string();
    assert!(text.starts_with("chat_template line 2: "), "{text}");
}

/// P4: a template cannot take unbounded time or memory, whatever the dialogue.
#[test]
fn p4_rendering_is_bounded() {
    let small = |source: &str, content: &str| {
        let template = ChatTemplate::parse(source, "", "", SMALL).unwrap();
        let turns = dialogue(&[("user", content)]);
        template.render(&turns, GenerationPrompt::Omit, 0).unwrap_err()
    };
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert_eq!(small(endless, ""), RenderError::OutOfFuel { fuel: 2_000 });
    let doubling = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}\
                    {% set ns.x = ns.x + ns.x %}{% endfor %}";
    assert_eq!(small(doubling, ""), RenderError::OutOfFuel { fuel: 2_000 });
    let long = "x".repeat(101);
    assert_eq!(small("{{ messages[0].content }}", &long), RenderError::TooLong { max: 100 });
}

/// P4: a search, a strip or a walk is paid for by what it reads, not by its short result.
/// Method: each takes minutes where only the result is charged.
#[test]
fn p4_methods_pay_for_what_they_read() {
    let sources = [
        "{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{{ s.count('y') }}{% endfor %}",
        "{% set s = 'x' * 1000000 %}{% for i in range(99999) %}{{ s.find('y') }}{% endfor %}",
        "{% set s = 'x' * 1000000 %}{{ s.strip('y' * 1000000 + 'x') }}",
        "{{ 'x'.startswith(['y'] * 100000000) }}",
    ];
    for source in sources {
        let error = render(source, &[]).unwrap_err();
        assert_eq!(error, RenderError::OutOfFuel { fuel: 1_000_000 }, "{source:.60}");
    }
    check(
        "{{ 'a-b'.startswith(['x', 'a']) }}{{ [1, 2, 1].count(1) }}{{ ' x '.strip() }}",
        "True2x",
    );
}

/// P4: values nested as deeply as the fuel allows do not overflow a small thread's stack.
/// Method: a stack as async runtimes give; tuples and lists, dropped and compared.
#[test]
fn p4_deep_values_do_not_overflow_the_stack() {
    let build = |level: &str| {
        format!(
            "{{% set ns = namespace(x=[], y=[]) %}}{{% for i in range(90000) %}}\
             {{% set ns.x = {level} %}}{{% endfor %}}"
        )
    };
    let sources = [
        build("[ns.x]"),
        build("(ns.x,)"),
        build("{'a': ns.x}"),
        format!("{}{{{{ ns.x | unique | list | length }}}}", build("[ns.x]")),
        format!("{}{{{{ ns.x == [ns.x] }}}}", build("(ns.x,)")),
    ];
    let small_stack = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        for source in sources {
            let _rendered = render(&source, &[]);
        }
    });
    small_stack.unwrap().join().unwrap();
}

/// The engine panics on these, and a panic ends the process. Found by fuzzing.
#[test]
fn keys_of_formats_that_are_not_ascii_are_refused() {
    for source in [
        "{{ '%(é)s' | format(1) }}",
        "{{ '%%%(%%é' | format(1) }}",
        "{{ '{0[é]}'.format(1) }}",
        "{{ '{{{0[a][é'.format(1) }}",
    ] {
        let error = render(source, &[]).unwrap_err();
        assert!(error.to_string().contains("a key of a field is not ASCII"), "{source}: {error}");
    }
    check("{{ '100 %% (é) %s' | format('ü') }}", "100 % (é) ü");
    check("{{ '[é] {} {{[é'.format('ü') }}", "[é] ü {[é");
}
