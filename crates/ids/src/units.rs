//! Units: bytes, moments and spans of time.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// The larger of "this minus other" and nothing.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for ByteCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self(0), Add::add)
    }
}

impl fmt::Display for ByteCount {
    /// Binary units with one decimal: `0 B`, `4.0 KiB`, `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

/// A point on the clock of whoever owns one, in nanoseconds since that clock's start.
///
/// Cores take it as a parameter, so that a simulator can own the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Add<Span> for Moment {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Moment {
    type Output = Span;
    /// Zero when `earlier` is in fact later.
    fn sub(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// From whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_millis(secs.saturating_mul(1_000))
    }

    /// In seconds, for metrics and ledgers.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteCount, Moment, Span};

    #[test]
    fn bytes_print_in_binary_units() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (4096, "4.0 KiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
    }

    #[test]
    fn moments_never_go_below_zero() {
        let early = Moment(5);
        let late = early + Span::from_millis(1);
        assert_eq!(late - early, Span(1_000_000));
        assert_eq!(early - late, Span(0));
    }
}
