//! Choosing a token from a row of logits. A pure function of the logits, the settings and the
//! key: candidates are always ordered by falling logit and then rising id, and the random number
//! is that of (seed, choice, position). Penalties, biases and grammars are not here.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::{
    isa::{Active, for_each_isa},
    lanes::{LANES, Lanes},
    math,
};

/// How to choose.
///
/// All limits cut the same ordered list, in this order: the first `top_k`; of those, the shortest
/// prefix with at least `top_p` of their mass; of those, the ones with at least `min_p` of the
/// best one's probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best token; otherwise logits are divided by it.
    pub temperature: f32,
    /// Most candidates; 0 is no limit.
    pub top_k: u32,
    /// Mass of the candidates, above 0 up to 1.
    pub top_p: f32,
    /// Least probability relative to the best candidate, 0 to 1.
    pub min_p: f32,
}

/// A setting is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// Negative, not a number or so large that all tokens are alike.
    #[error("temperature {value} is out of range; it must lie between 0 and 100")]
    Temperature {
        /// What was asked for.
        value: f32,
    },
    /// Not a share of the mass.
    #[error("top_p {value} is out of range; it must be above 0 and at most 1")]
    TopP {
        /// What was asked for.
        value: f32,
    },
    /// Not a share of the best.
    #[error("min_p {value} is out of range; it must lie between 0 and 1")]
    MinP {
        /// What was asked for.
        value: f32,
    },
}

impl Sampling {
    /// Always the best token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Checks the ranges; what comes from a request is to be checked once.
    ///
    /// # Errors
    /// Names the first setting that is out of range.
    pub fn check(self) -> Result<Self, SamplingError> {
        if !(0.0..=100.0).contains(&self.temperature) {
            return Err(SamplingError::Temperature { value: self.temperature });
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(SamplingError::TopP { value: self.top_p });
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(SamplingError::MinP { value: self.min_p });
        }
        Ok(self)
    }
}

/// Which random number a sample uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey {
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's `n` choices.
    pub choice: u32,
    /// Position of the token to be chosen.
    pub position: u32,
}

impl SampleKey {
    /// Uniform in [0, 1), 53 bits: block `position` of ChaCha8 stream `choice` under the seed.
    fn uniform(self) -> f64 {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(u64::from(self.choice));
        rng.set_word_pos(u128::from(self.position) * 16);
        (rng.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its id: the index of its logit.
    pub token: u32,
    /// Natural logarithm of its probability under the logits as they are: temperature 1, no
    /// limits. NaN when the logits hold one.
    pub logprob: f32,
}

/// Scratch of one stream: the weights of all tokens and the candidates in order.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    order: Vec<u32>,
    weights: Vec<f64>,
}

/// Colder than this is as this: the inverse stays finite and nothing but ties is left.
const COLDEST: f32 = 1e-6;

/// The first ordered prefix that is looked at; it grows eightfold while it is too short.
const PREFIX: usize = 64;

pub(crate) fn choose(
    active: Active,
    logits: &[f32],
    sampling: &Sampling,
    key: SampleKey,
    scratch: &mut Candidates,
) -> Sampled {
    assert!(!logits.is_empty() && logits.len() <= u32::MAX as usize, "one logit per token");
    let best = argmax(logits);
    let token = if sampling.temperature > 0.0 && logits[best as usize].is_finite() {
        draw(active, logits, best, sampling, key.uniform(), scratch)
    } else {
        best
    };
    let mass = exponential_sum(active, logits, logits[best as usize], 1.0);
    let distance = f64::from(logits[token as usize]) - f64::from(logits[best as usize]);
    let logprob = if mass.is_finite() && mass > 0.0 {
        (distance - math::ln(f64::from(mass))) as f32
    } else {
        f32::NAN
    };
    Sampled { token, logprob }
}

/// The largest logit, of equal ones the lowest id. A NaN is never larger.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0 as u32
}

for_each_isa! {
    /// Sum over tokens of e^((logit - best) * factor), over 16 lanes.
    fn exponential_sum = exponential_sum_lanes(logits: &[f32], best: f32, factor: f32) -> f32
}

#[inline(always)]
fn exponential_sum_lanes<V: Lanes>(logits: &[f32], best: f32, factor: f32) -> f32 {
    let (best, factor) = (V::splat(best), V::splat(factor));
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut sum = V::splat(0.0);
    for chunk in chunks {
        sum = sum.add(math::exp(V::load(chunk).sub(best).mul(factor)));
    }
    let mut tail = [f32::NEG_INFINITY; LANES];
    tail[..rest.len()].copy_from_slice(rest);
    sum.add(math::exp(V::load(&tail).sub(best).mul(factor))).sum()
}

/// Weight of a token relative to the best one.
fn weight(logits: &[f32], id: u32, best: f32, factor: f32) -> f64 {
    let mut one = [0.0; LANES];
    let x = (logits[id as usize] - best) * factor;
    math::exp(crate::lanes::PortableLanes::splat(x)).store(&mut one);
    f64::from(one[0])
}

fn falling(logits: &[f32], a: u32, b: u32) -> Ordering {
    let (x, y) = (logits[a as usize], logits[b as usize]);
    // Logits without NaN compare; a NaN goes last, so that it is a candidate of last resort.
    let x = if x.is_nan() { f32::NEG_INFINITY } else { x };
    let y = if y.is_nan() { f32::NEG_INFINITY } else { y };
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// Draws from the candidates that the limits leave.
fn draw(
    active: Active,
    logits: &[f32],
    best: u32,
    sampling: &Sampling,
    uniform: f64,
    scratch: &mut Candidates,
) -> u32 {
    let best_logit = logits[best as usize];
    let factor = 1.0 / sampling.temperature.max(COLDEST);
    let limit = match sampling.top_k {
        0 => logits.len(),
        top_k => logits.len().min(top_k as usize),
    };
    let Candidates { order, weights } = scratch;
    order.clear();
    order.extend(0..logits.len() as u32);
    let all = f64::from(exponential_sum(active, logits, best_logit, factor));
    let mut sorted = 0;
    weights.clear();
    // With a top_k the mass is that of its candidates, so all of them are needed at once.
    let mut wanted = if limit < logits.len() { limit } else { PREFIX.min(limit) };
    loop {
        sort_prefix(logits, order, sorted, wanted);
        for &id in &order[sorted..wanted] {
            weights.push(weight(logits, id, best_logit, factor));
        }
        sorted = wanted;
        let mass = if limit < logits.len() { weights.iter().sum() } else { all };
        if let Some(at) = pick(weights, mass, sorted == limit, sampling, uniform) {
            return order[at];
        }
        wanted = (sorted * 8).min(limit);
    }
}

/// Brings the candidates of `sorted..wanted` into order behind those that already are.
fn sort_prefix(logits: &[f32], order: &mut [u32], sorted: usize, wanted: usize) {
    let rest = &mut order[sorted..];
    let count = wanted - sorted;
    if count < rest.len() {
        rest.select_nth_unstable_by(count, |&a, &b| falling(logits, a, b));
    }
    rest[..count].sort_unstable_by(|&a, &b| falling(logits, a, b));
}

/// The index of the drawn candidate, or `None` when the ordered prefix is too short to know.
fn pick(
    weights: &[f64],
    mass: f64,
    complete: bool,
    sampling: &Sampling,
    uniform: f64,
) -> Option<usize> {
    let top_p = f64::from(sampling.top_p);
    let min_weight = f64::from(sampling.min_p);
    let mut kept = 0.0;
    let mut count = None;
    for (at, &weight) in weights.iter().enumerate() {
        if at > 0 && (weight < min_weight || (top_p < 1.0 && kept >= top_p * mass)) {
            count = Some(at);
            break;
        }
        kept += weight;
    }
    let unlimited = top_p >= 1.0 && min_weight == 0.0;
    let (count, kept) = match count {
        Some(count) => (count, kept),
        None if complete => (weights.len(), kept),
        // Nothing is cut off, so the whole mass is known without the whole order.
        None if unlimited => (weights.len(), mass),
        None => return None,
    };
    let mut below = 0.0;
    for (at, &weight) in weights[..count].iter().enumerate() {
        below += weight;
        if below > uniform * kept {
            return Some(at);
        }
    }
    // Only rounding can lead here when the list is complete: the last one with any weight.
    let closed = complete || count < weights.len() || !unlimited;
    closed.then(|| weights[..count].iter().rposition(|&weight| weight > 0.0).unwrap_or(0))
}
