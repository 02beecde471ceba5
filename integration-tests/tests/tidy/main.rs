//! Holds the house rules of docs/STYLE.md and the arrows of docs/ARCHITECTURE.md against the files.
//!
//! Each check is a pure function that is shown to fail on bad samples beside it; the tests here
//! only run them over the repository. Deliberately no formatter and no linter: rustfmt and clippy
//! have their own steps in `run.sh`.

mod arrows;
mod lex;
mod metrics;
mod source;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand};

/// Text files that the checks read, by extension.
const TEXT: [&str; 8] = ["rs", "toml", "md", "sh", "py", "proto", "cpp", "yml"];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("integration-tests lies in the repository").to_owned()
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command.other_options(["--offline".to_owned()]);
    command.exec().expect("cargo metadata reads the workspace")
}

/// All text files of the repository: path relative to it, and content.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository is read") {
            let path = entry.expect("an entry is read").path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name, "target" | ".git" | "__pycache__" | ".venv") {
                    folders.push(path);
                }
            } else if is_text(&path) {
                let text = std::fs::read_to_string(&path).expect("a text file is UTF-8");
                let path = path.strip_prefix(root()).expect("it lies below");
                found.push((path.to_str().expect("names are UTF-8").to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|ext| TEXT.contains(&ext)) || path.ends_with(".ci/run")
}

fn rust_files() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|(path, _)| path.ends_with(".rs"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the file is there")
}

#[track_caller]
fn none(found: Vec<String>) {
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

#[test]
fn rust_files_keep_the_house_rules() {
    none(rust_files().flat_map(|(path, text)| source::rust_file(&path, &text)).collect());
}

#[test]
fn left_over_work_names_its_issue() {
    none(files().iter().flat_map(|(path, text)| source::unowned_markers(path, text)).collect());
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let home = std::env::var_os("HOME").and_then(|home| home.into_string().ok());
    let checkout = root().to_str().map(str::to_owned);
    let own: Vec<String> = home.into_iter().chain(checkout).filter(|p| p.len() > 1).collect();
    let check = |(path, text): &(String, String)| source::machine_paths(path, text, &own);
    none(files().iter().flat_map(check).collect());
}

#[test]
fn arrows_are_those_of_the_architecture() {
    let members = arrows::members(&metadata());
    let table = arrows::table(&read("docs/ARCHITECTURE.md"));
    assert!(!table.is_empty(), "docs/ARCHITECTURE.md has lost its table");
    none(arrows::against_table(&members, &table));
}

#[test]
fn members_are_listed_in_dependency_order() {
    none(arrows::order_and_names(&arrows::members(&metadata())));
}

#[test]
fn crates_of_others_stay_where_they_belong() {
    none(arrows::foreign(&arrows::members(&metadata())));
    none(arrows::lock_file(&read("Cargo.lock")));
}

#[test]
fn members_take_lints_from_the_workspace() {
    let lacking = arrows::members(&metadata()).into_iter().filter(|member| {
        let manifest = read(&format!("{}/Cargo.toml", member.folder));
        !manifest.contains("[lints]\nworkspace = true")
    });
    none(
        lacking
            .map(|m| format!("{}/Cargo.toml lacks [lints] workspace = true", m.folder))
            .collect(),
    );
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).features(CargoOpt::AllFeatures);
    let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
    command.other_options(["--offline".to_owned(), platform]);
    let metadata = command.exec().expect("all dependencies of this platform are at hand");
    let used: BTreeSet<_> = metadata.resolve.iter().flat_map(|r| &r.nodes).map(|n| &n.id).collect();
    let packages = metadata.packages.iter().filter(|package| used.contains(&package.id));
    let bad = packages.filter(|p| !arrows::licence_allowed(p.license.as_deref().unwrap_or("")));
    none(bad.map(|p| format!("{} {}: licence {:?}", p.name, p.version, p.license)).collect());
}

#[test]
fn metrics_are_documented_and_exist() {
    let mut in_source = BTreeSet::new();
    for (path, text) in rust_files() {
        let product = ["crates/", "services/", "kernels/"].iter().any(|top| path.starts_with(top));
        if product && !source::is_test_path(&path) {
            let lexed = lex::lex(&text);
            in_source.extend(metrics::in_source(lexed.literals.iter().map(String::as_str)));
        }
    }
    none(metrics::differences(&in_source, &metrics::in_document(&read("docs/METRICS.md"))));
}
