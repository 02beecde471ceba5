//! Snapshots round trip, runs go on from them as if nothing had happened, hostile bytes are errors.

use ids::{KvHeadIdx, LayerIdx, Position, TokenId};
use kv::Shape;
use proptest::prelude::*;

use super::{InvalidSnapshot, State};
use crate::meter::Attended;
use crate::policy::{Policy, Predictor};
use crate::selection::{Change, Rows};

const SHAPE: Shape = Shape { layers: 2, heads: 2 };

/// Masses that depend on everything that a column's masses may depend on.
fn masses(seed: u32, blocks: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut draw = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as f32 / 65_536.0 / blocks as f32
    };
    (0..blocks).map(&mut draw).collect()
}

fn start(text: &str, blocks: u32) -> State {
    let policy: Policy = text.parse().unwrap();
    let first = masses(7, blocks);
    State::new(policy, SHAPE, blocks, |_, _| &first)
}

/// One step as the engine takes it.
fn step(state: &mut State, seed: u32) {
    let blocks = state.selection.blocks();
    let mut change = Change::default();
    for column in 0..4_u16 {
        let (layer, head) = (LayerIdx(column / 2), KvHeadIdx(column % 2));
        let actual = masses(seed * 8 + u32::from(column), blocks);
        let drafted = masses(seed * 8 + u32::from(column) + 4, blocks);
        if state.selection.wants_repair(seed.is_multiple_of(2)) {
            state.selection.repair(layer, head, &actual, &mut change);
        }
        let rows = Rows { actual: &actual, drafted: &drafted, late: &[] };
        let observed = state.selection.observe(layer, head, &rows);
        state.meter.record(layer, &observed, Attended::Set);
    }
    let rows = [TokenId(seed), TokenId(seed + 1)];
    state.covered.turn(Position(seed), &rows, 1, TokenId(seed + 1));
    state.end_step(blocks + u32::from(seed.is_multiple_of(4)));
}

fn texts() -> Vec<String> {
    let all = Predictor::ALL.iter().flat_map(|predictor| {
        ["equal", "pooled"].map(|budgets| {
            format!(
                "sparse:v1,predictor={predictor},budgets={budgets},budget=256,budget_max=320,\
                 recent=32,slack=128,guard=50/20"
            )
        })
    });
    all.chain(["dense:v1".to_owned()]).collect()
}

#[test]
fn p1_a_run_goes_on_from_its_snapshot_as_if_nothing_had_happened() {
    for text in texts() {
        let mut state = start(&text, 22);
        for seed in 1..60 {
            step(&mut state, seed);
            let bytes = state.to_bytes();
            let mut again = State::from_bytes(&bytes).unwrap();
            assert_eq!(again, state, "{text}, step {seed}");
            assert_eq!(again.to_bytes(), bytes);
            let mut state = state.clone();
            step(&mut state, seed + 1);
            step(&mut again, seed + 1);
            assert_eq!(again, state, "{text}, one step after {seed}");
        }
        let moved = state.guard.decided() > 0;
        assert_eq!(moved, text != "dense:v1", "{text}: the guard was to be part of it");
    }
}

#[test]
fn p7_a_cut_a_longer_and_a_foreign_snapshot_are_errors() {
    let mut state = start(&texts()[0], 40);
    step(&mut state, 1);
    let bytes = state.to_bytes();
    for end in 0..bytes.len() {
        let error = State::from_bytes(&bytes[..end]).unwrap_err();
        let short = matches!(error, InvalidSnapshot::Short { .. } | InvalidSnapshot::Head);
        assert!(short, "cut at {end}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(State::from_bytes(&longer), Err(InvalidSnapshot::Long { bytes: 1 }));
    let mut other = bytes;
    other[7] += 1;
    assert_eq!(State::from_bytes(&other), Err(InvalidSnapshot::Head));
}

#[test]
fn p7_a_state_that_no_calls_lead_to_is_refused() {
    type Break = fn(&mut State);
    let breaks: [(&'static str, Break); 17] = [
        ("set", |s| s.selection.columns[0].blocks.swap(1, 2)),
        ("set", |s| s.selection.columns[3].blocks[0] = 1),
        ("blocks", |s| s.selection.blocks = 1 << 21),
        ("budget of a column", |s| s.selection.columns[0].cap = 1_000),
        ("complete", |s| s.selection.complete = true),
        ("budget", |s| s.selection.limits.budget_blocks = 21),
        ("sum of budgets", |s| s.selection.columns[0].cap += 1),
        ("times of members", |s| s.selection.columns[0].selected[0] = 99),
        ("times of members", |s| s.selection.columns[0].scores.truncate(1)),
        ("scores of members", |s| s.selection.columns[0].scores[0] = f32::NAN),
        ("plan", |s| s.selection.columns[0].pending.leave = vec![5, 3]),
        ("plan", |s| s.selection.columns[0].pending.leave = vec![0]),
        ("plan", |s| s.selection.columns[0].pending.enter = vec![40]),
        ("held blocks", |s| s.selection.columns[0].held = vec![3, 3]),
        ("history", |s| s.selection.columns[0].history = vec![0.5]),
        ("need", |s| s.selection.columns[0].need = 2.0),
        ("guard", |s| s.guard.patience = 0),
    ];
    for (what, break_it) in breaks {
        let mut state =
            start("sparse:v1,budgets=pooled,budget=256,budget_max=320,recent=32,slack=0", 40);
        break_it(&mut state);
        let error = State::from_bytes(&state.to_bytes()).unwrap_err();
        assert_eq!(error, InvalidSnapshot::State { what });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Changed bytes are an error or a state that runs on; never a panic, never much memory.
    #[test]
    fn p7_changed_bytes_are_an_error_or_a_state_that_runs(
        which in 0..13usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        steps in 1u32..6,
    ) {
        let mut state = start(&texts()[which], 40);
        for seed in 0..steps {
            step(&mut state, seed);
        }
        let mut bytes = state.to_bytes();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Ok(mut state) = State::from_bytes(&bytes)
            && state.selection.shape == SHAPE
            && state.selection.blocks() < 1_000
            && state.selection.step() < 1_000_000
        {
            for seed in 10..14 {
                step(&mut state, seed);
            }
        }
    }
}
