//! What was said so far, as the requests of the API have it: an optional system message, then
//! question and answer in turn.
//! What it deliberately does not do: ask; a question becomes a turn when its answer is there.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::settings::Settings;

/// A question and the answer that it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) question: String,
    /// Never empty: a question without an answer is no turn.
    pub(crate) answer: String,
}

/// A dialogue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Dialogue {
    /// `None` leaves it to the model's template.
    pub(crate) system: Option<String>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) settings: Settings,
}

impl Dialogue {
    /// A request for the answer to one more question; the whole dialogue goes with it, so that
    /// what was computed of it is found by its prefix.
    pub(crate) fn request(&self, model: &str, question: &str) -> Value {
        let mut body = self.document(model);
        if let Some(Value::Array(messages)) = body.get_mut("messages") {
            messages.push(json!({"role": "user", "content": question}));
        }
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        Value::Object(body)
    }

    /// All of it as the body of a request that is not a stream.
    pub(crate) fn document(&self, model: &str) -> Map<String, Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let turns = self.turns.iter().flat_map(|turn| {
            [
                json!({"role": "user", "content": turn.question}),
                json!({"role": "assistant", "content": turn.answer}),
            ]
        });
        let messages: Vec<Value> = system.chain(turns).collect();
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(model));
        body.insert("messages".to_owned(), Value::from(messages));
        self.settings.write(&mut body);
        body
    }

    /// What [`Dialogue::document`] wrote. The error says what was expected and where.
    pub(crate) fn read(document: &Value) -> Result<Self, String> {
        let mut dialogue = Self::default();
        let fields = document.as_object().ok_or("not a JSON object")?;
        for (name, value) in fields.iter().filter(|(name, _)| Settings::knows(name)) {
            dialogue.settings.set_value(name, value.clone())?;
        }
        let messages = document["messages"].as_array().ok_or("no list `messages`")?;
        let mut messages = messages.iter().enumerate().peekable();
        let says = |message: &Value, role: &str| {
            let content = message["content"].as_str().filter(|_| message["role"] == role);
            content.map(str::to_owned)
        };
        if let Some(system) = messages.peek().and_then(|(_, message)| says(message, "system")) {
            dialogue.system = Some(system);
            messages.next();
        }
        while let Some((at, message)) = messages.next() {
            let wanted = |role: &str, at: usize| format!("messages[{at}]: no text of role {role}");
            let question = says(message, "user").ok_or_else(|| wanted("user", at))?;
            let answer = messages.next().and_then(|(_, message)| says(message, "assistant"));
            let answer = answer.filter(|answer| !answer.is_empty());
            let answer = answer.ok_or_else(|| wanted("assistant", at + 1))?;
            dialogue.turns.push(Turn { question, answer });
        }
        Ok(dialogue)
    }

    /// Its size and settings, for people.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let system = self.system.as_deref().unwrap_or("none; the model's template may have one");
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "system message: {system}");
        let _infallible = writeln!(text, "questions answered so far: {}", self.turns.len());
        text.push_str(&self.settings.table());
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Dialogue, Turn};

    fn dialogue() -> Dialogue {
        let turn = |q: &str, a: &str| Turn { question: q.to_owned(), answer: a.to_owned() };
        let mut dialogue = Dialogue {
            system: Some("Be brief.".to_owned()),
            turns: vec![turn("1?", "1."), turn("2?", "2.")],
            ..Dialogue::default()
        };
        dialogue.settings.set("seed", "7").unwrap();
        dialogue
    }

    #[test]
    fn a_request_has_the_whole_dialogue_and_then_the_question() {
        let request = dialogue().request("m", "3?");
        let contents: Vec<&str> = request["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["content"].as_str().unwrap())
            .collect();
        assert_eq!(contents, ["Be brief.", "1?", "1.", "2?", "2.", "3?"]);
        assert_eq!(request["seed"], 7);
        assert_eq!(request["stream"], true);
    }

    #[test]
    fn what_is_saved_is_read_back() {
        let saved = Value::Object(dialogue().document("m"));
        assert_eq!(Dialogue::read(&saved), Ok(dialogue()));
    }

    #[test]
    fn a_file_that_is_no_dialogue_says_where() {
        let message = |role: &str| json!({"role": role, "content": "x"});
        for (document, says) in [
            (json!([]), "JSON object"),
            (json!({}), "messages"),
            (json!({"messages": [message("assistant")]}), "messages[0]: no text of role user"),
            (json!({"messages": [message("user")]}), "messages[1]: no text of role assistant"),
            (json!({"messages": [], "temperature": 3}), "temperature"),
        ] {
            let refused = Dialogue::read(&document).unwrap_err();
            assert!(refused.contains(says), "{document}: {refused}");
        }
    }
}
