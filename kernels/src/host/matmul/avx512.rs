//! Hot path. Products with AVX-512 VNNI: one register holds the 16 outputs of a panel.
//!
//! Few rows: packed codes become bytes in registers and are multiplied with the upper and the
//! lower bytes of the activations. Many rows: two panels of unpacked codes times 6 rows in 16
//! bits. Both are exact in integers, so they agree.

mod quantise;

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
pub(super) use quantise::quantise;

/// How far ahead of its use a panel is asked for: a page, which the hardware does not cross.
const AHEAD_BYTES: usize = 4096;
/// Pairs of inputs in a block, by fours.
const FOURS: usize = PAIRS / 4;

/// A panel times up to 8 rows.
pub(super) fn few<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    rows: PassRows<'_>,
    products: &mut [Products; FEW_ROWS],
) {
    assert_eq!(active.isa(), Isa::Avx512, "only for machines that have it");
    macro_rules! tile {
        ($count:literal) => {{
            let to: &mut [Products; $count] = products.first_chunk_mut().expect("8 products");
            // SAFETY: an `Active` of this kind exists only where the features were detected.
            unsafe { few_tile::<C, $count>(panel, rows, to) }
        }};
    }
    match rows.count {
        1 => tile!(1),
        2 => tile!(2),
        3 => tile!(3),
        4 => tile!(4),
        5 => tile!(5),
        6 => tile!(6),
        7 => tile!(7),
        FEW_ROWS => tile!(8),
        count => unreachable!("few rows are 1 to {FEW_ROWS}, not {count}"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn few_tile<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    rows: PassRows<'_>,
    products: &mut [Products; R],
) {
    let mut sums = [_mm512_setzero_ps(); R];
    let blocks = panel.codes.chunks_exact(C::FORM.code_bytes());
    let (x, factors) = (rows.codes.as_chunks::<R>().0, rows.factors.as_chunks::<R>().0);
    for (block, ((codes, x), factors)) in blocks.zip(x).zip(factors).enumerate() {
        let lines = codes.as_chunks::<STRETCH>().0;
        for line in lines {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD_BYTES).cast());
        }
        if C::FORM.parts == 1 {
            let whole = integers::<C, R, 0, 8>(lines, x, factors);
            few_scale::<C, R>(panel, (block, 0), factors, whole, &mut sums);
        } else {
            let whole = integers::<C, R, 0, 4>(lines, x, factors);
            few_scale::<C, R>(panel, (block, 0), factors, whole, &mut sums);
            let whole = integers::<C, R, 4, 8>(lines, x, factors);
            few_scale::<C, R>(panel, (block, 1), factors, whole, &mut sums);
        }
    }
    for (sum, product) in sums.into_iter().zip(products) {
        store(sum, product);
    }
}

/// Sums of codes without offset times activations over the quads `FROM..TO` of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn integers<C: Codes, const R: usize, const FROM: usize, const TO: usize>(
    lines: &[[u8; STRETCH]],
    x: &[BlockCodes; R],
    factors: &[BlockFactors; R],
) -> [__m512i; R] {
    let mut high = [_mm512_setzero_si512(); R];
    let mut low = high;
    if C::FORM.offset != 0 {
        for row in 0..R {
            let factors = &factors[row];
            let offset = match (C::FORM.bits, C::FORM.parts) {
                (8, _) => {
                    // The lower bytes meet signed codes, so that only the upper need correction.
                    high[row] = _mm512_set1_epi32(factors.high_offset);
                    continue;
                }
                (_, 1) => factors.offset,
                (_, _) => factors.half_offsets[FROM / 4],
            };
            let offset = _mm512_set1_epi32(offset);
            low[row] = match C::FORM.offset {
                8 => offset,
                16 => _mm512_slli_epi32::<1>(offset),
                _ => _mm512_slli_epi32::<2>(offset),
            };
        }
    }
    macro_rules! quads {
        ($($quad:literal)*) => {$(
            if FROM <= $quad && $quad < TO {
                let bytes = quad::<C, $quad>(lines);
                let signed = match C::FORM.bits {
                    8 => _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN)),
                    _ => bytes,
                };
                for row in 0..R {
                    let upper = broadcast::<$quad, _>(x[row].bytes());
                    let lower = broadcast::<{ 8 + $quad }, _>(x[row].bytes());
                    high[row] = _mm512_dpbusd_epi32(high[row], bytes, upper);
                    low[row] = _mm512_dpbusd_epi32(low[row], lower, signed);
                }
            }
        )*};
    }
    quads!(0 1 2 3 4 5 6 7);
    for (high, low) in high.iter_mut().zip(low) {
        *high = _mm512_add_epi32(_mm512_slli_epi32::<8>(*high), low);
    }
    high
}

/// The codes of a quad as bytes; `weight::panel` has where their bits lie.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn quad<C: Codes, const QUAD: usize>(lines: &[[u8; STRETCH]]) -> __m512i {
    if C::FORM.bits == 8 {
        return load(&lines[QUAD]);
    }
    let nibbles = load(&lines[QUAD / 2]);
    let nibbles = if QUAD.is_multiple_of(2) { nibbles } else { _mm512_srli_epi16::<4>(nibbles) };
    let low = _mm512_and_si512(nibbles, _mm512_set1_epi8(0x0f));
    // The bits above the nibble, moved to bit 4.
    let (high, mask) = match C::FORM.bits {
        5 => {
            let bits = load(&lines[4]);
            let moved = match QUAD {
                0 => bits,
                1 => _mm512_srli_epi16::<1>(bits),
                2 => _mm512_srli_epi16::<2>(bits),
                3 => _mm512_srli_epi16::<3>(bits),
                4 => _mm512_slli_epi16::<4>(bits),
                5 => _mm512_slli_epi16::<3>(bits),
                6 => _mm512_slli_epi16::<2>(bits),
                _ => _mm512_slli_epi16::<1>(bits),
            };
            (moved, 0x10)
        }
        6 => {
            let bits = load(&lines[4 + QUAD / 4]);
            let moved = match QUAD % 4 {
                0 => bits,
                1 => _mm512_srli_epi16::<2>(bits),
                2 => _mm512_slli_epi16::<4>(bits),
                _ => _mm512_slli_epi16::<2>(bits),
            };
            (moved, 0x30)
        }
        _ => return low,
    };
    // low | (high & mask).
    _mm512_ternarylogic_epi32::<0xf8>(low, high, _mm512_set1_epi8(mask))
}

/// The scales of a part of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn scales<C: Codes>(panel: CodePanel<'_>, block: usize, part: usize) -> __m512 {
    let at = block * C::FORM.parts + part;
    if C::FORM.levels == Levels::One {
        return halves(panel.scales, at);
    }
    let numbers = match C::FORM.parts {
        1 => _mm512_cvtepu8_epi32(bytes(panel.scales, at)),
        _ => _mm512_cvtepi8_epi32(bytes(panel.scales, at)),
    };
    _mm512_mul_ps(halves(panel.units, block / UNIT_BLOCKS), _mm512_cvtepi32_ps(numbers))
}

/// The minima of a block; zeros for formats without.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn minima<C: Codes>(panel: CodePanel<'_>, block: usize) -> __m512 {
    if !C::FORM.minima {
        return _mm512_setzero_ps();
    }
    if C::FORM.levels == Levels::One {
        return halves(panel.minima, block);
    }
    let numbers = _mm512_cvtepu8_epi32(bytes(panel.minima, block));
    _mm512_mul_ps(halves(panel.min_units, block / UNIT_BLOCKS), _mm512_cvtepi32_ps(numbers))
}

/// Brings the integer sums of a part of a block into the accumulators.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn few_scale<C: Codes, const R: usize>(
    panel: CodePanel<'_>,
    (block, part): (usize, usize),
    factors: &[BlockFactors; R],
    whole: [__m512i; R],
    sums: &mut [__m512; R],
) {
    let scales = scales::<C>(panel, block, part);
    let minima = minima::<C>(panel, block);
    for row in 0..R {
        let factor = _mm512_mul_ps(scales, _mm512_set1_ps(factors[row].scale));
        sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[row]), factor, sums[row]);
        if C::FORM.minima {
            let sum = _mm512_set1_ps(factors[row].scaled_sum);
            sums[row] = _mm512_fmadd_ps(minima, sum, sums[row]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &[u8; STRETCH]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_pairs(from: &Pairs) -> __m512i {
    // SAFETY: 32 values of 2 bytes.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_ps(from: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 values of 4 bytes.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(value: __m512, to: &mut [f32; LANES]) {
    // SAFETY: 16 values of 4 bytes.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_pairs(value: __m512i, to: &mut Pairs) {
    // SAFETY: 32 values of 2 bytes.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}

/// A word of activations in every lane. Written down, because LLVM takes some of these by way of
/// general registers, which costs an instruction on a port that the multiplications need.
#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast<const AT: usize, const N: usize>(from: &[u8; N]) -> __m512i {
    const { assert!(WORD * (AT + 1) <= N, "a word of the array") }
    let value: __m512i;
    // SAFETY: reads 4 bytes of the array, at any alignment.
    unsafe {
        asm!("vpbroadcastd {0}, dword ptr [{1} + {2}]", out(zmm_reg) value,
            in(reg) from.as_ptr(), const WORD * AT,
            options(pure, readonly, nostack, preserves_flags));
    }
    value
}

/// `sum` plus the products of pairs. Written down, because LLVM replaces the intrinsic by a
/// multiplication and an addition, which have the shorter latency and half the throughput.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn dpwssd(mut sum: __m512i, pairs: __m512i, x: __m512i) -> __m512i {
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) sum, in(zmm_reg) pairs, in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// 16 values in half precision.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn halves(from: &[u8], at: usize) -> __m512 {
    let from = &from.as_chunks::<{ 2 * LANES }>().0[at];
    // SAFETY: 32 bytes.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.as_ptr().cast()) })
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn bytes(from: &[u8], at: usize) -> __m128i {
    let from = &from.as_chunks::<LANES>().0[at];
    // SAFETY: 16 bytes.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Unpacks blocks from `first` on: as many as fit or are left.
pub(super) fn unpack<C: Codes>(
    active: Active,
    panel: CodePanel<'_>,
    first: usize,
    to: &mut Unpacked,
) {
    assert_eq!(active.isa(), Isa::Avx512, "only for machines that have it");
    // SAFETY: an `Active` of this kind exists only where the features were detected.
    unsafe { unpack_blocks::<C>(panel, first, to) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpack_blocks<C: Codes>(panel: CodePanel<'_>, first: usize, to: &mut Unpacked) {
    let blocks = panel.codes.chunks_exact(C::FORM.code_bytes()).skip(first);
    let offset = _mm512_set1_epi16(C::FORM.offset as i16);
    for ((at, codes), to) in (first..).zip(blocks).zip(&mut to.blocks) {
        let lines = codes.as_chunks::<STRETCH>().0;
        macro_rules! quads {
            ($($quad:literal)*) => {$(
                let bytes = quad::<C, $quad>(lines);
                let even = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff));
                store_pairs(_mm512_sub_epi16(even, offset), &mut to.codes[2 * $quad]);
                let odd = _mm512_srli_epi16::<8>(bytes);
                store_pairs(_mm512_sub_epi16(odd, offset), &mut to.codes[2 * $quad + 1]);
            )*};
        }
        quads!(0 1 2 3 4 5 6 7);
        for part in 0..C::FORM.parts {
            store(scales::<C>(panel, at, part), &mut to.scales[part]);
        }
        store(minima::<C>(panel, at), &mut to.minima);
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
    assert_eq!(active.isa(), Isa::Avx512, "only for machines that have it");
    macro_rules! tile {
        ($parts:literal, $minima:literal, $count:literal) => {{
            let sums: &mut [RowSums; $count] = sums.first_chunk_mut().expect("a sum for each row");
            // SAFETY: an `Active` of this kind exists only where the features were detected.
            unsafe { many_tile::<$parts, $minima, $count>(panels, rows, sums) }
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn many_tile<const PARTS: usize, const MINIMA: bool, const R: usize>(
    [left, right]: &[Unpacked; 2],
    rows: PassRows<'_>,
    sums: &mut [RowSums; R],
) {
    let mut totals = [[_mm512_setzero_ps(); 2]; R];
    for (total, [a, b]) in totals.iter_mut().zip(&*sums) {
        *total = [load_ps(a), load_ps(b)];
    }
    let (x, factors) = (rows.codes.as_chunks::<R>().0, rows.factors.as_chunks::<R>().0);
    let panels = left.blocks.iter().zip(&right.blocks);
    for (((left, right), x), factors) in panels.zip(x).zip(factors) {
        for part in 0..PARTS {
            let mut whole = [[_mm512_setzero_si512(); 2]; R];
            for four in part * FOURS / PARTS..(part + 1) * FOURS / PARTS {
                macro_rules! pairs {
                    ($($within:literal)*) => {$(
                        let pair = 4 * four + $within;
                        let a = load_pairs(&left.codes[pair]);
                        let b = load_pairs(&right.codes[pair]);
                        for row in 0..R {
                            let x = broadcast::<$within, _>(x[row].words(four));
                            whole[row][0] = dpwssd(whole[row][0], a, x);
                            whole[row][1] = dpwssd(whole[row][1], b, x);
                        }
                    )*};
                }
                pairs!(0 1 2 3);
            }
            let scales = [load_ps(&left.scales[part]), load_ps(&right.scales[part])];
            for row in 0..R {
                let scale = _mm512_set1_ps(factors[row].scale);
                for side in 0..2 {
                    let factor = _mm512_mul_ps(scales[side], scale);
                    let whole = _mm512_cvtepi32_ps(whole[row][side]);
                    totals[row][side] = _mm512_fmadd_ps(whole, factor, totals[row][side]);
                }
            }
        }
        if MINIMA {
            let minima = [load_ps(&left.minima), load_ps(&right.minima)];
            for row in 0..R {
                let sum = _mm512_set1_ps(factors[row].scaled_sum);
                for side in 0..2 {
                    totals[row][side] = _mm512_fmadd_ps(minima[side], sum, totals[row][side]);
                }
            }
        }
    }
    for (total, [a, b]) in totals.into_iter().zip(sums) {
        store(total[0], a);
        store(total[1], b);
    }
}
