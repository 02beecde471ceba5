//! What one column costs: `observe`, and `observe` with `repair`, over contexts and budgets.
//!
//! Prints the median of many rounds over 90 columns; nothing is asserted.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::disallowed_types, reason = "a benchmark reads the clock")]
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::Instant;

use ids::{KvHeadIdx, LayerIdx};
use kv::Shape;
use sparse::{Change, Policy, Rows, Selection};

const SHAPE: Shape = Shape { layers: 30, heads: 3 };
const ROUNDS: usize = 200;

/// Masses that look like attention: few large ones, drifting with the round.
fn masses(blocks: u32, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32
    };
    let raw: Vec<f32> = (0..blocks).map(|_| draw().powi(8)).collect();
    let sum: f32 = raw.iter().sum();
    raw.iter().map(|mass| mass / sum).collect()
}

fn median(mut nanos: Vec<u128>) -> f64 {
    nanos.sort_unstable();
    nanos[nanos.len() / 2] as f64 / 1e3 / SHAPE.slices() as f64
}

fn main() {
    println!(
        "{:>7} {:>7} {:>6} {:>16} {:>16}",
        "blocks", "budget", "rows", "observe us", "repair us"
    );
    for (blocks, budget) in [(256, 512), (448, 512), (448, 2048), (1_024, 512), (2_048, 2_048)] {
        for drafted in [0, 1, 4] {
            let text = format!("sparse:v1,budget={budget}");
            let policy: Policy = text.parse().expect("the text is a policy");
            let pool: Vec<Vec<f32>> = (0..8).map(|seed| masses(blocks, seed)).collect();
            let flat: Vec<f32> = (0..drafted).flat_map(|d| pool[d + 2].clone()).collect();
            let mut selection = Selection::new(&policy, SHAPE, blocks, |_, _| &pool[0]);
            let mut change = Change::default();
            let (mut observing, mut repairing) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let actual = &pool[round % pool.len()];
                let start = Instant::now();
                for (layer, head) in columns() {
                    selection.repair(layer, head, actual, &mut change);
                }
                repairing.push(start.elapsed().as_nanos());
                let rows = Rows { actual, drafted: &flat, late: &[] };
                let start = Instant::now();
                for (layer, head) in columns() {
                    std::hint::black_box(selection.observe(layer, head, &rows));
                }
                observing.push(start.elapsed().as_nanos());
                selection.advance();
            }
            let (observe, repair) = (median(observing), median(repairing));
            println!("{blocks:>7} {budget:>7} {:>6} {observe:>16.2} {repair:>16.2}", drafted + 1);
        }
    }
}

fn columns() -> impl Iterator<Item = (LayerIdx, KvHeadIdx)> {
    let heads = SHAPE.heads;
    (0..SHAPE.layers).flat_map(move |l| (0..heads).map(move |h| (LayerIdx(l), KvHeadIdx(h))))
}
