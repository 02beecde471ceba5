//! Numbers from a seed: the golden samples need fixed ones, the round trips any.

/// `SplitMix64` (Steele, Lea, Flood 2014).
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In an inclusive range.
    pub(crate) fn within(&mut self, min: u64, max: u64) -> u64 {
        min + self.next() % (max - min + 1)
    }

    pub(crate) fn small(&mut self, max: u32) -> u32 {
        u32::try_from(self.within(0, max.into())).expect("at most a u32")
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[0])
    }

    /// In [0, 1).
    pub(crate) fn share(&mut self) -> f32 {
        self.small(9_999) as f32 / 10_000.0
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }

    pub(crate) fn list<T>(&mut self, max: u64, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.within(0, max)).map(|_| item(self)).collect()
    }
}
