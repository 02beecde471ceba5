//! One anonymous mapping, unmapped on Drop.
//!
//! Who may borrow which range is the slab's business: the accessors are unsafe for that reason.

use std::io;
use std::ptr::{self, NonNull};

use super::HugePages;

/// An owned range of zeroed, readable and writable memory.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory owned by this value; no thread has a special relation to it.
unsafe impl Send for Mapping {}
// SAFETY: all access goes through the unsafe accessors, whose callers rule out aliasing.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes, more than zero.
    pub(super) fn try_new(bytes: usize, huge: HugePages) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a null hint and no descriptor: the kernel picks an unused range or fails.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap without a hint never returns null");
        let mapping = Self { base, bytes };
        match huge {
            HugePages::Auto => mapping.advise_huge(),
            HugePages::Off => {}
        }
        Ok(mapping)
    }

    #[cfg(target_os = "linux")]
    fn advise_huge(&self) {
        // SAFETY: the range is exactly the mapping, and the advice changes no content.
        let rc =
            unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, libc::MADV_HUGEPAGE) };
        if rc != 0 {
            let error = io::Error::last_os_error();
            tracing::info!(bytes = self.bytes, %error, "slab goes on without huge pages");
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge(&self) {}

    fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "slots lie inside the slab");
        // SAFETY: the assertion keeps the result inside the mapping, which is one allocation.
        unsafe { self.base.add(offset) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nobody writes to the range while the borrow lives.
    pub(super) unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        let start = self.at(offset, bytes);
        // SAFETY: in bounds by `at`, initialised by the kernel; no writer by the caller's word.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) }
    }

    /// The bytes of a range, for writing.
    ///
    /// # Safety
    /// Nobody else reads or writes the range while the borrow lives.
    #[expect(clippy::mut_from_ref, reason = "interior mutability; the caller rules out aliasing")]
    pub(super) unsafe fn slice_mut(&self, offset: usize, bytes: usize) -> &mut [u8] {
        let start = self.at(offset, bytes);
        // SAFETY: in bounds by `at`, initialised by the kernel; exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the successful mmap; no borrow outlives `self`.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(rc, 0, "unmapping a whole mapping cannot fail");
    }
}
