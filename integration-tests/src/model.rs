//! Where the default model's file is.
//! What it deliberately does not do: fetch it; the test command does, with the product's own means.

use std::path::PathBuf;

/// Below the user's cache folder.
const IN_CACHE: &str = "oasiskv/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf";

/// `OASISKV_TEST_MODEL`, else what the product's cache has. Without either, `None` and one line
/// that the test command counts: the caller returns.
#[must_use]
pub fn path() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::home_dir().map(|home| home.join(".cache"));
    let named = std::env::var_os("OASISKV_TEST_MODEL").map(PathBuf::from);
    let cached = cache.or(home).map(|folder| folder.join(IN_CACHE));
    let found = named.or(cached).filter(|path| path.is_file());
    if found.is_none() {
        skipped("no model file: set OASISKV_TEST_MODEL");
    }
    found
}

/// Says that a test does not run here.
#[expect(clippy::print_stdout, reason = "the line by which the test command counts skips")]
pub fn skipped(reason: &str) {
    println!("SKIPPED {reason}");
}
