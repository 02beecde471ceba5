//! Fixed-size digests and the macro that gives each its own type.

use std::fmt;

/// A text that should have been lower-case hex of a fixed length.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected {expected} hex digits, got {text:?}")]
pub struct InvalidHex {
    /// How many hex digits the value has.
    pub expected: usize,
    /// What was given, cut to 80 characters.
    pub text: String,
}

/// Defines a digest newtype: bytes inside, lower-case hex outside.
macro_rules! digest {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::digest::write_hex(f, &self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "("))?;
                crate::digest::write_hex(f, &self.0[..6])?;
                f.write_str("..)")
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::InvalidHex;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut out = [0u8; $bytes];
                crate::digest::read_hex(text, &mut out)?;
                Ok(Self(out))
            }
        }
    };
}
pub(crate) use digest;

digest! {
    /// SHA-256 of the checkpoint file: two nodes with the same digest hold the same weights.
    ModelDigest, 32
}

digest! {
    /// Digest of a resolved KV policy (predictor, budgets, drafts, `late`): part of what P1 fixes.
    PolicyDigest, 16
}

pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

pub(crate) fn read_hex(text: &str, out: &mut [u8]) -> Result<(), InvalidHex> {
    let bad = || InvalidHex { expected: out.len() * 2, text: text.chars().take(80).collect() };
    let digits = text.as_bytes();
    if digits.len() != out.len() * 2 {
        return Err(bad());
    }
    let mut parsed = Vec::with_capacity(out.len());
    for pair in digits.chunks_exact(2) {
        let high = char::from(pair[0]).to_digit(16).ok_or_else(bad)?;
        let low = char::from(pair[1]).to_digit(16).ok_or_else(bad)?;
        parsed.push(u8::try_from(high * 16 + low).map_err(|_| bad())?);
    }
    out.copy_from_slice(&parsed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{InvalidHex, ModelDigest};

    #[test]
    fn hex_round_trips_and_bad_text_is_named() {
        let digest = ModelDigest(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(digest.to_string().parse::<ModelDigest>(), Ok(digest));
        let short = "abc".parse::<ModelDigest>();
        assert_eq!(short, Err(InvalidHex { expected: 64, text: "abc".into() }));
        let odd = "zz".repeat(32).parse::<ModelDigest>();
        assert!(odd.is_err(), "z is no hex digit");
        assert!("é".repeat(32).parse::<ModelDigest>().is_err(), "64 bytes, but not ASCII");
    }
}
