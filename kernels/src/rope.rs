//! Rotary positions: the table of sines and cosines, computed once with our own functions, and
//! the rotation of one row. A table covers all positions from the start; it never grows.

mod scaling;

pub use scaling::{RopeScaling, Yarn, YarnAttention};

use crate::math;

/// Which values are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `2i` and `2i + 1`: what llama GGUF files are permuted for.
    Interleaved,
    /// `i` and `i + width / 2`: NeoX, qwen2.
    Halves,
}

/// What a table is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which values are rotated together.
    pub style: RopeStyle,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading values of a head that are rotated; the rest stays.
    pub rotated: usize,
    /// The base of the frequencies, 10,000 in the first models.
    pub theta: f64,
    /// How the frequencies were stretched after training.
    pub scaling: RopeScaling,
    /// Positions `0..positions` can be asked for.
    pub positions: u32,
}

/// A table that cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// The rotated part is odd, empty or wider than the head.
    #[error(
        "rope dimension count {rotated} does not fit head_dim {head_dim}; it must be even, \
             positive and at most head_dim"
    )]
    Rotated {
        /// What was asked for.
        rotated: usize,
        /// The width of the head.
        head_dim: usize,
    },
    /// The base is no usable number.
    #[error("rope theta {theta} is out of range; it must lie between 1 and 1e12")]
    Theta {
        /// What was asked for.
        theta: f64,
    },
    /// A number of the scaling is out of range.
    #[error("rope scaling: {field} {value} is out of range; it must lie between {least} and 1e12")]
    Scaling {
        /// Which.
        field: &'static str,
        /// What was asked for.
        value: f64,
        /// The smallest that is taken.
        least: f64,
    },
    /// The divisors are not one for each pair.
    #[error("there are {found} rope frequency divisors, expected {expected}, one for each pair")]
    Divisors {
        /// How many there are.
        found: usize,
        /// Pairs of a head.
        expected: usize,
    },
    /// A divisor is no usable number.
    #[error("rope frequency divisor {at} is {value}; it must lie between 0.0625 and 1e12")]
    Divisor {
        /// Index of the pair.
        at: usize,
        /// What was asked for.
        value: f32,
    },
    /// A table of that many positions is refused.
    #[error("a context of {positions} positions is out of range; it must be 1 to 4,194,304")]
    Positions {
        /// What was asked for.
        positions: u32,
    },
}

/// Most positions of a table: its angles stay where `sin_cos` is exact.
const POSITIONS_MAX: u32 = 1 << 22;

/// Divisors from here on keep every angle where `sin_cos` is exact.
const DIVISOR_MIN: f32 = 0.0625;

/// Sines and cosines of every position, times the factor of the scaling.
#[derive(Debug)]
pub struct RopeTable {
    spec: RopeSpec,
    /// `[position][rotated / 2]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
}

impl RopeTable {
    /// Computes the table: position `p`, pair `i` turns by `p * theta^(-2i / rotated)`, stretched
    /// as the scaling says.
    ///
    /// # Errors
    /// When a field of the spec is out of range.
    pub fn try_new(spec: RopeSpec) -> Result<Self, RopeError> {
        Self::build(spec, None)
    }

    /// The same, with the frequency of each pair divided by a number of its own, before any
    /// scaling: how GGUF files store the llama3 scheme, as tensor `rope_freqs.weight`.
    ///
    /// # Errors
    /// When a field of the spec is out of range, or the divisors do not fit it.
    pub fn with_divisors(spec: RopeSpec, divisors: &[f32]) -> Result<Self, RopeError> {
        Self::build(spec, Some(divisors))
    }

    fn build(spec: RopeSpec, divisors: Option<&[f32]>) -> Result<Self, RopeError> {
        let RopeSpec { head_dim, rotated, theta, positions, .. } = spec;
        if rotated == 0 || rotated % 2 != 0 || rotated > head_dim {
            return Err(RopeError::Rotated { rotated, head_dim });
        }
        if !(1.0..=1e12).contains(&theta) {
            return Err(RopeError::Theta { theta });
        }
        if positions == 0 || positions > POSITIONS_MAX {
            return Err(RopeError::Positions { positions });
        }
        let pairs = rotated / 2;
        let step = math::ln(theta) / pairs as f64;
        let mut frequencies: Vec<f64> =
            (0..pairs).map(|pair| math::exp_f64(-(pair as f64) * step)).collect();
        if let Some(divisors) = divisors {
            divide(&mut frequencies, divisors)?;
        }
        let attention = spec.scaling.apply(theta, &mut frequencies)?;
        let mut turns = Vec::with_capacity(positions as usize * pairs);
        for position in 0..positions {
            for frequency in &frequencies {
                let (sine, cosine) = math::sin_cos(f64::from(position) * frequency);
                turns.push(((cosine * attention) as f32, (sine * attention) as f32));
            }
        }
        Ok(Self { spec, turns })
    }

    /// What it was made of.
    #[must_use]
    pub fn spec(&self) -> RopeSpec {
        self.spec
    }

    /// Rotates every head of a row in place.
    pub(crate) fn rotate(&self, row: &mut [f32], position: u32) {
        assert!(position < self.spec.positions, "position {position} is beyond the rope table");
        let pairs = self.spec.rotated / 2;
        let turns = &self.turns[position as usize * pairs..][..pairs];
        for head in row.chunks_exact_mut(self.spec.head_dim) {
            match self.spec.style {
                RopeStyle::Interleaved => {
                    for ([x, y], &turn) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                        (*x, *y) = rotate(*x, *y, turn);
                    }
                }
                RopeStyle::Halves => {
                    let (low, high) = head.split_at_mut(pairs);
                    for ((x, y), &turn) in low.iter_mut().zip(high).zip(turns) {
                        (*x, *y) = rotate(*x, *y, turn);
                    }
                }
            }
        }
    }
}

fn divide(frequencies: &mut [f64], divisors: &[f32]) -> Result<(), RopeError> {
    if divisors.len() != frequencies.len() {
        let (found, expected) = (divisors.len(), frequencies.len());
        return Err(RopeError::Divisors { found, expected });
    }
    for (at, (frequency, &value)) in frequencies.iter_mut().zip(divisors).enumerate() {
        if !(DIVISOR_MIN..=1e12).contains(&value) {
            return Err(RopeError::Divisor { at, value });
        }
        *frequency /= f64::from(value);
    }
    Ok(())
}

/// Each product and each sum rounded on its own, so that no machine may fuse them.
#[inline(always)]
fn rotate(x: f32, y: f32, (cosine, sine): (f32, f32)) -> (f32, f32) {
    (x * cosine - y * sine, x * sine + y * cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RopeSpec {
        RopeSpec {
            style: RopeStyle::Interleaved,
            head_dim: 64,
            rotated: 64,
            theta: 100_000.0,
            scaling: RopeScaling::None,
            positions: 2048,
        }
    }

    #[test]
    fn both_styles_rotate_by_the_angle_of_the_position() {
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            let table = RopeTable::try_new(RopeSpec { style, ..spec() }).unwrap();
            for position in [0, 1, 77, 2047_u32] {
                let row: Vec<f32> = (0..128).map(|i| (i as f32 * 0.37).sin()).collect();
                let mut turned = row.clone();
                table.rotate(&mut turned, position);
                for (at, &value) in turned.iter().enumerate() {
                    let (head, i) = (at / 64 * 64, at % 64);
                    let (pair, x, y, first) = match style {
                        RopeStyle::Interleaved => (i / 2, i & !1, i | 1, i % 2 == 0),
                        RopeStyle::Halves => (i % 32, i % 32, i % 32 + 32, i < 32),
                    };
                    let angle = f64::from(position) * 1e5_f64.powf(-2.0 * pair as f64 / 64.0);
                    let (x, y) = (f64::from(row[head + x]), f64::from(row[head + y]));
                    let want = if first {
                        x * angle.cos() - y * angle.sin()
                    } else {
                        x * angle.sin() + y * angle.cos()
                    };
                    assert!((f64::from(value) - want).abs() < 3e-7, "{style:?} {position} {at}");
                }
            }
        }
    }

    #[test]
    fn specs_out_of_range_are_refused_by_field() {
        let refused = |spec| RopeTable::try_new(spec).unwrap_err().to_string();
        assert!(refused(RopeSpec { rotated: 7, ..spec() }).contains("dimension count 7"));
        assert!(refused(RopeSpec { rotated: 66, ..spec() }).contains("66"));
        assert!(refused(RopeSpec { theta: f64::NAN, ..spec() }).contains("theta"));
        assert!(refused(RopeSpec { positions: 0, ..spec() }).contains("context of 0"));
        let divided =
            |divisors: &[f32]| RopeTable::with_divisors(spec(), divisors).unwrap_err().to_string();
        assert!(divided(&[1.0; 31]).contains("31 rope frequency divisors, expected 32"));
        let mut divisors = [1.0; 32];
        divisors[3] = f32::NAN;
        assert!(divided(&divisors).contains("divisor 3 is NaN"));
    }
}
