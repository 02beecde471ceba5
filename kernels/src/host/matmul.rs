//! Hot path. Products of activation rows with packed weights.
//!
//! For 4- and 8-bit codes the activations of a row are quantised to 16 bits per block of 32
//! inputs, the products of a block are summed exactly in integers, and the blocks are accumulated
//! in f32 in their order. For 16- and 32-bit weights the products are accumulated in f32 in two
//! chains, even and odd inputs. Either way the result of a row and output has one arithmetic, for
//! every number of rows: tiles only decide how often a panel is read.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dense;
mod portable;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{HostDevice, pool::Shared};
use crate::{
    device::{Epilogue, Matmul},
    isa::{Active, Isa, for_each_isa},
    lanes::{LANES, Lanes},
    weight::{BLOCK, CodeForm, CodePanel, PackedWeight, WeightFormat},
};

/// Rows that one tile of the launch works on; their codes stay in the second-level cache.
const TILE_ROWS: usize = 64;
/// Most weights of one launch.
const OUTPUTS_MAX: usize = 4;
/// Rows that share one pass over a panel.
const PASS_ROWS: usize = 8;
/// Multiplications that are worth a tile of their own: some 5 microseconds.
const TILE_PRODUCTS: usize = 1 << 18;
/// Blocks with no magnitude above this are taken as zero, so that the inverse scale is finite.
const TINY: f32 = 1e-30;

/// The activations of a launch in 16 bits: codes, and per block the scale, the sum of the codes
/// and that sum times the scale. Grows only.
#[derive(Debug, Default)]
pub(super) struct QuantisedRows {
    codes: Vec<i16>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    scaled_sums: Vec<f32>,
}

/// One row of them.
#[derive(Clone, Copy, Default)]
struct QuantisedRow<'a> {
    /// `[k]`.
    codes: &'a [i16],
    /// `[k / 32]`.
    scales: &'a [f32],
    /// `[k / 32]`: sums of codes, for formats whose codes carry an offset.
    sums: &'a [i32],
    /// `[k / 32]`: the same in the activations' unit, for formats with minima.
    scaled_sums: &'a [f32],
}

impl QuantisedRows {
    fn row(&self, row: usize, k: usize) -> QuantisedRow<'_> {
        let blocks = k / BLOCK;
        let range = row * blocks..(row + 1) * blocks;
        QuantisedRow {
            codes: &self.codes[row * k..(row + 1) * k],
            scales: &self.scales[range.clone()],
            sums: &self.sums[range.clone()],
            scaled_sums: &self.scaled_sums[range],
        }
    }

    /// Quantises all rows.
    fn fill(&mut self, device: &HostDevice, x: &[f32], rows: usize, k: usize) {
        let blocks = k / BLOCK;
        grow(&mut self.codes, rows * k);
        grow(&mut self.scales, rows * blocks);
        grow(&mut self.sums, rows * blocks);
        grow(&mut self.scaled_sums, rows * blocks);
        let codes = Shared::new(&mut self.codes);
        let scales = Shared::new(&mut self.scales);
        let sums = Shared::new(&mut self.sums);
        let scaled = Shared::new(&mut self.scaled_sums);
        let each = (TILE_PRODUCTS / 16 / k).max(1);
        device.pool.run(rows.div_ceil(each), &|tile| {
            for row in tile * each..rows.min((tile + 1) * each) {
                // SAFETY: tiles have different rows; the vectors are borrowed here.
                let codes = unsafe { codes.part(row * k, k) };
                // SAFETY: as above.
                let scales = unsafe { scales.part(row * blocks, blocks) };
                // SAFETY: as above.
                let sums = unsafe { sums.part(row * blocks, blocks) };
                // SAFETY: as above.
                let scaled_sums = unsafe { scaled.part(row * blocks, blocks) };
                let to = RowMut { codes, scales, sums, scaled_sums };
                quantise(device.active, &x[row * k..][..k], to);
            }
        });
    }
}

fn grow<T: Clone + Default>(vec: &mut Vec<T>, len: usize) {
    if vec.len() < len {
        vec.resize(len, T::default());
    }
}

struct RowMut<'a> {
    codes: &'a mut [i16],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    scaled_sums: &'a mut [f32],
}

for_each_isa! {
    fn quantise = quantise_lanes(x: &[f32], to: RowMut<'_>)
}

/// scale = amax / 32767, code = x * (32767 / amax) to the nearest even. A block with an infinite
/// or NaN value gets a NaN scale, so that every product of its row is NaN.
#[inline(always)]
fn quantise_lanes<V: Lanes>(x: &[f32], to: RowMut<'_>) {
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(to.codes.as_chunks_mut::<BLOCK>().0);
    for (at, (x, codes)) in blocks.enumerate() {
        let [low, high] = halves(x).map(V::load);
        let (scale, inverse) = if low.all_finite() & high.all_finite() {
            let largest = low.abs().max(high.abs()).largest();
            if largest > TINY { (largest / 32767.0, 32767.0 / largest) } else { (0.0, 0.0) }
        } else {
            (f32::NAN, 0.0)
        };
        let (low_codes, high_codes) = codes.split_at_mut(LANES);
        let inverse_lanes = V::splat(inverse);
        if inverse == 0.0 {
            codes.fill(0);
        } else {
            store(low.mul(inverse_lanes), low_codes);
            store(high.mul(inverse_lanes), high_codes);
        }
        let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        to.scales[at] = scale;
        to.sums[at] = sum;
        to.scaled_sums[at] = sum as f32 * scale;
    }
}

#[inline(always)]
fn halves(x: &[f32; BLOCK]) -> [&[f32; LANES]; 2] {
    let (halves, _) = x.as_chunks::<LANES>();
    [&halves[0], &halves[1]]
}

#[inline(always)]
fn store<V: Lanes>(value: V, to: &mut [i16]) {
    value.store_i16(to.first_chunk_mut().expect("half a block is 16 codes"));
}

/// The rows of one pass over a panel.
#[derive(Clone, Copy)]
struct Pass<'a> {
    /// All activations of the launch, `[rows][k]`.
    x: &'a [f32],
    /// The same, quantised, when a weight of the launch needs it.
    quantised: &'a QuantisedRows,
    first_row: usize,
    /// 1 to `PASS_ROWS`.
    count: usize,
}

/// Products of one row with a panel.
type Products = [f32; LANES];

/// A weight of the launch and where its products go.
struct Target<'a> {
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    y: Shared<f32>,
    epilogue: Epilogue,
    /// Tiles of the weights before this one.
    first_tile: usize,
    /// Panels of a tile.
    each: usize,
}

impl Target<'_> {
    /// Adds the bias and stores, or adds to, the valid outputs of some rows.
    fn finish(&self, panel: usize, first_row: usize, products: &[Products]) {
        let n = self.weight.outputs();
        let first = panel * LANES;
        let count = LANES.min(n - first);
        for (row, products) in products.iter().enumerate() {
            // SAFETY: a panel of a row belongs to one tile; y is borrowed by the launch.
            let y = unsafe { self.y.part((first_row + row) * n + first, count) };
            for (lane, y) in y.iter_mut().enumerate() {
                let mut value = products[lane];
                if let Some(bias) = self.bias {
                    value += bias[first + lane];
                }
                match self.epilogue {
                    Epilogue::Store => *y = value,
                    Epilogue::Add => *y += value,
                }
            }
        }
    }

    /// All rows of a tile with its panels.
    fn multiply(&self, active: Active, tile: usize, rows: Range<usize>, mut pass: Pass<'_>) {
        let panels = self.weight.outputs().div_ceil(LANES);
        let first_panel = (tile - self.first_tile) * self.each;
        for panel in first_panel..panels.min(first_panel + self.each) {
            for first_row in rows.clone().step_by(PASS_ROWS) {
                pass.first_row = first_row;
                pass.count = PASS_ROWS.min(rows.end - first_row);
                let mut products = [[0.0; LANES]; PASS_ROWS];
                multiply(active, self.weight, panel, pass, &mut products);
                self.finish(panel, first_row, &products[..pass.count]);
            }
        }
    }
}

pub(super) fn launch(
    device: &HostDevice,
    quantised: &mut QuantisedRows,
    launch: Matmul<'_, '_, HostDevice>,
) {
    let Matmul { rows, x, outputs } = launch;
    let Some(first) = outputs.first() else { return };
    let k = first.weight.inputs();
    let x = &x.as_slice()[..rows * k];
    if outputs.iter().any(|output| output.weight.format().code_form().is_some()) {
        quantised.fill(device, x, rows, k);
    }
    assert!(outputs.len() <= OUTPUTS_MAX, "{} weights in one matmul", outputs.len());
    let mut targets = [const { None }; OUTPUTS_MAX];
    let mut tiles = 0;
    let products = rows.min(TILE_ROWS) * k * LANES;
    for (output, target) in outputs.iter_mut().zip(&mut targets) {
        let n = output.weight.outputs();
        assert_eq!(output.weight.inputs(), k, "weights of one matmul have the same inputs");
        let panels = n.div_ceil(LANES);
        let wanted = (panels * products).div_ceil(TILE_PRODUCTS).clamp(1, panels);
        let each = panels.div_ceil(wanted);
        *target = Some(Target {
            weight: output.weight,
            bias: output.bias.map(|bias| &bias.as_slice()[..n]),
            y: Shared::new(&mut output.y.as_mut_slice()[..rows * n]),
            epilogue: output.epilogue,
            first_tile: tiles,
            each,
        });
        tiles += panels.div_ceil(each);
    }
    let quantised = &*quantised;
    device.pool.run(tiles * rows.div_ceil(TILE_ROWS), &|tile| {
        let (tile, row_tile) = (tile % tiles, tile / tiles);
        let mut reached = targets.iter().flatten().take_while(|target| target.first_tile <= tile);
        let target = reached.by_ref().last().expect("the first target starts at tile 0");
        let first_row = row_tile * TILE_ROWS;
        let rows = first_row..rows.min(first_row + TILE_ROWS);
        let pass = Pass { x, quantised, first_row, count: 0 };
        target.multiply(device.active, tile, rows, pass);
    });
}

/// The products of the rows of a pass with one panel.
fn multiply(
    active: Active,
    weight: &PackedWeight,
    panel: usize,
    pass: Pass<'_>,
    products: &mut [Products; PASS_ROWS],
) {
    match weight.format() {
        WeightFormat::Q4_0 => multiply_codes::<Q40>(active, weight, panel, pass, products),
        WeightFormat::Q4_1 => multiply_codes::<Q41>(active, weight, panel, pass, products),
        WeightFormat::Q5_0 => multiply_codes::<Q50>(active, weight, panel, pass, products),
        WeightFormat::Q5_1 => multiply_codes::<Q51>(active, weight, panel, pass, products),
        WeightFormat::Q8_0 => multiply_codes::<Q80>(active, weight, panel, pass, products),
        WeightFormat::Q4_K => multiply_codes::<Q4K>(active, weight, panel, pass, products),
        WeightFormat::Q5_K => multiply_codes::<Q5K>(active, weight, panel, pass, products),
        WeightFormat::Q6_K => multiply_codes::<Q6K>(active, weight, panel, pass, products),
        WeightFormat::F16 => {
            dense::multiply_f16(active, weight.wide_panel(panel), pass, products);
        }
        WeightFormat::Bf16 => {
            dense::multiply_bf16(active, weight.wide_panel(panel), pass, products);
        }
        WeightFormat::F32 => {
            dense::multiply_f32(active, weight.full_panel(panel), pass, products);
        }
    }
}

/// A form of codes, known at compile time.
///
/// With I = sum(code * x) over the integers of a part of a block, S = sum(x) over those of the
/// block, d and m the weight's scale and minimum and s the activations' scale, a part adds
/// `fma(f32(I - offset * S), d * s, acc)`, and then a block with a minimum
/// `fma(m, f32(S) * s, acc)`.
trait Codes {
    const FORM: CodeForm;
}

macro_rules! codes {
    ($($name:ident = $form:ident),*) => {$(
        struct $name;

        impl Codes for $name {
            const FORM: CodeForm = CodeForm::$form;
        }
    )*};
}

codes!(
    Q40 = Q4_0,
    Q41 = Q4_1,
    Q50 = Q5_0,
    Q51 = Q5_1,
    Q80 = Q8_0,
    Q4K = Q4_K,
    Q5K = Q5_K,
    Q6K = Q6_K
);

fn multiply_codes<C: Codes>(
    active: Active,
    weight: &PackedWeight,
    panel: usize,
    pass: Pass<'_>,
    products: &mut [Products; PASS_ROWS],
) {
    let k = weight.inputs();
    let panel = weight.panel(C::FORM, panel);
    let mut rows = [QuantisedRow::default(); PASS_ROWS];
    for (at, row) in rows[..pass.count].iter_mut().enumerate() {
        *row = pass.quantised.row(pass.first_row + at, k);
    }
    let (rows, products) = (&rows[..pass.count], &mut products[..pass.count]);
    check::<C>(panel, rows);
    match active.isa() {
        Isa::Portable => portable::multiply::<C>(panel, rows, products),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::multiply::<C>(active, panel, rows, products),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::multiply::<C>(active, panel, rows, products),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => portable::multiply::<C>(panel, rows, products),
    }
}

/// What the unchecked reads of the vector forms rest on.
fn check<C: Codes>(panel: CodePanel<'_>, rows: &[QuantisedRow<'_>]) {
    const {
        assert!(
            C::FORM.parts == 1 || (C::FORM.offset == 0 && !C::FORM.minima),
            "sums of activations are of whole blocks"
        );
    }
    let blocks = panel.parts / C::FORM.parts;
    assert_eq!(panel.codes.len(), blocks * C::FORM.block_bytes(), "codes of a panel");
    assert!(panel.scales.fits(C::FORM, panel.parts), "scales of a panel");
    assert!(!C::FORM.minima || panel.minima.fits(C::FORM, blocks), "minima of a panel");
    for row in rows {
        assert!(row.codes.len() == blocks * BLOCK && row.scales.len() == blocks, "a row's blocks");
        assert!(row.sums.len() == blocks && row.scaled_sums.len() == blocks, "a row's sums");
    }
}
