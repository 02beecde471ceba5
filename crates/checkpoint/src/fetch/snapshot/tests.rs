//! Tests of hub ids against an imitated hub on loopback: its list of files, its files, a second
//! server with the bytes of large ones, and the layout of its tools' cache.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::super::{
    FetchConfig, Form, Place, Removal, Resolved, Token, inventory, is_here, refresh, resolve,
    verify,
};
use crate::progress::{Progress, Silent};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NEWER: &str = "89abcdef0123456789abcdef0123456789abcdef";

fn sha256(content: &[u8]) -> String {
    ids::ModelDigest(Sha256::digest(content).into()).to_string()
}

/// A small safetensors file with one tensor.
fn weights(name: &str) -> Vec<u8> {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    serialize([(name, view)], None).unwrap()
}

fn ok(headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn refused(status: u16, headers: &str) -> Vec<u8> {
    let rest = "Content-Length: 0\r\nConnection: close\r\n";
    format!("HTTP/1.1 {status} No\r\n{rest}{headers}\r\n").into_bytes()
}

/// A server that answers by path, one connection after another.
struct Server {
    endpoint: String,
    asked: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(answers: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (asked_tx, asked) = std::sync::mpsc::channel();
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = Vec::new();
                let mut chunk = [0; 1024];
                while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                    match stream.read(&mut chunk) {
                        Ok(0) | Err(_) => return,
                        Ok(len) => head.extend(&chunk[..len]),
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                // Whoever cancels does not listen to the end.
                drop(match answers.get(&path) {
                    Some(answer) => stream.write_all(answer),
                    None => stream.write_all(&refused(404, "")),
                });
                drop(asked_tx.send(head));
            }
        };
        let builder = std::thread::Builder::new().name("hub".into());
        Self { endpoint, asked, thread: Some(builder.spawn(serve).unwrap()) }
    }

    /// Paths that were asked for since the last look.
    fn paths(&self) -> Vec<String> {
        let path = |head: String| head.split(' ').nth(1).unwrap().to_owned();
        self.asked.try_iter().map(path).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A connection that says nothing ends the loop.
        drop(TcpStream::connect(self.endpoint.trim_start_matches("http://")));
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The hub's answers for one commit of `o/n`: files in line, large ones by way of `bytes_at`.
fn repository(
    revision: &str,
    commit: &str,
    files: &[(&str, &[u8])],
    bytes_at: Option<&str>,
) -> BTreeMap<String, Vec<u8>> {
    let mut answers = BTreeMap::new();
    let mut siblings = Vec::new();
    for (name, content) in files {
        let (size, digest) = (content.len(), sha256(content));
        let path = format!("/o/n/resolve/{commit}/{name}");
        let is_large = name.ends_with(".safetensors") || name.ends_with(".gguf");
        match bytes_at {
            Some(server) if is_large => {
                let to = format!(
                    "Location: {server}/{digest}?signed=1\r\nX-Linked-Etag: \"{digest}\"\r\n\
                     X-Linked-Size: {size}\r\nETag: \"other\"\r\n"
                );
                answers.insert(path, refused(302, &to));
                siblings.push(format!(
                    r#"{{"rfilename":"{name}","size":{size},"blobId":"x",
                    "lfs":{{"sha256":"{digest}","size":{size},"pointerSize":1}}}}"#
                ));
            }
            _ => {
                answers.insert(path, ok(&format!("ETag: \"{}\"\r\n", &digest[..40]), content));
                siblings.push(format!(r#"{{"rfilename":"{name}"}}"#));
            }
        }
    }
    let list = format!(r#"{{"sha":"{commit}","siblings":[{}]}}"#, siblings.join(","));
    let path = format!("/api/models/o/n/revision/{revision}?blobs=true");
    answers.insert(path, ok("", list.as_bytes()));
    answers
}

/// A server with the bytes of large files.
fn bytes_of(files: &[(&str, &[u8])]) -> Server {
    let answer =
        |(_, content): &(&str, &[u8])| (format!("/{}?signed=1", sha256(content)), ok("", content));
    Server::start(files.iter().map(answer).collect())
}

fn config(endpoint: &str) -> (tempfile::TempDir, FetchConfig) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FetchConfig::new(dir.path().join("cache"));
    endpoint.clone_into(&mut config.hub.endpoint);
    config.hub.offline = endpoint.is_empty();
    (dir, config)
}

fn error(spec: &str, config: &FetchConfig) -> String {
    let error = resolve(spec, config, &mut Silent).unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}

/// Everything below a folder, relative to it; links with where they lead.
fn tree(dir: &std::path::Path) -> Vec<String> {
    fn walk(dir: &std::path::Path, prefix: &str, found: &mut Vec<String>) {
        // A folder that is not there has nothing in it.
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                walk(&entry.path(), &format!("{name}/"), found);
            } else if kind.is_symlink() {
                let to = std::fs::read_link(entry.path()).unwrap();
                found.push(format!("{name} -> {}", to.display()));
            } else {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    walk(dir, "", &mut found);
    found.sort();
    found
}

#[test]
fn a_split_model_is_fetched_into_the_hubs_layout_and_then_needs_no_hub() {
    let index = br#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#;
    let (first, second) = (weights("a"), weights("b"));
    let files: &[(&str, &[u8])] = &[
        ("config.json", b"{}"),
        ("tokenizer.json", br#"{"t":1}"#),
        ("model.safetensors.index.json", index),
        ("m-1.safetensors", &first),
        ("m-2.safetensors", &second),
        ("consolidated.safetensors", b"the same weights again"),
        ("README.md", b"not needed"),
    ];
    let bytes = bytes_of(files);
    let hub = Server::start(repository("main", COMMIT, files, Some(&bytes.endpoint)));
    let (_dir, mut config) = config(&hub.endpoint);
    config.hub.token = Some(Token("secret".into()));
    assert!(!is_here("o/n", &config));
    let fetched = resolve("o/n", &config, &mut Silent).unwrap();
    assert_eq!((fetched.name.as_str(), fetched.cached), ("o/n", false));
    let opened = crate::Checkpoint::open(&fetched.path).unwrap();
    assert_eq!(opened.tensors().len(), 2);
    let asked: Vec<_> = hub.asked.try_iter().collect();
    assert!(asked.iter().all(|head| head.contains("Authorization: Bearer secret\r\n")));
    assert!(!asked.iter().any(|head| head.contains("README") || head.contains("consolidated")));
    let sent: Vec<_> = bytes.asked.try_iter().collect();
    assert_eq!(sent.len(), 2);
    assert!(!sent.iter().any(|head| head.contains("secret")), "the token is the hub's alone");

    let blob = |content: &[u8]| sha256(content);
    let tree = tree(&config.hub_cache.repository_dir("o/n"));
    let link = |name: &str, blob: &str| format!("snapshots/{COMMIT}/{name} -> ../../blobs/{blob}");
    let mut expected: Vec<_> =
        files[..3].iter().map(|(name, content)| link(name, &blob(content)[..40])).collect();
    expected
        .extend(files[..3].iter().map(|(_, content)| format!("blobs/{}", &blob(content)[..40])));
    expected.extend(files[3..5].iter().map(|(name, content)| link(name, &blob(content))));
    expected.extend(files[3..5].iter().map(|(_, content)| format!("blobs/{}", blob(content))));
    expected.push("refs/main".to_owned());
    expected.sort();
    assert_eq!(tree, expected);

    drop((hub, bytes));
    let again = resolve("o/n", &config, &mut Silent).unwrap();
    assert_eq!(again, Resolved { cached: true, ..fetched.clone() });
    assert_eq!(resolve(&format!("o/n@{COMMIT}"), &config, &mut Silent).unwrap(), again);
    config.hub.offline = true;
    assert_eq!(verify("o/n", &config, &mut Silent).unwrap().digest, fetched.digest);
    assert!(is_here("o/n", &config));
    // By its path it is the same model under the same name.
    let by_path = resolve(fetched.path.to_str().unwrap(), &config, &mut Silent).unwrap();
    assert_eq!((by_path.name.as_str(), by_path.digest), ("o/n", fetched.digest));
}

#[test]
fn a_quantisation_is_one_file_and_its_name_is_what_was_typed() {
    let files: &[(&str, &[u8])] =
        &[("n-Q4_K_M.gguf", b"four"), ("n-Q8_0.gguf", b"eight"), ("config.json", b"{}")];
    let bytes = bytes_of(files);
    let hub = Server::start(repository("main", COMMIT, files, Some(&bytes.endpoint)));
    let (_dir, config) = config(&hub.endpoint);
    let eight = resolve("hf.co/o/n:q8_0", &config, &mut Silent).unwrap();
    assert_eq!((eight.name.as_str(), eight.digest.to_string()), ("o/n:q8_0", sha256(b"eight")));
    assert_eq!(std::fs::read(&eight.path).unwrap(), b"eight");
    assert_eq!(bytes.paths().len(), 1, "only that file");
    hub.paths();
    assert!(resolve("o/n:Q8_0", &config, &mut Silent).unwrap().cached);
    assert!(hub.paths().is_empty(), "what was named and is here needs no hub");
    // The usual file is another one: that this one is here must not decide.
    let usual = resolve("o/n", &config, &mut Silent).unwrap();
    assert_eq!(usual.digest.to_string(), sha256(b"four"));
    let found = error("o/n:Q2_K", &config);
    assert!(found.contains("it has n-Q4_K_M.gguf, n-Q8_0.gguf"), "{found}");
    drop((hub, bytes));
    let usual = resolve("o/n", &config, &mut Silent).unwrap();
    assert_eq!((usual.digest.to_string(), usual.cached), (sha256(b"four"), true));
}

#[test]
fn files_that_another_tool_fetched_are_used_and_completed() {
    let model = weights("a");
    let files: &[(&str, &[u8])] =
        &[("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", &model)];
    let (_dir, mut config) = config("");
    let repository_dir = config.hub_cache.repository_dir("o/n");
    let snapshot = repository_dir.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repository_dir.join("refs")).unwrap();
    std::fs::create_dir_all(repository_dir.join("blobs")).unwrap();
    std::fs::write(repository_dir.join("refs/main"), COMMIT).unwrap();
    std::fs::write(snapshot.join("config.json"), "{}").unwrap();
    let blob = repository_dir.join("blobs").join(sha256(&model));
    std::fs::write(&blob, &model).unwrap();
    let found = error("o/n", &config);
    assert!(found.contains("offline mode is set"), "{found}");
    let bytes = bytes_of(&[]);
    let hub = Server::start(repository("main", COMMIT, files, Some(&bytes.endpoint)));
    hub.endpoint.clone_into(&mut config.hub.endpoint);
    config.hub.offline = false;
    let whole = resolve("o/n", &config, &mut Silent).unwrap();
    assert!(bytes.paths().is_empty(), "the blob was there, from another revision");
    assert_eq!(hub.paths().len(), 2, "the list and the tokenizer");
    // A blob that is not what its name says is told apart.
    let file = std::fs::File::options().write(true).open(&blob).unwrap();
    file.write_all_at_end();
    let found = verify("o/n", &config, &mut Silent).unwrap_err().to_string();
    assert!(found.contains(&format!("expected {}", sha256(&model))), "{found}");
    assert!(whole.path.ends_with(format!("snapshots/{COMMIT}")));
}

/// Overwrites the last byte.
trait Damage {
    fn write_all_at_end(&self);
}

impl Damage for std::fs::File {
    fn write_all_at_end(&self) {
        let len = self.metadata().unwrap().len();
        std::os::unix::fs::FileExt::write_all_at(self, b"!", len - 1).unwrap();
        self.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }
}

#[test]
fn a_newer_state_is_taken_when_asked_for_only() {
    let old: &[(&str, &[u8])] = &[("m.gguf", b"old")];
    let new: &[(&str, &[u8])] = &[("m.gguf", b"new")];
    let first = Server::start(repository("main", COMMIT, old, None));
    let (_dir, mut config) = config(&first.endpoint);
    let spec = "o/n/m.gguf";
    assert_eq!(resolve(spec, &config, &mut Silent).unwrap().digest.to_string(), sha256(b"old"));
    let second = Server::start(repository("main", NEWER, new, None));
    second.endpoint.clone_into(&mut config.hub.endpoint);
    assert_eq!(resolve(spec, &config, &mut Silent).unwrap().digest.to_string(), sha256(b"old"));
    assert_eq!(refresh(spec, &config, &mut Silent).unwrap().digest.to_string(), sha256(b"new"));
    assert_eq!(resolve(spec, &config, &mut Silent).unwrap().digest.to_string(), sha256(b"new"));
    let older = resolve(&format!("{spec}@{COMMIT}"), &config, &mut Silent).unwrap();
    assert_eq!(older.digest.to_string(), sha256(b"old"));
}

#[test]
fn p2_what_is_not_what_the_hub_said_leaves_no_file() {
    let files: &[(&str, &[u8])] = &[("m.gguf", b"good")];
    let digest = sha256(b"good");
    let cases = [
        (ok("", b"baad"), "the file has SHA-256"),
        (ok("", b"longer"), "more than 4"),
        (ok("", b"goo"), "the file has 3 bytes, expected 4"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngo".to_vec(), "broke off"),
        (refused(503, ""), "answered 503"),
    ];
    for (answer, expected) in cases {
        let bytes = Server::start([(format!("/{digest}?signed=1"), answer)].into());
        let hub = Server::start(repository("main", COMMIT, files, Some(&bytes.endpoint)));
        let (_dir, config) = config(&hub.endpoint);
        let found = error("o/n", &config);
        assert!(found.contains("cannot get model o/n from the hub"), "{found}");
        assert!(found.contains(expected), "{found} has no {expected:?}");
        assert!(!found.contains("signed"), "{found}");
        let left = tree(&config.hub_cache.repository_dir("o/n"));
        assert_eq!(left, Vec::<String>::new(), "{expected}");
    }
}

#[test]
fn refusals_of_the_hub_say_what_to_do() {
    let list = "/api/models/o/n/revision/main?blobs=true".to_owned();
    let cases = [
        (refused(404, ""), "check owner, name, revision and file"),
        (refused(401, ""), "there is no such model, or set HF_TOKEN"),
        (refused(403, "X-Error-Code: GatedRepo\r\n"), "accept its terms"),
        (ok("", b"<html>"), "list of the repository is not usable"),
        (ok("", format!(r#"{{"sha":"{COMMIT}","siblings":[]}}"#).as_bytes()), "has neither"),
        (refused(302, &format!("Location: {list}\r\n")), "more than 5 redirects"),
    ];
    for (answer, expected) in cases {
        let hub = Server::start([(list.clone(), answer)].into());
        let (_dir, config) = config(&hub.endpoint);
        let found = error("o/n", &config);
        assert!(found.contains(expected), "{found} has no {expected:?}");
    }
}

#[test]
fn a_mirror_that_names_no_version_and_no_size_still_serves_what_is_bounded() {
    let text = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}".to_vec();
    let list = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json"}},
        {{"rfilename":"model.safetensors"}}]}}"#
    );
    let path = |name: &str| format!("/o/n/resolve/{COMMIT}/{name}");
    let mut answers = BTreeMap::from([
        ("/api/models/o/n/revision/main?blobs=true".to_owned(), ok("", list.as_bytes())),
        (path("config.json"), text.clone()),
        (path("model.safetensors"), text),
    ]);
    let hub = Server::start(answers.clone());
    let (_dir, mut config) = config(&hub.endpoint);
    let found = error("o/n", &config);
    assert!(found.contains("does not say how large model.safetensors is"), "{found}");
    answers.insert(path("model.safetensors"), ok("", &weights("a")));
    let hub = Server::start(answers);
    hub.endpoint.clone_into(&mut config.hub.endpoint);
    let resolved = resolve("o/n", &config, &mut Silent).unwrap();
    crate::Checkpoint::open(&resolved.path).unwrap();
    let blobs = tree(&config.hub_cache.repository_dir("o/n").join("blobs"));
    let mut expected = [sha256(b"{}"), sha256(&weights("a"))];
    expected.sort();
    assert_eq!(blobs, expected);
}

/// P6: the user gives up in the middle of a file.
#[test]
fn p6_cancelling_leaves_no_file() {
    struct Stop(bool);
    impl Progress for Stop {
        fn started(&mut self, what: &str, _: Option<u64>) {
            self.0 = what.starts_with("fetching");
        }
        fn advanced(&mut self, _: u64) {}
        fn finished(&mut self) {}
        fn cancelled(&self) -> bool {
            self.0
        }
    }
    let files: &[(&str, &[u8])] = &[("m.gguf", b"good")];
    let hub = Server::start(repository("main", COMMIT, files, None));
    let (_dir, config) = config(&hub.endpoint);
    let outcome = resolve("o/n", &config, &mut Stop(false)).unwrap_err();
    assert!(matches!(outcome, crate::ResolveError::Cancelled), "{outcome}");
    assert_eq!(tree(&config.hub_cache.repository_dir("o/n")), Vec::<String>::new());
}

#[test]
fn models_of_both_caches_are_listed_and_removed() {
    let model = weights("a");
    let files: &[(&str, &[u8])] = &[
        ("config.json", br#"{"model_type":"llama"}"#),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", &model),
        ("n-Q8_0.gguf", b"eight"),
        ("copy-Q4_0.gguf", b"eight"),
    ];
    let hub = Server::start(repository("main", COMMIT, files, None));
    let (_dir, config) = config(&hub.endpoint);
    for spec in ["o/n", "o/n:Q8_0", "o/n:Q4_0"] {
        resolve(spec, &config, &mut Silent).unwrap();
    }
    let held = inventory(&config);
    let names: Vec<_> = held.iter().map(|held| held.name.as_str()).collect();
    assert_eq!(names, ["smollm2-135m", "o/n", "o/n/copy-Q4_0.gguf", "o/n/n-Q8_0.gguf"]);
    assert_eq!(held[0].place, Place::NotFetched);
    assert_eq!(held[1].form, Form::Safetensors { model_type: "llama".into() });
    assert_eq!(held[3].bytes.0, 5);
    assert!(matches!(&held[3].place, Place::HubCache(path) if path.ends_with("n-Q8_0.gguf")));

    let plan = |spec: &str| Removal::plan(spec, &config, &mut Silent);
    let one = plan("o/n:Q8_0").unwrap();
    assert_eq!((one.bytes().0, one.is_shared()), (0, true), "its blob is another file's too");
    one.carry_out().unwrap();
    assert!(!is_here("o/n:Q8_0", &config));
    assert!(is_here("o/n:Q4_0", &config));
    assert_eq!(plan("o/n:Q4_0").unwrap().bytes().0, 5);
    plan("o/n").unwrap().carry_out().unwrap();
    assert!(!config.hub_cache.repository_dir("o/n").exists());
    for (spec, expected) in [
        ("o/n", "nothing to remove"),
        ("smollm2-135m", "nothing to remove"),
        ("o/n@v1", "leave out @"),
        ("./x.gguf", "remove the file yourself"),
        ("x", "unknown model"),
    ] {
        let found = plan(spec).unwrap_err().to_string();
        assert!(found.contains(expected), "{found} has no {expected:?}");
    }
    let alias = &crate::ALIASES[0];
    let dir: PathBuf = config.cache.model_dir(alias.name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(alias.file), "x").unwrap();
    let ours = plan(alias.name).unwrap();
    assert_eq!((ours.bytes().0, ours.is_shared()), (1, false));
    ours.carry_out().unwrap();
    assert_eq!(tree(&dir), [".lock"]);
}
