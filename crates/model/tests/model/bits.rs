//! P1 on the real model: the hidden state of every row, the logits of many and the bytes of the
//! KV, compared bit for bit over chunks, threads, instruction sets, neighbours and prefix hits.
//!
//! Method: one prompt of 1,523 tokens (no multiple of 16 or of any chunk) is run in many ways;
//! each run gives a digest per row and one of the KV, which are compared with the first run's.

use kernels::Isa;

use super::host::{device, isas, load, real_file};
use super::runner::{Runner, Sequence};
use super::writer::Random;

const PROMPT: usize = 1523;
/// Rows whose logits are compared, besides the last 16: one in so many.
const LOGITS_EVERY: usize = 31;

fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    // Small ids are frequent tokens and bytes, the rest is spread over the vocabulary.
    let token = |random: &mut Random| match random.next() % 4 {
        0 => random.next() % 49_152,
        _ => random.next() % 1_500,
    };
    (0..count).map(|_| u32::try_from(token(&mut random)).unwrap()).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digest([u8; 8]);

fn digest(values: &[f32]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&value.to_bits().to_le_bytes());
    }
    short(&hasher)
}

fn short(hasher: &blake3::Hasher) -> Digest {
    Digest(*hasher.finalize().as_bytes().first_chunk().unwrap())
}

/// What one way of running the prompt gave.
#[derive(Default)]
struct Trace {
    hidden: Vec<Digest>,
    /// Position and digest.
    logits: Vec<(usize, Digest)>,
}

impl Trace {
    /// Notes the rows of the last step from row `first` on, which stand at `start`.
    fn note(&mut self, runner: &mut Runner, first: usize, start: usize, rows: usize) {
        for row in 0..rows {
            self.hidden.push(digest(&runner.hidden(first + row)));
            let position = start + row;
            if position.is_multiple_of(LOGITS_EVERY) || position + 16 >= PROMPT {
                self.logits.push((position, digest(&runner.logits(first + row))));
            }
        }
    }

    fn check_against(&self, expected: &Trace, start: usize, what: &str) {
        let rows = self.hidden.iter().zip(&expected.hidden[start..]);
        for (row, (ours, theirs)) in rows.enumerate() {
            assert_eq!(ours, theirs, "P1: hidden state at {} differs: {what}", start + row);
        }
        for ours in &self.logits {
            assert!(expected.logits.contains(ours), "P1: logits at {} differ: {what}", ours.0);
        }
    }
}

/// The rest of the prompt behind what `sequence` has, in steps of `chunk` rows.
fn prefill(runner: &mut Runner, sequence: &mut Sequence, prompt: &[u32], chunk: usize) -> Trace {
    let mut trace = Trace::default();
    for tokens in prompt[sequence.len()..].chunks(chunk) {
        let start = sequence.len();
        runner.step(&mut [(sequence, tokens)]);
        trace.note(runner, 0, start, tokens.len());
    }
    trace
}

/// The first run: best instruction set, two threads, chunks of 256.
struct Expected {
    prompt: Vec<u32>,
    trace: Trace,
    /// Slices of all blocks, the open one included.
    kv: Vec<u8>,
}

fn runner(gguf: &checkpoint::Checkpoint, threads: usize, isa: Option<Isa>, rows: usize) -> Runner {
    Runner::new(load(gguf, &device(threads, isa)), 4608, rows)
}

fn expected(runner: &mut Runner) -> Expected {
    let prompt = tokens(PROMPT, 11);
    let mut sequence = runner.sequence(PROMPT);
    let trace = prefill(runner, &mut sequence, &prompt, 256);
    let blocks = sequence.blocks.block_count();
    let kv = runner.gather(&sequence, blocks);
    Expected { prompt, trace, kv }
}

/// Starts with the first `blocks` blocks as the first run stored them: a prefix hit.
fn hit(runner: &mut Runner, expected: &Expected, blocks: usize) -> Sequence {
    let mut sequence = runner.sequence(PROMPT);
    let bytes = blocks * runner.model.spec().block_bytes();
    runner.scatter(&mut sequence, &expected.prompt[..blocks * 16], &expected.kv[..bytes]);
    sequence
}

#[test]
fn p1_bits_do_not_depend_on_chunks_threads_isa_neighbours_or_prefix_hits() {
    let Some(gguf) = real_file() else { return };
    let mut two = runner(&gguf, 2, None, 256);
    let expected = expected(&mut two);
    chunks(&mut two, &expected, 64, "2 threads, chunks of 64");
    decode_among_neighbours(&mut two, &expected);
    prefill_among_decoding_neighbours(&mut two, &expected);
    drop(two);
    let mut one = runner(&gguf, 1, None, 1024);
    chunks(&mut one, &expected, 1024, "1 thread, chunks of 1024");
    decode_alone(&mut one, &expected);
    drop(one);
    instruction_sets(&gguf, &expected);
}

/// The whole prompt, in slots that other runs may have left full of their own KV.
fn chunks(runner: &mut Runner, expected: &Expected, chunk: usize, what: &str) {
    let mut sequence = runner.sequence(PROMPT);
    let trace = prefill(runner, &mut sequence, &expected.prompt, chunk);
    trace.check_against(&expected.trace, 0, what);
    let blocks = sequence.blocks.block_count();
    assert!(runner.gather(&sequence, blocks) == expected.kv, "P1: KV differs: {what}");
}

/// Each instruction set runs a short prefix from the start and the end behind a prefix hit.
fn instruction_sets(gguf: &checkpoint::Checkpoint, expected: &Expected) {
    for isa in isas() {
        let (short, last) = match isa {
            Isa::Portable => (37, 94),
            Isa::Avx2 | Isa::Avx512 => (300, 80),
        };
        let mut runner = runner(gguf, 2, Some(isa), 64);
        let mut sequence = runner.sequence(short);
        let trace = prefill(&mut runner, &mut sequence, &expected.prompt[..short], 64);
        trace.check_against(&expected.trace, 0, &format!("{isa}, from the start"));
        let mut sequence = hit(&mut runner, expected, last);
        let trace = prefill(&mut runner, &mut sequence, &expected.prompt, 64);
        trace.check_against(&expected.trace, last * 16, &format!("{isa}, behind a prefix hit"));
        let blocks = sequence.blocks.block_count();
        assert!(runner.gather(&sequence, blocks) == expected.kv, "P1: KV differs: {isa}");
    }
}

/// Token by token, as decode runs.
fn decode_alone(runner: &mut Runner, expected: &Expected) {
    let mut sequence = hit(runner, expected, 88);
    let trace = prefill(runner, &mut sequence, &expected.prompt, 1);
    trace.check_against(&expected.trace, 88 * 16, "token by token, alone");
}

/// Token by token in a batch with seven sequences of other lengths.
fn decode_among_neighbours(runner: &mut Runner, expected: &Expected) {
    let mut sequence = hit(runner, expected, 90);
    let mut neighbours = Vec::new();
    for (seed, len) in [1, 15, 16, 77, 130, 256, 301].into_iter().enumerate() {
        let mut neighbour = runner.sequence(400);
        let prompt = tokens(len, 100 + seed as u64);
        for chunk in prompt.chunks(64) {
            runner.step(&mut [(&mut neighbour, chunk)]);
        }
        neighbours.push((neighbour, tokens(400, 200 + seed as u64)));
    }
    let mut trace = Trace::default();
    for (at, token) in expected.prompt[90 * 16..].iter().enumerate() {
        // Our row changes its place in the batch from step to step.
        let place = at % (neighbours.len() + 1);
        let mut work: Vec<(&mut Sequence, &[u32])> = neighbours
            .iter_mut()
            .map(|(neighbour, tokens)| (neighbour, std::slice::from_ref(&tokens[at])))
            .collect();
        let start = sequence.len();
        work.insert(place, (&mut sequence, std::slice::from_ref(token)));
        runner.step(&mut work);
        trace.note(runner, place, start, 1);
    }
    trace.check_against(&expected.trace, 90 * 16, "token by token in a batch of 8");
}

/// One step holds a chunk of ours and single rows of others.
fn prefill_among_decoding_neighbours(runner: &mut Runner, expected: &Expected) {
    let mut sequence = hit(runner, expected, 80);
    let (mut before, mut after) = (runner.sequence(100), runner.sequence(100));
    let others = tokens(100, 5);
    runner.step(&mut [(&mut before, &others[..29]), (&mut after, &others[..2])]);
    let mut trace = Trace::default();
    for tokens in expected.prompt[80 * 16..].chunks(50) {
        let start = sequence.len();
        let rows = tokens.len();
        runner.step(&mut [
            (&mut before, &others[start % 50..start % 50 + 1]),
            (&mut sequence, tokens),
            (&mut after, &others[start % 50..start % 50 + 3]),
        ]);
        trace.note(runner, 1, start, rows);
    }
    trace.check_against(&expected.trace, 80 * 16, "a chunk between rows of others");
}
