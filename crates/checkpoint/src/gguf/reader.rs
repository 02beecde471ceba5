//! A cursor that knows how many bytes are left and checks every length before it allocates.
//!
//! Deliberately knows no GGUF structure beyond "length-prefixed text".

use std::io::Read;

use super::error::GgufError;

/// Reads little-endian values from a source of known size.
pub(super) struct Reader<R> {
    /// Positioned at `at`.
    inner: R,
    /// Bytes read so far.
    at: u64,
    /// Size of the whole source.
    total: u64,
    /// Bytes of heap that the parsed directory may still take.
    heap_left: u64,
    /// What `heap_left` began with, for messages.
    heap_max: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(inner: R, total: u64, heap_max: u64) -> Self {
        Self { inner, at: 0, total, heap_left: heap_max, heap_max }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn left(&self) -> u64 {
        self.total.saturating_sub(self.at)
    }

    /// Refuses when fewer than `needed` bytes are left.
    pub(super) fn need(&self, needed: u64, what: &str) -> Result<(), GgufError> {
        if needed <= self.left() {
            return Ok(());
        }
        Err(GgufError::Truncated { what: what.to_owned(), at: self.at, needed, left: self.left() })
    }

    /// Takes `bytes` from the heap budget before they are allocated.
    pub(super) fn charge(&mut self, bytes: u64, what: &str) -> Result<(), GgufError> {
        match self.heap_left.checked_sub(bytes) {
            Some(left) => {
                self.heap_left = left;
                Ok(())
            }
            None => Err(GgufError::OverLimit {
                what: format!("memory for the directory, reached by {what},"),
                at: self.at,
                value: (self.heap_max - self.heap_left).saturating_add(bytes),
                limit: "directory_bytes_max",
                max: self.heap_max,
            }),
        }
    }

    pub(super) fn fill(&mut self, out: &mut [u8], what: &str) -> Result<(), GgufError> {
        self.need(out.len() as u64, what)?;
        self.inner.read_exact(out).map_err(|source| GgufError::Read {
            what: what.to_owned(),
            at: self.at,
            source,
        })?;
        self.at += out.len() as u64;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        self.fill(&mut out, what)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take at least `each_min` bytes of the file apiece.
    pub(super) fn count(
        &mut self,
        what: &str,
        each_min: u64,
        (limit, max): (&'static str, u64),
    ) -> Result<usize, GgufError> {
        let at = self.at;
        let value = self.u64(what)?;
        if value > max {
            return Err(GgufError::OverLimit { what: what.to_owned(), at, value, limit, max });
        }
        self.need(value.saturating_mul(each_min), what)?;
        Ok(usize::try_from(value).expect("limits are below the address space of any host"))
    }

    /// Length-prefixed UTF-8.
    pub(super) fn text(
        &mut self,
        what: &str,
        limit: (&'static str, u64),
    ) -> Result<String, GgufError> {
        let len = self.count(what, 1, limit)?;
        self.charge(len as u64, what)?;
        let at = self.at;
        let mut bytes = vec![0; len];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what: what.to_owned(), at })
    }
}
