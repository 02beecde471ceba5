//! The environment, read here and nowhere else: single variables by name, and the user's cache
//! folder. What it deliberately does not do: configuration; `config` reads that.

use std::ffi::OsString;
use std::path::PathBuf;

/// A variable's text; `None` if it is unset, empty or not UTF-8.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)?.into_string().ok().filter(|text| !text.is_empty())
}

/// Where this user's cached files belong: `$XDG_CACHE_HOME/oasiskv`, else `~/.cache/oasiskv`, else
/// a folder of the system's place for temporary files.
#[must_use]
pub fn cache_dir() -> PathBuf {
    cache_dir_of(std::env::var_os("XDG_CACHE_HOME"), std::env::home_dir())
}

fn cache_dir_of(xdg: Option<OsString>, home: Option<PathBuf>) -> PathBuf {
    // The XDG specification says that relative paths are to be ignored.
    let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    xdg.or(home).unwrap_or_else(std::env::temp_dir).join("oasiskv")
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::cache_dir_of;

    #[test]
    fn the_cache_is_where_xdg_says() {
        let home = || Some(PathBuf::from("/users/u"));
        assert_eq!(cache_dir_of(Some("/c".into()), home()), Path::new("/c/oasiskv"));
        assert_eq!(cache_dir_of(Some("c".into()), home()), Path::new("/users/u/.cache/oasiskv"));
        assert_eq!(cache_dir_of(None, home()), Path::new("/users/u/.cache/oasiskv"));
        assert!(cache_dir_of(None, None).ends_with("oasiskv"));
    }
}
