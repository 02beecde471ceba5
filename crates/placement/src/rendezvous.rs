//! Rendezvous hashing: for each key every node has a rank of its own, so that equal candidates
//! share a burst instead of all losing to the same first one (case 44).

use ids::{NodeId, SessionId};

/// The rank of `node` for the `index`-th choice of a session. A function of its arguments alone.
pub(crate) fn rank(session: SessionId, index: u32, node: &NodeId) -> u64 {
    let bytes = session.0.to_be_bytes();
    let (high, low) = bytes.split_at(8);
    let words = [high, low].map(|half| half.iter().fold(0, |word, b| (word << 8) | u64::from(*b)));
    let seed = words.into_iter().chain([u64::from(index)]).fold(0, step);
    node.as_str().bytes().map(u64::from).fold(seed, step)
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood 2014) over the running value.
fn step(state: u64, word: u64) -> u64 {
    let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
