//! The layer loop against the published formulas in f64, on tiny random models of all families
//! and of every storage type, in chunks, with logits from hidden states that were copied out.

use model::{LoadOptions, Model, StepError};

use super::host::{device, load, open};
use super::reference;
use super::runner::Runner;
use super::tiny::Tiny;
use super::writer::{Random, Stored};

pub(crate) fn tokens(count: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| u32::try_from(random.next() % u64::from(vocab)).unwrap()).collect()
}

/// No logit of any position may be off by more than `tolerance` of the largest. Keys and values
/// that lie between two 16-bit numbers are rounded either way: that alone gives some 5e-4.
fn check(tiny: &Tiny, tolerance: f64) {
    let file = tiny.file();
    let tokens = tokens(53, tiny.vocab, 3);
    let expected = reference::logits(tiny, &file, &tokens);
    let model = load(&open(&file), &device(2, None));
    let mut runner = Runner::new(model, 64, 20);
    let mut sequence = runner.sequence(64);
    let (mut worst, mut largest) = (0.0f64, 0.0f64);
    for chunk in tokens.chunks(20) {
        let start = sequence.len();
        runner.step(&mut [(&mut sequence, chunk)]);
        for row in 0..chunk.len() {
            let logits = runner.logits(row);
            for (ours, theirs) in logits.iter().zip(&expected[start + row]) {
                worst = worst.max((f64::from(*ours) - theirs).abs());
                largest = largest.max(theirs.abs());
            }
            let hidden = runner.hidden(row);
            runner.model.logits_of_hidden(&mut runner.scratch, &hidden);
            let mut again = Vec::new();
            runner.scratch.read_logits(&mut again).unwrap();
            assert_eq!(logits, again, "P1: a copied hidden state gives the same logits");
        }
    }
    println!("{tiny:?}: largest difference {worst:e}, largest logit {largest:.1}");
    assert!(worst < tolerance * largest, "{tiny:?}: {worst} off, largest logit {largest}");
}

#[test]
fn llama_agrees_with_the_formulas_for_every_storage_type() {
    for (stored, embedding) in [
        (Stored::F32, Stored::F32),
        (Stored::F16, Stored::F16),
        (Stored::Q8_0, Stored::Q8_0),
        (Stored::Q4_1, Stored::Q8_0),
    ] {
        check(&Tiny::llama(stored, embedding), 2e-3);
    }
}

#[test]
fn qwen2_agrees_with_the_formulas_biases_and_output_matrix_included() {
    for stored in [Stored::F32, Stored::F16, Stored::Q8_0] {
        check(&Tiny::qwen2(stored), 2e-3);
    }
}

#[test]
fn qwen3_agrees_with_the_formulas_normalised_heads_included() {
    for stored in [Stored::F32, Stored::BF16, Stored::Q8_0] {
        check(&Tiny::qwen3(stored), 2e-3);
    }
}

#[test]
fn p6_a_step_ends_before_the_next_layer_when_told_to_stop() {
    let gguf = open(&Tiny::llama(Stored::F16, Stored::F16).file());
    let model = load(&gguf, &device(1, None));
    let mut runner = Runner::new(model, 16, 4);
    let mut sequence = runner.sequence(16);
    runner.step(&mut [(&mut sequence, &[1, 2])]);
    let asked = std::cell::Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) == 1;
    let row = model::Row { token: ids::TokenId(3), position: ids::Position(2), sequence: 0 };
    let step = model::Step { rows: &[row], slots: &runner.arena, stop: &stop };
    let kv = &mut model::Dense(&[&sequence.blocks]);
    let error = runner.model.forward(&mut runner.scratch, &step, kv).unwrap_err();
    assert!(matches!(error, StepError::Stopped { layer: 1 }), "{error}");
}

#[test]
fn tokens_and_positions_that_the_model_does_not_have_are_typed_errors() {
    let gguf = open(&Tiny::llama(Stored::F16, Stored::F16).file());
    let options = LoadOptions { context_max: 24 };
    let model = Model::load(&gguf, &device(1, None), options).unwrap();
    assert_eq!(model.context(), 24);
    let mut runner = Runner::new(model, 32, 4);
    let mut sequence = runner.sequence(32);
    runner.step(&mut [(&mut sequence, &[1, 2])]);
    for (token, position, part) in [(96, 2, "vocabulary of 96"), (1, 24, "context of 24")] {
        let row = model::Row {
            token: ids::TokenId(token),
            position: ids::Position(position),
            sequence: 0,
        };
        let step = model::Step { rows: &[row], slots: &runner.arena, stop: &|| false };
        let kv = &mut model::Dense(&[&sequence.blocks]);
        let error = runner.model.forward(&mut runner.scratch, &step, kv).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn progress_ends_at_the_bytes_of_all_tensors() {
    let gguf = open(&Tiny::qwen2(Stored::Q8_0).file());
    let mut told = Vec::new();
    let options = LoadOptions::default();
    Model::load_with_progress(&gguf, &device(1, None), options, &mut |p| told.push(p)).unwrap();
    assert_eq!(told.len(), gguf.tensors().len());
    let last = told.last().unwrap();
    assert_eq!(last.bytes, last.bytes_total);
}
