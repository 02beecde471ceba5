//! Key summaries of sealed blocks. Tokens are lanes, as K is stored, so minima and maxima of a
//! token are those of a lane; what is packed from them is plain integers.

use half::f16;
use ids::BLOCK_TOKENS;

use super::HostDevice;
use crate::{
    device::Summarise,
    isa::for_each_isa,
    lanes::{LANES, Lanes, widened},
    slots::SlotArena,
    summary::{SummaryArena, SummaryKind},
};

pub(super) fn launch(
    device: &HostDevice,
    slots: &SlotArena,
    summaries: &SummaryArena,
    launch: Summarise<'_>,
) {
    let shape = summaries.shape();
    let slices = shape.columns();
    let Summarise { from, to } = launch;
    assert_eq!(from.len(), to.len() * slices, "a slot for each layer, KV head and unit");
    assert_eq!(slots.shape().head_dim, shape.head_dim, "the slots hold heads of another width");
    let read = slots.read();
    let slots = read.view();
    let keys = BLOCK_TOKENS * shape.head_dim;
    summaries.write(to, |unit, column, out| {
        let keys = slots.slot(from[unit * slices + column])[..keys].as_chunks().0;
        match shape.kind {
            SummaryKind::Int4 => int4(device.active, keys, out),
            SummaryKind::Int2 => int2(keys, out),
            SummaryKind::MinMax8 => min_max_8(keys, out),
        }
    });
}

for_each_isa! {
    /// `keys[dimension][token]`.
    fn int4 = int4_lanes(keys: &[[u16; LANES]], out: &mut [u32])
}

#[inline(always)]
fn int4_lanes<V: Lanes>(keys: &[[u16; LANES]], out: &mut [u32]) {
    let mut least = V::load_f16(&keys[0]);
    let mut most = least;
    // 0 times a number that is not finite is not a number; 0 otherwise.
    let mut spoiled = V::splat(0.0);
    for key in keys {
        let key = V::load_f16(key);
        least = least.min(key);
        most = most.max(key);
        spoiled = key.fma(V::splat(0.0), spoiled);
    }
    // What is stored is what codes are made with.
    let stored = |value: V| {
        let mut halves = [0; LANES];
        value.store_f16(&mut halves);
        (halves, V::load_f16(&halves))
    };
    let (minima, least) = stored(least.add(spoiled));
    let step = most.sub(least).mul(V::splat(1.0 / 15.0));
    let (scales, step) = stored(step);
    let (codes, tail) = out.split_at_mut(keys.len() / 8 * LANES);
    codes.fill(0);
    let mut values = [0.0; LANES];
    for (dimension, key) in keys.iter().enumerate() {
        let distance = V::load_f16(key).sub(least);
        // A step of 0 divides to a NaN or infinity, which become 0 and 15; all keys are equal then,
        // or too close for half precision.
        let code = V::splat(0.0).max(V::splat(15.0).min(distance.div(step)));
        code.nearest().0.store(&mut values);
        let (group, within) = (dimension / 8, dimension % 8);
        let shift = within % 4 * 8 + within / 4 * 4;
        for (word, value) in codes[group * LANES..][..LANES].iter_mut().zip(values) {
            *word |= (value as u32 & 15) << shift;
        }
    }
    store_halves(tail, scales.into_iter().chain(minima));
}

fn int2(keys: &[[u16; LANES]], out: &mut [u32]) {
    let (codes, tail) = out.split_at_mut(keys.len());
    let mut scales = Vec::with_capacity(keys.len());
    let mut minima = Vec::with_capacity(keys.len());
    for (word, key) in codes.iter_mut().zip(keys) {
        let key = key.map(widened);
        let (least, most) = range(&key);
        let least = f16::from_f32(least);
        let step = f16::from_f32((most - least.to_f32()) * (1.0 / 3.0));
        *word = 0;
        for (token, value) in key.into_iter().enumerate() {
            let code = ((value - least.to_f32()) / step.to_f32()).round_ties_even();
            // A NaN becomes 0.
            *word |= (code.clamp(0.0, 3.0) as u32) << (2 * token);
        }
        scales.push(step.to_bits());
        minima.push(least.to_bits());
    }
    store_halves(tail, scales.into_iter().chain(minima));
}

fn min_max_8(keys: &[[u16; LANES]], out: &mut [u32]) {
    let ranges: Vec<(f32, f32)> = keys.iter().map(|key| range(&key.map(widened))).collect();
    let all: Vec<f32> = ranges.iter().flat_map(|(least, most)| [*least, *most]).collect();
    let (least, most) = range(&all);
    let offset = towards(f16::from_f32(least), least, f16::from_bits(0xfc00));
    let step = f16::from_f32((most - offset.to_f32()) * (1.0 / 255.0));
    let step = towards(step, (most - offset.to_f32()) * (1.0 / 255.0), f16::INFINITY);
    let (offset_32, step_32) = (offset.to_f32(), step.to_f32());
    let d = keys.len();
    let mut bytes = vec![0u8; 2 * d];
    for (channel, (least, most)) in ranges.into_iter().enumerate() {
        // Rounded outward: what the codes say holds every key. A NaN becomes 0.
        let low = ((least - offset_32) / step_32).floor().clamp(0.0, 255.0);
        let high = ((most - offset_32) / step_32).ceil().clamp(0.0, 255.0);
        bytes[channel] = low as u8;
        bytes[d + channel] = high as u8;
    }
    let (codes, tail) = out.split_at_mut(d / 2);
    for (word, bytes) in codes.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    store_halves(tail, [offset.to_bits(), step.to_bits()].into_iter());
}

/// `half`, or its neighbour towards `limit` where rounding has moved it the other way from `exact`.
fn towards(half: f16, exact: f32, limit: f16) -> f16 {
    let down = limit.is_sign_negative();
    let value = half.to_f32();
    let right = if down { value <= exact } else { value >= exact };
    if right || !value.is_finite() {
        return half;
    }
    let bits = half.to_bits();
    let away_from_zero = half.is_sign_negative() == down;
    match (half == f16::ZERO, away_from_zero) {
        (true, _) => f16::from_bits(if down { 0x8001 } else { 1 }),
        (false, true) => f16::from_bits(bits + 1),
        (false, false) => f16::from_bits(bits - 1),
    }
}

/// The least and the largest; neither is a number when a value is not finite.
fn range(values: &[f32]) -> (f32, f32) {
    let mut range = (f32::INFINITY, f32::NEG_INFINITY);
    for &value in values {
        if !value.is_finite() {
            return (f32::NAN, f32::NAN);
        }
        range = (range.0.min(value), range.1.max(value));
    }
    range
}

/// Two to a word.
fn store_halves(out: &mut [u32], halves: impl Iterator<Item = u16>) {
    let mut halves = halves;
    for word in out {
        let low = u32::from(halves.next().unwrap_or(0));
        let high = u32::from(halves.next().unwrap_or(0));
        *word = low | high << 16;
    }
}
