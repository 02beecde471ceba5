//! What comes from outside and must be survived: one function per kind of hostile input, and what
//! drives them.
//!
//! A target takes any bytes. It may refuse them; it must not panic, hang, overflow the stack, take
//! more heap than its bound, or accept what breaks a rule of its own. Three drivers share the same
//! functions, so that there is one truth: `tests/targets.rs` (always, over the committed inputs and
//! a fixed number of mutations), `src/main.rs` (replay, and mutations for a time) and
//! `src/bin/guided.rs` (libFuzzer). Deliberately not part of the product.

mod drive;
mod frames;
mod gguf;
mod heap;
mod hub;
mod messages;
mod mutate;
mod safetensors;
mod template;
mod tokenizer;

pub use drive::{Found, Inputs, blind, replay};
pub use mutate::{Dice, mutate};

/// One kind of hostile input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of its folders below `corpus` and `regressions`.
    pub name: &'static str,
    /// Takes any input.
    run: fn(&[u8]),
    /// Heap that one run may take at once, beside what was taken before.
    heap_bytes_max: usize,
    /// Longest input worth trying.
    pub input_bytes_max: usize,
    /// Texts and numbers that mean something to it, for mutations.
    pub words: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: &[Target] = &[
    gguf::TARGET,
    safetensors::TARGET,
    tokenizer::TARGET,
    hub::TARGET,
    template::TARGET,
    messages::TARGET,
    frames::SERVER,
    frames::CLIENT,
];

impl Target {
    /// The target of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs it once. A panic, an abort or a crash is a finding; so is more heap than the bound,
    /// which aborts where it is asked for.
    pub fn run(&self, input: &[u8]) {
        let _bounded = heap::Bounded::by(self.heap_bytes_max);
        (self.run)(input);
    }
}
