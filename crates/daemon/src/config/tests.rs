//! Which source wins, what is refused, and that what is printed reads back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, Overrides, Sources, load_with, print};
use crate::units::{ByteSize, Span};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    name: String,
    workers: u32,
    model: Option<String>,
    peers: Vec<String>,
    pool: Pool,
    log: Log,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "gateway-0".to_owned(),
            workers: 4,
            model: None,
            peers: vec!["a".to_owned()],
            pool: Pool::default(),
            log: Log::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Pool {
    bytes: ByteSize,
    patience: Span,
}

impl Default for Pool {
    fn default() -> Self {
        Self { bytes: ByteSize::mib(512), patience: Span::millis(250) }
    }
}

/// Without `deny_unknown_fields`: the loader must notice by itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Log {
    level: String,
    modules: BTreeMap<String, String>,
}

/// Loads with a file's text, variables and `--set` flags.
fn load(toml: &str, env: &[(&str, &str)], set: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("gateway.toml");
    fs::write(&file, toml).expect("write");
    let mut overrides = Overrides::default();
    for (key, value) in set {
        overrides.set_text("--set", key, value);
    }
    let env_prefix = "OASISKV_GATEWAY".to_owned();
    let sources = Sources { file: Some(file), env_prefix, overrides };
    let env: Vec<(OsString, OsString)> = env.iter().map(|(k, v)| (k.into(), v.into())).collect();
    load_with(&sources, env.into_iter())
}

fn error(toml: &str, env: &[(&str, &str)], set: &[(&str, &str)]) -> String {
    load(toml, env, set).expect_err("must be refused").to_string()
}

#[test]
fn defaults_then_file_then_environment_then_flags() {
    assert_eq!(load("", &[], &[]).expect("defaults"), Config::default());
    let toml = "workers = 1\n[pool]\nbytes = \"1GiB\"\n[log]\nlevel = \"info\"\n";
    let env = [("OASISKV_GATEWAY__WORKERS", "2"), ("OASISKV_GATEWAY__POOL__PATIENCE", "3s")];
    let config = load(toml, &env, &[("workers", "3")]).expect("valid");
    assert_eq!(config.workers, 3);
    assert_eq!(config.pool, Pool { bytes: ByteSize::gib(1), patience: Span::secs(3) });
    assert_eq!(config.log.level, "info");
    assert_eq!(load(toml, &env, &[]).expect("valid").workers, 2);
    assert_eq!(load(toml, &[], &[]).expect("valid").workers, 1);
}

#[test]
fn text_takes_the_type_of_the_default() {
    let set = [("name", "17"), ("model", "a-name"), ("peers", "[\"b\", \"c\"]")];
    let config = load("", &[], &set).expect("valid");
    assert_eq!(config.name, "17");
    assert_eq!(config.model.as_deref(), Some("a-name"));
    assert_eq!(config.peers, ["b", "c"]);
    let bytes = load("", &[("OASISKV_GATEWAY__POOL__BYTES", "4096")], &[]).expect("valid");
    assert_eq!(bytes.pool.bytes, ByteSize::bytes(4_096));
    let maps = load("", &[], &[("log.modules.gateway::stream", "debug")]).expect("valid");
    assert_eq!(maps.log.modules["gateway::stream"], "debug");
}

#[test]
fn unknown_keys_name_their_place_and_the_nearest_key() {
    let file = error("name = \"x\"\n\n[pool]\nbyte = \"1GiB\"\n", &[], &[]);
    assert!(file.contains("unknown key `pool.byte`"), "{file}");
    assert!(file.contains("gateway.toml:4"), "{file}");
    assert!(file.contains("did you mean `pool.bytes`?"), "{file}");

    let open = error("[log]\nlevell = \"info\"\n", &[], &[]);
    assert!(open.contains("gateway.toml:2") && open.contains("`log.level`?"), "{open}");

    let env = error("", &[("OASISKV_GATEWAY__WORKER", "2")], &[]);
    assert!(env.contains("environment variable OASISKV_GATEWAY__WORKER"), "{env}");
    assert!(env.contains("did you mean `workers`?"), "{env}");

    let flag = error("", &[], &[("zzz_unheard_of", "2")]);
    assert!(flag.contains("flag --set") && flag.contains("`workers`"), "{flag}");
}

#[test]
fn other_programs_variables_are_left_alone() {
    let env = [("OASISKV_GATEWAY_PORT", "tcp://10.0.0.1:80"), ("OASISKV_DECODE__WORKERS", "9")];
    assert_eq!(load("", &env, &[]).expect("ignored"), Config::default());
}

#[test]
fn wrong_values_name_key_place_and_form() {
    let unit = error("[pool]\npatience = 10\n", &[], &[]);
    assert!(unit.contains("`pool.patience`") && unit.contains("gateway.toml:2"), "{unit}");
    assert!(unit.contains("250ms"), "{unit}");
    let kind = error("", &[("OASISKV_GATEWAY__WORKERS", "many")], &[]);
    assert!(kind.contains("`workers`") && kind.contains("OASISKV_GATEWAY__WORKERS"), "{kind}");
    let negative = error("workers = -1\n", &[], &[]);
    assert!(negative.contains("`workers`"), "{negative}");
    let shape = error("", &[], &[("workers.count", "1")]);
    assert!(shape.contains("workers"), "{shape}");
    for path in ["", ".", "a..b", &"a.".repeat(500)] {
        assert!(error("", &[], &[(path, "1")]).contains("key path"), "{path:?}");
    }
}

#[test]
fn broken_files_are_refused_with_their_line() {
    let syntax = error("workers = 1\nname = \n", &[], &[]);
    assert!(syntax.contains("line 2"), "{syntax}");
    let missing = Sources { file: Some(PathBuf::from("no/such/file.toml")), ..Sources::default() };
    let missing = load_with::<Config>(&missing, std::iter::empty()).expect_err("absent");
    assert!(matches!(missing, ConfigError::Read { .. }), "{missing}");
    let huge = load(&"#".repeat((1 << 20) + 1), &[], &[]).expect_err("too large");
    assert!(matches!(huge, ConfigError::Read { .. }), "{huge}");
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let env = [(OsString::from("X__NAME"), OsString::from_vec(vec![0xff]))];
    let sources = Sources { env_prefix: "X".to_owned(), ..Sources::default() };
    let refused = load_with::<Config>(&sources, env.into_iter()).expect_err("not UTF-8");
    assert!(refused.to_string().contains("X__NAME"), "{refused}");
}

#[test]
fn what_is_printed_reads_back() {
    let set = [("workers", "7"), ("pool.bytes", "3MiB"), ("log.modules.kv", "debug")];
    let config = load("", &[], &set).expect("valid");
    let printed = print(&config).expect("printable");
    assert_eq!(load(&printed, &[], &[]).expect("reads back"), config, "{printed}");
}
