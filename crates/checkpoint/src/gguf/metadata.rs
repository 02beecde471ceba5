//! The key-value section: typed values and getters whose errors name the key.
//!
//! Deliberately gives no defaults: what a missing key means is the model's business.

use std::collections::BTreeMap;

use super::error::GgufError;

/// A list of one element type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variant's name is the stored type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    Nested(Vec<Array>),
}

/// A value as stored.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variant's name is the stored type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

impl Value {
    /// What it is, for messages: type and, where short, value.
    fn describe(&self) -> String {
        match self {
            Self::U8(v) => format!("the u8 {v}"),
            Self::I8(v) => format!("the i8 {v}"),
            Self::U16(v) => format!("the u16 {v}"),
            Self::I16(v) => format!("the i16 {v}"),
            Self::U32(v) => format!("the u32 {v}"),
            Self::I32(v) => format!("the i32 {v}"),
            Self::U64(v) => format!("the u64 {v}"),
            Self::I64(v) => format!("the i64 {v}"),
            Self::F32(v) => format!("the f32 {v}"),
            Self::F64(v) => format!("the f64 {v}"),
            Self::Bool(v) => format!("the bool {v}"),
            Self::Text(_) => "a string".to_owned(),
            Self::Array(_) => "an array".to_owned(),
        }
    }

    /// The value as a whole number, whatever integer type the writer chose.
    fn integer(&self) -> Option<i128> {
        match self {
            Self::U8(v) => Some((*v).into()),
            Self::I8(v) => Some((*v).into()),
            Self::U16(v) => Some((*v).into()),
            Self::I16(v) => Some((*v).into()),
            Self::U32(v) => Some((*v).into()),
            Self::I32(v) => Some((*v).into()),
            Self::U64(v) => Some((*v).into()),
            Self::I64(v) => Some((*v).into()),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Text(_) | Self::Array(_) => None,
        }
    }
}

/// All keys of one file, in order of their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub(super) BTreeMap<String, Value>);

impl Metadata {
    /// The value as stored, if there is one.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => {
                Err(GgufError::KeyType { key: key.to_owned(), expected, found: value.describe() })
            }
        }
    }

    /// A whole number that fits 32 bits, of whatever integer type; `None` without the key.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else or does not fit.
    pub fn u32_opt(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer of 0 to 4294967295", |value| {
            u32::try_from(value.integer()?).ok()
        })
    }

    /// A floating-point number, finite; `None` without the key.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else, infinite or not a number.
    pub fn f32_opt(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a finite float", |value| {
            let number = match value {
                Value::F32(v) => *v,
                Value::F64(v) => *v as f32,
                _ => return None,
            };
            number.is_finite().then_some(number)
        })
    }

    /// A Boolean; `None` without the key.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else.
    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(v) => Some(*v),
            _ => None,
        })
    }

    /// A text; `None` without the key.
    ///
    /// # Errors
    /// [`GgufError::KeyType`] if it is something else.
    pub fn text_opt(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::Text(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// As [`Metadata::u32_opt`], but the key must be there.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        required(key, self.u32_opt(key)?)
    }

    /// As [`Metadata::f32_opt`], but the key must be there.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        required(key, self.f32_opt(key)?)
    }

    /// As [`Metadata::bool_opt`], but the key must be there.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        required(key, self.bool_opt(key)?)
    }

    /// As [`Metadata::text_opt`], but the key must be there.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        required(key, self.text_opt(key)?)
    }

    /// A list of texts.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn texts(&self, key: &str) -> Result<&[String], GgufError> {
        let read = self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::Text(v)) => Some(v.as_slice()),
            _ => None,
        })?;
        required(key, read)
    }

    /// A list of 32-bit signed numbers.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn i32s(&self, key: &str) -> Result<&[i32], GgufError> {
        let read = self.typed(key, "an array of i32", |value| match value {
            Value::Array(Array::I32(v)) => Some(v.as_slice()),
            _ => None,
        })?;
        required(key, read)
    }

    /// A list of 32-bit floating-point numbers.
    ///
    /// # Errors
    /// [`GgufError::KeyMissing`] or [`GgufError::KeyType`].
    pub fn f32s(&self, key: &str) -> Result<&[f32], GgufError> {
        let read = self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })?;
        required(key, read)
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::KeyMissing { key: key.to_owned() })
}
