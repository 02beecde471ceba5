//! A rolling digest of every step's logits: how P1 is audited, bit for bit, across processes.

/// BLAKE3 over the little-endian bytes of all logits of all steps, in order.
pub struct LogitsDigest(blake3::Hasher);

impl Default for LogitsDigest {
    fn default() -> Self {
        Self(blake3::Hasher::new_derive_key("oasiskv 2026-11 logits digest v1"))
    }
}

impl LogitsDigest {
    /// Adds the logits of one step.
    pub fn update(&mut self, logits: &[f32]) {
        // A kibibyte at a time: hashing value by value would cost more than the step's sampling.
        let mut bytes = [0u8; 1024];
        for values in logits.chunks(bytes.len() / 4) {
            for (target, value) in bytes.chunks_exact_mut(4).zip(values) {
                target.copy_from_slice(&value.to_le_bytes());
            }
            self.0.update(&bytes[..values.len() * 4]);
        }
    }

    /// The digest of what was added so far.
    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::LogitsDigest;

    #[test]
    fn p1_digest_sees_every_bit_and_the_order_of_steps() {
        let digest = |steps: &[&[f32]]| {
            let mut digest = LogitsDigest::default();
            steps.iter().for_each(|step| digest.update(step));
            digest.finish()
        };
        let long: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut other = long.clone();
        other[999] = f32::from_bits(other[999].to_bits() ^ 1);
        assert_eq!(digest(&[&long]), digest(&[&long[..256], &long[256..]]));
        assert_ne!(digest(&[&long]), digest(&[&other]));
        assert_ne!(digest(&[&[0.0]]), digest(&[&[-0.0]]), "signs of zero count");
    }
}
