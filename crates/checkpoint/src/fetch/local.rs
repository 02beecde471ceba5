//! Files that are here: their digests, from an earlier proof or by hashing them.
//!
//! Deliberately fetches nothing and judges no content, except that a blob of the hub must be what
//! its name says.

use std::path::{Path, PathBuf};

use ids::ModelDigest;
use sha2::{Digest, Sha256};

use super::snapshot::digest_of_etag;
use super::{FetchConfig, ResolveError, Resolved, Source, Trust};
use crate::cache::Proof;
use crate::cache::hub::repository_of_snapshot;
use crate::digest::sha256_file;
use crate::directory::{Layout, is_hub_blob};
use crate::progress::Progress;

/// A path that the user gave.
pub(super) fn local(
    path: &Path,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    match path.is_dir() {
        true => directory(path, config, trust, progress),
        false => file(path, config, trust, progress),
    }
}

/// A .gguf file.
pub(super) fn file(
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
    let known = known(&canonical, config, trust, progress)?;
    // Not of the canonical path: a link's target may have the name of a blob.
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Resolved {
        name,
        path: absolute(path),
        source: Source::LocalFile,
        digest: known.digest,
        bytes: known.bytes,
        cached: known.by_proof,
    })
}

/// A directory in the hub's layout.
///
/// Its digest is the SHA-256 of a text with one line `name TAB bytes TAB sha256` for each file that
/// is read, in order of their names, after a first line that says the version of this rule.
pub(super) fn directory(
    path: &Path,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let unreadable = |source| ResolveError::Unreadable { path: path.to_owned(), source };
    let canonical = path.canonicalize().map_err(unreadable)?;
    let layout = Layout::read(path)?;
    let mut hasher = Sha256::new();
    hasher.update(b"oasiskv directory 1\n");
    let (mut bytes, mut cached) = (0, true);
    for (name, place) in &layout.files {
        let known = known(place, config, trust, progress)?;
        hasher.update(format!("{name}\t{}\t{}\n", known.bytes, known.digest));
        bytes += known.bytes;
        cached &= known.by_proof;
    }
    let name = repository_of_snapshot(&canonical).unwrap_or_else(|| {
        canonical.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    Ok(Resolved {
        name,
        path: absolute(path),
        source: Source::LocalDirectory,
        digest: ModelDigest(hasher.finalize().into()),
        bytes,
        cached,
    })
}

/// The path as it was given, links kept: their names say more than those of blobs.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What is known about the content of one file.
struct Known {
    digest: ModelDigest,
    bytes: u64,
    /// Whether it was hashed earlier.
    by_proof: bool,
}

fn known(
    canonical: &Path,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Known, ResolveError> {
    let proof_path = config.cache.proof_elsewhere(canonical);
    if trust == Trust::Proof
        && let Some(proof) = Proof::load(&proof_path, canonical)
    {
        return Ok(Known { digest: proof.sha256, bytes: proof.bytes, by_proof: true });
    }
    let proof = hash(canonical, &Source::LocalFile, progress)?;
    let etag = canonical.file_name().and_then(|name| name.to_str()).and_then(digest_of_etag);
    if let Some(expected) = etag.filter(|_| is_hub_blob(canonical))
        && expected != proof.sha256
    {
        let (path, found) = (canonical.to_owned(), proof.sha256);
        return Err(ResolveError::Digest { path, expected, found });
    }
    proof.store(&proof_path);
    Ok(Known { digest: proof.sha256, bytes: proof.bytes, by_proof: false })
}

/// Notes the digest of a file that was hashed on its way here.
pub(super) fn proof_of(path: &Path, digest: ModelDigest, config: &FetchConfig) {
    // Failing only costs a second hashing.
    if let Ok(canonical) = path.canonicalize()
        && let Ok(proof) = Proof::of(&canonical, digest, Source::LocalFile.to_string())
    {
        proof.store(&config.cache.proof_elsewhere(&canonical));
    }
}

/// Hashes a file that must not change meanwhile.
pub(super) fn hash(
    path: &Path,
    source: &Source,
    progress: &mut dyn Progress,
) -> Result<Proof, ResolveError> {
    let unreadable = |source| ResolveError::Unreadable { path: path.to_owned(), source };
    let before = Proof::of(path, ModelDigest([0; 32]), source.to_string()).map_err(unreadable)?;
    let hashed = sha256_file(path, progress).map_err(unreadable)?;
    let (_, digest) = hashed.ok_or(ResolveError::Cancelled)?;
    before.with_digest(path, digest).ok_or_else(|| ResolveError::Changed { path: path.to_owned() })
}
