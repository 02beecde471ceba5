//! Rotary frequencies that were stretched after training, so that a model reads more positions
//! than it was first made for: the linear, llama3 and YaRN schemes.
//!
//! Formulas as in transformers' `modeling_rope_utils.py`, which model authors check against;
//! computed in f64 with our own functions, once per table. Schemes that change with the length of
//! a sequence (dynamic, longrope) are not here: a key's bits would depend on what follows it.

use super::RopeError;
use crate::math;

/// How frequencies are stretched. The numbers are those of config.json and of GGUF metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies are divided by `factor` (position interpolation).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original_context / low_freq_factor` are stretched by `factor`,
    /// those below `original_context / high_freq_factor` stay, with a slope between.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// At least 0, below `high_freq_factor`.
        low_freq_factor: f64,
        /// Above `low_freq_factor`.
        high_freq_factor: f64,
        /// Positions of the first training.
        original_context: u32,
    },
    /// YaRN (arXiv 2309.00071): pairs that turn more than `beta_fast` times within the original
    /// context stay, those that turn less than `beta_slow` times are stretched, with a slope over
    /// the pairs between. Sines and cosines are multiplied by `attention`.
    Yarn(Yarn),
}

/// The numbers of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// At least 1.
    pub factor: f64,
    /// Positions of the first training.
    pub original_context: u32,
    /// 32 unless the model says otherwise.
    pub beta_fast: f64,
    /// 1 unless the model says otherwise; at most `beta_fast`.
    pub beta_slow: f64,
    /// Whether the ends of the slope are rounded to whole pairs, as usual.
    pub truncate: bool,
    /// Factor on sines and cosines, so its square is on the scores.
    pub attention: YarnAttention,
}

/// How large the factor on sines and cosines is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum YarnAttention {
    /// `0.1 ln(factor) + 1`, as the paper has it.
    Paper,
    /// `(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)`: `DeepSeek`'s form.
    Scales {
        /// Above 0.
        mscale: f64,
        /// Above 0.
        mscale_all_dim: f64,
    },
    /// This number.
    Given(f64),
}

/// Largest number that is taken for one of a real model; keeps every step below in range.
const NUMBER_MAX: f64 = 1e12;

impl RopeScaling {
    /// Stretches the frequencies of the pairs of a head; returns the factor on sines and cosines.
    pub(super) fn apply(self, theta: f64, frequencies: &mut [f64]) -> Result<f64, RopeError> {
        match self {
            Self::None => Ok(1.0),
            Self::Linear { factor } => {
                within("factor", factor, 1.0)?;
                frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
                Ok(1.0)
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                within("factor", factor, 1.0)?;
                within("low_freq_factor", low_freq_factor, 0.0)?;
                let width = high_freq_factor - low_freq_factor;
                within("high_freq_factor - low_freq_factor", width, 1e-6)?;
                within("original context", f64::from(original_context), 1.0)?;
                for frequency in frequencies {
                    let turns =
                        f64::from(original_context) * *frequency / (2.0 * std::f64::consts::PI);
                    // 1 where it turns often enough to stay, 0 where it is stretched in full.
                    let kept = ((turns - low_freq_factor) / width).clamp(0.0, 1.0);
                    *frequency = (1.0 - kept) * (*frequency / factor) + kept * *frequency;
                }
                Ok(1.0)
            }
            Self::Yarn(yarn) => yarn.apply(theta, frequencies),
        }
    }
}

impl Yarn {
    fn apply(self, theta: f64, frequencies: &mut [f64]) -> Result<f64, RopeError> {
        within("factor", self.factor, 1.0)?;
        within("beta_slow", self.beta_slow, 1e-6)?;
        within("beta_fast", self.beta_fast, self.beta_slow)?;
        within("original context", f64::from(self.original_context), 1.0)?;
        within("theta", theta, 1.0 + 1e-6)?;
        let attention = self.attention.factor(self.factor)?;
        let (low, high) = self.slope(theta, frequencies.len());
        for (pair, frequency) in frequencies.iter_mut().enumerate() {
            let stretched = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *frequency = (*frequency / self.factor) * stretched + *frequency * (1.0 - stretched);
        }
        Ok(attention)
    }

    /// The pairs between which the stretching sets in, `low < high`.
    fn slope(self, theta: f64, pairs: usize) -> (f64, f64) {
        let width = (2 * pairs) as f64;
        let pair_that_turns = |times: f64| {
            let wavelength = f64::from(self.original_context) / times;
            let ratio = math::ln(wavelength / (2.0 * std::f64::consts::PI)) / math::ln(theta);
            width * ratio / 2.0
        };
        let (low, high) = (pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        // The bound is the head's width and not its pairs, as in all published code.
        let (low, high) = (low.max(0.0), high.min(width - 1.0));
        (low, if high - low < 0.001 { low + 0.001 } else { high })
    }
}

impl YarnAttention {
    fn factor(self, stretch: f64) -> Result<f64, RopeError> {
        let scale = |mscale: f64| match stretch > 1.0 {
            true => 0.1 * mscale * math::ln(stretch) + 1.0,
            false => 1.0,
        };
        match self {
            Self::Paper => Ok(scale(1.0)),
            Self::Scales { mscale, mscale_all_dim } => {
                within("mscale", mscale, 0.0)?;
                within("mscale_all_dim", mscale_all_dim, 0.0)?;
                Ok(scale(mscale) / scale(mscale_all_dim))
            }
            Self::Given(factor) => {
                within("attention factor", factor, 1e-3)?;
                Ok(factor)
            }
        }
    }
}

fn within(field: &'static str, value: f64, least: f64) -> Result<(), RopeError> {
    // No range contains NaN.
    if (least..=NUMBER_MAX).contains(&value) {
        return Ok(());
    }
    Err(RopeError::Scaling { field, value, least })
}

#[cfg(test)]
mod tests;
