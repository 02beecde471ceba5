//! SHA-256 over files and streams.
//!
//! Deliberately no other hash: the digest is the one that publishers of weights state.

use std::io::{Read, Write};
use std::path::Path;

use ids::ModelDigest;
use sha2::{Digest, Sha256};

use crate::progress::Progress;

/// Bytes read at a time: large enough that the hash dominates, small enough to stop quickly.
const CHUNK_BYTES: usize = 1 << 20;

/// Why a copy ended early.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The source failed.
    Read(std::io::Error),
    /// The destination failed.
    Write(std::io::Error),
    /// The source has more bytes than it should.
    TooLong,
    /// The user gave up.
    Cancelled,
}

/// Copies at most `bytes_max`, hashing on the way; gives bytes copied and their digest.
pub(crate) fn copy_hashed(
    mut from: impl Read,
    mut to: impl Write,
    bytes_max: u64,
    progress: &mut dyn Progress,
) -> Result<(u64, ModelDigest), CopyError> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut copied = 0u64;
    loop {
        if progress.cancelled() {
            return Err(CopyError::Cancelled);
        }
        let len = match from.read(&mut chunk) {
            Ok(0) => return Ok((copied, ModelDigest(hasher.finalize().into()))),
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        copied += len as u64;
        if copied > bytes_max {
            return Err(CopyError::TooLong);
        }
        hasher.update(&chunk[..len]);
        to.write_all(&chunk[..len]).map_err(CopyError::Write)?;
        progress.advanced(len as u64);
    }
}

/// Size and SHA-256 of a file; `Ok(None)` when the user cancelled.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_file(
    path: &Path,
    progress: &mut dyn Progress,
) -> std::io::Result<Option<(u64, ModelDigest)>> {
    let file = std::fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    progress.started("verifying SHA-256", Some(bytes));
    let outcome = copy_hashed(file, std::io::sink(), u64::MAX, progress);
    progress.finished();
    match outcome {
        Ok(hashed) => Ok(Some(hashed)),
        Err(CopyError::Cancelled) => Ok(None),
        Err(CopyError::Read(error) | CopyError::Write(error)) => Err(error),
        Err(CopyError::TooLong) => unreachable!("no file is longer than u64::MAX"),
    }
}

#[cfg(test)]
mod tests {
    use super::{CopyError, copy_hashed, sha256_file};
    use crate::progress::{Progress, Silent};

    #[test]
    fn digest_is_the_published_one_of_abc() {
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut out = Vec::new();
        let (bytes, digest) = copy_hashed(&b"abc"[..], &mut out, 3, &mut Silent).unwrap();
        assert_eq!((bytes, out.as_slice()), (3, &b"abc"[..]));
        assert_eq!(digest.to_string(), expected);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "abc").unwrap();
        let hashed = sha256_file(&dir.path().join("f"), &mut Silent).unwrap();
        assert_eq!(hashed, Some((3, digest)));
    }

    #[test]
    fn a_source_that_is_too_long_is_cut_off() {
        let outcome = copy_hashed(&b"abcd"[..], std::io::sink(), 3, &mut Silent);
        assert!(matches!(outcome, Err(CopyError::TooLong)));
    }

    #[test]
    fn cancelling_stops_before_the_next_chunk() {
        struct Stop;
        impl Progress for Stop {
            fn started(&mut self, _: &str, _: Option<u64>) {}
            fn advanced(&mut self, _: u64) {}
            fn finished(&mut self) {}
            fn cancelled(&self) -> bool {
                true
            }
        }
        let outcome = copy_hashed(std::io::repeat(0), std::io::sink(), u64::MAX, &mut Stop);
        assert!(matches!(outcome, Err(CopyError::Cancelled)));
    }
}
