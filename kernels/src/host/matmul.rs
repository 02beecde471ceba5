//! Hot path. Products of activation rows with packed weights.
//!
//! For codes of 4 to 8 bits the activations of a row are quantised to 16 bits per block of 32
//! inputs, the products of a block are summed exactly in integers, and the blocks are accumulated
//! in f32 in their order. For 16- and 32-bit weights the products are accumulated in f32 in two
//! chains, even and odd inputs. Either way the result of a row and output has one arithmetic, for
//! every number of rows: they only decide how often a panel is read, and whether its codes are
//! unpacked in registers (few rows, where reading the panel takes the time) or once for all rows
//! of a tile.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dense;
mod portable;
mod quantise;
#[cfg(test)]
mod tests;
mod unpack;

use std::ops::Range;

use super::{HostDevice, pool::Shared};
use crate::{
    device::{Epilogue, Matmul},
    isa::{Active, Isa},
    lanes::LANES,
    weight::{BLOCK, CodeForm, CodePanel, PackedWeight, WeightFormat},
};
pub(super) use quantise::QuantisedRows;
use quantise::{Cut, Order};
use unpack::{CHUNK_BLOCKS, Unpacked, unpack};

/// Rows that one tile of the launch works on; their codes stay in the second-level cache.
const TILE_ROWS: usize = 96;
/// Most weights of one launch.
const OUTPUTS_MAX: usize = 4;
/// Most rows whose codes are unpacked in registers.
const FEW_ROWS: usize = 8;
/// Rows that share one pass over unpacked panels.
const PASS_ROWS: usize = 6;
/// Rows that share one pass over a dense panel.
const DENSE_ROWS: usize = 8;
/// Multiplications that are worth a tile of their own: some 5 microseconds.
const TILE_PRODUCTS: usize = 1 << 18;

const _: () = assert!(TILE_ROWS.is_multiple_of(PASS_ROWS) && TILE_ROWS.is_multiple_of(DENSE_ROWS));

/// The activations of a launch.
#[derive(Clone, Copy)]
struct Input<'a> {
    active: Active,
    /// As they came, `[rows][k]`.
    x: &'a [f32],
    /// The same, quantised, when a weight of the launch needs it.
    quantised: &'a QuantisedRows,
    cut: Cut,
    /// Whether the one pass goes over packed codes.
    few: bool,
}

/// The rows of one pass over a dense panel.
#[derive(Clone, Copy)]
struct Pass<'a> {
    /// All activations of the launch, `[rows][k]`.
    x: &'a [f32],
    first_row: usize,
    /// 1 to `DENSE_ROWS`.
    count: usize,
}

/// Products of one row with a panel.
type Products = [f32; LANES];

/// Sums of one row with two panels.
type RowSums = [Products; 2];

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
    /// Adds the bias and stores, or adds to, the valid outputs of a row.
    fn finish(&self, panel: usize, row: usize, products: &Products) {
        let n = self.weight.outputs();
        let first = panel * LANES;
        let count = LANES.min(n - first);
        // SAFETY: a panel of a row belongs to one tile; y is borrowed by the launch.
        let y = unsafe { self.y.part(row * n + first, count) };
        let bias = self.bias.map(|bias| &bias[first..first + count]);
        if let (Some(y), Some(bias)) = (y.first_chunk_mut::<LANES>(), whole(bias)) {
            self.epilogue.apply(y, products, bias);
        } else {
            for (lane, y) in y.iter_mut().enumerate() {
                let bias = bias.map_or(-0.0, |bias| bias[lane]);
                self.epilogue.apply(std::array::from_mut(y), &[products[lane]], &[bias]);
            }
        }
    }

    /// All rows of a tile with its panels.
    fn multiply(&self, tile: usize, rows: Range<usize>, input: Input<'_>) {
        let panels = self.weight.outputs().div_ceil(LANES);
        let first_panel = (tile - self.first_tile) * self.each;
        let panels = first_panel..panels.min(first_panel + self.each);
        match self.weight.format() {
            WeightFormat::Q4_0 => self.codes::<Q40>(panels, rows, input),
            WeightFormat::Q4_1 => self.codes::<Q41>(panels, rows, input),
            WeightFormat::Q5_0 => self.codes::<Q50>(panels, rows, input),
            WeightFormat::Q5_1 => self.codes::<Q51>(panels, rows, input),
            WeightFormat::Q8_0 => self.codes::<Q80>(panels, rows, input),
            WeightFormat::Q4_K => self.codes::<Q4K>(panels, rows, input),
            WeightFormat::Q5_K => self.codes::<Q5K>(panels, rows, input),
            WeightFormat::Q6_K => self.codes::<Q6K>(panels, rows, input),
            WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::F32 => {
                self.dense(panels, rows, input);
            }
        }
    }

    fn codes<C: Codes>(&self, panels: Range<usize>, rows: Range<usize>, input: Input<'_>) {
        if input.few {
            self.few::<C>(panels, input);
        } else {
            for first in panels.clone().step_by(2) {
                self.many::<C>(first..panels.end.min(first + 2), rows.clone(), input);
            }
        }
    }

    /// The one pass of the launch with packed panels.
    fn few<C: Codes>(&self, panels: Range<usize>, input: Input<'_>) {
        let rows = input.quantised.pass(input.cut, 0, 0..input.cut.blocks);
        for panel in panels {
            let codes = self.panel::<C>(panel);
            let mut products = [[0.0; LANES]; FEW_ROWS];
            match input.active.isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::few::<C>(input.active, codes, rows, &mut products),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::few::<C>(input.active, codes, rows, &mut products),
                isa => unreachable!("{isa} takes no rows as few"),
            }
            for (row, products) in products[..rows.count].iter().enumerate() {
                self.finish(panel, row, products);
            }
        }
    }

    /// One or two panels with the rows of a tile, some blocks at a time.
    fn many<C: Codes>(&self, panels: Range<usize>, rows: Range<usize>, input: Input<'_>) {
        let mut unpacked = [Unpacked::new(), Unpacked::new()];
        let mut sums = [[[0.0; LANES]; 2]; TILE_ROWS];
        let Input { active, quantised, cut, .. } = input;
        for first in (0..cut.blocks).step_by(CHUNK_BLOCKS) {
            for (panel, unpacked) in panels.clone().zip(&mut unpacked) {
                let panel = self.panel::<C>(panel);
                match active.isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512::unpack::<C>(active, panel, first, unpacked),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2::unpack::<C>(active, panel, first, unpacked),
                    _ => unpack(C::FORM, panel, first, unpacked),
                }
            }
            let blocks = first..cut.blocks.min(first + CHUNK_BLOCKS);
            let passes = rows.start / PASS_ROWS..rows.end.div_ceil(PASS_ROWS);
            for (pass, sums) in passes.zip(sums.chunks_mut(PASS_ROWS)) {
                let rows = quantised.pass(cut, pass, blocks.clone());
                match active.isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512::many(active, C::KIND, &unpacked, rows, sums),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2::many(active, C::KIND, &unpacked, rows, sums),
                    _ => portable::many(C::KIND, &unpacked, rows, sums),
                }
            }
        }
        for (row, sums) in rows.zip(&sums) {
            for (panel, sums) in panels.clone().zip(sums) {
                self.finish(panel, row, sums);
            }
        }
    }

    fn panel<C: Codes>(&self, panel: usize) -> CodePanel<'_> {
        self.weight.code_panel(panel).expect("a form of codes has panels of them")
    }

    fn dense(&self, panels: Range<usize>, rows: Range<usize>, input: Input<'_>) {
        let (active, weight) = (input.active, self.weight);
        for panel in panels {
            for first_row in rows.clone().step_by(DENSE_ROWS) {
                let count = DENSE_ROWS.min(rows.end - first_row);
                let pass = Pass { x: input.x, first_row, count };
                let mut products = [[0.0; LANES]; DENSE_ROWS];
                let to = &mut products;
                match weight.format() {
                    WeightFormat::F16 => {
                        dense::multiply_f16(active, weight.wide_panel(panel), pass, to);
                    }
                    WeightFormat::Bf16 => {
                        dense::multiply_bf16(active, weight.wide_panel(panel), pass, to);
                    }
                    _ => dense::multiply_f32(active, weight.full_panel(panel), pass, to),
                }
                for (row, products) in (first_row..).zip(&products[..count]) {
                    self.finish(panel, row, products);
                }
            }
        }
    }
}

/// All of a panel's biases, `None` when the panel is not full. Where there are none, minus zeros:
/// adding those changes nothing, not even the sign of a zero.
fn whole(bias: Option<&[f32]>) -> Option<&Products> {
    bias.map_or(Some(&[-0.0; LANES]), |bias| bias.first_chunk())
}

impl Epilogue {
    #[inline(always)]
    fn apply<const N: usize>(self, y: &mut [f32; N], products: &[f32; N], bias: &[f32; N]) {
        for ((y, product), bias) in y.iter_mut().zip(products).zip(bias) {
            match self {
                Self::Store => *y = product + bias,
                Self::Add => *y += product + bias,
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
    let few = rows <= few_rows(device.active.isa());
    let pass_rows = if few { rows.max(1) } else { PASS_ROWS };
    let cut = Cut { rows, pass_rows, blocks: k / BLOCK };
    if outputs.iter().any(|output| output.weight.format().code_form().is_some()) {
        let order = match (few, device.active.isa()) {
            (true, Isa::Avx512) => Order::Bytes,
            (_, _) => Order::Words,
        };
        quantised.fill(device, x, cut, order);
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
        // Many rows take panels by twos.
        let each = panels.div_ceil(wanted).next_multiple_of(if few { 1 } else { 2 });
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
    let input = Input { active: device.active, x, quantised, cut, few };
    device.pool.run(tiles * rows.div_ceil(TILE_ROWS), &|tile| {
        let (tile, row_tile) = (tile % tiles, tile / tiles);
        let mut reached = targets.iter().flatten().take_while(|target| target.first_tile <= tile);
        let target = reached.by_ref().last().expect("the first target starts at tile 0");
        let first_row = row_tile * TILE_ROWS;
        target.multiply(tile, first_row..rows.min(first_row + TILE_ROWS), input);
    });
}

/// Most rows that are worth unpacking a panel in registers for.
fn few_rows(isa: Isa) -> usize {
    match isa {
        Isa::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::ROWS_MAX,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => FEW_ROWS,
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => 0,
    }
}

/// What the kernels for many rows have to know of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A scale for each block.
    Plain,
    /// A scale and a minimum for each block.
    Minima,
    /// A scale for each half of a block.
    Halves,
}

impl Kind {
    const fn of(form: CodeForm) -> Self {
        match (form.parts, form.minima) {
            (1, false) => Self::Plain,
            (1, true) => Self::Minima,
            (_, _) => Self::Halves,
        }
    }

    fn parts(self) -> usize {
        match self {
            Self::Plain | Self::Minima => 1,
            Self::Halves => 2,
        }
    }
}

/// A form of codes, known at compile time.
///
/// With I = sum((code - offset) * x) over the integers of a part of a block, S = sum(x) over those
/// of the block, d and m the weight's scale and minimum and s the activations' scale, a part adds
/// `fma(f32(I), d * s, acc)`, and then a block with a minimum `fma(m, f32(S) * s, acc)`.
trait Codes {
    const FORM: CodeForm;
    const KIND: Kind = Kind::of(Self::FORM);
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
