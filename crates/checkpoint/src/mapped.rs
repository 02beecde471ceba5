//! A file in memory without a copy: read-only, shared with every process that maps it.
//!
//! The only unsafe code of this crate. Deliberately hands out no range without a look at the file
//! first: one that shrank while it is mapped ends the process with SIGBUS at the missing page.
//! What remains is the file that is cut between that look and the use of the bytes, and a disk or a
//! network file system that fails in that moment. Whoever replaces a model's file therefore does it
//! by renaming a new one over it, as this crate and the hub's own tools do.
#![expect(unsafe_code, reason = "mapping a file and dropping its pages are unsafe by nature")]

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// A whole file, mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Kept open so that the file itself can be asked, whatever its path leads to by now.
    file: File,
    /// For messages only.
    path: PathBuf,
    /// As long as the file was when it was opened.
    map: Mmap,
    /// When it was last written to before it was opened; `None` where the file system cannot say.
    modified: Option<SystemTime>,
}

impl Mapped {
    /// Maps all of `file`, which must be a regular file.
    pub(crate) fn new(file: File, path: PathBuf) -> std::io::Result<Self> {
        let modified = file.metadata()?.modified().ok();
        // SAFETY: the mapping is private to this type, read-only and never longer than the file at
        // this moment. Writers elsewhere are outside of our control, as for every mapping: bytes
        // are only ever read as plain numbers, whose every value is valid, and a changed file is
        // refused in `bytes`.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { file, path, map, modified })
    }

    /// Where it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of a range, after a look whether the file is as it was when it was opened.
    pub(crate) fn bytes(&self, range: Range<u64>) -> std::io::Result<&[u8]> {
        let meta = self.file.metadata()?;
        let mapped = self.map.len() as u64;
        if meta.len() < mapped {
            let text = format!("it has {} bytes, {mapped} when it was opened", meta.len());
            return Err(Error::new(ErrorKind::UnexpectedEof, text));
        }
        if meta.modified().ok() != self.modified {
            return Err(Error::other("it was written to after it was opened"));
        }
        let outside = || Error::new(ErrorKind::InvalidInput, "the range is outside of the file");
        let range = self.clamp(range).ok_or_else(outside)?;
        // Reading ahead is a wish: without it the pages come one by one.
        drop(self.map.advise_range(Advice::WillNeed, range.start, range.len()));
        self.map.get(range).ok_or_else(outside)
    }

    /// Takes a range out of this process's resident memory; it is read again when it is used again.
    pub(crate) fn release(&self, range: Range<u64>) {
        let Some(range) = self.clamp(range) else {
            return;
        };
        // SAFETY: the mapping is of a file, shared and read-only, so that a dropped page is read
        // from the file again: no byte that anybody holds changes.
        let released = unsafe {
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
        };
        if let Err(error) = released {
            tracing::debug!(%error, "pages of a model file stay in memory");
        }
    }

    fn clamp(&self, range: Range<u64>) -> Option<Range<usize>> {
        let start = usize::try_from(range.start).ok()?;
        let end = usize::try_from(range.end).ok()?;
        (start <= end && end <= self.map.len()).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::Mapped;

    #[test]
    fn bytes_survive_their_release_and_a_changed_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        let mapped = Mapped::new(File::open(&path).unwrap(), path.clone()).unwrap();
        assert_eq!(mapped.bytes(4090..4100).unwrap(), [7; 10]);
        mapped.release(0..10_000);
        assert_eq!(mapped.bytes(9_999..10_000).unwrap(), [7]);
        assert!(mapped.bytes(9_999..10_001).is_err());
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        let error = mapped.bytes(0..1).unwrap_err().to_string();
        assert!(error.contains("written to"), "{error}");
        file.set_len(9_999).unwrap();
        let error = mapped.bytes(0..1).unwrap_err().to_string();
        assert_eq!(error, "it has 9999 bytes, 10000 when it was opened");
    }
}
