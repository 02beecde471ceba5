//! P1 for every storage format and every family: tiny models, whose logits and KV are compared bit
//! for bit over instruction sets, threads, chunks, neighbours and prefix hits. The real model is
//! in `bits`.

use checkpoint::Checkpoint;
use kernels::Isa;
use model::Architecture;

use super::host::{device, isas, load, open};
use super::runner::Runner;
use super::tiny::Tiny;
use super::truth::tokens;
use super::writer::Stored;

/// No multiple of 16 or of any chunk; five whole blocks and an open one.
const PROMPT: usize = 93;
/// Blocks of a prefix hit.
const HIT: usize = 3;

/// Bits of the logits of every position, and the KV of all blocks.
#[derive(PartialEq, Eq)]
struct Trace {
    logits: Vec<Vec<u32>>,
    kv: Vec<u8>,
}

/// How a prompt is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    isa: Option<Isa>,
    threads: usize,
    chunk: usize,
    /// Rows of another sequence stand before ours in every step.
    neighbour: bool,
}

/// Runs the prompt, behind the first blocks of `hit` where that is given.
fn run(checkpoint: &Checkpoint, prompt: &[u32], way: Way, hit: Option<&Trace>) -> Trace {
    let model = load(checkpoint, &device(way.threads, way.isa));
    let mut runner = Runner::new(model, 4 * PROMPT, 2 * PROMPT);
    let mut sequence = runner.sequence(PROMPT);
    let mut other = runner.sequence(2 * PROMPT);
    let mut logits = Vec::new();
    if let Some(hit) = hit {
        let bytes = HIT * runner.model.spec().block_bytes();
        runner.scatter(&mut sequence, &prompt[..HIT * 16], &hit.kv[..bytes]);
    }
    for (step, chunk) in prompt[sequence.len()..].chunks(way.chunk).enumerate() {
        let before = if way.neighbour { step % 3 + 1 } else { 0 };
        if way.neighbour {
            let others = &prompt[step % 7..][..before];
            runner.step(&mut [(&mut other, others), (&mut sequence, chunk)]);
        } else {
            runner.step(&mut [(&mut sequence, chunk)]);
        }
        for row in 0..chunk.len() {
            let row = runner.logits(before + row);
            logits.push(row.into_iter().map(f32::to_bits).collect());
        }
    }
    let blocks = sequence.blocks.block_count();
    Trace { logits, kv: runner.gather(&sequence, blocks) }
}

fn check(tiny: &Tiny) {
    let checkpoint = open(&tiny.file());
    let prompt = tokens(PROMPT, tiny.vocab, 17);
    let first = Way { isa: None, threads: 2, chunk: PROMPT, neighbour: false };
    let expected = run(&checkpoint, &prompt, first, None);
    let values = expected.logits.iter().flatten().map(|bits| f32::from_bits(*bits));
    assert!(values.clone().all(f32::is_finite), "{tiny:?}: logits are finite");
    assert!(values.clone().any(|value| value.abs() > 0.1), "{tiny:?}: logits say something");
    for isa in isas() {
        for (threads, chunk, neighbour) in
            [(1, PROMPT, false), (2, 32, false), (2, 7, true), (1, 1, false), (2, 1, true)]
        {
            let way = Way { isa: Some(isa), threads, chunk, neighbour };
            for (hit, start) in [(None, 0), (Some(&expected), HIT * 16)] {
                let what = format!("P1: {tiny:?}, {way:?}, behind {start} positions");
                let ours = run(&checkpoint, &prompt, way, hit);
                assert_eq!(ours.logits.len(), PROMPT - start);
                let rows = ours.logits.iter().zip(&expected.logits[start..]);
                for (row, (ours, theirs)) in rows.enumerate() {
                    assert!(ours == theirs, "{what}: logits at {} differ", start + row);
                }
                assert!(ours.kv == expected.kv, "{what}: KV differs");
            }
        }
    }
}

#[test]
fn p1_bits_of_every_format_depend_on_no_chunk_batch_thread_or_isa() {
    for stored in Stored::ALL {
        check(&Tiny::wide(stored));
    }
}

#[test]
fn p1_bits_of_every_family_depend_on_no_chunk_batch_thread_or_isa() {
    for tiny in [Tiny::qwen2(Stored::Q8_0), Tiny::qwen3(Stored::Q4_1), Tiny::qwen3(Stored::BF16)] {
        check(&tiny);
        check(&Tiny { yarn: true, ..tiny });
    }
    let wide = Tiny { head_dim: 128, heads: 4, kv_heads: 1, ..Tiny::wide(Stored::Q6K) };
    check(&Tiny { architecture: Architecture::Qwen3, ..wide });
}
