//! Small damage to an input: bits, numbers, lengths, pieces of other inputs, known words.
//!
//! Deliberately blind: what coverage says is libFuzzer's to know. Deterministic from its dice.

/// Numbers that lengths and counts break at.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Longest piece that is copied or removed at once.
const PIECE_BYTES_MAX: usize = 64;

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let below = self.next().checked_rem(bound as u64).unwrap_or(0);
        usize::try_from(below).expect("less than a usize")
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

/// Damages `data` a few times, within `bytes_max`; `other` is an input to take pieces of.
pub fn mutate(
    data: &mut Vec<u8>,
    other: &[u8],
    words: &[&[u8]],
    bytes_max: usize,
    dice: &mut Dice,
) {
    for _ in 0..=dice.below(4) {
        once(data, other, words, dice);
    }
    data.truncate(bytes_max);
}

fn once(data: &mut Vec<u8>, other: &[u8], words: &[&[u8]], dice: &mut Dice) {
    let at = dice.below(data.len() + 1);
    match dice.below(9) {
        0 => with_byte(data, at, |byte, dice| byte ^ (1 << dice.below(8)), dice),
        1 => with_byte(data, at, |_, dice| dice.next().to_le_bytes()[0], dice),
        2 => with_byte(
            data,
            at,
            |byte, dice| byte.wrapping_add(dice.below(9) as u8).wrapping_sub(4),
            dice,
        ),
        3 => {
            let width = 1 << dice.below(4);
            let edge = EDGES[dice.below(EDGES.len())].wrapping_add(dice.below(3) as u64);
            let bytes = edge.to_le_bytes();
            overwrite(data, at, &bytes[..width]);
        }
        4 => {
            let end = (at + dice.below(PIECE_BYTES_MAX)).min(data.len());
            data.drain(at..end);
        }
        5 => {
            let end = (at + dice.below(PIECE_BYTES_MAX)).min(data.len());
            let piece = data[at..end].to_vec();
            let times = 1 + dice.below(4);
            data.splice(at..at, piece.repeat(times));
        }
        6 => {
            let from = dice.below(other.len() + 1);
            let end = (from + dice.below(PIECE_BYTES_MAX)).min(other.len());
            data.splice(at..at, other[from..end].iter().copied());
        }
        7 => {
            let word = dice.pick(words).copied().unwrap_or_default();
            data.splice(at..at, word.iter().copied());
        }
        _ => {
            let word = dice.pick(words).copied().unwrap_or_default();
            overwrite(data, at, word);
        }
    }
}

fn with_byte(data: &mut [u8], at: usize, change: impl Fn(u8, &mut Dice) -> u8, dice: &mut Dice) {
    if let Some(byte) = data.get_mut(at) {
        *byte = change(*byte, dice);
    }
}

fn overwrite(data: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in data[at..].iter_mut().zip(bytes) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::{Dice, mutate};

    #[test]
    fn the_same_dice_give_the_same_damage_within_the_bound() {
        let damaged = |seed| {
            let mut data = b"some input of a few words".to_vec();
            mutate(&mut data, b"another", &[b"word"], 30, &mut Dice(seed));
            data
        };
        let all: Vec<_> = (0..500).map(damaged).collect();
        assert_eq!(all, (0..500).map(damaged).collect::<Vec<_>>());
        assert!(all.iter().all(|data| data.len() <= 30));
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(distinct.len() > 400, "{} of 500 differ", distinct.len());
    }
}
