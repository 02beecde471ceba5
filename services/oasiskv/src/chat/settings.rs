//! What can be set for the answers of a dialogue: names, ranges, and how they are read.
//! What it deliberately does not do: know defaults; what is not set is the gateway's choice.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

/// A field of a request that a dialogue may set.
struct Field {
    name: &'static str,
    takes: Takes,
    /// For people.
    help: &'static str,
}

/// What a field takes.
enum Takes {
    /// A number within, both ends included.
    Number(f64, f64),
    /// A whole number within, both ends included.
    Whole(i64, i64),
}

/// As in docs/API.md. `top_p` is above 0 there: the gateway refuses the end itself.
const FIELDS: [Field; 6] = [
    Field {
        name: "temperature",
        takes: Takes::Number(0.0, 2.0),
        help: "0 always takes the most probable token",
    },
    Field { name: "top_p", takes: Takes::Number(1e-6, 1.0), help: "1 draws from all tokens" },
    Field { name: "top_k", takes: Takes::Whole(0, i64::MAX), help: "0 draws from all tokens" },
    Field { name: "min_p", takes: Takes::Number(0.0, 1.0), help: "0 draws from all tokens" },
    Field {
        name: "seed",
        takes: Takes::Whole(i64::MIN, i64::MAX),
        help: "the same seed draws the same tokens; without one it is drawn for each answer",
    },
    Field {
        name: "max_tokens",
        takes: Takes::Whole(1, u32::MAX as i64),
        help: "most tokens of an answer",
    },
];

/// The values that were set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings(BTreeMap<&'static str, Value>);

impl Settings {
    /// Sets a field from text; `default` takes it back. The error names the fields or the range.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let field = field(name)?;
        if text == "default" {
            self.0.remove(field.name);
            return Ok(());
        }
        let value = match field.takes {
            Takes::Whole(..) => text.parse::<i64>().ok().map(Value::from),
            Takes::Number(..) => text.parse::<f64>().ok().map(Value::from),
        };
        self.put(field, value.unwrap_or_default())
    }

    /// Sets what is not null, as flags and files have it.
    pub(crate) fn set_value(&mut self, name: &str, value: Value) -> Result<(), String> {
        match value {
            Value::Null => Ok(()),
            value => self.put(field(name)?, value),
        }
    }

    /// Whether a request has such a field because of a setting.
    pub(crate) fn knows(name: &str) -> bool {
        field(name).is_ok()
    }

    fn put(&mut self, field: &'static Field, value: Value) -> Result<(), String> {
        let fits = match field.takes {
            Takes::Whole(low, high) => {
                value.as_i64().is_some_and(|value| (low..=high).contains(&value))
            }
            Takes::Number(low, high) => {
                value.as_f64().is_some_and(|value| (low..=high).contains(&value))
            }
        };
        if !fits {
            return Err(format!("{}: use {}", field.name, field.takes.range()));
        }
        self.0.insert(field.name, value);
        Ok(())
    }

    /// Writes them into a request.
    pub(crate) fn write(&self, body: &mut Map<String, Value>) {
        for (name, value) in &self.0 {
            body.insert((*name).to_owned(), value.clone());
        }
    }

    /// Whether the same question would get the same answer again (P1).
    pub(crate) fn repeats(&self) -> bool {
        self.0.contains_key("seed")
            || self.0.get("temperature").and_then(Value::as_f64) == Some(0.0)
    }

    /// A table of all fields, with what they are set to.
    pub(crate) fn table(&self) -> String {
        FIELDS.iter().fold(String::new(), |mut table, Field { name, takes, help }| {
            let value = self.0.get(name).map_or("default".to_owned(), Value::to_string);
            let range = takes.range();
            // Writing to a string cannot fail.
            let _infallible = writeln!(table, "  {name:<12} {value:<10} {range}; {help}");
            table
        })
    }
}

impl Takes {
    fn range(&self) -> String {
        match self {
            Self::Number(low, high) if *low > 0.0 => format!("a number above 0, up to {high}"),
            Self::Number(low, high) => format!("a number from {low} to {high}"),
            Self::Whole(i64::MIN, _) => "a whole number".to_owned(),
            Self::Whole(low, _) => format!("a whole number from {low} on"),
        }
    }
}

fn field(name: &str) -> Result<&'static Field, String> {
    let found = FIELDS.iter().find(|field| field.name == name);
    found.ok_or_else(|| {
        let names = FIELDS.map(|field| field.name).join(", ");
        format!("{name:?} cannot be set; there are {names}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::Settings;

    #[test]
    fn what_is_set_goes_into_the_request_and_default_takes_it_back() {
        let mut settings = Settings::default();
        for (name, text) in [("temperature", "0.7"), ("seed", "-3"), ("max_tokens", "9")] {
            settings.set(name, text).unwrap();
        }
        assert!(settings.repeats());
        settings.set("seed", "default").unwrap();
        let mut body = Map::new();
        settings.write(&mut body);
        assert_eq!(Value::from(body), json!({"temperature": 0.7, "max_tokens": 9}));
        assert!(!settings.repeats());
        assert!(settings.table().contains("0.7"));
    }

    #[test]
    fn a_wrong_value_changes_nothing_and_names_the_range() {
        let mut settings = Settings::default();
        let before = settings.clone();
        for (name, text, says) in [
            ("temperature", "hot", "from 0 to 2"),
            ("temperature", "2.1", "from 0 to 2"),
            ("temperature", "NaN", "from 0 to 2"),
            ("top_p", "0", "above 0"),
            ("max_tokens", "0", "from 1 on"),
            ("seed", "1.5", "a whole number"),
            ("n", "2", "temperature, top_p"),
        ] {
            let refused = settings.set(name, text).unwrap_err();
            assert!(refused.contains(says) && refused.contains(name), "{refused}");
        }
        assert_eq!(settings, before);
    }
}
