//! From bytes to state, or why not. The mirror of `write`.

use ids::TokenId;
use kv::Shape;

use super::bytes::Reader;
use super::{BLOCKS_MAX, HEAD, InvalidSnapshot, POLICY_BYTES_MAX, ROWS_MAX, State};
use crate::covered::Covered;
use crate::guard::{DECISIONS_MAX, Decision, Guard, LOWER_AFTER, LOWER_AFTER_MAX, Reason, Stage};
use crate::meter::{Meter, Tally};
use crate::policy::{Policy, Predictor};
use crate::selection::{Change, Column, Limits, Pinned, Scratch, Selection};

type Read<T> = Result<T, InvalidSnapshot>;

/// Unless `fine`, `what` cannot be.
fn check(fine: bool, what: &'static str) -> Read<()> {
    if fine { Ok(()) } else { Err(InvalidSnapshot::State { what }) }
}

pub(super) fn state(bytes: &[u8]) -> Read<State> {
    let rest = bytes.strip_prefix(&HEAD).ok_or(InvalidSnapshot::Head)?;
    let mut r = Reader(rest);
    let policy = policy(&mut r)?;
    let selection = selection(&mut r, &policy)?;
    let meter = meter(&mut r, selection.shape)?;
    let guard = guard(&mut r, &policy)?;
    let covered = covered(&mut r)?;
    if !r.0.is_empty() {
        return Err(InvalidSnapshot::Long { bytes: r.0.len() });
    }
    Ok(State { policy, selection, meter, guard, covered })
}

fn policy(r: &mut Reader<'_>) -> Read<Policy> {
    let len = usize::from(r.u16("policy")?);
    check(len <= POLICY_BYTES_MAX, "policy")?;
    let text = std::str::from_utf8(r.bytes(len, "policy")?)
        .map_err(|_| InvalidSnapshot::State { what: "policy" })?;
    let policy: Policy = text.parse().map_err(InvalidSnapshot::Policy)?;
    // One state, one snapshot: other spellings are not what a writer writes.
    check(policy.to_string() == text, "policy")?;
    Ok(policy)
}

fn flag(r: &mut Reader<'_>, what: &'static str) -> Read<bool> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(InvalidSnapshot::State { what }),
    }
}

fn selection(r: &mut Reader<'_>, policy: &Policy) -> Read<Selection> {
    let shape = Shape { layers: r.u16("layers")?, heads: r.u16("heads")? };
    let blocks = r.u32("blocks")?;
    check(blocks <= BLOCKS_MAX, "blocks")?;
    let step = r.u32("step")?;
    let complete = flag(r, "complete")?;
    let limits = Limits { budget_blocks: r.u32("budget")?, repair_blocks: r.u32("repair")? };
    let policy = policy.in_force();
    let lawful = policy.budget_blocks()..=policy.budget_blocks_max();
    check(lawful.contains(&limits.budget_blocks), "budget")?;
    let fits = blocks <= limits.budget_blocks.saturating_add(policy.slack_blocks());
    check(fits || !complete, "complete")?;
    let mut selection = Selection {
        policy,
        shape,
        blocks,
        step,
        complete,
        limits,
        columns: Vec::new(),
        scratch: Scratch::default(),
    };
    let mut total = 0_u64;
    for _ in 0..shape.slices() {
        // Each column takes bytes, so that a shape that is too large runs into the end.
        let column = column(r, &selection)?;
        total += u64::from(column.cap);
        selection.columns.push(column);
    }
    let goal = u64::from(limits.budget_blocks) * shape.slices() as u64;
    check(total == goal, "sum of budgets")?;
    Ok(selection)
}

fn column(r: &mut Reader<'_>, of: &Selection) -> Read<Column> {
    let column = Column {
        cap: r.u32("budget of a column")?,
        need: r.f32("need")?,
        blocks: r.list("set")?,
        selected: r.list("times of members")?,
        scores: r.floats("scores of members")?,
        pending: Change { enter: r.list("plan")?, leave: Vec::new() },
        pending_scores: r.floats("scores of the plan")?,
        held: Vec::new(),
        history: Vec::new(),
    };
    let leave = r.list("plan")?;
    let column = Column {
        pending: Change { leave, ..column.pending },
        held: r.list("held blocks")?,
        history: r.floats("history")?,
        ..column
    };
    check_column(&column, of)?;
    Ok(column)
}

fn check_column(column: &Column, of: &Selection) -> Read<()> {
    let [least, most] = of.share_bounds();
    let pooled = of.policy.budgets == crate::policy::Budgets::Pooled;
    let cap = column.cap;
    let lawful =
        if pooled { (least..=most).contains(&cap) } else { cap == of.limits.budget_blocks };
    check(lawful, "budget of a column")?;
    check(column.need <= 1.0, "need")?;
    let pinned = Pinned::of(&of.policy, of.blocks);
    let set = &column.blocks;
    check(ascends(set, of.blocks), "set")?;
    let size = set.len() as u64;
    let is_pinned = set.iter().filter(|block| pinned.holds(**block)).count() as u64;
    check(is_pinned == u64::from(pinned.count()), "set")?;
    let whole = size == u64::from(of.blocks);
    check(if of.complete { whole } else { size <= u64::from(cap) }, "set")?;
    let members = column.selected.len() == set.len() && column.scores.len() == set.len();
    check(members && column.selected.iter().all(|at| *at <= of.step), "times of members")?;
    let Change { enter, leave } = &column.pending;
    check(ascends(enter, of.blocks) && column.pending_scores.len() == enter.len(), "plan")?;
    check(ascends(leave, of.blocks), "plan")?;
    check(!leave.iter().any(|block| pinned.holds(*block)), "plan")?;
    check(!of.complete || column.pending.is_empty(), "plan")?;
    check(ascends(&column.held, of.blocks), "held blocks")?;
    let keeps = of.policy.predictor == Predictor::History;
    let history = column.history.len() as u64;
    check(history <= u64::from(of.blocks) && (keeps || history == 0), "history")
}

/// Whether each index is above the one before it and below `blocks`.
fn ascends(list: &[u32], blocks: u32) -> bool {
    list.is_sorted_by(|a, b| a < b) && list.last().is_none_or(|last| *last < blocks)
}

fn meter(r: &mut Reader<'_>, shape: Shape) -> Read<Meter> {
    let mut meter = Meter::new(shape);
    meter.now = tally(r)?;
    meter.last = r.f32("mean of the last step")?;
    meter.decayed = r.f32("missed mass")?;
    check(meter.last <= 1.0 && meter.decayed <= 1.0, "missed mass")?;
    for group in &mut meter.groups {
        *group = tally(r)?;
    }
    let totals = &mut meter.totals;
    for count in [&mut totals.observed, &mut totals.steps, &mut totals.unknown] {
        *count = r.u64("counts of the meter")?;
        // Far beyond any request, and far from where adding could go wrong.
        check(*count <= 1 << 48, "counts of the meter")?;
    }
    let Masses { missed, unpredicted, capped, late } = masses(r)?;
    (totals.missed, totals.unpredicted) = (missed, unpredicted);
    (totals.capped, totals.late) = (capped, late);
    Ok(meter)
}

struct Masses {
    missed: f64,
    unpredicted: f64,
    capped: f64,
    late: f64,
}

fn masses(r: &mut Reader<'_>) -> Read<Masses> {
    let what = "sums of the meter";
    Ok(Masses {
        missed: r.f64(what)?,
        unpredicted: r.f64(what)?,
        capped: r.f64(what)?,
        late: r.f64(what)?,
    })
}

fn tally(r: &mut Reader<'_>) -> Read<Tally> {
    let tally = Tally { missed: r.f64("a tally")?, count: r.u64("a tally")? };
    check(tally.count <= 1 << 48, "a tally")?;
    Ok(tally)
}

fn stage(r: &mut Reader<'_>) -> Read<Stage> {
    let what = "stage";
    let number = usize::from(r.u8(what)?);
    Stage::ALL.get(number).copied().ok_or(InvalidSnapshot::State { what })
}

fn guard(r: &mut Reader<'_>, policy: &Policy) -> Read<Guard> {
    let mut guard = Guard::new(policy);
    guard.stage = stage(r)?;
    guard.above = r.u32("guard")?;
    guard.below = r.u32("guard")?;
    guard.patience = r.u32("guard")?;
    check((LOWER_AFTER..=LOWER_AFTER_MAX).contains(&guard.patience), "guard")?;
    guard.relapses = flag(r, "guard")?;
    guard.decided = r.u64("decisions")?;
    check(guard.decided <= 1 << 48, "decisions")?;
    let count = r.u32("decisions")? as usize;
    check(count <= DECISIONS_MAX && count as u64 <= guard.decided, "decisions")?;
    for _ in 0..count {
        let (step, from, to) = (r.u32("decisions")?, stage(r)?, stage(r)?);
        let recovered = flag(r, "decisions")?;
        let permille = r.u16("decisions")?;
        let reason =
            if recovered { Reason::Recovered { permille } } else { Reason::Missed { permille } };
        guard.decisions.push_back(Decision { step, from, to, reason });
    }
    Ok(guard)
}

fn covered(r: &mut Reader<'_>) -> Read<Covered> {
    let first = r.u32("covered rows")?;
    let rows = r.list("covered rows")?;
    check(rows.len() <= ROWS_MAX, "covered rows")?;
    Ok(Covered { first, rows: rows.into_iter().map(TokenId).collect() })
}
