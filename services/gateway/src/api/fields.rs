//! Reading a JSON object field by field: every field is taken by name with its type and range, and
//! what is left over at the end is refused. What it deliberately does not do: know what the
//! fields mean.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::{ApiError, Kind};

/// An object whose fields are being taken.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// How the object itself is called in messages; empty for the body.
    path: String,
}

impl Fields {
    /// The fields of `value`, which `path` names; the body's path is empty.
    pub(crate) fn of(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: path.to_owned() }),
            other => {
                let what = if path.is_empty() { "the body" } else { path };
                let message = format!("{what} must be an object, not {}", name_of(&other));
                let param = (!path.is_empty()).then_some(path);
                Err(ApiError::new(Kind::Invalid, "invalid_value", param, message))
            }
        }
    }

    /// The full name of a field.
    pub(crate) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a field; null is as good as absent.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    pub(crate) fn require(&mut self, key: &str) -> Result<Value, ApiError> {
        let name = self.name(key);
        self.take(key).ok_or_else(|| ApiError::invalid(&name, format!("`{name}` is required")))
    }

    pub(crate) fn text(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "a string", &other)),
        }
    }

    pub(crate) fn boolean(&mut self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(key, "true or false", &other)),
        }
    }

    /// Takes a whole number; 3.0 is one, 3.5 is not.
    pub(crate) fn integer(
        &mut self,
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
        match whole(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(key, &wanted(), &value)),
        }
    }

    /// Takes a number; JSON has no NaN or infinity, and the range refuses what is huge.
    pub(crate) fn number(
        &mut self,
        key: &str,
        wanted: &str,
        allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            // The range is checked after rounding too: 1e-50 is above 0 and rounds to it.
            #[expect(clippy::cast_possible_truncation, reason = "the range is checked after it")]
            Some(number) if allowed(number) && allowed(f64::from(number as f32)) => {
                Ok(Some(number as f32))
            }
            _ => Err(self.wrong(key, wanted, &value)),
        }
    }

    /// Everything has been taken: what is left is unknown.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => {
                let name = self.name(&shorten(key));
                let message = format!("`{name}` is not a field of this request: remove it");
                Err(ApiError::new(Kind::Invalid, "unknown_parameter", Some(&name), message))
            }
        }
    }

    /// The error for a field of the wrong type or range.
    pub(crate) fn wrong(&self, key: &str, wanted: &str, got: &Value) -> ApiError {
        let name = self.name(key);
        ApiError::invalid(&name, format!("`{name}` must be {wanted}, not {}", name_of(got)))
    }
}

/// A JSON number as a whole one.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    // Some clients write 16.0; beyond 2^53 a float does not say which number it means.
    let number =
        value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_992.0)?;
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
    Some(number as i64)
}

/// A value as it is called in a message: numbers and short words as they are, the rest by kind.
pub(crate) fn name_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() <= 32 => format!("{text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Client text that goes back in a message is cut.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
