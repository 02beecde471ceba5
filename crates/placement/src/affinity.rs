//! Which prefill node has computed which blocks, as far as past plans tell. A wrong memory costs
//! a prefix hit, nothing else: prefill itself looks for its sealed prefix.

use std::collections::BTreeMap;

use ids::{BlockHash, Incarnation, NodeId};

/// How many nodes are remembered per block: a popular prefix may live on several.
const NODES_MAX: usize = 4;

/// How much of a prompt counts, in blocks: 16,384 tokens. A longer common prefix would choose the
/// same node, and an admission must not hold the view for long.
const PREFIX_MAX: usize = 1_024;

/// One start of a prefill node.
pub(crate) type Start = (NodeId, Incarnation);

#[derive(Debug)]
struct Known {
    /// When the block was last planned; the key into `by_use`.
    used: u64,
    /// Newest last.
    starts: Vec<Start>,
}

/// Remembers the most recently planned blocks.
#[derive(Debug)]
pub(crate) struct Affinity {
    blocks_max: usize,
    blocks: BTreeMap<BlockHash, Known>,
    by_use: BTreeMap<u64, BlockHash>,
    uses: u64,
}

impl Affinity {
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self { blocks_max, blocks: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// How many leading blocks of `hashes` each node has; nodes with none are left out.
    pub(crate) fn prefixes(&self, hashes: &[BlockHash]) -> BTreeMap<Start, u32> {
        let mut prefixes: BTreeMap<Start, u32> = BTreeMap::new();
        for (index, hash) in (0..).zip(hashes.iter().take(PREFIX_MAX)) {
            let starts = self.blocks.get(hash).map_or(&[][..], |known| &known.starts);
            let mut longer = false;
            for start in starts {
                let unbroken = prefixes.get(start).copied().unwrap_or(0) == index;
                if unbroken {
                    prefixes.insert(start.clone(), index + 1);
                    longer = true;
                }
            }
            if !longer {
                break;
            }
        }
        prefixes
    }

    /// The node is about to compute (or to reuse) these blocks.
    pub(crate) fn remember(&mut self, hashes: &[BlockHash], start: &Start) {
        // From the last to the first, so that the front of a prefix is the last to be forgotten.
        let counted = PREFIX_MAX.min(self.blocks_max);
        for hash in hashes.iter().take(counted).rev() {
            self.uses += 1;
            let fresh = Known { used: self.uses, starts: Vec::new() };
            let known = self.blocks.entry(*hash).or_insert(fresh);
            self.by_use.remove(&known.used);
            known.used = self.uses;
            self.by_use.insert(self.uses, *hash);
            known.starts.retain(|known| known.0 != start.0);
            known.starts.push(start.clone());
            if known.starts.len() > NODES_MAX {
                known.starts.remove(0);
            }
        }
        while self.blocks.len() > self.blocks_max {
            let Some((_, hash)) = self.by_use.pop_first() else {
                break;
            };
            self.blocks.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Affinity, Start};
    use ids::{BlockHash, Incarnation};

    fn hashes(of: std::ops::Range<u8>) -> Vec<BlockHash> {
        of.map(|byte| BlockHash([byte; 32])).collect()
    }

    fn start(name: &str) -> Start {
        (name.parse().unwrap(), Incarnation(1))
    }

    #[test]
    fn the_longest_unbroken_prefix_counts() {
        let mut affinity = Affinity::new(100);
        affinity.remember(&hashes(0..5), &start("a"));
        affinity.remember(&hashes(0..2), &start("b"));
        affinity.remember(&hashes(3..9), &start("b"));
        let found = affinity.prefixes(&hashes(0..9));
        assert_eq!(found.get(&start("a")), Some(&5));
        assert_eq!(found.get(&start("b")), Some(&2), "block 2 is missing there");
        assert!(affinity.prefixes(&hashes(20..30)).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_ends_of_prefixes_go_first_p4() {
        let mut affinity = Affinity::new(6);
        affinity.remember(&hashes(0..5), &start("a"));
        affinity.remember(&hashes(10..13), &start("a"));
        assert_eq!(affinity.blocks.len(), 6);
        assert_eq!(affinity.by_use.len(), 6);
        assert_eq!(affinity.prefixes(&hashes(0..5)).get(&start("a")), Some(&3));
        affinity.remember(&hashes(50..90), &start("a"));
        assert_eq!(affinity.blocks.len(), 6);
    }
}
