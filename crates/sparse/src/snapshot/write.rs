//! From state to bytes. Every field in the order of its struct; `read` is its mirror.

use super::bytes::Writer;
use super::{HEAD, State};
use crate::covered::Covered;
use crate::guard::{Guard, Reason};
use crate::meter::{Meter, Tally};
use crate::selection::{Column, Selection};

pub(super) fn state(state: &State) -> Vec<u8> {
    let mut w = Writer(HEAD.to_vec());
    let text = state.policy.to_string();
    // At most 512 bytes: a longer text would not be read as a policy.
    w.u16(text.len() as u16);
    w.0.extend_from_slice(text.as_bytes());
    selection(&mut w, &state.selection);
    meter(&mut w, &state.meter);
    guard(&mut w, &state.guard);
    covered(&mut w, &state.covered);
    w.0
}

fn selection(w: &mut Writer, selection: &Selection) {
    w.u16(selection.shape.layers);
    w.u16(selection.shape.heads);
    w.u32(selection.blocks);
    w.u32(selection.step);
    w.u8(u8::from(selection.complete));
    w.u32(selection.limits.budget_blocks);
    w.u32(selection.limits.repair_blocks);
    selection.columns.iter().for_each(|it| column(w, it));
}

fn column(w: &mut Writer, column: &Column) {
    w.u32(column.cap);
    w.f32(column.need);
    w.list(&column.blocks);
    w.list(&column.selected);
    w.floats(&column.scores);
    w.list(&column.pending.enter);
    w.floats(&column.pending_scores);
    w.list(&column.pending.leave);
    w.list(&column.held);
    w.floats(&column.history);
}

fn meter(w: &mut Writer, meter: &Meter) {
    tally(w, meter.now);
    w.f32(meter.last);
    w.f32(meter.decayed);
    meter.groups.iter().for_each(|group| tally(w, *group));
    let totals = &meter.totals;
    for count in [totals.observed, totals.steps, totals.unknown] {
        w.u64(count);
    }
    for mass in [totals.missed, totals.unpredicted, totals.capped, totals.late] {
        w.f64(mass);
    }
}

fn tally(w: &mut Writer, tally: Tally) {
    w.f64(tally.missed);
    w.u64(tally.count);
}

fn guard(w: &mut Writer, guard: &Guard) {
    w.u8(guard.stage as u8);
    w.u32(guard.above);
    w.u32(guard.below);
    w.u32(guard.patience);
    w.u8(u8::from(guard.relapses));
    w.u64(guard.decided);
    w.u32(guard.decisions.len() as u32);
    for decision in &guard.decisions {
        w.u32(decision.step);
        w.u8(decision.from as u8);
        w.u8(decision.to as u8);
        let (kind, permille) = match decision.reason {
            Reason::Missed { permille } => (0, permille),
            Reason::Recovered { permille } => (1, permille),
        };
        w.u8(kind);
        w.u16(permille);
    }
}

fn covered(w: &mut Writer, covered: &Covered) {
    w.u32(covered.first);
    w.u32(covered.rows.len() as u32);
    covered.rows.iter().for_each(|token| w.u32(token.0));
}
