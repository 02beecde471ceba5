//! Logits of the real model against the committed reference (transformers, float32, on the
//! dequantised weights): see integration-tests/goldens.

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;

use super::host::{device, load, real_file};
use super::runner::Runner;

/// The reference's largest logits of every position, largest first, and what normalises them.
struct Golden {
    tokens: Vec<u32>,
    positions: usize,
    top: usize,
    ids: Vec<usize>,
    values: Vec<f64>,
    lse: Vec<f64>,
    /// Positions with all logits, in `full`.
    full_positions: Vec<usize>,
    full: Vec<f64>,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/goldens")
}

pub(crate) fn floats(name: &str) -> Vec<f64> {
    let bytes = std::fs::read(folder().join(name)).unwrap();
    let values = bytes.as_chunks::<4>().0.iter();
    values.map(|value| f64::from(f32::from_le_bytes(*value))).collect()
}

impl Golden {
    fn top(&self, position: usize) -> Top<'_> {
        let at = position * self.top..(position + 1) * self.top;
        Top { ids: &self.ids[at.clone()], values: &self.values[at], lse: self.lse[position] }
    }

    fn read() -> Self {
        let text = std::fs::read_to_string(folder().join("logits.json")).unwrap();
        let head: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let numbers = |name: &str| head[name].as_array().unwrap().iter().map(number).collect();
        let file = |name: &str| head["files"][name].as_str().unwrap().to_owned();
        let ids = std::fs::read(folder().join(file("top_ids"))).unwrap();
        let lse = std::fs::read(folder().join(file("lse"))).unwrap();
        let tokens: Vec<usize> = numbers("token_ids");
        Self {
            tokens: tokens.into_iter().map(|id| u32::try_from(id).unwrap()).collect(),
            positions: number(&head["n_positions"]),
            top: number(&head["top_k"]),
            ids: ids.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id).into()).collect(),
            values: floats(&file("top_values")),
            lse: lse.as_chunks().0.iter().map(|value| f64::from_le_bytes(*value)).collect(),
            full_positions: numbers("full_positions"),
            full: floats(&file("full")),
        }
    }
}

fn log_sum_exp(logits: &[f64]) -> f64 {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln()
}

/// The lowest id of the largest value, as greedy sampling chooses.
pub(crate) fn arg_max(logits: &[f64]) -> usize {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best
}

/// The largest logits of one position as the reference has them.
pub(crate) struct Top<'a> {
    pub(crate) ids: &'a [usize],
    pub(crate) values: &'a [f64],
    /// ln of the sum of exp over all logits.
    pub(crate) lse: f64,
}

/// KL from the reference to ours in nats, with all tokens beyond the reference's top as one.
pub(crate) fn kl_of_top(golden: &Top<'_>, ours: &[f64]) -> f64 {
    let norm = log_sum_exp(ours);
    let (mut kl, mut rest_theirs, mut rest_ours) = (0.0, 1.0, 1.0);
    for (id, value) in golden.ids.iter().zip(golden.values) {
        let (theirs, ours) = (value - golden.lse, ours[*id] - norm);
        kl += theirs.exp() * (theirs - ours);
        rest_theirs -= theirs.exp();
        rest_ours -= ours.exp();
    }
    if rest_theirs > 1e-9 && rest_ours > 1e-9 {
        kl += rest_theirs * (rest_theirs / rest_ours).ln();
    }
    kl
}

pub(crate) fn kl_of_all(theirs: &[f64], ours: &[f64]) -> f64 {
    let (norm_theirs, norm_ours) = (log_sum_exp(theirs), log_sum_exp(ours));
    let pairs = theirs.iter().zip(ours);
    pairs
        .map(|(theirs, ours)| {
            let (theirs, ours) = (theirs - norm_theirs, ours - norm_ours);
            theirs.exp() * (theirs - ours)
        })
        .sum()
}

/// Runs the golden text and holds the logits of every position against the reference.
pub(crate) fn check(checkpoint: &Checkpoint) {
    let golden = Golden::read();
    let mut runner = Runner::new(load(checkpoint, &device(2, None)), golden.positions, 128);
    let mut sequence = runner.sequence(golden.positions);
    let (mut same, mut kl, mut kl_max, mut full, mut full_count) = (0, 0.0, 0.0f64, 0.0, 0);
    let vocab = runner.model.spec().vocab as usize;
    for chunk in golden.tokens[..golden.positions].chunks(128) {
        let start = sequence.len();
        runner.step(&mut [(&mut sequence, chunk)]);
        for row in 0..chunk.len() {
            let position = start + row;
            let ours: Vec<f64> = runner.logits(row).into_iter().map(f64::from).collect();
            same += usize::from(arg_max(&ours) == golden.ids[position * golden.top]);
            let here = kl_of_top(&golden.top(position), &ours);
            kl += here;
            kl_max = kl_max.max(here);
            if let Some(at) = golden.full_positions.iter().position(|other| *other == position) {
                full += kl_of_all(&golden.full[at * vocab..(at + 1) * vocab], &ours);
                full_count += 1;
            }
        }
    }
    let positions = golden.positions;
    let mean = kl / positions as f64;
    let full = full / f64::from(full_count);
    println!("top-1 equal at {same} of {positions} positions; KL mean {mean:e}, max {kl_max:e}");
    println!("KL over the whole vocabulary at {full_count} positions: mean {full:e}");
    assert!(same * 100 >= positions * 99, "top-1 equal at {same} of {positions} only");
    assert!(mean <= 1e-3 && full <= 1e-3, "mean KL {mean:e} of the top, {full:e} of all");
}

#[test]
fn logits_agree_with_an_independent_implementation_over_512_positions() {
    let Some(checkpoint) = real_file() else { return };
    check(&checkpoint);
}
