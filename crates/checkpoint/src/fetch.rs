//! From what the user named as a model to files on this machine whose digest is known.
//!
//! Deliberately reads no environment variable: the hub's settings are passed in.

mod alias;
mod error;
mod hub;
mod inventory;
mod local;
mod name;
mod pinned;
mod pypi;
mod remove;
mod repository;
mod settings;
mod snapshot;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use ids::ModelDigest;

use crate::cache::CacheError;
use crate::progress::Progress;
use crate::space::{free_space, is_full};

use name::Named;
use snapshot::Freshness;

pub use alias::{ALIASES, Alias, DEFAULT_ALIAS, Origin};
pub use error::{Attempt, ResolveError, SourceError};
pub use inventory::{Form, Held, Place, inventory};
pub use remove::{Removal, RemoveError};
pub use settings::{FetchConfig, HubSettings, PipSettings, Token};

/// Where a file came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A repository of the model hub.
    Hub(String),
    /// A Python package, as `name version`.
    Package(String),
    /// The path of a file that the user gave.
    LocalFile,
    /// The path of a directory that the user gave.
    LocalDirectory,
    /// Found in the cache with the right digest, but not put there by this program.
    PlacedInCache,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(repository) => write!(f, "hub {repository}"),
            Self::Package(package) => write!(f, "python package {package}"),
            Self::LocalFile => f.write_str("local file"),
            Self::LocalDirectory => f.write_str("local directory"),
            Self::PlacedInCache => f.write_str("file placed in the cache"),
        }
    }
}

impl Source {
    /// Reads what [`Source`] prints; proofs keep it in that form.
    fn from_text(text: &str) -> Self {
        if let Some(repository) = text.strip_prefix("hub ") {
            Self::Hub(repository.to_owned())
        } else if let Some(package) = text.strip_prefix("python package ") {
            Self::Package(package.to_owned())
        } else {
            Self::PlacedInCache
        }
    }
}

/// A model that is there and whose digest is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// What the API calls the model: the alias, the name of the file without `.gguf`, the name of
    /// the directory, or the hub id as it was typed, without the revision.
    pub name: String,
    /// The .gguf file, or the directory with config.json; for [`crate::Checkpoint::open`].
    pub path: PathBuf,
    /// Where it came from.
    pub source: Source,
    /// SHA-256 of the file; of a directory, SHA-256 of a list of its files' names, sizes and
    /// SHA-256, as `docs/CONFIG.md` describes it.
    pub digest: ModelDigest,
    /// Size of the file, or of all files that are read.
    pub bytes: u64,
    /// Whether it was there before this call.
    pub cached: bool,
}

/// Whether an earlier proof of the digest is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Proof,
    HashAgain,
}

/// Gives the files for `spec`: an alias of [`ALIASES`], the path of a .gguf file or of a directory,
/// or a model of the hub (`owner/name`, with `@revision`, `:quantisation` or `/file.gguf`). Fetches
/// what is not here. Blocks; call it from a thread that may.
///
/// # Errors
/// See [`ResolveError`]; no file is visible half-written in any case.
pub fn resolve(
    spec: &str,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    match name::named(spec)? {
        Named::Alias(alias) => pinned::resolve_alias(alias, config, progress),
        Named::Path(path) => local::local(path, config, Trust::Proof, progress),
        Named::Hub(name) => snapshot::resolve_hub(&name, config, Freshness::Cached, progress),
    }
}

/// As [`resolve`], but asks the hub what a model's revision stands for now, even if the cache has
/// an older state of it.
///
/// # Errors
/// As [`resolve`].
pub fn refresh(
    spec: &str,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    match name::named(spec)? {
        Named::Hub(name) => snapshot::resolve_hub(&name, config, Freshness::Newest, progress),
        // An alias is one exact file, and a path is what is there.
        Named::Alias(_) | Named::Path(_) => resolve(spec, config, progress),
    }
}

/// As [`resolve`] for files that are there, but hashes all of them again and fetches nothing.
///
/// # Errors
/// [`ResolveError::Digest`] if a file is not the one that its alias or the hub says, and others of
/// [`ResolveError`].
pub fn verify(
    spec: &str,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    match name::named(spec)? {
        Named::Alias(alias) => pinned::verify_alias(alias, config, progress),
        Named::Path(path) => local::local(path, config, Trust::HashAgain, progress),
        Named::Hub(name) => snapshot::verify_hub(&name, config, progress),
    }
}

/// Whether `spec` names something that is on this machine, so that a start fetches nothing. Looks
/// for the files only; that they are whole is found out when they are opened.
#[must_use]
pub fn is_here(spec: &str, config: &FetchConfig) -> bool {
    match name::named(spec) {
        Ok(Named::Alias(alias)) => config.cache.model_dir(alias.name).join(alias.file).exists(),
        Ok(Named::Path(path)) => path.exists(),
        Ok(Named::Hub(name)) => snapshot::cached(&name, config).is_some(),
        Err(_) => false,
    }
}

fn require_space(dir: &Path, needed: u64) -> Result<(), SourceError> {
    // A file system that cannot say how much is free is not a reason to refuse.
    let free = free_space(dir).map_or(u64::MAX, |free| free.0);
    if free >= needed {
        return Ok(());
    }
    Err(SourceError::NoSpace { path: dir.to_owned(), needed, free })
}

fn write_failed(path: &Path, needed: u64, error: std::io::Error) -> SourceError {
    if is_full(&error) {
        return SourceError::NoSpace {
            path: path.to_owned(),
            needed,
            free: path.parent().map_or(0, |dir| free_space(dir).map_or(0, |free| free.0)),
        };
    }
    SourceError::Cache(CacheError { action: "write", path: path.to_owned(), source: error })
}
