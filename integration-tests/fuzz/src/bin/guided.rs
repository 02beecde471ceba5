//! libFuzzer over the target that `--target=NAME` names; all other arguments are libFuzzer's.
//!
//! Built by `integration-tests/fuzz.sh` with the flags that make the compiler count coverage.
//! Deliberately one program for all targets: they are linked once.

#![no_main]

use std::sync::LazyLock;

use fuzz::{Dice, TARGETS, Target, mutate};

/// libFuzzer ignores what begins with two dashes.
static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let named = std::env::args().find_map(|argument| {
        let name = argument.strip_prefix("--target=")?;
        Target::named(name)
    });
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    named.unwrap_or_else(|| panic!("--target=NAME is missing, it is one of {names:?}"))
});

libfuzzer_sys::fuzz_target!(
    init: {
        LazyLock::force(&TARGET);
    },
    |input: &[u8]| {
        TARGET.run(input);
    }
);

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    // One in four by the target's own words, which libFuzzer would have to find out.
    if seed % 4 != 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let mut damaged = data[..size].to_vec();
    mutate(&mut damaged, &data[..size], TARGET.words, max_size, &mut Dice(seed.into()));
    data[..damaged.len()].copy_from_slice(&damaged);
    damaged.len()
});
