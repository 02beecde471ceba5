//! The cache that the hub's own tools keep, in their layout, so that nothing is fetched twice.
//!
//! Deliberately writes nothing that those tools do not understand, and nothing in place: a blob
//! gets its name when it is complete, a snapshot links to blobs only.
//!
//! Layout (huggingface_hub, "Understand caching"): `models--<owner>--<name>/` with
//! `blobs/<etag>`, `snapshots/<commit>/<file>` (links into blobs) and `refs/<revision>` (a
//! commit); locks are `.locks/models--<owner>--<name>/<etag>.lock`.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CacheError, LockFailure, create_dir, lock_file, sync_dir};
use crate::progress::Progress;

/// What a repository's folder begins with.
const MODELS: &str = "models--";
/// Folders below a snapshot that are looked into for .gguf files.
const DEPTH_MAX: u32 = 2;
/// Entries of one folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// Where the hub's tools keep what they fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    /// Created on first use.
    dir: PathBuf,
}

/// A repository that has a snapshot in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepository {
    /// `owner/name`.
    pub repository: String,
    /// The folder of its snapshot: that of `main`, else the one with the last name.
    pub snapshot: PathBuf,
}

impl HubCache {
    /// A cache under `dir`, which need not exist yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of a repository `owner/name`.
    #[must_use]
    pub fn repository_dir(&self, repository: &str) -> PathBuf {
        self.dir.join(folder(repository))
    }

    /// All repositories of models with a snapshot, in order of their names. A cache that is not
    /// there, or not readable, has none.
    #[must_use]
    pub fn repositories(&self) -> Vec<CachedRepository> {
        let mut found = Vec::new();
        for name in names(&self.dir) {
            let Some(repository) = name.strip_prefix(MODELS).map(|name| name.replace("--", "/"))
            else {
                continue;
            };
            let main = self.snapshot(&repository, "main");
            let snapshots = self.dir.join(&name).join("snapshots");
            let last = || Some(snapshots.join(names(&snapshots).pop()?));
            if let Some(snapshot) = main.or_else(last) {
                found.push(CachedRepository { repository, snapshot });
            }
        }
        found
    }

    /// The snapshot of a revision (a commit, a branch or a tag), if there is one.
    pub(crate) fn snapshot(&self, repository: &str, revision: &str) -> Option<PathBuf> {
        let dir = self.repository_dir(repository);
        let commit = match is_commit(revision) {
            true => revision.to_owned(),
            false => {
                let mut text = String::new();
                let file = File::open(dir.join("refs").join(revision)).ok()?;
                file.take(100).read_to_string(&mut text).ok()?;
                text.trim().to_owned()
            }
        };
        let snapshot = dir.join("snapshots").join(&commit);
        (is_commit(&commit) && snapshot.is_dir()).then_some(snapshot)
    }

    /// The right to write one blob of a repository, against us and the hub's tools alike.
    pub(crate) fn lock(
        &self,
        repository: &str,
        etag: &str,
        wait_max: Duration,
        progress: &mut dyn Progress,
    ) -> Result<File, LockFailure> {
        let locks = self.dir.join(".locks").join(folder(repository));
        create_dir(&locks).map_err(LockFailure::Io)?;
        create_dir(&self.repository_dir(repository).join("blobs")).map_err(LockFailure::Io)?;
        lock_file(&locks.join(format!("{etag}.lock")), wait_max, progress)
    }

    /// Where a blob is, or would be.
    pub(crate) fn blob(&self, repository: &str, etag: &str) -> PathBuf {
        self.repository_dir(repository).join("blobs").join(etag)
    }

    /// Gives a complete, synced file its name as a blob, in one step.
    pub(crate) fn install(
        &self,
        staged: &Path,
        repository: &str,
        etag: &str,
    ) -> Result<(), CacheError> {
        let blob = self.blob(repository, etag);
        let io =
            |source| CacheError { action: "move the fetched file to", path: blob.clone(), source };
        std::fs::rename(staged, &blob).map_err(io)?;
        sync_dir(blob.parent().expect("a blob lies in a folder"))
    }

    /// Makes a file of a snapshot a link to its blob. An older link is replaced in one step.
    pub(crate) fn link(
        &self,
        repository: &str,
        commit: &str,
        file: &str,
        etag: &str,
    ) -> Result<(), CacheError> {
        let link = self.repository_dir(repository).join("snapshots").join(commit).join(file);
        let dir = link.parent().expect("a link lies in a folder");
        create_dir(dir)?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        // One name per process: two that make the same link make the same link.
        let temporary = dir.join(format!(".link-{}", std::process::id()));
        let io = |source| CacheError { action: "link", path: link.clone(), source };
        drop(std::fs::remove_file(&temporary));
        std::os::unix::fs::symlink(&target, &temporary).map_err(io)?;
        std::fs::rename(&temporary, &link).map_err(io)
    }

    /// Notes which commit a branch or tag is; a commit needs no note.
    pub(crate) fn note(
        &self,
        repository: &str,
        revision: &str,
        commit: &str,
    ) -> Result<(), CacheError> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.repository_dir(repository).join("refs").join(revision);
        let dir = path.parent().expect("a note lies in a folder");
        create_dir(dir)?;
        let temporary = dir.join(format!(".ref-{}", std::process::id()));
        let io = |source| CacheError { action: "write", path: path.clone(), source };
        let mut file = File::create(&temporary).map_err(io)?;
        file.write_all(commit.as_bytes()).map_err(io)?;
        std::fs::rename(&temporary, &path).map_err(io)
    }
}

/// A repository's folder.
fn folder(repository: &str) -> String {
    format!("{MODELS}{}", repository.replace('/', "--"))
}

/// Whether a revision is the full hash of a commit.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && is_hex(revision)
}

/// Lower-case hexadecimal digits only.
pub(crate) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// `owner/name` of a path `models--<owner>--<name>/snapshots/<commit>`.
pub(crate) fn repository_of_snapshot(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    Some(folder.strip_prefix(MODELS)?.replace("--", "/"))
}

/// Names of all .gguf files of a snapshot, relative to it, in order.
pub(crate) fn gguf_files(snapshot: &Path) -> Vec<String> {
    fn collect(dir: &Path, prefix: &str, depth: u32, found: &mut Vec<String>) {
        for name in names(dir) {
            let path = dir.join(&name);
            let name = format!("{prefix}{name}");
            if path.is_dir() && depth > 0 {
                collect(&path, &format!("{name}/"), depth - 1, found);
            } else if name.ends_with(".gguf") && path.is_file() {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    collect(snapshot, "", DEPTH_MAX, &mut found);
    found
}

/// The names in a folder, in order; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let mut names: Vec<_> = entries.take(ENTRIES_MAX).filter_map(name).collect();
    names.sort();
    names
}
