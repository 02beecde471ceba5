//! `tojson` as transformers defines it: Python's `json.dumps` without HTML escapes.
//!
//! Deliberately the engine's own filter with its escapes for HTML undone, not a second writer.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, filters};

/// What the engine escapes beyond JSON, so that the text is safe inside HTML.
const ESCAPES: [(&str, char); 4] =
    [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];

pub(super) fn tojson(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<Value, Error> {
    let json = filters::tojson(value, indent, args)?;
    Ok(Value::from(undo_html(json.as_str().unwrap_or_default())))
}

fn undo_html(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let escape = ESCAPES.iter().find(|(text, _)| rest.starts_with(text));
        let taken = match escape {
            Some((text, c)) => {
                out.push(*c);
                text.len()
            }
            // A backslash always has a partner in JSON, and both are ASCII: `\\` stays a pair, so
            // that the text after it is not taken for an escape.
            None => {
                out.push_str(&rest[..2]);
                2
            }
        };
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out
}
