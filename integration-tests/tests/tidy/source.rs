//! Checks of one file at a time: size, head, names, words. Data in, findings out.

use crate::lex::{Lexed, closing_brace, lex};

/// House limits (docs/STYLE.md): the hard ones, the file's soft limit is 500.
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 100;

/// Names that say nothing about what is inside.
pub(crate) const BANNED_NAMES: [&str; 7] =
    ["common", "utils", "core", "shared", "types", "helpers", "misc"];

/// Folders whose code may ask for unsafe, and the one file that maps models.
const UNSAFE_FOLDERS: [&str; 4] =
    ["kernels/", "crates/transfer/", "crates/ucx-sys/", "crates/checkpoint/src/mapped.rs"];

/// What the cores may not touch in the standard library: time, files, network, threads.
const NOT_IN_CORES: [&str; 7] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// Crates that are sans-IO and deterministic.
pub(crate) const CORES: [&str; 7] =
    ["ids", "tokens", "kv", "sparse", "remote", "placement", "session"];

/// Whether a path holds test code only.
pub(crate) fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches"))
}

/// All findings about one Rust file; `path` is relative to the repository.
pub(crate) fn rust_file(path: &str, text: &str) -> Vec<String> {
    let lexed = lex(text);
    let mut found = head_and_size(path, text);
    found.extend(names(path, &lexed.code));
    if !is_test_path(path) {
        found.extend(long_functions(path, &lexed));
        found.extend(core_io(path, &lexed));
    }
    found.extend(unsafe_folder(path, &lexed.code));
    found
}

fn head_and_size(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let opens_with_doc = text.lines().next().is_some_and(|line| line.starts_with("//!"));
    if !opens_with_doc {
        found.push(format!("{path}:1: open the file with //! and what it is"));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        found.push(format!("{path}: {lines} lines, at most {FILE_LINES_MAX}: split it at a seam"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let width = line.chars().count();
        if width > LINE_CHARS_MAX {
            found.push(format!("{path}:{number}: {width} characters, at most {LINE_CHARS_MAX}"));
        }
    }
    found
}

fn names(path: &str, code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let file = path.rsplit('/').next().unwrap_or(path);
    if file == "mod.rs" {
        found.push(format!("{path}: a module is x.rs beside x/, not x/mod.rs"));
    }
    for part in path.trim_end_matches(".rs").split('/') {
        if BANNED_NAMES.contains(&part) {
            found.push(format!("{path}: {part:?} says nothing, name what is inside"));
        }
    }
    let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        if pair[0] == "mod" && BANNED_NAMES.contains(&pair[1]) {
            found.push(format!("{path}: module {:?} says nothing, name what is inside", pair[1]));
        }
    }
    found
}

fn long_functions(path: &str, lexed: &Lexed) -> Vec<String> {
    let code = lexed.code.as_str();
    let mut found = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        let before = code[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') || lexed.is_test(start) {
            continue;
        }
        let Some(open) = body_start(code, start) else {
            continue;
        };
        let lines = code[start..closing_brace(code, open)].matches('\n').count() + 1;
        if lines > FUNCTION_LINES_MAX {
            let number = code[..start].matches('\n').count() + 1;
            let name = code[start + 3..].split(['(', '<']).next().unwrap_or_default().trim();
            found.push(format!(
                "{path}:{number}: fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }
    found
}

/// The brace that opens the body of the function at `start`; `None` for one without a body.
fn body_start(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn core_io(path: &str, lexed: &Lexed) -> Vec<String> {
    let core = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
    if !core.is_some_and(|name| CORES.contains(&name)) || !path.contains("/src/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for banned in NOT_IN_CORES {
        for (at, _) in lexed.code.match_indices(banned) {
            if !lexed.is_test(at) {
                let number = lexed.code[..at].matches('\n').count() + 1;
                found.push(format!("{path}:{number}: {banned} in a core: take it as a parameter"));
            }
        }
    }
    found
}

fn unsafe_folder(path: &str, code: &str) -> Vec<String> {
    let asks = ["expect(unsafe_code", "allow(unsafe_code", "warn(unsafe_code"];
    if !asks.iter().any(|ask| code.contains(ask)) {
        return Vec::new();
    }
    if UNSAFE_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    vec![format!(
        "{path}: unsafe is for kernels, transfer, ucx-sys and checkpoint/src/mapped.rs only"
    )]
}

/// Markers of work left over; each must name its issue (`#12`) on the same line.
pub(crate) fn unowned_markers(path: &str, text: &str) -> Vec<String> {
    // Spelled in two halves, so that this very file passes.
    let markers = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let marked = words.any(|word| markers.contains(&word));
        let issue =
            line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if marked && !issue {
            found.push(format!("{path}:{number}: left-over work must name its issue"));
        }
    }
    found
}

/// Paths that exist on one developer's machine only. `own` are this checkout's, found at run time.
pub(crate) fn machine_paths(path: &str, text: &str, own: &[String]) -> Vec<String> {
    let homes = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let generic = homes.iter().find(|home| line.contains(**home)).copied();
        let local = own.iter().find(|own| line.contains(own.as_str())).map(String::as_str);
        if let Some(bad) = generic.or(local) {
            found.push(format!("{path}:{number}: {bad} exists on one machine only"));
        }
    }
    found
}

mod tests {
    use super::{machine_paths, rust_file, unowned_markers};

    fn findings(path: &str, text: &str) -> String {
        rust_file(path, text).join("\n")
    }

    #[test]
    fn a_good_file_passes() {
        let good = "//! Reads.\n\nfn a(b: &[u8; 3]) -> u8 {\n    b[0]\n}\n";
        assert_eq!(findings("crates/kv/src/read.rs", good), "");
    }

    #[test]
    fn a_file_without_head_is_found() {
        assert!(findings("a/src/b.rs", "fn a() {}\n").contains("open the file with //!"));
        assert!(findings("a/src/b.rs", "").contains("open the file with //!"));
    }

    #[test]
    fn long_files_and_lines_are_found() {
        let long = format!("//! A.\n{}", "\n".repeat(900));
        assert!(findings("a/src/b.rs", &long).contains("901 lines"));
        let wide = format!("//! A.\n// {}\n", "x".repeat(98));
        assert!(findings("a/src/b.rs", &wide).contains(":2: 101 characters"));
    }

    #[test]
    fn long_functions_are_found_but_not_in_tests() {
        let body = "    let a = \"{\";\n".repeat(70);
        let text =
            format!("//! A.\nfn short() {{}}\npub fn long(\n    a: [u8; 3],\n) {{\n{body}}}\n");
        let found = findings("a/src/b.rs", &text);
        assert_eq!(found, "a/src/b.rs:3: fn long has 74 lines, at most 70");
        let tests = format!("//! A.\n#[cfg(test)]\nmod tests {{\nfn long() {{\n{body}}}\n}}\n");
        assert_eq!(findings("a/src/b.rs", &tests), "");
        assert_eq!(findings("a/tests/b.rs", &text), "");
        assert_eq!(findings("a/src/b/tests.rs", &text), "");
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        let text = "//! A.\n";
        assert!(findings("a/src/utils.rs", text).contains("\"utils\" says nothing"));
        assert!(findings("crates/common/src/lib.rs", text).contains("\"common\""));
        assert!(findings("a/src/b/mod.rs", text).contains("not x/mod.rs"));
        assert!(findings("a/src/b.rs", "//! A.\npub mod helpers {}\n").contains("\"helpers\""));
        assert_eq!(findings("a/src/b.rs", "//! A.\n// mod helpers\nuse x::types;\n"), "");
    }

    #[test]
    fn io_in_a_core_is_found() {
        let text = "//! A.\nfn a() -> bool {\n    std::fs::exists(\"x\").is_ok()\n}\n";
        assert!(findings("crates/kv/src/a.rs", text).contains(":3: std::fs in a core"));
        assert_eq!(findings("crates/checkpoint/src/a.rs", text), "");
        assert_eq!(findings("crates/kv/src/a/tests.rs", text), "");
    }

    #[test]
    fn unsafe_elsewhere_is_found() {
        let text = "//! A.\n#![expect(unsafe_code, reason = \"mmap\")]\n";
        assert!(findings("crates/kv/src/lib.rs", text).contains("unsafe is for kernels"));
        assert_eq!(findings("crates/transfer/src/lib.rs", text), "");
        assert_eq!(findings("crates/checkpoint/src/mapped.rs", text), "");
        assert_ne!(findings("crates/checkpoint/src/gguf.rs", text), "");
        assert_eq!(findings("kernels/src/lib.rs", text), "");
    }

    #[test]
    fn left_over_work_needs_an_issue() {
        let marker = concat!("TO", "DO");
        assert_eq!(unowned_markers("a.rs", &format!("// {marker}: later")).len(), 1);
        assert_eq!(unowned_markers("a.rs", &format!("// {marker} #12: later")).len(), 0);
        assert_eq!(unowned_markers("a.sh", "mktemp dir.XXXXXX").len(), 0);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let line = format!("see {}ann/x\nsee /srv/me/y\nsee /etc/z", concat!("/ho", "me/"));
        let own = ["/srv/me".to_owned()];
        assert_eq!(machine_paths("a.md", &line, &own).len(), 2);
    }
}
