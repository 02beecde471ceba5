//! Chat templates in the shapes of well-known families against transformers' own rendering
//! (integration-tests/goldens says how the file was made), byte for byte.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokens::{ChatTemplate, GenerationPrompt, Message, RenderError, RenderLimits, TemplateValue};

#[derive(Deserialize)]
struct Golden {
    unix_s: i64,
    tokens: BTreeMap<String, String>,
    dialogues: BTreeMap<String, Vec<Turn>>,
    templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    template: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    dialogue: String,
    add_generation_prompt: bool,
    values: BTreeMap<String, Value>,
    rendered: Option<String>,
    refused: Option<String>,
}

fn value(value: &Value) -> TemplateValue {
    match value {
        Value::Bool(value) => TemplateValue::Bool(*value),
        Value::String(text) => TemplateValue::Text(text.clone()),
        other => unreachable!("no case has {other}"),
    }
}

#[test]
fn templates_of_eight_families_render_as_transformers_renders_them() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/goldens");
    let text = std::fs::read_to_string(goldens.join("templates.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let tokens = golden.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let (mut compared, mut refused) = (0, 0);
    for Template { name, template, cases } in &golden.templates {
        let template = ChatTemplate::parse(template, "", "", RenderLimits::default());
        let template = template.unwrap().with_tokens(tokens.clone());
        for case in cases {
            let turns = golden.dialogues[&case.dialogue].iter();
            let message = |Turn { role, content }: &Turn| Message {
                role: role.clone(),
                content: content.clone(),
            };
            let messages: Vec<Message> = turns.map(message).collect();
            let values = case.values.iter().map(|(name, given)| (name.clone(), value(given)));
            let generation = match case.add_generation_prompt {
                true => GenerationPrompt::Add,
                false => GenerationPrompt::Omit,
            };
            let found =
                template.render_with(&messages, generation, golden.unix_s, &values.collect());
            let place = format!("{name}, {}", case.dialogue);
            match (&case.rendered, &case.refused) {
                (Some(rendered), None) => assert_eq!(&found.unwrap(), rendered, "{place}"),
                (None, Some(text)) => {
                    refused += 1;
                    match found.unwrap_err() {
                        RenderError::Refused { reason, .. } => assert_eq!(&reason, text, "{place}"),
                        other => panic!("{place}: {other}"),
                    }
                }
                _ => panic!("{place}: one of the two"),
            }
            compared += 1;
        }
    }
    assert_eq!((compared, refused), (108, 8));
}
