//! Replays inputs against a target, or tries mutations of the committed ones for a while:
//!
//! ```text
//! fuzz TARGET FILE..          replays files, or all files of a folder
//! fuzz TARGET --seconds N     mutates the committed inputs for N seconds, from a seed it prints
//! ```
//!
//! Deliberately unguided, so that it needs nothing but Rust; `integration-tests/fuzz.sh` uses
//! libFuzzer where there is a C++ compiler.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use fuzz::{Inputs, TARGETS, Target, blind, replay};
use tokio::time::Instant;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let usage = || format!("usage: fuzz TARGET (FILE.. | --seconds N), TARGET is one of {names:?}");
    let name = arguments.next().with_context(usage)?;
    let target = Target::named(&name).with_context(usage)?;
    let rest: Vec<String> = arguments.collect();
    match rest.as_slice() {
        [] => bail!(usage()),
        [flag, seconds] if flag == "--seconds" => {
            let seconds = seconds.parse().with_context(|| format!("--seconds {seconds}"))?;
            mutations(target, Duration::from_secs(seconds))
        }
        paths => files(target, paths),
    }
}

#[expect(clippy::print_stdout, reason = "a program for people")]
fn files(target: &Target, paths: &[String]) -> anyhow::Result<()> {
    let mut count = 0;
    for path in paths.iter().map(PathBuf::from) {
        let inputs = if path.is_dir() {
            Inputs::read(std::slice::from_ref(&path))?
        } else {
            let input = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Inputs { files: vec![(path, input)] }
        };
        for (path, input) in &inputs.files {
            replay(target, path, input)?;
            count += 1;
        }
    }
    println!("{}: {count} inputs are fine", target.name);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program for people")]
fn mutations(target: &Target, time: Duration) -> anyhow::Result<()> {
    let inputs = Inputs::committed(target)?;
    let seed = std::process::id().into();
    println!("{}: {} inputs, seed {seed}", target.name, inputs.files.len());
    let end = Instant::now() + time;
    let ran = blind(target, &inputs, Path::new("target/test-run/fuzz"), seed, |ran| {
        ran % 64 != 0 || Instant::now() < end
    })?;
    println!("{}: {ran} executions, unguided", target.name);
    Ok(())
}
