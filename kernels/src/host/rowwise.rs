//! Hot path. Kernels that touch each value once or twice: normalisation, rotation, gating,
//! adding, storing k and v. How rows are cut into tiles changes no bit.

#[cfg(test)]
mod tests;

use ids::BLOCK_TOKENS;

use super::{HostBuffer, HostDevice, pool::Shared};
use crate::{
    device::{KvWrite, RmsNorm},
    isa::for_each_isa,
    lanes::{LANES, Lanes},
    math,
    rope::RopeTable,
    slots::SlotArena,
};

/// Values that are worth a tile of their own: a few microseconds of work.
const TILE_VALUES: usize = 8192;

/// Rows of one tile.
fn tile_rows(width: usize) -> usize {
    (TILE_VALUES / width.max(1)).max(1)
}

pub(super) fn rms_norm(device: &HostDevice, launch: RmsNorm<'_, HostDevice>) {
    let RmsNorm { rows, x, gamma, eps, y } = launch;
    let gamma = gamma.as_slice();
    let width = gamma.len();
    let x = &x.as_slice()[..rows * width];
    let y = Shared::new(&mut y.as_mut_slice()[..rows * width]);
    let each = tile_rows(width);
    device.pool.run(rows.div_ceil(each), &|tile| {
        let first = tile * each;
        let count = each.min(rows - first);
        // SAFETY: tiles have different rows, and y is borrowed by this launch.
        let y = unsafe { y.part(first * width, count * width) };
        let x = &x[first * width..][..count * width];
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            normalise(device.active, x, gamma, eps, y);
        }
    });
}

for_each_isa! {
    fn normalise = normalise_lanes(x: &[f32], gamma: &[f32], eps: f32, y: &mut [f32])
}

#[inline(always)]
fn normalise_lanes<V: Lanes>(x: &[f32], gamma: &[f32], eps: f32, y: &mut [f32]) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut squares = V::splat(0.0);
    for chunk in chunks {
        let value = V::load(chunk);
        squares = value.fma(value, squares);
    }
    let mut tail = [0.0; LANES];
    tail[..rest.len()].copy_from_slice(rest);
    let value = V::load(&tail);
    let squares = value.fma(value, squares).sum();
    let factor = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    let (y_chunks, y_rest) = y.as_chunks_mut::<LANES>();
    let (gammas, gamma_rest) = gamma.as_chunks::<LANES>();
    for ((y, x), gamma) in y_chunks.iter_mut().zip(chunks).zip(gammas) {
        V::load(x).mul(V::splat(factor)).mul(V::load(gamma)).store(y);
    }
    for ((y, x), gamma) in y_rest.iter_mut().zip(rest).zip(gamma_rest) {
        *y = x * factor * gamma;
    }
}

pub(super) fn rope(
    device: &HostDevice,
    table: &RopeTable,
    heads: usize,
    positions: &[u32],
    x: &mut [f32],
) {
    let width = heads * table.spec().head_dim;
    let x = Shared::new(&mut x[..positions.len() * width]);
    let each = tile_rows(width);
    device.pool.run(positions.len().div_ceil(each), &|tile| {
        let first = tile * each;
        let positions = &positions[first..positions.len().min(first + each)];
        // SAFETY: tiles have different rows, and x is borrowed by this launch.
        let rows = unsafe { x.part(first * width, positions.len() * width) };
        for (row, &position) in rows.chunks_exact_mut(width).zip(positions) {
            table.rotate(row, position);
        }
    });
}

pub(super) fn silu_mul(device: &HostDevice, gate: &mut [f32], up: &[f32]) {
    let len = gate.len();
    let gate = Shared::new(gate);
    device.pool.run(len.div_ceil(TILE_VALUES), &|tile| {
        let first = tile * TILE_VALUES;
        let count = TILE_VALUES.min(len - first);
        // SAFETY: tiles have different values, and gate is borrowed by this launch.
        let gate = unsafe { gate.part(first, count) };
        gate_chunk(device.active, gate, &up[first..][..count]);
    });
}

for_each_isa! {
    fn gate_chunk = gate_lanes(gate: &mut [f32], up: &[f32])
}

#[inline(always)]
fn gate_lanes<V: Lanes>(gate: &mut [f32], up: &[f32]) {
    let (gates, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (ups, up_rest) = up.as_chunks::<LANES>();
    for (gate, up) in gates.iter_mut().zip(ups) {
        math::silu(V::load(gate)).mul(V::load(up)).store(gate);
    }
    let mut padded = [[0.0; LANES]; 2];
    padded[0][..gate_rest.len()].copy_from_slice(gate_rest);
    padded[1][..up_rest.len()].copy_from_slice(up_rest);
    let mut out = [0.0; LANES];
    math::silu(V::load(&padded[0])).mul(V::load(&padded[1])).store(&mut out);
    gate_rest.copy_from_slice(&out[..gate_rest.len()]);
}

pub(super) fn add(device: &HostDevice, x: &mut [f32], y: &[f32]) {
    let len = x.len();
    let x = Shared::new(x);
    device.pool.run(len.div_ceil(TILE_VALUES), &|tile| {
        let first = tile * TILE_VALUES;
        let count = TILE_VALUES.min(len - first);
        // SAFETY: tiles have different values, and x is borrowed by this launch.
        let x = unsafe { x.part(first, count) };
        for (x, y) in x.iter_mut().zip(&y[first..]) {
            *x += y;
        }
    });
}

pub(super) fn kv_write(device: &HostDevice, slots: &SlotArena, launch: KvWrite<'_, HostDevice>) {
    let KvWrite { kv_heads, k, v, slots: ids, positions } = launch;
    let mut slots = slots.write();
    let head_dim = slots.head_dim();
    let rows = positions.len();
    assert_eq!(ids.len(), rows * kv_heads, "kv_write takes one slot per row and KV head");
    let values = |buffer: &HostBuffer<f32>| buffer.len() >= rows * kv_heads * head_dim;
    assert!(values(k) && values(v), "kv_write of {rows} rows needs longer k and v");
    let k = k.as_slice().chunks_exact(head_dim);
    let v = v.as_slice().chunks_exact(head_dim);
    for (at, ((&id, k), v)) in ids.iter().zip(k).zip(v).enumerate() {
        let lane = positions[at / kv_heads] as usize % BLOCK_TOKENS;
        store_lane(device.active, slots.slot(id), lane, k, v);
    }
}

for_each_isa! {
    fn store_lane = store_lane_lanes(slot: &mut [u16], lane: usize, k: &[f32], v: &[f32])
}

#[inline(always)]
fn store_lane_lanes<V: Lanes>(slot: &mut [u16], lane: usize, k: &[f32], v: &[f32]) {
    let (keys, values) = slot.split_at_mut(BLOCK_TOKENS * k.len());
    let mut halves = [0; LANES];
    for (chunk, k) in k.as_chunks::<LANES>().0.iter().enumerate() {
        V::load(k).store_f16(&mut halves);
        for (inner, half) in halves.iter().enumerate() {
            keys[(chunk * LANES + inner) * BLOCK_TOKENS + lane] = *half;
        }
    }
    let row = &mut values[lane * v.len()..][..v.len()];
    for (to, v) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(v.as_chunks::<LANES>().0) {
        V::load(v).store_f16(to);
    }
}
