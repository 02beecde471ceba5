//! Sampling against its definition: limits, frequencies, ties, keys, and equal answers on every
//! instruction set (P1).

use super::*;
use crate::isa::Isa;

fn isas() -> impl Iterator<Item = Active> {
    Isa::ALL.into_iter().filter_map(Isa::activate)
}

fn pick_one(logits: &[f32], sampling: Sampling, key: SampleKey) -> Sampled {
    let mut answers =
        isas().map(|active| choose(active, logits, &sampling, key, &mut Candidates::default()));
    let first = answers.next().unwrap();
    for other in answers {
        assert_eq!(first.token, other.token);
        assert_eq!(first.logprob.to_bits(), other.logprob.to_bits());
    }
    first
}

fn key(position: u32) -> SampleKey {
    SampleKey { seed: 42, choice: 0, position }
}

/// Scattered logits, a few of them equal.
fn logits(count: usize) -> Vec<f32> {
    (0..count).map(|id| ((id * 7919) % 1009) as f32 / 100.0).collect()
}

const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

#[test]
fn greedy_takes_the_best_and_of_equals_the_lowest_id() {
    let mut row = vec![0.0; 100];
    row[17] = 3.0;
    row[40] = 3.0;
    assert_eq!(pick_one(&row, Sampling::GREEDY, key(0)).token, 17);
    row[0] = f32::NAN;
    let chosen = pick_one(&row, Sampling::GREEDY, key(0));
    assert_eq!(chosen.token, 17);
    assert!(chosen.logprob.is_nan());
    assert_eq!(pick_one(&[f32::NAN; 3], PLAIN, key(0)).token, 0);
}

#[test]
fn the_coldest_temperatures_take_the_best() {
    let row = [0.5, 2.0, 1.999, -3.0];
    for temperature in [1e-4, 1e-20, f32::MIN_POSITIVE / 8.0] {
        let sampling = Sampling { temperature, ..PLAIN };
        for position in 0..20 {
            assert_eq!(pick_one(&row, sampling, key(position)).token, 1);
        }
    }
}

#[test]
fn logprob_is_that_of_the_whole_untempered_row() {
    let row = logits(5000);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
    for position in 0..20 {
        let sampling = Sampling { temperature: 0.7, top_k: 50, ..Sampling::GREEDY };
        let chosen = pick_one(&row, sampling, key(position));
        let want = f64::from(row[chosen.token as usize]) - sum.ln();
        assert!((f64::from(chosen.logprob) - want).abs() < 1e-5);
    }
}

#[test]
fn frequencies_follow_the_tempered_probabilities() {
    let row = [1.0_f32, 0.0, 2.0, -1.0];
    let sampling = Sampling { temperature: 0.8, ..PLAIN };
    let mut counts = [0.0; 4];
    let draws = 20_000;
    for position in 0..draws {
        counts[pick_one(&row, sampling, key(position)).token as usize] += 1.0;
    }
    let weights = row.map(|logit| (f64::from(logit) / 0.8).exp());
    let sum: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(weights) {
        let share = count / f64::from(draws);
        assert!((share - weight / sum).abs() < 0.012, "{share} {}", weight / sum);
    }
}

#[test]
fn top_k_top_p_and_min_p_keep_exactly_their_candidates() {
    let row = logits(3000);
    let mut order: Vec<usize> = (0..3000).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let weights: Vec<f64> =
        order.iter().map(|&id| (f64::from(row[id]) - f64::from(row[order[0]])).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut mass = 0.0;
    let nucleus = weights
        .iter()
        .take_while(|weight| {
            let inside = mass < 0.3 * total;
            mass += **weight;
            inside
        })
        .count();
    let relative = weights.iter().filter(|weight| **weight >= 0.9).count();
    for (sampling, kept) in [
        (Sampling { top_k: 5, ..PLAIN }, 5),
        (Sampling { top_p: 0.3, ..PLAIN }, nucleus),
        (Sampling { min_p: 0.9, ..PLAIN }, relative),
        (Sampling { top_k: 1, ..PLAIN }, 1),
        (Sampling { top_p: 1e-9, ..PLAIN }, 1),
    ] {
        let mut seen = vec![false; kept];
        for position in 0..(kept * 60) as u32 {
            let token = pick_one(&row, sampling, key(position)).token as usize;
            let rank = order.iter().position(|&id| id == token).unwrap();
            assert!(rank < kept, "{sampling:?}: rank {rank} of {kept}");
            seen[rank] = true;
        }
        let missed = seen.iter().filter(|seen| !**seen).count();
        assert!(missed <= kept / 20, "{sampling:?}: {missed} of {kept} never drawn");
    }
}

#[test]
fn limits_that_cut_nothing_off_give_the_same_tokens_as_none() {
    let row = logits(2000);
    for position in 0..200 {
        let plain = pick_one(&row, PLAIN, key(position));
        for sampling in [Sampling { top_k: 2000, ..PLAIN }, Sampling { top_k: 5000, ..PLAIN }] {
            assert_eq!(pick_one(&row, sampling, key(position)), plain);
        }
    }
}

#[test]
fn p1_the_random_number_is_a_function_of_seed_choice_and_position() {
    let base = SampleKey { seed: 1, choice: 0, position: 5 };
    assert_eq!(base.uniform().to_bits(), base.uniform().to_bits());
    let others = [
        SampleKey { seed: 2, ..base },
        SampleKey { choice: 1, ..base },
        SampleKey { position: 6, ..base },
        SampleKey { seed: 1 << 40, ..base },
    ];
    for other in others {
        assert!((0.0..1.0).contains(&other.uniform()));
        assert!((other.uniform() - base.uniform()).abs() > 1e-9);
    }
    // A value of its own: a change of generator must change NUMERICS_CLASS too.
    assert_eq!(base.uniform().to_bits(), GOLDEN_UNIFORM);
}

const GOLDEN_UNIFORM: u64 = 4_604_525_769_901_387_162;

#[test]
fn a_row_full_of_infinities_still_gives_a_token() {
    for bad in [f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(pick_one(&[bad; 40], PLAIN, key(0)).token, 0);
    }
    let mut row = vec![f32::NEG_INFINITY; 1000];
    row[700] = 1.0;
    for position in 0..50 {
        assert_eq!(pick_one(&row, PLAIN, key(position)).token, 700);
        let all = Sampling { top_k: 1000, top_p: 0.99, ..PLAIN };
        assert_eq!(pick_one(&row, all, key(position)).token, 700);
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    for (sampling, field) in [
        (Sampling { temperature: -0.1, ..PLAIN }, "temperature"),
        (Sampling { temperature: f32::NAN, ..PLAIN }, "temperature"),
        (Sampling { temperature: f32::INFINITY, ..PLAIN }, "temperature"),
        (Sampling { top_p: 0.0, ..PLAIN }, "top_p"),
        (Sampling { top_p: 1.5, ..PLAIN }, "top_p"),
        (Sampling { min_p: 2.0, ..PLAIN }, "min_p"),
    ] {
        assert!(sampling.check().unwrap_err().to_string().contains(field));
    }
    assert_eq!(PLAIN.check(), Ok(PLAIN));
}
