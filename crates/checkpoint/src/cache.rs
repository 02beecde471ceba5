//! The directory where fetched models stay: layout, lock, staging, and proof of verification.
//!
//! Deliberately never deletes a model that is not damaged: what to evict is the user's business.
//!
//! Layout under the cache directory:
//! `models/<alias>/<file>`, `<file>.ok` (proof), `.lock`, `.staging/` (only while fetching);
//! `verified/<hash of path>.ok` proves files that live elsewhere.

pub(crate) mod hub;

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ids::ModelDigest;
use sha2::{Digest, Sha256};

use crate::progress::Progress;

/// How often a wait looks again (lock, child process, cancellation).
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// A proof file is five short lines; more is not ours.
const PROOF_BYTES_MAX: u64 = 4096;

/// Where fetched models are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCache {
    /// Created on first use.
    dir: PathBuf,
}

/// An operation on the cache that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct CacheError {
    /// What was tried.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why it failed.
    pub source: std::io::Error,
}

/// Why the lock of a model was not had.
#[derive(Debug)]
pub(crate) enum LockFailure {
    /// The lock file is unusable.
    Io(CacheError),
    /// Another process held it for all of the time allowed.
    Busy(PathBuf),
    /// The user gave up.
    Cancelled,
}

impl ModelCache {
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

    /// The directory of one alias.
    #[must_use]
    pub fn model_dir(&self, alias: &str) -> PathBuf {
        self.dir.join("models").join(alias)
    }

    /// Where the proof for a file outside of the cache is kept.
    pub(crate) fn proof_elsewhere(&self, canonical: &Path) -> PathBuf {
        let mut hasher = Sha256::new();
        hasher.update(canonical.as_os_str().as_encoded_bytes());
        let name = ModelDigest(hasher.finalize().into());
        self.dir.join("verified").join(format!("{name}.ok"))
    }

    /// Locks one alias against other processes and removes what a killed one left behind.
    pub(crate) fn lock(
        &self,
        alias: &str,
        wait_max: Duration,
        progress: &mut dyn Progress,
    ) -> Result<Locked, LockFailure> {
        let dir = self.model_dir(alias);
        create_dir(&dir).map_err(LockFailure::Io)?;
        let file = lock_file(&dir.join(".lock"), wait_max, progress)?;
        let locked = Locked { dir, _lock: file };
        locked.clear_staging().map_err(LockFailure::Io)?;
        Ok(locked)
    }
}

/// Locks a file against other processes, which it creates where it is not there.
pub(crate) fn lock_file(
    path: &Path,
    wait_max: Duration,
    progress: &mut dyn Progress,
) -> Result<File, LockFailure> {
    let io = |source| LockFailure::Io(CacheError { action: "lock", path: path.to_owned(), source });
    let file = File::options().create(true).append(true).open(path).map_err(io)?;
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(io(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if progress.cancelled() {
            return Err(LockFailure::Cancelled);
        }
        if waited >= wait_max {
            return Err(LockFailure::Busy(path.to_owned()));
        }
        if waited.is_zero() {
            progress.started("waiting for another process that fetches the model", None);
        }
        // Parking, not sleeping: this thread belongs to the fetch and nothing else runs on it.
        std::thread::park_timeout(TICK);
        waited += TICK;
    }
    if !waited.is_zero() {
        progress.finished();
    }
    Ok(file)
}

/// The right to change one alias's directory; the lock ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    dir: PathBuf,
    /// Held, never read.
    _lock: File,
}

impl Locked {
    fn clear_staging(&self) -> Result<(), CacheError> {
        let path = self.dir.join(".staging");
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(CacheError { action: "remove leftovers in", path, source: error })
            }
            _ => Ok(()),
        }
    }

    /// An empty directory on the cache's file system; removed with all in it when dropped.
    pub(crate) fn staging(&self) -> Result<Staging, CacheError> {
        self.clear_staging()?;
        let dir = self.dir.join(".staging");
        create_dir(&dir)?;
        Ok(Staging { dir })
    }

    /// Makes a complete, synced file visible under its final name, in one step.
    pub(crate) fn install(&self, staged: &Path, name: &str) -> Result<PathBuf, CacheError> {
        let target = self.dir.join(name);
        std::fs::rename(staged, &target).map_err(|source| CacheError {
            action: "move the fetched file to",
            path: target.clone(),
            source,
        })?;
        sync_dir(&self.dir)?;
        Ok(target)
    }
}

/// A place for unfinished files.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) dir: PathBuf,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            // The next start removes it under the lock; nothing reads it until then.
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove unfinished files");
        }
    }
}

/// That a file was hashed, and what proves that it has not changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) bytes: u64,
    /// Modification time.
    mtime_ns: i128,
    /// Change time of the inode: unlike the modification time it cannot be set back.
    ctime_ns: i128,
    pub(crate) sha256: ModelDigest,
    /// Where the file came from, as `Source` prints it.
    pub(crate) source: String,
}

impl Proof {
    /// Describes the file as it is now.
    pub(crate) fn of(path: &Path, sha256: ModelDigest, source: String) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self {
            bytes: meta.len(),
            mtime_ns: nanoseconds(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: nanoseconds(meta.ctime(), meta.ctime_nsec()),
            sha256,
            source,
        })
    }

    /// Gives the proof a digest that was computed after this one described the file; `None` if the
    /// file was changed meanwhile, because then the digest may be that of a mixture.
    pub(crate) fn with_digest(self, path: &Path, sha256: ModelDigest) -> Option<Self> {
        let now = Self::of(path, self.sha256, self.source.clone()).ok()?;
        (now == self).then_some(Self { sha256, ..self })
    }

    /// Reads a proof and checks that it describes the file as it is now; anything else is `None`.
    pub(crate) fn load(proof: &Path, file: &Path) -> Option<Self> {
        if std::fs::metadata(proof).ok()?.len() > PROOF_BYTES_MAX {
            return None;
        }
        let text = std::fs::read_to_string(proof).ok()?;
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let read = Self {
            bytes: field("bytes")?.parse().ok()?,
            mtime_ns: field("mtime_ns")?.parse().ok()?,
            ctime_ns: field("ctime_ns")?.parse().ok()?,
            sha256: field("sha256")?.parse().ok()?,
            source: field("source")?.to_owned(),
        };
        let now = Self::of(file, read.sha256, read.source.clone()).ok()?;
        (now == read).then_some(read)
    }

    /// Writes the proof in one step. Failing only costs a second hashing, so it only warns.
    pub(crate) fn store(&self, proof: &Path) {
        if let Err(error) = self.try_store(proof) {
            let cause = &error.source;
            tracing::warn!(%error, %cause, "the model will be hashed again at the next start");
        }
    }

    fn try_store(&self, proof: &Path) -> Result<(), CacheError> {
        let dir = proof.parent().expect("proofs lie in a directory of the cache");
        create_dir(dir)?;
        let temporary = proof.with_extension("ok.new");
        let io = |source| CacheError { action: "write", path: temporary.clone(), source };
        let text = format!(
            "bytes {}\nmtime_ns {}\nctime_ns {}\nsha256 {}\nsource {}\n",
            self.bytes, self.mtime_ns, self.ctime_ns, self.sha256, self.source
        );
        let mut file = File::create(&temporary).map_err(io)?;
        file.write_all(text.as_bytes()).map_err(io)?;
        file.sync_all().map_err(io)?;
        std::fs::rename(&temporary, proof).map_err(io)
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// The proof that lies beside a file of the cache.
pub(crate) fn proof_beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".ok");
    PathBuf::from(name)
}

pub(crate) fn create_dir(path: &Path) -> Result<(), CacheError> {
    std::fs::create_dir_all(path).map_err(|source| CacheError {
        action: "create the cache directory",
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), CacheError> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    synced.map_err(|source| CacheError { action: "sync", path: path.to_owned(), source })
}
