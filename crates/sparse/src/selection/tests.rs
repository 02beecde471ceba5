//! The sets against a naive model of the rules, the bounds of P4, and the named cases.

use ids::{KvHeadIdx, LayerIdx};
use kv::Shape;
use proptest::prelude::*;

use super::model::Model;
use super::{Change, Limits, Pinned, Rows, Selection};
use crate::policy::{Policy, Predictor};

const ONE: Shape = Shape { layers: 1, heads: 1 };
const L0: LayerIdx = LayerIdx(0);
const H0: KvHeadIdx = KvHeadIdx(0);

fn policy(text: &str) -> Policy {
    format!("sparse:v1,guard=off,{text}").parse().unwrap()
}

/// 1 sink, 2 recent blocks (the open one and one more), 5 chosen ones.
const SMALL: &str = "budget=128,recent=16,slack=0";

fn rows<'a>(actual: &'a [f32], drafted: &'a [f32]) -> Rows<'a> {
    Rows { actual, drafted, late: &[] }
}

fn alone(policy: &Policy, blocks: u32, first: &[f32]) -> Selection {
    Selection::new(policy, ONE, blocks, |_, _| first)
}

/// Masses with a share for each named block and nothing elsewhere.
fn masses(blocks: usize, shares: &[(usize, f32)]) -> Vec<f32> {
    let mut mass = vec![0.0; blocks];
    for (block, share) in shares {
        mass[*block] = *share;
    }
    mass
}

#[test]
fn the_first_set_is_sinks_recent_and_the_best_of_the_rest() {
    let first = masses(20, &[(3, 0.1), (9, 0.3), (11, 0.1), (12, 0.2), (14, 0.1), (16, 0.1)]);
    let selection = alone(&policy(SMALL), 20, &first);
    // 3, 11, 14 and 16 have equal masses: the lowest three of them.
    assert_eq!(selection.attended(L0, H0), [0, 3, 9, 11, 12, 14, 18, 19]);
    assert!(!selection.is_complete());
}

#[test]
fn a_swap_needs_hysteresis_and_the_next_victim_is_asked() {
    let first = masses(20, &[(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.1), (5, 0.1)]);
    let mut selection = alone(&policy(SMALL), 20, &first);
    // 1 and 2 are wanted no longer; 1 is too good to leave for 10, 2 is not.
    let later =
        masses(20, &[(1, 0.5), (2, 0.3), (3, 0.9), (4, 0.9), (5, 0.9), (10, 0.6), (11, 0.55)]);
    selection.observe(L0, H0, &rows(&later, &[]));
    let change = selection.pending(L0, H0).clone();
    assert_eq!(change, Change { enter: vec![10], leave: vec![2] });
    assert_eq!(selection.attended(L0, H0), [0, 1, 2, 3, 4, 5, 18, 19], "not before the flip");
    selection.advance();
    assert_eq!(selection.attended(L0, H0), [0, 1, 3, 4, 5, 10, 18, 19]);
    assert!(selection.pending(L0, H0).is_empty());
}

#[test]
fn a_block_without_mass_displaces_nobody() {
    let first = masses(20, &[(10, 0.1), (11, 0.1), (12, 0.1), (13, 0.1), (14, 0.1)]);
    let mut selection = alone(&policy(SMALL), 20, &first);
    // Nothing has mass, so by index 1 to 5 are wanted and no member is.
    let nothing = [f32::NAN; 20];
    selection.observe(L0, H0, &rows(&nothing, &[]));
    assert!(selection.pending(L0, H0).is_empty());
    let mut change = Change::default();
    selection.repair(L0, H0, &nothing, &mut change);
    assert!(change.is_empty());
}

#[test]
fn growth_makes_the_least_useful_member_leave() {
    let first = masses(20, &[(1, 0.1), (2, 0.3), (3, 0.3), (4, 0.2), (5, 0.2), (18, 0.4)]);
    let mut selection = alone(&policy(SMALL), 20, &first);
    selection.grow(21);
    assert_eq!(selection.attended(L0, H0), [0, 2, 3, 4, 5, 18, 19, 20], "18 is an ordinary one");
    // Wanted are 2, 4, 9, and of those without mass 1 and 3: 5 and 18 are not, 5 is lower.
    selection.observe(L0, H0, &rows(&masses(20, &[(2, 0.1), (4, 0.1), (9, 0.1)]), &[]));
    selection.grow(22);
    assert_eq!(selection.attended(L0, H0), [0, 2, 3, 4, 18, 19, 20, 21]);
    // The plan was 9 for 5, which has left: 18 goes for it.
    selection.advance();
    assert_eq!(selection.attended(L0, H0), [0, 2, 3, 4, 9, 19, 20, 21]);
}

#[test]
fn while_everything_fits_everything_is_attended_and_then_the_wanted_stay() {
    // K is 8 blocks, the slack 4.
    let policy = policy("budget=128,recent=16,slack=64,prefetch=1");
    let mut selection = alone(&policy, 10, &[]);
    assert!(selection.is_complete() && !selection.wants_masses());
    selection.grow(11);
    assert!(selection.wants_masses(), "two blocks before the end");
    let late = masses(11, &[(2, 0.5), (3, 0.4), (4, 0.3), (5, 0.2), (6, 0.1)]);
    let mut change = Change::default();
    for blocks in 11..=12 {
        selection.grow(blocks);
        let all: Vec<u32> = (0..blocks).collect();
        assert_eq!(selection.attended(L0, H0), all);
        selection.repair(L0, H0, &late, &mut change);
        let observed = selection.observe(L0, H0, &rows(&late, &[]));
        assert!(change.is_empty() && selection.pending(L0, H0).is_empty());
        assert_eq!(observed.missed, 0.0);
        selection.advance();
    }
    selection.grow(13);
    assert_eq!(selection.attended(L0, H0), [0, 2, 3, 4, 5, 6, 11, 12]);
    assert!(!selection.is_complete());
}

#[test]
fn dense_attends_to_everything_for_ever() {
    let mut selection = alone(&Policy::dense(), 1, &[]);
    for blocks in [2, 100, 5_000] {
        selection.grow(blocks);
        assert_eq!(selection.observe(L0, H0, &rows(&vec![0.1; 5_000], &[])).missed, 0.0);
        selection.advance();
        assert_eq!(selection.attended(L0, H0).len(), blocks as usize);
        assert!(!selection.wants_masses() && !selection.wants_repair(false));
    }
}

#[test]
fn each_predictor_looks_at_its_own_rows() {
    let first = masses(20, &[(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.1), (5, 0.1)]);
    let kept = [(2, 0.1), (3, 0.1), (4, 0.1), (5, 0.1)];
    let actual = masses(20, &[&kept[..], &[(8, 0.2)]].concat());
    let drafted = masses(20, &[(9, 0.9)]);
    let check = |predictor: &str, planned: &[u32], repaired: &[u32]| {
        let text = format!("{SMALL},prefetch=1,repair=1,predictor={predictor}");
        let mut selection = alone(&policy(&text), 20, &first);
        selection.observe(L0, H0, &rows(&actual, &drafted));
        assert_eq!(selection.pending(L0, H0).enter, planned, "{predictor}");
        let mut change = Change::default();
        selection.repair(L0, H0, &actual, &mut change);
        assert_eq!(change.enter, repaired, "{predictor}");
        let asks = [selection.wants_repair(true), selection.wants_repair(false)];
        let expected = match predictor {
            "ondemand" | "oracle" => [true, true],
            "window" => [false, false],
            _ => [false, true],
        };
        assert_eq!(asks, expected, "{predictor}");
    };
    check("lookahead", &[9], &[8]);
    check("previous", &[8], &[8]);
    check("history", &[8], &[8]);
    check("ondemand", &[], &[8]);
    check("oracle", &[], &[8]);
    check("window", &[], &[]);
}

#[test]
fn window_holds_the_newest_blocks_and_oracle_the_best_at_once() {
    let mass = masses(40, &[(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.2), (5, 0.2)]);
    let mut window = alone(&policy(&format!("{SMALL},predictor=window")), 40, &mass);
    assert_eq!(window.attended(L0, H0), [0, 33, 34, 35, 36, 37, 38, 39]);
    window.grow(42);
    window.advance();
    assert_eq!(window.attended(L0, H0), [0, 35, 36, 37, 38, 39, 40, 41]);
    let mut oracle = alone(&policy(&format!("{SMALL},predictor=oracle")), 40, &mass);
    let other = masses(40, &[(11, 0.1), (12, 0.1), (13, 0.1), (14, 0.2), (15, 0.2)]);
    oracle.repair(L0, H0, &other, &mut Change::default());
    assert_eq!(oracle.attended(L0, H0), [0, 11, 12, 13, 14, 15, 38, 39]);
}

#[test]
fn p5_missed_mass_is_told_by_its_cause() {
    let first = masses(20, &[(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.1), (5, 0.1)]);
    let text = format!("{SMALL},prefetch=1,predictor=previous");
    let mut selection = alone(&policy(&text), 20, &first);
    // 8 and 9 are wanted, one of them may enter: 9 is held.
    let wants = masses(20, &[(8, 0.5), (9, 0.4)]);
    let observed = selection.observe(L0, H0, &rows(&wants, &[]));
    assert_eq!((observed.unpredicted, observed.missed), (observed.missed, 1.0));
    selection.advance();
    let mass = masses(20, &[(8, 0.25), (9, 0.5), (12, 0.125), (0, 0.125)]);
    let late = Rows { late: &[8, 8, 12, 99], ..rows(&mass, &[]) };
    let observed = selection.observe(L0, H0, &late);
    assert_eq!([observed.total, observed.missed], [1.0, 0.875]);
    let causes = [observed.late, observed.capped, observed.unpredicted];
    assert_eq!(causes, [0.25, 0.5, 0.125], "12 is not in the set, so it is not late");
}

#[test]
fn other_limits_hold_from_the_next_call_on() {
    let first: Vec<f32> = (0..40).map(|block| block as f32 / 1_000.0).collect();
    let text = format!("{SMALL},budget_max=256,prefetch=2");
    let mut selection = alone(&policy(&text), 40, &first);
    assert_eq!(selection.attended(L0, H0).len(), 8);
    selection.adopt(Limits { budget_blocks: 16, repair_blocks: 3 });
    assert_eq!(selection.attended(L0, H0).len(), 8, "room is filled by the steps");
    let mut change = Change::default();
    selection.repair(L0, H0, &first, &mut change);
    assert_eq!((change.enter.len(), change.leave.len()), (3, 0));
    selection.observe(L0, H0, &rows(&first, &[]));
    selection.advance();
    assert_eq!(selection.attended(L0, H0).len(), 13);
    selection.adopt(Limits { budget_blocks: 8, repair_blocks: 4 });
    assert_eq!(selection.attended(L0, H0), [0, 33, 34, 35, 36, 37, 38, 39]);
}

#[test]
fn pooled_budgets_follow_missed_mass_and_keep_their_total() {
    let shape = Shape { layers: 2, heads: 2 };
    let policy = policy("budget=256,recent=16,slack=0,budgets=pooled,predictor=previous");
    let spread = vec![1.0 / 200.0; 200];
    let sharp = masses(200, &[(0, 1.0)]);
    let mut selection = Selection::new(&policy, shape, 200, |_, _| &spread);
    let caps = |selection: &Selection| -> Vec<u32> {
        selection.columns.iter().map(|column| column.cap).collect()
    };
    for step in 1..=16 * 40 {
        for column in 0..4_u16 {
            let mass = if column == 1 { &spread } else { &sharp };
            selection.observe(LayerIdx(column / 2), KvHeadIdx(column % 2), &rows(mass, &[]));
        }
        selection.advance();
        assert_eq!(caps(&selection).iter().sum::<u32>(), 64, "the total stays");
        if step == 16 {
            assert_eq!(caps(&selection), [15, 17, 16, 16], "one block, ties to the lower column");
        }
    }
    // Three givers, each down to K/2; the taker would have 40 and stops at 2K.
    let end = caps(&selection);
    assert_eq!(end[1], 32);
    assert!(end.iter().all(|cap| (8..=32).contains(cap)), "{end:?}");
    assert_eq!(selection.attended(L0, KvHeadIdx(1)).len(), 32, "and the room is used");
    selection.adopt(Limits { budget_blocks: 20, repair_blocks: 4 });
    assert_eq!(caps(&selection).iter().sum::<u32>(), 80);
    selection.adopt(Limits { budget_blocks: 16, repair_blocks: 4 });
    assert_eq!(caps(&selection).iter().sum::<u32>(), 64);
}

/// A mass as kernels make it, or as a broken one would.
fn mass() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => (0u8..6).prop_map(|sixth| f32::from(sixth) / 6.0),
        4 => 0.0f32..1.0,
        1 => prop_oneof![
            Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(-1.0), Just(-0.0),
            Just(f32::MAX), Just(f32::MIN_POSITIVE / 4.0)
        ],
    ]
}

#[derive(Clone, Debug)]
struct Step {
    actual: Vec<f32>,
    drafted: Vec<Vec<f32>>,
    repairs: bool,
    observes: bool,
    grows: u32,
}

/// Masses of 40 blocks; a shorter sequence ignores the rest.
const LONGEST: usize = 40;

fn step() -> impl Strategy<Value = Step> {
    let row = || proptest::collection::vec(mass(), LONGEST);
    (row(), proptest::collection::vec(row(), 0..3), any::<bool>(), 0u8..8, 0u32..6).prop_map(
        |(actual, drafted, repairs, observes, grows)| Step {
            actual,
            drafted,
            repairs,
            observes: observes > 0,
            grows: grows.saturating_sub(3),
        },
    )
}

fn settings() -> impl Strategy<Value = Policy> {
    let pinned = (0u32..3, 0u32..40);
    let bounds = (0u32..5, 0u32..5, 1u32..6, 0u32..6);
    (0..Predictor::ALL.len(), pinned, bounds, any::<bool>()).prop_map(
        |(predictor, (sinks, recent), (prefetch, repair, more, slack), even)| {
            let budget = (sinks + recent.div_ceil(16) + 1 + more).max(5) * 16;
            let predictor = Predictor::ALL[predictor];
            let hysteresis = if even { "1/1" } else { "3/2" };
            policy(&format!(
                "predictor={predictor},budget={budget},prefetch={prefetch},repair={repair},\
                 sinks={sinks},recent={recent},slack={},hysteresis={hysteresis}",
                slack * 16
            ))
        },
    )
}

/// What must hold between any two calls.
fn check_set(selection: &Selection) {
    let policy = &selection.policy;
    let pinned = Pinned::of(policy, selection.blocks);
    let set = selection.attended(L0, H0);
    assert!(set.is_sorted_by(|a, b| a < b), "{set:?}");
    assert!(set.iter().all(|block| *block < selection.blocks));
    for block in (0..selection.blocks).filter(|block| pinned.holds(*block)) {
        assert!(set.contains(&block), "{block} is pinned");
    }
    if selection.is_complete() {
        assert_eq!(set.len(), selection.blocks as usize);
    } else {
        assert!(set.len() <= policy.budget_blocks() as usize);
    }
    assert!(selection.pending(L0, H0).enter.len() <= policy.prefetch_blocks as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// P1 and P4: sets, plans and repairs are those of the model after every call; what is pinned
    /// is in, K, C and R hold; no mass, number or not, panics.
    #[test]
    fn p1_p4_agrees_with_the_model(
        policy in settings(),
        blocks in 1u32..30,
        first in proptest::collection::vec(mass(), LONGEST),
        steps in proptest::collection::vec(step(), 0..12),
    ) {
        let sparse = policy.sparse().unwrap().clone();
        let mut selection = alone(&policy, blocks, &first);
        let mut model = Model::new(&sparse, blocks, &first);
        let mut change = Change::default();
        let mut blocks = blocks;
        for step in steps {
            if step.repairs {
                selection.repair(L0, H0, &step.actual, &mut change);
                let (enter, leave) = model.repair(&step.actual);
                prop_assert_eq!(&change.enter, &enter);
                prop_assert_eq!(&change.leave, &leave);
                let bounded = sparse.predictor != Predictor::Oracle;
                prop_assert!(!bounded || enter.len() <= sparse.repair_blocks as usize);
                check_set(&selection);
            }
            if step.observes {
                let flat = step.drafted.concat();
                let observed = selection.observe(L0, H0, &rows(&step.actual, &flat));
                let drafted: Vec<&[f32]> = step.drafted.iter().map(Vec::as_slice).collect();
                model.observe(&step.actual, &drafted);
                prop_assert!((0.0..=1.0).contains(&observed.missed));
                let causes = observed.unpredicted + observed.capped + observed.late;
                prop_assert!((causes - observed.missed).abs() < 1e-5, "{observed:?}");
                let enter: Vec<u32> = model.enter.keys().copied().collect();
                let leave: Vec<u32> = model.leave.iter().copied().collect();
                prop_assert_eq!(&selection.pending(L0, H0).enter, &enter);
                prop_assert_eq!(&selection.pending(L0, H0).leave, &leave);
            }
            blocks = (blocks + step.grows).min(LONGEST as u32);
            selection.grow(blocks);
            model.grow(blocks);
            check_set(&selection);
            selection.advance();
            model.advance();
            check_set(&selection);
            let set: Vec<u32> = model.set.keys().copied().collect();
            prop_assert_eq!(selection.attended(L0, H0), &set[..]);
        }
    }

    /// P1: a column is a function of its own masses; the order in which columns are scored, and
    /// what the others see, changes nothing.
    #[test]
    fn p1_other_columns_and_their_order_change_nothing(
        policy in settings(),
        first in proptest::collection::vec(mass(), LONGEST),
        steps in proptest::collection::vec((step(), step(), any::<bool>()), 1..8),
    ) {
        let pair = Shape { layers: 1, heads: 2 };
        let h1 = KvHeadIdx(1);
        let mut both = Selection::new(&policy, pair, 30, |_, _| &first);
        let mut single = alone(&policy, 30, &first);
        let (mut change, mut other) = (Change::default(), Change::default());
        for (mine, theirs, mine_first) in steps {
            let flat = mine.drafted.concat();
            if !mine_first {
                both.repair(L0, h1, &theirs.actual, &mut change);
            }
            both.repair(L0, H0, &mine.actual, &mut change);
            both.observe(L0, H0, &rows(&mine.actual, &flat));
            both.observe(L0, h1, &rows(&theirs.actual, &[]));
            single.repair(L0, H0, &mine.actual, &mut other);
            single.observe(L0, H0, &rows(&mine.actual, &flat));
            prop_assert_eq!(&change, &other);
            both.advance();
            single.advance();
            prop_assert_eq!(&both.columns[0], &single.columns[0]);
        }
    }

    /// With K larger than the context the selection path runs and the set is everything.
    #[test]
    fn with_k_above_the_context_all_is_attended(
        predictor in 0..Predictor::ALL.len(),
        steps in proptest::collection::vec(step(), 1..8),
    ) {
        let name = Predictor::ALL[predictor].name();
        let policy = policy(&format!("budget=640,slack=0,predictor={name}"));
        let mut selection = alone(&policy, 30, &[]);
        let mut blocks = 30;
        for step in steps {
            selection.repair(L0, H0, &step.actual, &mut Change::default());
            selection.observe(L0, H0, &rows(&step.actual, &step.drafted.concat()));
            blocks = (blocks + step.grows).min(40);
            selection.grow(blocks);
            selection.advance();
            let all: Vec<u32> = (0..blocks).collect();
            prop_assert_eq!(selection.attended(L0, H0), &all[..]);
        }
    }
}
