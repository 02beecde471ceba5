//! The unchanged .cu files on the CPU: built with the system's C++ compiler under a sanitizer, one
//! thread for each CUDA thread, fed with cases as files, compared with the host device bit by bit.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use kernels::HeadShape;
use kernels::cuda::{Agreement, AttendPlan, NUMERICS_CLASS, Tables};

use crate::case::{Case, Numbers};
use crate::skipped;

#[derive(Clone, Copy, Debug)]
enum Sanitizer {
    /// Addresses and undefined behaviour.
    Address,
    /// Data races.
    Thread,
}

/// Which kernel, as run.cpp numbers them.
const GATHER: u32 = 0;
const SCATTER: u32 = 1;
const ATTEND: u32 = 2;
const WIDEN: u32 = 3;
const DIVERGE: u32 = 4;

/// The program of that sanitizer, built once; `None` and a line where no compiler can.
fn program(sanitizer: Sanitizer) -> Option<&'static Path> {
    static PROGRAMS: [OnceLock<Result<PathBuf, String>>; 2] = [const { OnceLock::new() }; 2];
    match PROGRAMS[sanitizer as usize].get_or_init(|| build(sanitizer)) {
        Ok(path) => Some(path),
        Err(reason) => {
            skipped(reason);
            None
        }
    }
}

fn build(sanitizer: Sanitizer) -> Result<PathBuf, String> {
    let known = |compiler: &&&str| Command::new(compiler).arg("--version").output().is_ok();
    let Some(compiler) = ["g++", "clang++", "c++"].iter().find(known) else {
        return Err("no C++ compiler (g++ or clang++) for the CUDA shim".to_owned());
    };
    let (name, flag) = match sanitizer {
        Sanitizer::Address => ("address", "-fsanitize=address,undefined"),
        Sanitizer::Thread => ("thread", "-fsanitize=thread"),
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Whether the sanitizer is there is the machine's business, whether our code compiles ours.
    let probe = folder.join(format!("probe-{name}.cpp"));
    std::fs::write(&probe, "#include <barrier>\nint main() { return 0; }\n").unwrap();
    let program = folder.join(format!("cuda-shim-{name}"));
    let compile = |source: &Path| {
        let mut command = Command::new(compiler);
        command.args(["-std=c++20", "-O1", "-g", "-pthread", "-ffp-contract=off", flag]);
        command.args(["-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror"]);
        command.arg("-Wno-unknown-pragmas").arg(source).arg("-o").arg(&program);
        command.output().unwrap()
    };
    let run = |built: Output| built.status.success() && runs(sanitizer, &program);
    if !run(compile(&probe)) {
        return Err(format!("{compiler} cannot build or run C++20 with {flag}"));
    }
    let built = compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/shim/run.cpp"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(program)
}

fn runs(sanitizer: Sanitizer, program: &Path) -> bool {
    command(sanitizer, program).output().is_ok_and(|output| output.status.success())
}

/// The thread sanitizer of some compilers cannot live with the address randomisation of newer
/// kernels; `setarch -R` turns it off for one program.
fn command(sanitizer: Sanitizer, program: &Path) -> Command {
    let fixed = || Command::new("setarch").args(["-R", "true"]).output();
    let mut command = match sanitizer {
        Sanitizer::Thread if fixed().is_ok_and(|output| output.status.success()) => {
            let mut command = Command::new("setarch");
            command.arg("-R").arg(program);
            command
        }
        Sanitizer::Thread | Sanitizer::Address => Command::new(program),
    };
    // Leaks are looked for with ptrace, which containers often forbid; the program ends anyway.
    command.env("ASAN_OPTIONS", "detect_leaks=0").env("TSAN_OPTIONS", "halt_on_error=1");
    command
}

fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn pairs(halves: &[u16]) -> Vec<u32> {
    halves.chunks_exact(2).map(|pair| u32::from(pair[1]) << 16 | u32::from(pair[0])).collect()
}

/// Runs a case; `skip` is a line of attend.cu whose barrier is left out.
fn launch(sanitizer: Sanitizer, arrays: &[Vec<u32>], skip: Option<usize>) -> Option<Output> {
    let program = program(sanitizer)?;
    let folder = tempfile(sanitizer);
    let (case, result) = (folder.join("case"), folder.join("result"));
    let bytes: Vec<u8> = arrays
        .iter()
        .flat_map(|array| std::iter::once(array.len() as u32).chain(array.iter().copied()))
        .flat_map(u32::to_ne_bytes)
        .collect();
    std::fs::write(&case, bytes).unwrap();
    let mut command = command(sanitizer, program);
    command.arg(&case).arg(&result);
    command.args(skip.map(|line| line.to_string()));
    Some(command.output().unwrap())
}

/// A folder of this test alone: tests run side by side.
fn tempfile(sanitizer: Sanitizer) -> PathBuf {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("main").replace(':', "-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{sanitizer:?}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The arrays of the result; the last one is the count of slots out of range.
fn result(sanitizer: Sanitizer, arrays: &[Vec<u32>]) -> Option<Vec<Vec<u32>>> {
    let output = launch(sanitizer, arrays, None)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(tempfile(sanitizer).join("result")).unwrap();
    let all: Vec<u32> = bytes.as_chunks().0.iter().map(|four| u32::from_ne_bytes(*four)).collect();
    let mut rest = all.as_slice();
    let mut found = Vec::new();
    while let [len, after @ ..] = rest {
        let (array, after) = after.split_at(*len as usize);
        found.push(array.to_vec());
        rest = after;
    }
    Some(found)
}

fn attend_arrays(case: &Case) -> Vec<Vec<u32>> {
    let HeadShape { heads, kv_heads, head_dim } = case.shape;
    let (plan, tables) = case.with_sequences(|sequences| {
        (AttendPlan::cut(case.shape, &case.positions, sequences), Tables::collect(sequences))
    });
    let numbers = [head_dim, plan.queries, heads, kv_heads].map(|number| number as u32);
    let sizes = [case.slot_count(), tables.stride as u32, plan.splits_max as u32];
    let scale = (case.scale * std::f32::consts::LOG2_E).to_bits();
    vec![
        [&[ATTEND][..], &numbers, &[scale], &sizes].concat(),
        pairs(&case.slots),
        tables.slots,
        plan.tiles.as_flattened().to_vec(),
        case.positions.clone(),
        words(&case.q),
        vec![f32::NAN.to_bits(); case.q.len()],
    ]
}

fn assert_like_host(case: &Case, got: &[u32], label: &str) {
    let got: Vec<f32> = got.iter().map(|&bits| f32::from_bits(bits)).collect();
    let agreement = Agreement::of(&got, &case.on_host(), case.shape.head_dim);
    assert!(agreement.is_right(), "{label}: {agreement}");
}

fn check(sanitizer: Sanitizer, case: &Case, label: &str) {
    let Some(found) = result(sanitizer, &attend_arrays(case)) else { return };
    let [out, faults] = found.as_slice() else { panic!("{} arrays", found.len()) };
    assert_eq!(faults, &[0], "{label}");
    assert_like_host(case, out, label);
}

/// A shape with its sequences, by the positions of their rows.
type Shaped<'a> = (HeadShape, &'a [Range<u32>]);

const fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> HeadShape {
    HeadShape { heads, kv_heads, head_dim }
}

/// Every width of heads; groups of 1, 2, 3, 4, 7, 8 and 12 (more than a tile); one row and several;
/// one block, a boundary of blocks, a boundary of splits.
const SHAPES: [Shaped<'_>; 7] = [
    (shape(9, 3, 64), &[4..5, 15..16, 1100..1101]),
    (shape(3, 1, 64), &[1021..1026, 0..1]),
    (shape(8, 1, 80), &[16..18, 33..34]),
    (shape(2, 2, 96), &[0..7]),
    (shape(7, 1, 64), &[30..33]),
    (shape(8, 2, 128), &[63..64, 47..49]),
    (shape(12, 1, 256), &[20..21]),
];

#[test]
fn attention_has_the_hosts_bits_under_the_address_and_undefined_sanitizers() {
    for (seed, (shape, sequences)) in SHAPES.into_iter().enumerate() {
        let case = Case::new(shape, sequences, seed as u64);
        check(Sanitizer::Address, &case, &format!("{shape:?} {sequences:?}"));
    }
}

#[test]
fn attention_has_no_data_race_and_the_hosts_bits_under_the_thread_sanitizer() {
    for (shape, sequences) in [SHAPES[1], SHAPES[5]] {
        let case = Case::new(shape, sequences, 40);
        check(Sanitizer::Thread, &case, &format!("{shape:?} {sequences:?}"));
    }
}

#[test]
fn p1_a_row_has_the_same_bits_alone_and_among_others() {
    let shape = shape(3, 1, 64);
    let case = Case::new(shape, &[1030..1033, 50..51], 50);
    let Some(all) = result(Sanitizer::Address, &attend_arrays(&case)) else { return };
    let width = shape.heads * shape.head_dim;
    // The last sequence's row sits behind three others; alone, its tile has other neighbours.
    let mut alone = case;
    alone.keep_sequence(1);
    let one = result(Sanitizer::Address, &attend_arrays(&alone)).unwrap();
    assert_eq!(all[0][3 * width..], one[0]);
}

#[test]
fn a_row_that_is_not_finite_comes_out_as_nan_and_leaves_the_others_alone() {
    let shape = shape(2, 1, 64);
    let width = shape.heads * shape.head_dim;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut case = Case::new(shape, &[17..20], 60);
        case.q[width + 5] = bad;
        let Some(found) = result(Sanitizer::Address, &attend_arrays(&case)) else { return };
        assert!(found[0][width..][..64].iter().all(|&value| f32::from_bits(value).is_nan()));
        assert_like_host(&case, &found[0], "one bad query");
    }
}

#[test]
fn scores_far_apart_and_equal_have_the_hosts_bits() {
    let shape = shape(2, 1, 64);
    let mut case = Case::new(shape, &[90..92], 70);
    // The maximum jumps by more than 2^x can tell apart in most blocks.
    for value in &mut case.q {
        *value *= 200.0;
    }
    // Scores of thousands amplify their own rounding: only the same arithmetic agrees on them.
    if NUMERICS_CLASS == kernels::NUMERICS_CLASS {
        check(Sanitizer::Address, &case, "far apart");
    }
    for value in &mut case.q {
        *value = -0.0;
    }
    check(Sanitizer::Address, &case, "all equal");
}

#[test]
fn a_slot_beyond_the_arena_is_counted_and_touches_no_memory() {
    let case = Case::new(shape(3, 1, 64), &[40..41], 80);
    let mut arrays = attend_arrays(&case);
    arrays[2][1] = case.slot_count();
    let Some(found) = result(Sanitizer::Address, &arrays) else { return };
    assert_eq!(found[1], [1]);
    for kernel in [GATHER, SCATTER] {
        let (slots, run) = (vec![7; 3 * 1024], vec![9; 2 * 1024]);
        let arrays = [vec![kernel, 3, 256], slots.clone(), vec![2, 3], run.clone()];
        let found = result(Sanitizer::Address, &arrays).unwrap();
        assert_eq!(found[1], [1]);
        let (moved, left) = if kernel == GATHER { (0, 1024) } else { (2048, 0) };
        let (new, old) = if kernel == GATHER { (7, 9) } else { (9, 7) };
        assert!(found[0][moved..][..1024].iter().all(|&word| word == new));
        assert!(found[0][left..][..1024].iter().all(|&word| word == old));
    }
}

#[test]
fn slices_are_gathered_and_scattered_as_the_ids_say() {
    // Widths whose slices are whole passes of eight vectors a lane (64), and not (80, 16).
    for (sanitizer, head_dim) in
        [(Sanitizer::Address, 64), (Sanitizer::Address, 80), (Sanitizer::Thread, 16)]
    {
        let words = head_dim * 16;
        let mut numbers = Numbers::new(head_dim as u64);
        let mut random = |slices: usize| -> Vec<u32> {
            (0..slices * words).map(|_| numbers.below(u32::MAX)).collect()
        };
        let (slots, run) = (random(23), random(19));
        let ids: Vec<u32> = Numbers::new(3).order(23).into_iter().take(19).collect();
        let head = |kernel| vec![kernel, 23, words as u32 / 4];
        let unset = vec![0; run.len()];
        let gather = [head(GATHER), slots.clone(), ids.clone(), unset];
        let Some(found) = result(sanitizer, &gather) else { return };
        let want: Vec<u32> =
            ids.iter().flat_map(|&id| slots[id as usize * words..][..words].to_vec()).collect();
        assert!(found[0] == want && found[1] == [0]);
        let scatter = [head(SCATTER), slots.clone(), ids.clone(), run.clone()];
        let found = result(sanitizer, &scatter).unwrap();
        let mut want = slots;
        for (&id, from) in ids.iter().zip(run.chunks_exact(words)) {
            want[id as usize * words..][..words].copy_from_slice(from);
        }
        assert!(found[0] == want && found[1] == [0]);
    }
}

#[test]
fn the_shim_widens_every_half_precision_number_exactly() {
    let words: Vec<u32> = (0..1 << 16).step_by(2).map(|low| low | (low + 1) << 16).collect();
    let Some(found) = result(Sanitizer::Address, &[vec![WIDEN], words]) else { return };
    assert_eq!(found[0].len(), 1 << 16);
    for (bits, &got) in (0..=u16::MAX).zip(&found[0]) {
        let (got, want) = (f32::from_bits(got), half::f16::from_bits(bits).to_f32());
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#06x}");
    }
}

#[test]
fn the_shim_names_a_barrier_that_not_all_threads_reach() {
    let Some(output) = launch(Sanitizer::Thread, &[vec![DIVERGE]], None) else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("wait at different places"), "{text}");
}

/// The check of the check: leaves out each barrier of attend.cu in turn.
#[test]
fn every_barrier_that_is_left_out_is_found_by_the_thread_sanitizer() {
    let source = include_str!("../../cuda/attend.cu");
    let lines = source.lines().enumerate();
    let barriers = lines.filter(|(_, line)| line.contains("__syncthreads();"));
    let mut count = 0;
    for line in barriers.map(|(at, _)| at + 1) {
        let case = Case::new(shape(4, 1, 64), &[70..72], 90);
        let Some(output) = launch(Sanitizer::Thread, &attend_arrays(&case), Some(line)) else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("data race"), "line {line}: {text}");
        count += 1;
    }
    assert_eq!(count, 6, "barriers of attend.cu");
}
