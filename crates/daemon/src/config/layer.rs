//! One source of configuration as a tree of values that knows where it came from.
//! What it deliberately does not do: merge, or know what the keys mean.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{ConfigError, Origin};
use super::{Given, Setting, nearest};

/// Nested deeper than any configuration: a bound for the recursion below.
const KEY_DEPTH_MAX: usize = 16;

/// A tree of values and its source.
pub(super) struct Layer {
    value: Value,
    source: Source,
}

enum Source {
    /// A whole file; the text is kept to find lines in.
    File { path: PathBuf, text: String },
    /// A single setting.
    Setting(Origin),
}

impl Layer {
    /// A TOML file.
    pub(super) fn file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let value: Value = toml::from_str(text).map_err(|e| ConfigError::Syntax {
            path: path.to_owned(),
            problem: e.to_string().trim().to_owned(),
        })?;
        let source = Source::File { path: path.to_owned(), text: text.to_owned() };
        Ok(Self { value, source })
    }

    /// A single setting; text gets its type from the default at the same key.
    pub(super) fn setting(setting: &Setting, defaults: &Value) -> Result<Self, ConfigError> {
        let Setting { origin, key, value } = setting;
        let path: Vec<&str> = key.split('.').collect();
        if path.len() > KEY_DEPTH_MAX || path.iter().any(|part| part.is_empty()) {
            return Err(ConfigError::Value {
                key: key.clone(),
                origin: origin.clone(),
                problem: "is not a key path: write it as in log.level".to_owned(),
            });
        }
        let leaf = match value {
            Given::Typed(value) => value.clone(),
            Given::Unwritable(problem) => {
                return Err(ConfigError::Unwritable { problem: problem.clone() });
            }
            Given::Text(text) => typed(text, path.iter().try_fold(defaults, |at, k| at.get(k))),
        };
        let value = path
            .iter()
            .rev()
            .fold(leaf, |value, part| Value::Object(Map::from_iter([((*part).to_owned(), value)])));
        Ok(Self { value, source: Source::Setting(origin.clone()) })
    }

    /// The tree.
    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// Where this layer sets `path`, or something around it that is not a table; `None` if it does
    /// not.
    pub(super) fn origin_of(&self, path: &[String]) -> Option<Origin> {
        let mut at = &self.value;
        for part in path {
            match at {
                Value::Object(map) => at = map.get(part)?,
                _ => break,
            }
        }
        Some(match &self.source {
            Source::File { path: file, text } => {
                Origin::File { path: file.clone(), line: line_of(text, path) }
            }
            Source::Setting(origin) => origin.clone(),
        })
    }

    /// The first key of this layer that left no trace in the effective configuration.
    pub(super) fn unread(&self, effective: &Value) -> Option<ConfigError> {
        let mut path = Vec::new();
        let known = unread_below(&self.value, effective, &mut path)?;
        let key = path.join(".");
        let parent = &path[..path.len() - 1];
        let remedy = nearest::remedy(&key, parent, known.iter().map(String::as_str));
        let origin = self.origin_of(&path).unwrap_or(Origin::Default);
        Some(ConfigError::UnknownKey { key, origin, remedy })
    }
}

/// Walks two trees; on the first key that only `given` has, leaves its path and answers the keys
/// known beside it.
fn unread_below(given: &Value, read: &Value, path: &mut Vec<String>) -> Option<Vec<String>> {
    let (Value::Object(given), Value::Object(read)) = (given, read) else {
        return None;
    };
    for (key, value) in given {
        path.push(key.clone());
        match read.get(key) {
            None => return Some(read.keys().cloned().collect()),
            Some(read) => {
                if let Some(known) = unread_below(value, read, path) {
                    return Some(known);
                }
            }
        }
        path.pop();
    }
    None
}

/// Text as a value: where the default is text it is taken as it stands (a node may be called
/// "17"), otherwise it is read as a TOML value, and as text if it is none.
fn typed(text: &str, default: Option<&Value>) -> Value {
    if matches!(default, Some(Value::String(_))) {
        return Value::String(text.to_owned());
    }
    let table: Result<Map<String, Value>, _> = toml::from_str(&format!("value = {text}"));
    match table {
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or(Value::Null),
        _ => Value::String(text.to_owned()),
    }
}

/// The line, from 1, on which a TOML text sets `path`, else its table's. Errors only: tables
/// written inline or with quoted keys are found by their first part, which is near enough.
fn line_of(text: &str, path: &[String]) -> Option<usize> {
    let mut table: Vec<String> = Vec::new();
    let mut best: Option<(usize, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let set: Vec<String> = if let Some(header) = line.strip_prefix('[') {
            table = dotted(header.trim_start_matches('[').split(']').next().unwrap_or_default());
            table.clone()
        } else if let Some((key, _)) = line.split_once('=') {
            table.iter().cloned().chain(dotted(key)).collect()
        } else {
            continue;
        };
        if path.starts_with(&set) && best.is_none_or(|(depth, _)| set.len() > depth) {
            best = Some((set.len(), index + 1));
        }
    }
    best.map(|(_, line)| line)
}

fn dotted(key: &str) -> Vec<String> {
    key.split('.').map(|part| part.trim().trim_matches(['"', '\'']).to_owned()).collect()
}
