//! A model of the hub: found in the cache that the hub's own tools keep, or fetched into it.
//!
//! Deliberately asks the hub only for what the cache does not have: a model that is here starts
//! without a network, and the same name stays the same files until the user asks for newer ones.
//! Nothing is resumed: a file that broke off is fetched again, finished ones stay.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ids::ModelDigest;
use sha2::{Digest, Sha256};

use super::local::{directory, file, proof_of};
use super::name::{HubName, Pick};
use super::repository::{Choice, LIST_BYTES_MAX, Listed, Listing, choose, text_names};
use super::{FetchConfig, ResolveError, Resolved, Source, SourceError, Trust, hub};
use super::{require_space, write_failed};
use crate::cache::LockFailure;
use crate::cache::hub::{gguf_files, is_hex};
use crate::digest::{CopyError, copy_hashed};
use crate::directory::{INDEX, Layout, SINGLE, TOKENIZER};
use crate::progress::Progress;
use crate::safetensors::WeightMap;

/// Longest index of weights that is fetched; the same bound holds when it is read.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Whether what the cache has is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It is, if it is complete.
    Cached,
    /// The hub is asked what the revision stands for now.
    Newest,
}

/// Gives the files of a model of the hub, fetching what is missing.
pub(super) fn resolve_hub(
    name: &HubName,
    config: &FetchConfig,
    freshness: Freshness,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let failed = |source| ResolveError::Hub { name: name.api_name(), source };
    let here = cached(name, config);
    if let (Freshness::Cached, Some(Found { path, certain: true })) = (freshness, &here) {
        return opened(name, path, config, Trust::Proof, progress)
            .map(|resolved| Resolved { cached: true, ..resolved });
    }
    match fetch(name, config, progress) {
        Ok(path) => opened(name, &path, config, Trust::Proof, progress)
            .map(|resolved| Resolved { cached: false, ..resolved }),
        Err(SourceError::Cancelled) => Err(ResolveError::Cancelled),
        Err(SourceError::Cache(error)) => Err(ResolveError::Cache(error)),
        Err(error) if error.is_absence() => match here {
            // It may not be all that the repository has, or not the usual one of its files.
            Some(found) if freshness == Freshness::Cached => {
                tracing::warn!(path = %found.path.display(), reason = %error, "using what is here");
                opened(name, &found.path, config, Trust::Proof, progress)
                    .map(|resolved| Resolved { cached: true, ..resolved })
            }
            _ => Err(failed(error)),
        },
        Err(error) => Err(failed(error)),
    }
}

/// As [`resolve_hub`] for a model that is here, hashing all of it again.
pub(super) fn verify_hub(
    name: &HubName,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let here = cached(name, config).ok_or_else(|| ResolveError::Hub {
        name: name.api_name(),
        source: SourceError::NotCached { dir: config.hub_cache.dir().to_owned() },
    })?;
    opened(name, &here.path, config, Trust::HashAgain, progress)
}

/// What the cache has for a name.
pub(super) struct Found {
    /// A .gguf file, or the directory of a snapshot.
    pub(super) path: PathBuf,
    /// Whether the hub would choose the same, whatever else it has.
    certain: bool,
}

/// Looks into the cache only.
pub(super) fn cached(name: &HubName, config: &FetchConfig) -> Option<Found> {
    let snapshot = config.hub_cache.snapshot(&name.repository, &name.revision)?;
    if let (Pick::Usual, Ok(layout)) = (&name.pick, Layout::read(&snapshot)) {
        // Without a tokenizer it may be what another tool needed of the repository.
        return Some(Found { path: snapshot, certain: layout.files.contains_key(TOKENIZER) });
    }
    let files = gguf_files(&snapshot);
    let names: BTreeSet<_> = files.iter().map(String::as_str).collect();
    match choose(&name.pick, &names).ok()? {
        Choice::Directory => None,
        Choice::Gguf(file) => {
            let certain = name.pick != Pick::Usual;
            Some(Found { path: snapshot.join(file), certain })
        }
    }
}

/// Names and digests of files that are here.
fn opened(
    name: &HubName,
    path: &Path,
    config: &FetchConfig,
    trust: Trust,
    progress: &mut dyn Progress,
) -> Result<Resolved, ResolveError> {
    let source = Source::Hub(name.repository.clone());
    let resolved = match path.is_dir() {
        true => directory(path, config, trust, progress)?,
        false => file(path, config, trust, progress)?,
    };
    Ok(Resolved { name: name.api_name(), source, ..resolved })
}

/// Fetches what the cache does not have, and gives the place of the model in it.
fn fetch(
    name: &HubName,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<PathBuf, SourceError> {
    let listing = list(name, config, progress)?;
    let choice = choose(&name.pick, &listing.names())?;
    let fetcher = Fetcher { name, config, listing: &listing };
    let path = match choice {
        Choice::Directory => {
            fetcher.directory(progress)?;
            fetcher.snapshot_dir()
        }
        Choice::Gguf(file) => {
            fetcher.require_space([file.as_str()])?;
            fetcher.file(&file, None, progress)?;
            fetcher.snapshot_dir().join(file)
        }
    };
    config.hub_cache.note(&name.repository, &name.revision, &listing.commit)?;
    Ok(path)
}

fn list(
    name: &HubName,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Listing, SourceError> {
    let url = hub::list_address(&config.hub, &name.repository, &name.revision)?;
    let answer = hub::get(&url, &config.hub, config.hub.patience(), progress)?;
    let mut text = Vec::new();
    match copy_hashed(answer.body, &mut text, LIST_BYTES_MAX, progress) {
        Ok(_) => Listing::parse(&text),
        Err(CopyError::Cancelled) => Err(SourceError::Cancelled),
        Err(CopyError::Read(source) | CopyError::Write(source)) => {
            Err(SourceError::Interrupted { source })
        }
        Err(CopyError::TooLong) => Err(SourceError::Listing {
            reason: format!("it is longer than {LIST_BYTES_MAX} bytes"),
        }),
    }
}

/// Brings the files of one listing into the cache.
struct Fetcher<'a> {
    name: &'a HubName,
    config: &'a FetchConfig,
    listing: &'a Listing,
}

impl Fetcher<'_> {
    fn snapshot_dir(&self) -> PathBuf {
        let repository = self.config.hub_cache.repository_dir(&self.name.repository);
        repository.join("snapshots").join(&self.listing.commit)
    }

    /// config.json, the tokenizer's files and the weights; nothing else of the repository.
    fn directory(&self, progress: &mut dyn Progress) -> Result<(), SourceError> {
        let has = |name: &str| self.listing.files.contains_key(name);
        let shards = if has(SINGLE) {
            BTreeSet::from([SINGLE.to_owned()])
        } else {
            self.file(INDEX, Some(INDEX_BYTES_MAX), progress)?;
            self.shards()?
        };
        if let Some(missing) = shards.iter().find(|shard| !has(shard)) {
            return Err(SourceError::Listing { reason: format!("it has no {missing}") });
        }
        self.require_space(shards.iter().map(String::as_str))?;
        for (text, bytes_max) in text_names().filter(|(text, _)| has(text)) {
            self.file(text, Some(bytes_max), progress)?;
        }
        for shard in shards {
            self.file(&shard, None, progress)?;
        }
        Ok(())
    }

    /// The files that the index names; it lies in the snapshot by now.
    fn shards(&self) -> Result<BTreeSet<String>, SourceError> {
        let path = self.snapshot_dir().join(INDEX);
        let unreadable = |source| SourceError::Interrupted { source };
        let mut text = Vec::new();
        let file = File::open(&path).map_err(unreadable)?;
        file.take(INDEX_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
        let map = WeightMap::parse(&text)
            .map_err(|error| SourceError::Listing { reason: format!("{INDEX}: {error}") })?;
        Ok(map.shards().into_iter().map(str::to_owned).collect())
    }

    /// Refuses before the first byte what cannot fit.
    fn require_space<'a>(
        &self,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), SourceError> {
        let missing = files.into_iter().filter(|file| !self.has(file));
        let bytes = missing.filter_map(|file| self.listing.files[file].bytes);
        let needed = bytes.fold(0, u64::saturating_add);
        let dir = self.config.hub_cache.dir();
        let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(dir);
        require_space(existing, needed)
    }

    /// Whether the snapshot has a file, of the right size where that is known.
    fn has(&self, file: &str) -> bool {
        let meta = std::fs::metadata(self.snapshot_dir().join(file));
        let bytes = self.listing.files.get(file).and_then(|listed| listed.bytes);
        meta.is_ok_and(|meta| meta.is_file() && bytes.is_none_or(|bytes| bytes == meta.len()))
    }

    /// Makes one file appear in the snapshot. `bytes_max` bounds a file of unknown size.
    fn file(
        &self,
        file: &str,
        bytes_max: Option<u64>,
        progress: &mut dyn Progress,
    ) -> Result<(), SourceError> {
        if self.has(file) {
            return Ok(());
        }
        let listed = self.listing.files.get(file).cloned().unwrap_or_default();
        let etag = match listed.etag.as_ref().filter(|etag| self.has_blob(etag, listed.bytes)) {
            Some(etag) => etag.clone(),
            None => self.download(file, &listed, bytes_max, progress)?,
        };
        let (cache, repository) = (&self.config.hub_cache, &self.name.repository);
        cache.link(repository, &self.listing.commit, file, &etag)?;
        Ok(())
    }

    /// Fetches one file as a blob and gives the blob's name.
    fn download(
        &self,
        file: &str,
        listed: &Listed,
        bytes_max: Option<u64>,
        progress: &mut dyn Progress,
    ) -> Result<String, SourceError> {
        let hub = &self.config.hub;
        let url = hub::file_address(hub, &self.name.repository, &self.listing.commit, file)?;
        let answer = hub::get(&url, hub, hub.patience(), progress)?;
        let bytes = listed.bytes.or(answer.bytes);
        let unsized_file = || SourceError::UnknownSize { file: file.to_owned() };
        let max = bytes.or(bytes_max).ok_or_else(unsized_file)?;
        if let Some(bytes_max) = bytes_max.filter(|bytes_max| max > *bytes_max) {
            let found = format!("{max}, too many for this file,");
            return Err(SourceError::Size { expected: bytes_max, found });
        }
        let etag = answer.etag.or_else(|| listed.etag.clone());
        // Where nobody names the version, its content will, and until then the place does.
        let place = || ModelDigest(Sha256::digest(url.as_str()).into()).to_string();
        let working_name = etag.clone().unwrap_or_else(place);
        let (cache, repository) = (&self.config.hub_cache, &self.name.repository);
        let wait_max = self.config.lock_wait_max;
        let lock = cache.lock(repository, &working_name, wait_max, progress);
        let _lock = lock.map_err(|failure| match failure {
            LockFailure::Io(error) => SourceError::Cache(error),
            LockFailure::Busy(path) => SourceError::Busy { path },
            LockFailure::Cancelled => SourceError::Cancelled,
        })?;
        if let Some(etag) = etag.as_ref().filter(|etag| self.has_blob(etag, bytes)) {
            // Another process fetched it meanwhile.
            return Ok(etag.clone());
        }
        let staged = cache.blob(repository, &format!("{working_name}.oasiskv.incomplete"));
        let expected = listed.sha256.or_else(|| digest_of_etag(etag.as_deref()?));
        let _unfinished = Unfinished(&staged);
        let size = Size { exact: bytes, max };
        let digest = receive(answer.body, &staged, file, size, expected, progress)?;
        let etag = etag.unwrap_or_else(|| digest.to_string());
        cache.install(&staged, repository, &etag)?;
        proof_of(&cache.blob(repository, &etag), digest, self.config);
        Ok(etag)
    }

    /// Whether a blob is here, of a size that is known.
    fn has_blob(&self, etag: &str, bytes: Option<u64>) -> bool {
        let meta = std::fs::metadata(self.config.hub_cache.blob(&self.name.repository, etag));
        meta.is_ok_and(|meta| bytes == Some(meta.len()))
    }
}

/// The digest that a large file's version is.
pub(super) fn digest_of_etag(etag: &str) -> Option<ModelDigest> {
    if etag.len() != 64 || !is_hex(etag) {
        return None;
    }
    etag.parse().ok()
}

/// How large a file is, or may be at most.
#[derive(Clone, Copy)]
struct Size {
    exact: Option<u64>,
    max: u64,
}

/// A file that is removed unless it got its name.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // It is gone when it got its name. Else, should it stay, the next fetch overwrites it.
        drop(std::fs::remove_file(self.0));
    }
}

/// Writes a body to `staged`, syncs it, and checks size and digest where they are known.
fn receive(
    body: impl Read,
    staged: &Path,
    file: &str,
    size: Size,
    expected: Option<ModelDigest>,
    progress: &mut dyn Progress,
) -> Result<ModelDigest, SourceError> {
    let failed = |error| write_failed(staged, size.max, error);
    let target = File::create(staged).map_err(failed)?;
    progress.started(&format!("fetching {file}"), size.exact);
    let copied = copy_hashed(body, &target, size.max, progress);
    progress.finished();
    let wrong_size = |found: String| SourceError::Size { expected: size.max, found };
    let (bytes, found) = copied.map_err(|error| match error {
        CopyError::Cancelled => SourceError::Cancelled,
        CopyError::Read(source) => SourceError::Interrupted { source },
        CopyError::Write(error) => failed(error),
        CopyError::TooLong => wrong_size(format!("more than {}", size.max)),
    })?;
    if size.exact.is_some_and(|exact| exact != bytes) {
        return Err(wrong_size(bytes.to_string()));
    }
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        return Err(SourceError::Digest { expected, found });
    }
    target.sync_all().map_err(failed)?;
    Ok(found)
}
