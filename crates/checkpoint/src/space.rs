//! Whether a file system has room for what is about to be written.
//!
//! Deliberately only a first look: others write too, so a full disk while writing is still told
//! apart by the caller.

use std::path::Path;

use ids::ByteCount;

/// Bytes that an ordinary user may still write under `dir`, which must exist.
///
/// # Errors
/// The file system cannot be asked.
pub fn free_space(dir: &Path) -> std::io::Result<ByteCount> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(ByteCount(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// Whether an error means that the disk or the user's quota is full.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
