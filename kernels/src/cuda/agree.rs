//! How results of attention compare with the host's: the same bits where the numerics classes are
//! the same, else close. Used by the tests and by the check on a GPU, so that both mean the same.

use std::fmt;

use super::{NUMERICS_CLASS, TOLERANCE};

/// A comparison of two results of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Values compared.
    values: usize,
    /// Values with other bits. Two NaN count as equal: their payload is nobody's promise.
    others: usize,
    /// The largest error, relative to the largest value of its query; infinite when one of the
    /// two is NaN and the other is not.
    error_max: f32,
}

impl Agreement {
    /// Compares `[queries][head_dim]`.
    ///
    /// # Panics
    /// When the lengths differ.
    #[must_use]
    pub fn of(got: &[f32], want: &[f32], head_dim: usize) -> Self {
        assert_eq!(got.len(), want.len(), "results of one launch");
        let mut found = Self { values: want.len(), others: 0, error_max: 0.0 };
        for (got, want) in got.chunks(head_dim).zip(want.chunks(head_dim)) {
            let largest = want.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (got, want) in got.iter().zip(want) {
                if got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()) {
                    continue;
                }
                let error = (got - want).abs() / largest;
                found.others += 1;
                found.error_max =
                    found.error_max.max(if error.is_nan() { f32::INFINITY } else { error });
            }
        }
        found
    }

    /// Whether results may differ that much: not at all within one numerics class.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let one_class = NUMERICS_CLASS == crate::NUMERICS_CLASS;
        self.others == 0 || (!one_class && self.error_max <= TOLERANCE)
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values, others, error_max } = self;
        if *others == 0 {
            return f.write_str("same bits as the host");
        }
        write!(
            f,
            "{others} of {values} values differ, by {error_max:.1e} at most \
             (class {NUMERICS_CLASS}, the host's is {})",
            crate::NUMERICS_CLASS
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_other_bit_is_seen_and_its_size_is_told_relative_to_its_query() {
        let want = [1.0, -4.0, f32::NAN, 0.0];
        assert!(Agreement::of(&want, &want, 2).is_right());
        let mut got = want;
        got[0] = 1.0 + f32::EPSILON;
        let agreement = Agreement::of(&got, &want, 2);
        assert_eq!((agreement.others, agreement.error_max), (1, f32::EPSILON / 4.0));
        let one_class = NUMERICS_CLASS == crate::NUMERICS_CLASS;
        assert_eq!(agreement.is_right(), !one_class);
        got[2] = 0.0;
        assert!(!Agreement::of(&got, &want, 2).is_right());
        assert!(Agreement::of(&got, &want, 2).to_string().contains("2 of 4"));
    }
}
