//! Quantities as they are written in configuration: sizes ("64GiB") and spans of time ("250ms").
//! Both read the text they print. What it deliberately does not do: arithmetic beyond what a
//! configuration check needs, and calendar time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(test)]
mod tests;

const SIZE_UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    // Kubernetes writes quantities without the B.
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Units of a span in nanoseconds; those it prints with, smallest first, and then synonyms.
const SPAN_UNITS: [(&str, u64); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
    ("min", 60 * 1_000_000_000),
    ("sec", 1_000_000_000),
];

/// Why a quantity could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not start with a number.
    #[error("{text:?} is not {what}: write a number and a unit, such as {example}")]
    NotANumber {
        /// What was given.
        text: String,
        /// The kind of quantity that was wanted.
        what: &'static str,
        /// A text that would be read.
        example: &'static str,
    },
    /// The number is followed by no unit, or by one that is not known.
    #[error("{text:?} has {unit}: write one of {known}, such as {example}")]
    Unit {
        /// What was given.
        text: String,
        /// The unit as found, or "no unit".
        unit: String,
        /// The units that are known.
        known: &'static str,
        /// A text that would be read.
        example: &'static str,
    },
    /// The quantity has a fraction of the smallest unit, or passes 2^64 of it.
    #[error("{text:?} is out of range: write a whole number of {smallest} below 2^64")]
    Range {
        /// What was given.
        text: String,
        /// The smallest unit.
        smallest: &'static str,
    },
}

/// A number of bytes. Reads `64GiB`, `512MiB`, `64Gi`, `1.5GB`, `4096`; prints the largest binary
/// unit that is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// A size of so many bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of so many KiB. Saturates.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// A size of so many MiB. Saturates.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// A size of so many GiB. Saturates.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as an index type; saturates where `usize` is narrower.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// For people: one decimal of the largest unit that leaves a number of at least one, such as
    /// `22.6 GiB`. Does not read back to the same value; configuration prints with `Display`.
    #[must_use]
    pub fn approx(self) -> String {
        let unit = SIZE_UNITS[..5].iter().rev().find(|(_, scale)| self.0 >= *scale);
        match unit {
            None | Some((_, 1)) => format!("{} B", self.0),
            Some((name, scale)) => {
                // Tenths in integers: a float would round 2^64 - 1 up to the next unit.
                let tenths = u128::from(self.0) * 10 / u128::from(*scale);
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            }
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |scale: u64| self.0 != 0 && self.0.is_multiple_of(scale);
        let (unit, scale) =
            SIZE_UNITS[..5].iter().rev().find(|(_, scale)| exact(*scale)).unwrap_or(&SIZE_UNITS[0]);
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let quantity = Quantity::read(text, "a size", "\"512MiB\"")?;
        if quantity.unit.is_empty() {
            return quantity.scaled(text, 1, "bytes").map(Self);
        }
        match SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(quantity.unit)) {
            Some((_, scale)) => quantity.scaled(text, *scale, "bytes").map(Self),
            None => Err(UnitError::Unit {
                text: text.to_owned(),
                unit: format!("the unknown unit {:?}", quantity.unit),
                known: "B, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
                example: "\"512MiB\"",
            }),
        }
    }
}

/// A span of time, at most 584 years. Reads `250ms`, `10s`, `1.5h`; a bare number is refused
/// because readers disagree about its unit; prints the largest unit that is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// A span of so many milliseconds. Saturates.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// A span of so many seconds. Saturates.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Whether it is no time at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.duration()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let exact = |scale: u64| self.0.is_multiple_of(scale);
        let (unit, scale) =
            SPAN_UNITS[..7].iter().rev().find(|(_, scale)| exact(*scale)).unwrap_or(&SPAN_UNITS[0]);
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let quantity = Quantity::read(text, "a span of time", "\"250ms\"")?;
        match SPAN_UNITS.iter().find(|(name, _)| *name == quantity.unit) {
            Some((_, scale)) => quantity.scaled(text, *scale, "nanoseconds").map(Self),
            None => Err(UnitError::Unit {
                text: text.to_owned(),
                unit: match quantity.unit {
                    "" => "no unit".to_owned(),
                    unit => format!("the unknown unit {unit:?}"),
                },
                known: "ns, us, ms, s, m, h, d",
                example: "\"250ms\"",
            }),
        }
    }
}

/// A decimal number and the text after it.
struct Quantity<'a> {
    /// The digits with the point taken out.
    digits: u128,
    /// Ten to the number of digits after the point.
    divisor: u128,
    /// What follows the number, trimmed; empty if nothing does.
    unit: &'a str,
}

impl<'a> Quantity<'a> {
    fn read(text: &'a str, what: &'static str, example: &'static str) -> Result<Self, UnitError> {
        let not_a_number = || UnitError::NotANumber { text: shorten(text), what, example };
        let trimmed = text.trim();
        let end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits: String = whole.chars().chain(fraction.chars()).filter(|c| *c != '_').collect();
        // 2^64 has 20 digits; the cap keeps the arithmetic below inside u128.
        if whole.is_empty() || fraction.contains('.') || digits.len() > 24 {
            return Err(not_a_number());
        }
        let places = u32::try_from(fraction.chars().filter(|c| *c != '_').count())
            .expect("at most 24 digits were let through");
        Ok(Self {
            digits: digits.parse().map_err(|_| not_a_number())?,
            divisor: 10_u128.pow(places),
            unit: unit.trim(),
        })
    }

    fn scaled(&self, text: &str, scale: u64, smallest: &'static str) -> Result<u64, UnitError> {
        let range = || UnitError::Range { text: shorten(text), smallest };
        let product = self.digits.checked_mul(u128::from(scale)).ok_or_else(range)?;
        if !product.is_multiple_of(self.divisor) {
            return Err(range());
        }
        u64::try_from(product / self.divisor).map_err(|_| range())
    }
}

/// A bounded copy for error messages: the text comes from outside.
fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Reads what `FromStr` reads, and integers where the type allows bare numbers.
struct Text<T> {
    expecting: &'static str,
    integer: Option<fn(u64) -> T>,
}

impl<T: FromStr<Err = UnitError>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        match self.integer {
            Some(make) => Ok(make(n)),
            None => Err(E::invalid_type(de::Unexpected::Unsigned(n), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a size such as \"512MiB\"";
        deserializer.deserialize_any(Text { expecting, integer: Some(Self) })
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expecting = "a span of time with its unit, such as \"250ms\"";
        deserializer.deserialize_any(Text { expecting, integer: None })
    }
}
