//! Checks of the manifests: which crate may use which, of ours and of others.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, Package};

use crate::source::{BANNED_NAMES, CORES};

/// A row of the table in docs/ARCHITECTURE.md.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) level: String,
    pub(crate) name: String,
    pub(crate) uses: BTreeSet<String>,
}

/// A member of the workspace as its manifest has it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Folder, relative to the repository.
    pub(crate) folder: String,
    /// Our crates that it is built with.
    pub(crate) uses: BTreeSet<String>,
    /// Our crates that its tests use besides.
    pub(crate) tests_use: BTreeSet<String>,
    /// Crates of others that it is built with.
    pub(crate) foreign: BTreeSet<String>,
}

/// Crates of others that do input, output, clocks, threads or randomness of their own.
const IO_CRATES: [&str; 24] = [
    "async-trait",
    "axum",
    "cudarc",
    "etcd-client",
    "futures",
    "getrandom",
    "hf-hub",
    "hyper",
    "libc",
    "libloading",
    "memmap2",
    "mio",
    "prost",
    "rand",
    "rayon",
    "reqwest",
    "rustix",
    "socket2",
    "tokio",
    "tokio-stream",
    "tokio-util",
    "tonic",
    "tower",
    "ureq",
];

/// Crates of others that only some of ours may use, and why.
const KEPT_IN: [(&str, &[&str], &str); 10] = [
    ("etcd-client", &["membership"], "one place knows the registry"),
    ("cudarc", &["kernels"], "one place knows the device"),
    ("libloading", &["ucx-sys"], "one place binds to libucp"),
    ("hf-hub", &["checkpoint"], "one place fetches models"),
    ("ureq", &["checkpoint"], "one place fetches models"),
    ("memmap2", &["checkpoint"], "one place maps files"),
    ("zip", &["checkpoint"], "one place fetches models"),
    ("tokenizers", &["tokens"], "one place turns text into ids"),
    ("minijinja", &["tokens"], "one place renders templates"),
    ("prost", &["proto", "fuzz"], "the domain does not know the wire"),
];

/// Crates that must not be in the lock file at all, and what to use.
const REFUSED: [(&str, &str); 6] = [
    ("openssl", "rustls with ring"),
    ("openssl-sys", "rustls with ring"),
    ("native-tls", "rustls with ring"),
    ("aws-lc-sys", "ring, which needs no cmake"),
    ("protobuf-src", "protox"),
    ("cmake", "what builds with a C compiler alone"),
];

/// The members in the order of the manifest.
pub(crate) fn members(metadata: &Metadata) -> Vec<Member> {
    let root = &metadata.workspace_root;
    let ours: BTreeSet<&str> =
        metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
    let mut members: BTreeMap<String, Member> = BTreeMap::new();
    for package in metadata.workspace_packages() {
        let manifest = package.manifest_path.parent().expect("a manifest lies in a folder");
        let folder = manifest.strip_prefix(root).expect("members lie in the workspace");
        members.insert(folder.to_string(), member(package, folder.as_str(), &ours));
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the workspace is read");
    let order = listed_members(&manifest);
    let ordered: Vec<Member> = order.iter().filter_map(|folder| members.remove(folder)).collect();
    assert!(members.is_empty(), "not found in the list of members: {:?}", members.keys());
    ordered
}

fn member(package: &Package, folder: &str, ours: &BTreeSet<&str>) -> Member {
    let names = |own: bool, dev: bool| -> BTreeSet<String> {
        package
            .dependencies
            .iter()
            .filter(|d| ours.contains(d.name.as_str()) == own)
            .filter(|d| (d.kind == DependencyKind::Development) == dev)
            .map(|d| d.name.clone())
            .collect()
    };
    Member {
        name: package.name.to_string(),
        folder: folder.to_owned(),
        uses: names(true, false),
        tests_use: names(true, true),
        foreign: names(false, false),
    }
}

/// The folders in `members = [..]` of the root manifest, in order.
pub(crate) fn listed_members(manifest: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| !line.starts_with("members"))
        .take_while(|line| !line.starts_with(']'))
        .filter_map(|line| line.trim().strip_prefix('"')?.split('"').next().map(str::to_owned))
        .collect()
}

/// The rows of the table that begins with `| level | crate |`.
pub(crate) fn table(document: &str) -> Vec<Row> {
    let rows = document
        .lines()
        .skip_while(|line| !line.starts_with("| level | crate |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let ticked = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        Row {
            level: cells[0].to_owned(),
            name: ticked(cells[1]).concat(),
            uses: ticked(cells.last().expect("a row has cells")).into_iter().collect(),
        }
    })
    .collect()
}

/// Where the table and the manifests differ.
pub(crate) fn against_table(members: &[Member], table: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    let listed: Vec<&str> = table.iter().map(|row| row.name.as_str()).collect();
    let real: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    if listed != real {
        found.push(format!("the table lists {listed:?}, the workspace {real:?}"));
    }
    for (row, below) in table.iter().skip(1).zip(table) {
        if row.level < below.level {
            found.push(format!("{} (level {}) stands after {}", row.name, row.level, below.name));
        }
    }
    for member in members {
        let Some(row) = table.iter().find(|row| row.name == member.name) else {
            continue;
        };
        for new in member.uses.difference(&row.uses) {
            found.push(format!("{} -> {new} is not in the table: drop it or argue it", row.name));
        }
        for gone in row.uses.difference(&member.uses) {
            found.push(format!("{} -> {gone} is in the table but not in the manifest", row.name));
        }
    }
    found
}

/// Members that use one that stands below them in the list, and ill-named ones.
pub(crate) fn order_and_names(members: &[Member]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, member) in members.iter().enumerate() {
        for used in member.uses.union(&member.tests_use) {
            if !members[..at].iter().any(|earlier| earlier.name == *used) {
                found.push(format!("{} uses {used}, which is not listed above it", member.name));
            }
        }
        if BANNED_NAMES.contains(&member.name.as_str()) {
            found.push(format!("crate {:?} says nothing, name what is inside", member.name));
        }
        if member.folder.rsplit('/').next() != Some(member.name.as_str()) {
            found.push(format!("{}: folder and crate {} differ", member.folder, member.name));
        }
        let service = |name: &str| {
            members.iter().any(|other| other.name == name && other.folder.starts_with("services/"))
        };
        if member.name != "oasiskv" {
            for used in member.uses.iter().filter(|used| service(used)) {
                found.push(format!("{} uses the service {used}", member.name));
            }
        }
    }
    found
}

/// Crates of others where they do not belong.
pub(crate) fn foreign(members: &[Member]) -> Vec<String> {
    let mut found = Vec::new();
    for member in members {
        if CORES.contains(&member.name.as_str()) {
            for io in member.foreign.iter().filter(|name| IO_CRATES.contains(&name.as_str())) {
                found.push(format!("{} is a core and must not use {io}", member.name));
            }
        }
        for (name, homes, why) in KEPT_IN {
            if member.foreign.contains(name) && !homes.contains(&member.name.as_str()) {
                found.push(format!("{} uses {name}: {why} ({homes:?})", member.name));
            }
        }
    }
    found
}

/// Refused crates, and sources other than the public registry, in a lock file.
pub(crate) fn lock_file(lock: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lock.lines() {
        let value = |key: &str| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"');
        let refused = value("name").and_then(|name| REFUSED.iter().find(|(bad, _)| *bad == name));
        if let Some((name, instead)) = refused {
            found.push(format!("Cargo.lock: {name}: use {instead}"));
        }
        if let Some(source) = value("source")
            && source != "registry+https://github.com/rust-lang/crates.io-index"
        {
            found.push(format!("Cargo.lock: {source}: only the public registry"));
        }
    }
    found
}

/// Licences that the product may be built from. MPL-2.0 asks for the source of changed files only,
/// and crates are used as published.
const LICENCES: [&str; 15] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT-0",
    "MPL-2.0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression of crates can be met with the allowed licences.
pub(crate) fn licence_allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    flat.split(" AND ").all(|all| all.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

mod tests {
    use std::collections::BTreeSet;

    use super::{Member, against_table, foreign, licence_allowed, listed_members, lock_file};
    use super::{order_and_names, table};

    const TABLE: &str = "\n| level | crate | what | may use |\n|---|---|---|---|\n\
        | 0 | `ids` | names | |\n| 1 | `kv` | blocks with `x` | `ids` |\n\nend";

    fn member(name: &str, uses: &[&str], foreign: &[&str]) -> Member {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Member {
            name: name.to_owned(),
            folder: format!("crates/{name}"),
            uses: set(uses),
            tests_use: BTreeSet::new(),
            foreign: set(foreign),
        }
    }

    #[test]
    fn manifests_that_equal_the_table_pass() {
        let members = [member("ids", &[], &[]), member("kv", &["ids"], &[])];
        assert_eq!(against_table(&members, &table(TABLE)), [""; 0]);
        assert_eq!(order_and_names(&members), [""; 0]);
    }

    #[test]
    fn a_new_arrow_a_lost_arrow_and_a_new_crate_are_found() {
        let new = [member("ids", &["kv"], &[]), member("kv", &["ids"], &[])];
        assert!(against_table(&new, &table(TABLE))[0].contains("ids -> kv is not in the table"));
        let lost = [member("ids", &[], &[]), member("kv", &[], &[])];
        assert!(against_table(&lost, &table(TABLE))[0].contains("not in the manifest"));
        let more = [member("ids", &[], &[]), member("kv", &["ids"], &[]), member("x", &[], &[])];
        assert!(against_table(&more, &table(TABLE))[0].contains("the table lists"));
    }

    #[test]
    fn a_level_out_of_order_is_found() {
        let swapped = TABLE.replace("| 0 | `ids`", "| 2 | `ids`");
        let members = [member("ids", &[], &[]), member("kv", &["ids"], &[])];
        assert!(against_table(&members, &table(&swapped))[0].contains("stands after ids"));
    }

    #[test]
    fn members_out_of_order_and_ill_named_ones_are_found() {
        let swapped = [member("kv", &["ids"], &[]), member("ids", &[], &[])];
        assert!(order_and_names(&swapped)[0].contains("not listed above it"));
        assert!(order_and_names(&[member("utils", &[], &[])])[0].contains("says nothing"));
        let mut moved = member("kv", &[], &[]);
        moved.folder = "crates/cache".to_owned();
        assert!(order_and_names(&[moved])[0].contains("differ"));
        let mut gateway = member("gateway", &[], &[]);
        gateway.folder = "services/gateway".to_owned();
        let service = [gateway, member("decode", &["gateway"], &[])];
        assert!(order_and_names(&service)[0].contains("uses the service gateway"));
    }

    #[test]
    fn crates_of_others_in_the_wrong_place_are_found() {
        assert!(foreign(&[member("kv", &[], &["tokio"])])[0].contains("is a core"));
        assert!(foreign(&[member("engine", &[], &["cudarc"])])[0].contains("one place"));
        assert_eq!(foreign(&[member("kernels", &[], &["cudarc", "libc"])]), [""; 0]);
    }

    #[test]
    fn refused_crates_and_sources_are_found_in_a_lock_file() {
        let bad = "name = \"openssl-sys\"\nsource = \"git+https://example.com/x\"\n";
        assert_eq!(lock_file(bad).len(), 2);
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND ISC"] {
            assert!(licence_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "AGPL-3.0-only"] {
            assert!(!licence_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn the_list_of_members_is_read_in_order() {
        let manifest =
            "members = [\n    # a\n    \"crates/ids\",\n    \"kernels\",\n]\nx = [\"y\"]";
        assert_eq!(listed_members(manifest), ["crates/ids", "kernels"]);
    }
}
