//! Removing fetched models: what would go, then doing it.
//!
//! Deliberately two steps, because the hub's cache belongs to the user's other tools as well, and
//! touches only files of the two caches: a path that the user gave is the user's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ids::ByteCount;

use super::name::{HubName, Named, Pick, named};
use super::repository::{Choice, choose};
use super::{Alias, FetchConfig, ResolveError, SourceError, pinned};
use crate::cache::hub::gguf_files;
use crate::cache::{CacheError, Locked, proof_beside};
use crate::progress::Progress;

/// Why nothing was removed, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The name names no model, or the cache is in use.
    #[error(transparent)]
    Name(#[from] ResolveError),
    /// Nothing of that name is in a cache.
    #[error("{spec} is not in {}: nothing to remove", dir.display())]
    NotHere {
        /// What was named.
        spec: String,
        /// Where it would be.
        dir: PathBuf,
    },
    /// A path.
    #[error("{} is no fetched model: remove the file yourself", path.display())]
    Own {
        /// What was named.
        path: PathBuf,
    },
    /// A revision of a model whose revisions share their files.
    #[error("{spec} names a revision: leave out @ and what follows, all revisions are removed")]
    Revision {
        /// What was named.
        spec: String,
    },
    /// The quantisation fits no file, or several.
    #[error("{spec}: {source}")]
    Choice {
        /// What was named.
        spec: String,
        /// Why.
        source: SourceError,
    },
    /// The file system says no; what was removed before stays removed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// What removing a model would remove.
#[derive(Debug)]
pub struct Removal {
    /// Files and folders, for showing.
    paths: Vec<PathBuf>,
    /// What the disk gets back.
    bytes: u64,
    /// `None` for the hub's cache, whose tools lock nothing when they remove.
    lock: Option<Locked>,
}

impl Removal {
    /// Finds what belongs to a fetched model.
    ///
    /// # Errors
    /// [`RemoveError`]; nothing is removed.
    pub fn plan(
        spec: &str,
        config: &FetchConfig,
        progress: &mut dyn Progress,
    ) -> Result<Self, RemoveError> {
        match named(spec)? {
            Named::Path(path) => Err(RemoveError::Own { path: path.to_owned() }),
            Named::Alias(alias) => alias_files(alias, config, progress),
            Named::Hub(name) if name.revision != "main" => {
                Err(RemoveError::Revision { spec: spec.to_owned() })
            }
            Named::Hub(name) => hub_files(spec, &name, config),
        }
    }

    /// What goes.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// What the disk gets back.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.bytes)
    }

    /// Whether other programs of the user may need these files.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.lock.is_none()
    }

    /// Removes them. A process that has a model loaded keeps it.
    ///
    /// # Errors
    /// [`CacheError`] names what could not be removed.
    pub fn carry_out(self) -> Result<(), CacheError> {
        for path in &self.paths {
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            let removed = match is_dir {
                true => std::fs::remove_dir_all(path),
                false => std::fs::remove_file(path),
            };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(CacheError { action: "remove", path: path.clone(), source: error });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn alias_files(
    alias: &Alias,
    config: &FetchConfig,
    progress: &mut dyn Progress,
) -> Result<Removal, RemoveError> {
    let dir = config.cache.model_dir(alias.name);
    let path = dir.join(alias.file);
    let Ok(meta) = path.metadata() else {
        return Err(RemoveError::NotHere { spec: alias.name.to_owned(), dir });
    };
    let lock = pinned::lock(alias, config, progress)?;
    Ok(Removal { bytes: meta.len(), paths: vec![proof_beside(&path), path], lock: Some(lock) })
}

fn hub_files(spec: &str, name: &HubName, config: &FetchConfig) -> Result<Removal, RemoveError> {
    let dir = config.hub_cache.repository_dir(&name.repository);
    let not_here =
        || RemoveError::NotHere { spec: spec.to_owned(), dir: config.hub_cache.dir().to_owned() };
    if !dir.is_dir() {
        return Err(not_here());
    }
    if name.pick == Pick::Usual {
        let bytes = sizes(&dir.join("blobs"));
        return Ok(Removal { paths: vec![dir], bytes, lock: None });
    }
    let (mut links, mut kept) = (Vec::new(), BTreeSet::new());
    for snapshot in folders(&dir.join("snapshots")) {
        let files = gguf_files(&snapshot);
        let names: BTreeSet<_> = files.iter().map(String::as_str).collect();
        let chosen = match choose(&name.pick, &names) {
            Ok(Choice::Gguf(file)) => Some(file),
            Ok(Choice::Directory) | Err(SourceError::NoSuchFile { .. }) => None,
            Err(source) => return Err(RemoveError::Choice { spec: spec.to_owned(), source }),
        };
        for file in &files {
            let link = snapshot.join(file);
            if chosen.as_ref() == Some(file) {
                links.push(link);
            } else if let Ok(blob) = link.canonicalize() {
                kept.insert(blob);
            }
        }
    }
    if links.is_empty() {
        return Err(not_here());
    }
    let blobs = links.iter().filter_map(|link| link.canonicalize().ok());
    let blobs: BTreeSet<_> = blobs.filter(|blob| !kept.contains(blob)).collect();
    let bytes = blobs.iter().filter_map(|blob| Some(blob.metadata().ok()?.len())).sum();
    let blobs = blobs.into_iter().filter(|blob| !links.contains(blob));
    let paths = blobs.collect::<Vec<_>>().into_iter().chain(links).collect();
    Ok(Removal { paths, bytes, lock: None })
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

fn sizes(dir: &Path) -> u64 {
    folders(dir).iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum()
}
