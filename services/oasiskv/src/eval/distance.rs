//! How far two lists of next-token distributions are apart.

use ids::TokenId;

/// Natural logarithms of probabilities, position after position.
#[derive(Debug, Default)]
pub(crate) struct LogProbabilities(Vec<Vec<f32>>);

impl LogProbabilities {
    pub(crate) fn push(&mut self, logits: &[f32]) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let shift = f64::from(largest) + sum.ln();
        self.0.push(logits.iter().map(|logit| (f64::from(*logit) - shift) as f32).collect());
    }
}

/// Of each position behind the first.
#[derive(Debug)]
pub(crate) struct Distances {
    /// KL from dense decode, in nats, ascending.
    kl: Vec<f64>,
    agreeing: usize,
    surprise: f64,
    dense_surprise: f64,
}

impl Distances {
    /// `text` is what stands at the positions.
    ///
    /// # Panics
    /// When the lists are not as long as the text.
    pub(crate) fn between(
        dense: &LogProbabilities,
        other: &LogProbabilities,
        text: &[TokenId],
    ) -> Self {
        assert_eq!(
            (dense.0.len(), other.0.len()),
            (text.len(), text.len()),
            "a list for each token"
        );
        let mut distances =
            Self { kl: Vec::new(), agreeing: 0, surprise: 0.0, dense_surprise: 0.0 };
        // The first one is prefill's, the same for all.
        for ((dense, other), token) in dense.0.iter().zip(&other.0).zip(text).skip(1) {
            distances.kl.push(kl(dense, other));
            distances.agreeing += usize::from(largest(dense) == largest(other));
            distances.surprise -= f64::from(other[token.0 as usize]);
            distances.dense_surprise -= f64::from(dense[token.0 as usize]);
        }
        distances.kl.sort_by(f64::total_cmp);
        distances
    }

    fn count(&self) -> f64 {
        self.kl.len().max(1) as f64
    }

    pub(crate) fn mean(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.count()
    }

    /// The smallest value that so many of a hundred positions do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.kl.len() * percent).div_ceil(100).max(1);
        self.kl.get(rank - 1).copied().unwrap_or(0.0)
    }

    pub(crate) fn agreement(&self) -> f64 {
        self.agreeing as f64 / self.count()
    }

    pub(crate) fn perplexity(&self) -> f64 {
        (self.surprise / self.count()).exp()
    }

    pub(crate) fn dense_perplexity(&self) -> f64 {
        (self.dense_surprise / self.count()).exp()
    }
}

fn kl(from: &[f32], to: &[f32]) -> f64 {
    let terms = from.iter().zip(to).map(|(from, to)| {
        let (from, to) = (f64::from(*from), f64::from(*to));
        from.exp() * (from - to)
    });
    terms.sum()
}

fn largest(values: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (index, value) in values.iter().enumerate() {
        if best.is_none_or(|(_, most)| *value > most) {
            best = Some((index, *value));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_perplexity_and_percentiles_are_those_of_the_book() {
        let (mut a, mut b) = (LogProbabilities::default(), LogProbabilities::default());
        for step in 0..=100u8 {
            a.push(&[0.0, 0.0]);
            b.push(&[0.0, f32::from(step) * 3.0f32.ln() / 100.0]);
        }
        let text = vec![TokenId(0); 101];
        let distances = Distances::between(&a, &b, &text);
        // Even odds against 1 to 3.
        let farthest = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((distances.percentile(100) - farthest).abs() < 1e-6);
        assert!(distances.percentile(99) < distances.percentile(100));
        assert!((distances.dense_perplexity() - 2.0).abs() < 1e-6);
        assert!(distances.perplexity() > 2.0 && distances.mean() > 0.0);
        let same = Distances::between(&a, &a, &text);
        assert_eq!((same.mean(), same.agreement()), (0.0, 1.0));
    }
}
