//! Hot path. Products with AVX2: a register holds 8 outputs, half a panel.
//!
//! Few rows: packed codes become 16-bit ones in registers. Many rows: a panel of unpacked codes
//! times 6 rows, whose accumulators stay in memory, because 12 integer sums leave no registers.

use std::arch::{asm, x86_64::*};

use super::{
    Codes, FEW_ROWS, Kind, PASS_ROWS, Products, RowSums,
    quantise::{BlockCodes, BlockFactors, PassRows, WORD},
    unpack::{PAIRS, Pairs, Unpacked},
};
use crate::{
    isa::{Active, Isa},
    lanes::LANES,
    weight::{CodePanel, Levels, STRETCH, UNIT_BLOCKS},
};

/// How far ahead of its use a panel is asked for: a page, which the hardware does not cross.
const AHEAD_BYTES: usize = 4096;
/// Most rows of `few`: more would not leave registers for the codes.
pub(super) const ROWS_MAX: usize = 4;
/// Pairs of inputs in a block, by fours.
const FOURS: usize = PAIRS / 4;
/// Outputs of a register.
const HALF: usize = 8;

/// A panel times up to 4 rows.
pub(super) fn few<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    rows: PassRows<'_>,
    products: &mut [Products; FEW_ROWS],
) {
    assert_eq!(active.isa(), Isa::Avx2, "only for machines that have it");
    macro_rules! tile {
        ($count:literal) => {{
            let to: &mut [Products; $count] = products.first_chunk_mut().expect("8 products");
            // SAFETY: an `Active` of this kind exists only where the features were detected.
            unsafe { few_tile::<C, $count, 0>(panel, rows, to) };
            // SAFETY: as above.
            unsafe { few_tile::<C, $count, 1>(panel, rows, to) };
        }};
    }
    match rows.count {
        1 => tile!(1),
        2 => tile!(2),
        3 => tile!(3),
        ROWS_MAX => tile!(4),
        count => unreachable!("few rows are 1 to {ROWS_MAX}, not {count}"),
    }
}

/// The first (`SIDE` 0) or last 8 outputs of a panel.
#[target_feature(enable = "avx2,fma,f16c")]
fn few_tile<C: Codes, const R: usize, const SIDE: usize>(
    panel: CodePanel<'_>,
    rows: PassRows<'_>,
    products: &mut [Products; R],
) {
    let mut sums = [_mm256_setzero_ps(); R];
    let blocks = panel.codes.chunks_exact(C::FORM.code_bytes());
    let (x, factors) = (rows.codes.as_chunks::<R>().0, rows.factors.as_chunks::<R>().0);
    for (block, ((codes, x), factors)) in blocks.zip(x).zip(factors).enumerate() {
        let lines = codes.as_chunks::<STRETCH>().0;
        if SIDE == 0 {
            for line in lines {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD_BYTES).cast());
            }
        }
        if C::FORM.parts == 1 {
            let whole = integers::<C, R, SIDE, 0, 8>(lines, x, factors);
            few_scale::<C, R, SIDE>(panel, (block, 0), factors, whole, &mut sums);
        } else {
            let whole = integers::<C, R, SIDE, 0, 4>(lines, x, factors);
            few_scale::<C, R, SIDE>(panel, (block, 0), factors, whole, &mut sums);
            let whole = integers::<C, R, SIDE, 4, 8>(lines, x, factors);
            few_scale::<C, R, SIDE>(panel, (block, 1), factors, whole, &mut sums);
        }
    }
    for (sum, product) in sums.into_iter().zip(products) {
        store(sum, &mut product.as_chunks_mut().0[SIDE]);
    }
}

/// Sums of codes without offset times activations over the quads `FROM..TO` of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn integers<C: Codes, const R: usize, const SIDE: usize, const FROM: usize, const TO: usize>(
    lines: &[[u8; STRETCH]],
    x: &[BlockCodes; R],
    factors: &[BlockFactors; R],
) -> [__m256i; R] {
    let mut whole = [_mm256_setzero_si256(); R];
    if C::FORM.offset != 0 {
        for row in 0..R {
            let offset = match C::FORM.parts {
                1 => factors[row].offset,
                _ => factors[row].half_offsets[FROM / 4],
            };
            let offset = _mm256_set1_epi32(offset);
            whole[row] = match C::FORM.offset {
                8 => offset,
                16 => _mm256_slli_epi32::<1>(offset),
                32 => _mm256_slli_epi32::<2>(offset),
                _ => _mm256_slli_epi32::<4>(offset),
            };
        }
    }
    macro_rules! quads {
        ($($quad:literal)*) => {$(
            if FROM <= $quad && $quad < TO {
                let bytes = quad::<C, $quad, SIDE>(lines);
                let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
                let odd = _mm256_srli_epi16::<8>(bytes);
                for row in 0..R {
                    let first = broadcast::<{ 2 * $quad }, _>(x[row].bytes());
                    let second = broadcast::<{ 2 * $quad + 1 }, _>(x[row].bytes());
                    let first = _mm256_madd_epi16(even, first);
                    whole[row] = _mm256_add_epi32(whole[row], first);
                    let second = _mm256_madd_epi16(odd, second);
                    whole[row] = _mm256_add_epi32(whole[row], second);
                }
            }
        )*};
    }
    quads!(0 1 2 3 4 5 6 7);
    whole
}

/// The codes of a quad as bytes; `weight::panel` has where their bits lie.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quad<C: Codes, const QUAD: usize, const SIDE: usize>(lines: &[[u8; STRETCH]]) -> __m256i {
    if C::FORM.bits == 8 {
        return load::<SIDE>(&lines[QUAD]);
    }
    let nibbles = load::<SIDE>(&lines[QUAD / 2]);
    let nibbles = if QUAD.is_multiple_of(2) { nibbles } else { _mm256_srli_epi16::<4>(nibbles) };
    let low = _mm256_and_si256(nibbles, _mm256_set1_epi8(0x0f));
    // The bits above the nibble, moved to bit 4.
    let (high, mask) = match C::FORM.bits {
        5 => {
            let bits = load::<SIDE>(&lines[4]);
            let moved = match QUAD {
                0 => bits,
                1 => _mm256_srli_epi16::<1>(bits),
                2 => _mm256_srli_epi16::<2>(bits),
                3 => _mm256_srli_epi16::<3>(bits),
                4 => _mm256_slli_epi16::<4>(bits),
                5 => _mm256_slli_epi16::<3>(bits),
                6 => _mm256_slli_epi16::<2>(bits),
                _ => _mm256_slli_epi16::<1>(bits),
            };
            (moved, 0x10)
        }
        6 => {
            let bits = load::<SIDE>(&lines[4 + QUAD / 4]);
            let moved = match QUAD % 4 {
                0 => bits,
                1 => _mm256_srli_epi16::<2>(bits),
                2 => _mm256_slli_epi16::<4>(bits),
                _ => _mm256_slli_epi16::<2>(bits),
            };
            (moved, 0x30)
        }
        _ => return low,
    };
    _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask)))
}

/// The scales of a part of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales<C: Codes, const SIDE: usize>(panel: CodePanel<'_>, block: usize, part: usize) -> __m256 {
    let at = block * C::FORM.parts + part;
    if C::FORM.levels == Levels::One {
        return halves::<SIDE>(panel.scales, at);
    }
    let numbers = match C::FORM.parts {
        1 => _mm256_cvtepu8_epi32(bytes::<SIDE>(panel.scales, at)),
        _ => _mm256_cvtepi8_epi32(bytes::<SIDE>(panel.scales, at)),
    };
    let units = halves::<SIDE>(panel.units, block / UNIT_BLOCKS);
    _mm256_mul_ps(units, _mm256_cvtepi32_ps(numbers))
}

/// The minima of a block; zeros for formats without.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn minima<C: Codes, const SIDE: usize>(panel: CodePanel<'_>, block: usize) -> __m256 {
    if !C::FORM.minima {
        return _mm256_setzero_ps();
    }
    if C::FORM.levels == Levels::One {
        return halves::<SIDE>(panel.minima, block);
    }
    let numbers = _mm256_cvtepu8_epi32(bytes::<SIDE>(panel.minima, block));
    let units = halves::<SIDE>(panel.min_units, block / UNIT_BLOCKS);
    _mm256_mul_ps(units, _mm256_cvtepi32_ps(numbers))
}

/// Brings the integer sums of a part of a block into the accumulators.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn few_scale<C: Codes, const R: usize, const SIDE: usize>(
    panel: CodePanel<'_>,
    (block, part): (usize, usize),
    factors: &[BlockFactors; R],
    whole: [__m256i; R],
    sums: &mut [__m256; R],
) {
    let scales = scales::<C, SIDE>(panel, block, part);
    let minima = minima::<C, SIDE>(panel, block);
    for row in 0..R {
        let factor = _mm256_mul_ps(scales, _mm256_set1_ps(factors[row].scale));
        sums[row] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[row]), factor, sums[row]);
        if C::FORM.minima {
            let sum = _mm256_set1_ps(factors[row].scaled_sum);
            sums[row] = _mm256_fmadd_ps(minima, sum, sums[row]);
        }
    }
}

/// A word of activations in every lane. Written down, because LLVM takes some of these by way of
/// general registers, which costs two instructions more, and rolls the loops out until they spill.
#[inline]
#[target_feature(enable = "avx2")]
fn broadcast<const AT: usize, const N: usize>(from: &[u8; N]) -> __m256i {
    const { assert!(WORD * (AT + 1) <= N, "a word of the array") }
    let value: __m256i;
    // SAFETY: reads 4 bytes of the array, at any alignment.
    unsafe {
        asm!("vpbroadcastd {0}, dword ptr [{1} + {2}]", out(ymm_reg) value,
            in(reg) from.as_ptr(), const WORD * AT,
            options(pure, readonly, nostack, preserves_flags));
    }
    value
}

#[inline]
#[target_feature(enable = "avx2")]
fn load<const SIDE: usize>(from: &[u8; STRETCH]) -> __m256i {
    let from = &from.as_chunks::<{ STRETCH / 2 }>().0[SIDE];
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_pairs<const SIDE: usize>(from: &Pairs) -> __m256i {
    let from = &from.as_chunks::<LANES>().0[SIDE];
    // SAFETY: 16 values of 2 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_ps<const SIDE: usize>(from: &[f32; LANES]) -> __m256 {
    let from = &from.as_chunks::<HALF>().0[SIDE];
    // SAFETY: 8 values of 4 bytes.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(value: __m256, to: &mut [f32; HALF]) {
    // SAFETY: 8 values of 4 bytes.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_pairs<const SIDE: usize>(value: __m256i, to: &mut Pairs) {
    let to = &mut to.as_chunks_mut::<LANES>().0[SIDE];
    // SAFETY: 16 values of 2 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

/// 8 of 16 values in half precision.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn halves<const SIDE: usize>(from: &[u8], at: usize) -> __m256 {
    let from = &from.as_chunks::<{ 2 * HALF }>().0[2 * at + SIDE];
    // SAFETY: 16 bytes.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(from.as_ptr().cast()) })
}

/// 8 of 16 bytes, in the lower half of the register.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes<const SIDE: usize>(from: &[u8], at: usize) -> __m128i {
    let from = &from.as_chunks::<HALF>().0[2 * at + SIDE];
    // SAFETY: 8 bytes.
    unsafe { _mm_loadl_epi64(from.as_ptr().cast()) }
}

/// Unpacks blocks from `first` on: as many as fit or are left.
pub(super) fn unpack<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    first: usize,
    to: &mut Unpacked,
) {
    assert_eq!(active.isa(), Isa::Avx2, "only for machines that have it");
    // SAFETY: an `Active` of this kind exists only where the features were detected.
    unsafe { unpack_blocks::<C, 0>(panel, first, to) };
    // SAFETY: as above.
    unsafe { unpack_blocks::<C, 1>(panel, first, to) };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_blocks<C: Codes, const SIDE: usize>(
    panel: CodePanel<'_>,
    first: usize,
    to: &mut Unpacked,
) {
    let blocks = panel.codes.chunks_exact(C::FORM.code_bytes()).skip(first);
    let offset = _mm256_set1_epi16(C::FORM.offset as i16);
    for ((at, codes), to) in (first..).zip(blocks).zip(&mut to.blocks) {
        let lines = codes.as_chunks::<STRETCH>().0;
        macro_rules! quads {
            ($($quad:literal)*) => {$(
                let bytes = quad::<C, $quad, SIDE>(lines);
                let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
                let odd = _mm256_srli_epi16::<8>(bytes);
                let [first, second] = &mut to.codes.as_chunks_mut().0[$quad];
                store_pairs::<SIDE>(_mm256_sub_epi16(even, offset), first);
                store_pairs::<SIDE>(_mm256_sub_epi16(odd, offset), second);
            )*};
        }
        quads!(0 1 2 3 4 5 6 7);
        for part in 0..C::FORM.parts {
            let to = &mut to.scales[part].as_chunks_mut().0[SIDE];
            store(scales::<C, SIDE>(panel, at, part), to);
        }
        store(minima::<C, SIDE>(panel, at), &mut to.minima.as_chunks_mut().0[SIDE]);
    }
}

/// Some blocks of two unpacked panels times the rows of a pass, added to `sums`.
pub(super) fn many(
    active: Active,
    kind: Kind,
    panels: &[Unpacked; 2],
    rows: PassRows<'_>,
    sums: &mut [RowSums],
) {
    assert_eq!(active.isa(), Isa::Avx2, "only for machines that have it");
    macro_rules! tile {
        ($parts:literal, $minima:literal, $count:literal) => {{
            let sums: &mut [RowSums; $count] = sums.first_chunk_mut().expect("a sum for each row");
            // SAFETY: an `Active` of this kind exists only where the features were detected.
            unsafe { many_tile::<$parts, $minima, $count, 0>(&panels[0], rows, sums) };
            // SAFETY: as above.
            unsafe { many_tile::<$parts, $minima, $count, 1>(&panels[1], rows, sums) };
        }};
        ($parts:literal, $minima:literal) => {
            match rows.count {
                1 => tile!($parts, $minima, 1),
                2 => tile!($parts, $minima, 2),
                3 => tile!($parts, $minima, 3),
                4 => tile!($parts, $minima, 4),
                5 => tile!($parts, $minima, 5),
                PASS_ROWS => tile!($parts, $minima, 6),
                count => unreachable!("a pass has 1 to {PASS_ROWS} rows, not {count}"),
            }
        };
    }
    match kind {
        Kind::Plain => tile!(1, false),
        Kind::Minima => tile!(1, true),
        Kind::Halves => tile!(2, false),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn many_tile<const PARTS: usize, const MINIMA: bool, const R: usize, const PANEL: usize>(
    panel: &Unpacked,
    rows: PassRows<'_>,
    sums: &mut [RowSums; R],
) {
    let (x, factors) = (rows.codes.as_chunks::<R>().0, rows.factors.as_chunks::<R>().0);
    for ((block, x), factors) in panel.blocks.iter().zip(x).zip(factors) {
        for part in 0..PARTS {
            let mut whole = [[_mm256_setzero_si256(); 2]; R];
            for four in part * FOURS / PARTS..(part + 1) * FOURS / PARTS {
                macro_rules! pairs {
                    ($($within:literal)*) => {$(
                        let codes = &block.codes[4 * four + $within];
                        let (a, b) = (load_pairs::<0>(codes), load_pairs::<1>(codes));
                        for row in 0..R {
                            let x = broadcast::<$within, _>(x[row].words(four));
                            let [first, second] = &mut whole[row];
                            *first = _mm256_add_epi32(*first, _mm256_madd_epi16(a, x));
                            *second = _mm256_add_epi32(*second, _mm256_madd_epi16(b, x));
                        }
                    )*};
                }
                pairs!(0 1 2 3);
            }
            let scales = &block.scales[part];
            let scales = [load_ps::<0>(scales), load_ps::<1>(scales)];
            let minima = [load_ps::<0>(&block.minima), load_ps::<1>(&block.minima)];
            for row in 0..R {
                let scale = _mm256_set1_ps(factors[row].scale);
                let scaled_sum = _mm256_set1_ps(factors[row].scaled_sum);
                let to = &mut sums[row][PANEL];
                let mut totals = [load_ps::<0>(to), load_ps::<1>(to)];
                for side in 0..2 {
                    let factor = _mm256_mul_ps(scales[side], scale);
                    let whole = _mm256_cvtepi32_ps(whole[row][side]);
                    totals[side] = _mm256_fmadd_ps(whole, factor, totals[side]);
                    if MINIMA {
                        totals[side] = _mm256_fmadd_ps(minima[side], scaled_sum, totals[side]);
                    }
                }
                let to = to.as_chunks_mut().0;
                store(totals[0], &mut to[0]);
                store(totals[1], &mut to[1]);
            }
        }
    }
}
