//! Runs a target over files and over mutations of them, and keeps the input that broke it.
//!
//! The input is written down before it runs: a stack overflow or a failed allocation ends the
//! process, and the file is what is left. Deliberately without coverage; libFuzzer is the guided
//! driver.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Dice, Target, mutate};

/// The committed inputs of one target.
#[derive(Debug)]
pub struct Inputs {
    /// Path and content, in the order of the paths.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

/// An input on which a target panicked.
#[derive(Debug, thiserror::Error)]
#[error(
    "target {target} fails on {}; replay it with: cargo run --release -p fuzz -- {target} {}",
    path.display(), path.display()
)]
pub struct Found {
    /// Name of the target.
    pub target: &'static str,
    /// Where the input is.
    pub path: PathBuf,
}

impl Inputs {
    /// Everything below the given folders; a folder that does not exist is empty.
    ///
    /// # Errors
    /// What the system says about a folder or file.
    pub fn read(folders: &[PathBuf]) -> io::Result<Self> {
        let mut files = Vec::new();
        for folder in folders.iter().filter(|folder| folder.is_dir()) {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_file() {
                    files.push((path.clone(), fs::read(path)?));
                }
            }
        }
        files.sort();
        Ok(Self { files })
    }

    /// The committed inputs of a target: its corpus, and every input that once broke it.
    ///
    /// # Errors
    /// As [`Inputs::read`].
    pub fn committed(target: &Target) -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::read(&["corpus", "regressions"].map(|kind| root.join(kind).join(target.name)))
    }
}

/// Panics of this process, on any thread or task: a runtime catches those of its tasks.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            shown(info);
        }));
    });
}

/// Runs a target on one file's content.
///
/// # Errors
/// [`Found`] if it panicked.
pub fn replay(target: &Target, path: &Path, input: &[u8]) -> Result<(), Found> {
    count_panics();
    let before = PANICS.load(Ordering::Relaxed);
    let ended = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    if ended.is_ok() && PANICS.load(Ordering::Relaxed) == before {
        return Ok(());
    }
    Err(Found { target: target.name, path: path.to_owned() })
}

/// Runs a target on mutations of `inputs` while `go_on` (which is told how many ran) says so; the
/// number that ran. The input at work is in a file below `folder`, which stays if it breaks.
///
/// # Errors
/// [`Found`], inside of an `anyhow` error as those of the file are.
pub fn blind(
    target: &Target,
    inputs: &Inputs,
    folder: &Path,
    seed: u64,
    mut go_on: impl FnMut(u64) -> bool,
) -> anyhow::Result<u64> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{}-{}", target.name, std::process::id()));
    let mut dice = Dice(seed);
    let mut ran = 0;
    let nothing = Vec::new();
    while go_on(ran) {
        let mut pick = || dice.pick(&inputs.files).map_or(&nothing, |(_, input)| input);
        let (mut input, other) = (pick().clone(), pick());
        mutate(&mut input, other, target.words, target.input_bytes_max, &mut dice);
        fs::write(&path, &input)?;
        replay(target, &path, &input)?;
        ran += 1;
    }
    if path.is_file() {
        fs::remove_file(&path)?;
    }
    Ok(ran)
}
