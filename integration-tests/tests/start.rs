//! Programs that cannot start say why, name field and remedy, end with the right code, and leave
//! nothing behind. The documents show what the programs print.
//! Deliberately not here: what a start looks like that works; every other test has one.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::Path;

use integration_tests::{Cluster, Ended, Layout, Program};

const USAGE: i32 = 64;
const FAILURE: i32 = 1;

async fn ended(binary: &str, arguments: &[impl AsRef<OsStr>]) -> Ended {
    let program = Program::start(binary, arguments).expect("the binary is there");
    program.ended().await.expect("it ends by itself")
}

/// Ends with the code, and says each of the words, without a panic or a trace.
#[track_caller]
fn check(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.text);
    for word in words {
        assert!(ended.text.contains(word), "no {word:?} in: {}", ended.text);
    }
    for bad in ["panicked", "RUST_BACKTRACE", "src/", "stack backtrace"] {
        assert!(!ended.text.contains(bad), "{bad} in: {}", ended.text);
    }
}

const SINGLE: [&str; 5] = [
    "oasiskv-coordinator",
    "oasiskv-memory-node",
    "oasiskv-prefill",
    "oasiskv-decode",
    "oasiskv-gateway",
];

#[tokio::test]
async fn unknown_keys_and_bad_values_name_key_place_and_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("role.toml");
    std::fs::write(&file, "[log]\nlevle = \"info\"\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    for binary in SINGLE {
        let by_file = ended(binary, &["--config", file, "--check-config"]).await;
        check(&by_file, USAGE, &["log.levle", "role.toml:2", "did you mean `log.level`"]);
        let by_flag = ended(binary, &["--set", "drain.grase=1s"]).await;
        check(&by_flag, USAGE, &["drain.grase", "--set", "did you mean `drain.grace`"]);
        let value = ended(binary, &["--set", "drain.grace=soon"]).await;
        check(&value, USAGE, &["drain.grace", "soon"]);
        let flag = ended(binary, &["--frobnicate"]).await;
        check(&flag, USAGE, &["--frobnicate", "--help"]);
        let fine = ended(binary, &["--check-config"]).await;
        check(&fine, 0, &[]);
        let missing = ended(binary, &["--config", "no-such-file.toml"]).await;
        check(&missing, USAGE, &["no-such-file.toml"]);
    }
    let up = ended("oasiskv", &["up", "--config", file]).await;
    check(&up, USAGE, &["log.levle", "did you mean `log.level`"]);
}

#[tokio::test]
async fn other_hosts_cannot_reach_a_service_unless_it_is_asked_for_p7() {
    for (binary, key) in [
        ("oasiskv-coordinator", "listen"),
        ("oasiskv-coordinator", "admin.listen"),
        ("oasiskv-memory-node", "listen.control"),
        ("oasiskv-memory-node", "listen.bulk"),
        ("oasiskv-prefill", "listen.bulk"),
        ("oasiskv-decode", "listen.control"),
        ("oasiskv-gateway", "listen"),
    ] {
        let open = ended(binary, &[format!("--set={key}=0.0.0.0:0")]).await;
        let key = format!("`{key}`");
        check(&open, USAGE, &[&key, "127.0.0.1", "--insecure"]);
    }
    let up = ended("oasiskv", &["up", "--listen", "0.0.0.0:0"]).await;
    check(&up, USAGE, &["`listen`", "127.0.0.1", "--insecure"]);
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_setting() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let model = model.to_str().expect("UTF-8");
    let up = ["up", "--model", model, "--listen", &address];
    check(&ended("oasiskv", &up).await, FAILURE, &[&address, "in use", "`listen`"]);
    for (binary, key) in [
        ("oasiskv-coordinator", "listen"),
        ("oasiskv-memory-node", "listen.bulk"),
        ("oasiskv-decode", "admin.listen"),
    ] {
        let mut arguments = vec![format!("--set={key}={address}")];
        if binary == "oasiskv-decode" {
            arguments.push(format!("--model={model}"));
        } else if key == "listen" {
            arguments.push("--set=admin.listen=127.0.0.1:0".to_owned());
        }
        let key = format!("`{key}`");
        check(&ended(binary, &arguments).await, FAILURE, &[&address, "in use", &key]);
    }
}

#[tokio::test]
async fn pools_that_do_not_fit_the_host_or_hold_nothing_are_refused_p4() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let model = format!("--model={}", model.to_str().expect("UTF-8"));
    let huge = ended("oasiskv", &["up", &model, "--device-memory=900TiB"]).await;
    check(&huge, USAGE, &["`memory`", "TiB", "lower memory.device"]);
    let node = ended("oasiskv-memory-node", &["--set=slab.size=15TiB"]).await;
    check(&node, USAGE, &["`slab.size`", "15TiB", "lower it"]);
    let host = ended("oasiskv-prefill", &[&model, "--set=host.bytes=900TiB"]).await;
    check(&host, USAGE, &["`host.bytes`", "lower"]);
    for role in ["prefill", "decode"] {
        let tiny = ended(&format!("oasiskv-{role}"), &[&model, "--set=device.bytes=1KiB"]).await;
        check(&tiny, USAGE, &["`device.bytes`", "block"]);
    }
    // The all-in-one program has one key for each size of each role.
    for key in ["device", "decode_host", "prefill_device", "prefill_host", "remote"] {
        let arguments = ["up", "--listen=127.0.0.1:0", &model, &format!("--set=memory.{key}=1KiB")];
        let tiny = ended("oasiskv", &arguments).await;
        check(&tiny, USAGE, &[&format!("`memory.{key}`")]);
    }
    let nothing = ended("oasiskv", &["up", &model, "--set=memory.nodes=0"]).await;
    check(&nothing, USAGE, &["`memory.nodes`"]);
}

/// Files in a folder, for "nothing is left behind".
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
    names.sort();
    names
}

/// The model's file with one change; a start with it must fail in order.
async fn start_with(bytes: &[u8], what: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("broken.gguf");
    std::fs::write(&file, bytes).expect("written");
    let arguments = ["up", "--listen=127.0.0.1:0", "--model", file.to_str().expect("UTF-8")];
    let failed = ended("oasiskv", &arguments).await;
    assert!(matches!(failed.code, Some(FAILURE | USAGE)), "{what}: {failed:?}");
    for bad in ["panicked", "RUST_BACKTRACE", "overflow"] {
        assert!(!failed.text.contains(bad), "{what}: {}", failed.text);
    }
    assert!(failed.text.contains("model"), "{what}: {}", failed.text);
    assert_eq!(names(folder.path()), ["broken.gguf"], "{what} left something behind");
}

#[tokio::test]
async fn a_truncated_or_corrupt_model_file_is_refused_before_it_is_used() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    let whole = std::fs::read(&model).expect("the model");
    // In the header, the vocabulary, the tensor list, the data, and one byte before the end.
    for length in [0, 3, 4, 23, 24, 1_000, 500_000, 1_700_000, whole.len() / 2, whole.len() - 1] {
        start_with(&whole[..length], &format!("the first {length} bytes")).await;
    }
    let mut flipped = whole;
    // Magic, version, tensor count, key count, the first key's length, type, and value length.
    for (at, value) in [
        (0, 0x00),
        (4, 0x63),
        (15, 0xff),
        (8, 0x00),
        (23, 0x7f),
        (31, 0xff),
        (24, 0xff),
        (52, 0xee),
        (63, 0xff),
    ] {
        let old = std::mem::replace(&mut flipped[at], value);
        assert_ne!(old, value, "byte {at} is to be changed");
        start_with(&flipped, &format!("byte {at} is {value:#x}")).await;
        flipped[at] = old;
    }
    let missing = ["up", "--model", "no/such/model.gguf"];
    check(&ended("oasiskv", &missing).await, FAILURE, &["no/such/model.gguf"]);
    let alias = ["up", "--model", "gpt-9"];
    check(&ended("oasiskv", &alias).await, USAGE, &["gpt-9", "smollm2-135m", ".gguf"]);
}

/// The code blocks of docs/CONFIG.md, by the heading above them.
fn documented(program: &str) -> Option<String> {
    let document = include_str!("../../docs/CONFIG.md");
    let (_, rest) = document.split_once(&format!("\n## `{program}`\n"))?;
    let (_, rest) = rest.split_once("```toml\n")?;
    let (block, _) = rest.split_once("```")?;
    Some(block.to_owned())
}

#[tokio::test]
async fn the_configuration_document_shows_what_the_programs_print() {
    for binary in SINGLE {
        let printed = ended(binary, &["--print-config"]).await;
        check(&printed, 0, &[]);
        let shown = documented(binary).unwrap_or_default();
        assert_eq!(printed.text.trim(), shown.trim(), "docs/CONFIG.md, {binary}");
    }
    let printed = ended("oasiskv", &["up", "--print-config"]).await;
    let shown = documented("oasiskv up").unwrap_or_default();
    assert_eq!(printed.text.trim(), shown.trim(), "docs/CONFIG.md, oasiskv up");
}

#[tokio::test]
async fn a_printed_configuration_is_one_that_can_be_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for binary in SINGLE {
        let printed = ended(binary, &["--print-config", "--set", "log.level=debug"]).await;
        let file = folder.path().join(binary);
        std::fs::write(&file, &printed.text).expect("written");
        let file = file.to_str().expect("UTF-8");
        let again = ended(binary, &["--config", file, "--print-config"]).await;
        check(&again, 0, &["level = \"debug\""]);
        assert_eq!(again.text, printed.text, "{binary}");
    }
}

#[tokio::test]
async fn a_signal_drains_and_ends_well() {
    let Some(model) = integration_tests::model::path() else {
        return;
    };
    for layout in [Layout::Together, Layout::Apart] {
        let cluster = Cluster::start(layout, &model, &[]).await;
        let ends = cluster.expect("it starts").terminate().await;
        for (role, end) in ends.expect("all end") {
            assert_eq!(end.code, Some(0), "{role}: {}", end.text);
            assert!(!end.text.contains("panicked"), "{role}: {}", end.text);
        }
    }
}

#[tokio::test]
async fn cuda_is_refused_with_what_works_today_and_what_is_missing() {
    let words = ["model.device", "cuda runs no model yet", "use host"];
    check(&ended("oasiskv", &["up", "--device", "cuda"]).await, USAGE, &words);
    let decode = ["--set", "model.device=cuda", "--check-config"];
    check(&ended("oasiskv-decode", &decode).await, USAGE, &words);
    let unknown = ended("oasiskv", &["up", "--device", "abacus"]).await;
    check(&unknown, USAGE, &["model.device", "abacus", "use host"]);
    let doctor = ended("oasiskv", &["doctor", "--device", "cuda"]).await;
    check(&doctor, FAILURE, &["BAD      cuda", "no model runs on a GPU yet"]);
    let small = ["--shapes", "2x1x16", "--contexts", "20", "--sequences", "1", "--runs", "1"];
    let bench = |device| [&["bench", "kernels", "--device", device], &small[..]].concat();
    let host = ended("oasiskv", &bench("host")).await;
    check(&host, 0, &["gather", "scatter", "attend", "GB/s"]);
    let gpu = ended("oasiskv", &bench("cuda")).await;
    if gpu.code == Some(0) {
        check(&gpu, 0, &["same bits as the host"]);
    } else {
        check(&gpu, FAILURE, &["--device cuda", "host"]);
    }
}
