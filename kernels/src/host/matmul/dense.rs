//! Hot path. Panels of 16- and 32-bit weights times rows of f32: two chains of FMA per row and
//! output, over even and over odd inputs, added at the end.

use super::{DENSE_ROWS, Pass, Products};
use crate::{
    isa::for_each_isa,
    lanes::{LANES, Lanes},
};

for_each_isa! {
    pub(super) fn multiply_f16 = f16_lanes(
        panel: &[[u16; LANES]], pass: Pass<'_>, products: &mut [Products; DENSE_ROWS],
    )
}

for_each_isa! {
    pub(super) fn multiply_bf16 = bf16_lanes(
        panel: &[[u16; LANES]], pass: Pass<'_>, products: &mut [Products; DENSE_ROWS],
    )
}

for_each_isa! {
    pub(super) fn multiply_f32 = f32_lanes(
        panel: &[[f32; LANES]], pass: Pass<'_>, products: &mut [Products; DENSE_ROWS],
    )
}

/// How 16 weights become lanes.
trait Widen {
    type Stored;
    fn widen<V: Lanes>(stored: &Self::Stored) -> V;
}

struct Half;
struct Brain;
struct Single;

impl Widen for Half {
    type Stored = [u16; LANES];
    #[inline(always)]
    fn widen<V: Lanes>(stored: &[u16; LANES]) -> V {
        V::load_f16(stored)
    }
}

impl Widen for Brain {
    type Stored = [u16; LANES];
    #[inline(always)]
    fn widen<V: Lanes>(stored: &[u16; LANES]) -> V {
        V::load_bf16(stored)
    }
}

impl Widen for Single {
    type Stored = [f32; LANES];
    #[inline(always)]
    fn widen<V: Lanes>(stored: &[f32; LANES]) -> V {
        V::load(stored)
    }
}

#[inline(always)]
fn f16_lanes<V: Lanes>(
    panel: &[[u16; LANES]],
    pass: Pass<'_>,
    products: &mut [Products; DENSE_ROWS],
) {
    rows::<V, Half>(panel, pass, products);
}

#[inline(always)]
fn bf16_lanes<V: Lanes>(
    panel: &[[u16; LANES]],
    pass: Pass<'_>,
    products: &mut [Products; DENSE_ROWS],
) {
    rows::<V, Brain>(panel, pass, products);
}

#[inline(always)]
fn f32_lanes<V: Lanes>(
    panel: &[[f32; LANES]],
    pass: Pass<'_>,
    products: &mut [Products; DENSE_ROWS],
) {
    rows::<V, Single>(panel, pass, products);
}

/// How far ahead of its use a panel is asked for: a page, which the hardware does not cross.
const AHEAD_BYTES: usize = 4096;

#[inline(always)]
fn ask_for<T>(panel: &[T; 2]) {
    let at = panel.as_ptr().cast::<i8>().wrapping_add(AHEAD_BYTES);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction; it reads nothing and may be given any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _: *const i8 = at;
}

/// Eight rows at a time where there are registers for sixteen chains, else two, else one.
#[inline(always)]
fn rows<V: Lanes, W: Widen>(
    panel: &[W::Stored],
    pass: Pass<'_>,
    products: &mut [Products; DENSE_ROWS],
) {
    let mut row = 0;
    while row < pass.count {
        row += match pass.count - row {
            8.. if V::WIDE => tile::<V, W, 8>(panel, pass, row, products),
            4.. if V::WIDE => tile::<V, W, 4>(panel, pass, row, products),
            2.. => tile::<V, W, 2>(panel, pass, row, products),
            _ => tile::<V, W, 1>(panel, pass, row, products),
        };
    }
}

#[inline(always)]
fn tile<V: Lanes, W: Widen, const R: usize>(
    panel: &[W::Stored],
    pass: Pass<'_>,
    first: usize,
    products: &mut [Products; DENSE_ROWS],
) -> usize {
    let k = panel.len();
    let x: [&[f32]; R] =
        std::array::from_fn(|row| &pass.x[(pass.first_row + first + row) * k..][..k]);
    let mut even = [V::splat(0.0); R];
    let mut odd = [V::splat(0.0); R];
    let (pairs, rest) = panel.as_chunks::<2>();
    for (pair, both) in pairs.iter().enumerate() {
        ask_for(both);
        let [low, high] = both;
        let (low, high): (V, V) = (W::widen(low), W::widen(high));
        for row in 0..R {
            even[row] = low.fma(V::splat(x[row][2 * pair]), even[row]);
            odd[row] = high.fma(V::splat(x[row][2 * pair + 1]), odd[row]);
        }
    }
    if let [last] = rest {
        let last: V = W::widen(last);
        for row in 0..R {
            even[row] = last.fma(V::splat(x[row][k - 1]), even[row]);
        }
    }
    for row in 0..R {
        even[row].add(odd[row]).store(&mut products[first + row]);
    }
    R
}
