//! Every target over its committed inputs, over everything that ever broke it, and over a fixed
//! number of mutations of both: the same on every run.
//!
//! Deliberately few mutations: `integration-tests/fuzz.sh` runs for minutes and by coverage.

#![expect(clippy::unwrap_used, reason = "clippy spares #[test] functions, not their helpers")]

use std::path::Path;

use fuzz::{Inputs, TARGETS, Target, blind, replay};
use parking_lot::Mutex;

/// The bound on the heap is one of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Executions of mutated inputs: a second or two for the slowest.
const MUTATIONS: u64 = 1_000;

fn check(name: &str) {
    let _alone = ONE_AT_A_TIME.lock();
    let target = Target::named(name).unwrap();
    let inputs = Inputs::committed(target).unwrap();
    assert!(!inputs.files.is_empty(), "{name} has no corpus");
    for (path, input) in &inputs.files {
        replay(target, path, input).unwrap();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    let ran = blind(target, &inputs, &folder, 1, |ran| ran < MUTATIONS).unwrap();
    assert_eq!(ran, MUTATIONS);
}

#[test]
fn case_53_any_gguf_header_is_refused_or_consistent() {
    check("gguf");
}

#[test]
fn case_53_any_safetensors_header_and_index_is_refused_or_consistent() {
    check("safetensors");
}

#[test]
fn any_tokenizer_is_refused_or_takes_any_text() {
    check("tokenizer");
}

#[test]
fn any_tokenizer_json_is_refused_or_takes_any_text() {
    check("tokenizer-json");
}

#[test]
fn p4_any_template_is_refused_or_bounded() {
    check("template");
}

#[test]
fn case_53_any_message_is_refused_or_read_as_written() {
    check("messages");
}

#[test]
fn case_53_a_server_answers_any_bytes_as_the_protocol_says() {
    check("frames-server");
}

#[test]
fn case_53_a_client_believes_only_answers() {
    check("frames-client");
}

#[test]
fn every_target_is_checked_and_the_committed_inputs_are_small() {
    let here = include_str!("targets.rs");
    let mut bytes = 0;
    for target in TARGETS {
        let call = format!("check(\"{}\")", target.name);
        assert!(here.contains(&call), "{} has no test here", target.name);
        bytes += Inputs::committed(target).unwrap().files.iter().map(|f| f.1.len()).sum::<usize>();
    }
    assert!(bytes < 1 << 20, "{bytes} bytes of inputs: merge them (CONTRIBUTING.md)");
}
