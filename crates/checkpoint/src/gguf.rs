//! A GGUF file on disk: parsed directory in memory, tensor bytes from a memory map.
//!
//! Deliberately keeps no copy of a tensor: whoever packs one reads it from the map and releases its
//! pages, so that nothing is held twice.

mod error;
mod header;
mod metadata;
mod reader;
mod tensor;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use crate::mapped::Mapped;

pub use error::GgufError;
pub use header::{Header, Limits};
pub use metadata::{Array, Metadata, Value};
pub use tensor::{GgmlType, TensorInfo};

/// An open GGUF file whose directory was checked against the size of the file.
#[derive(Debug)]
pub struct Gguf {
    /// All of the file, so several threads may load tensors at once.
    mapped: Mapped,
    /// Everything before the tensor data.
    header: Header,
    /// Tensor name to index in `header.tensors`.
    by_name: BTreeMap<String, usize>,
}

impl Gguf {
    /// Opens and checks a file under the default [`Limits`].
    ///
    /// # Errors
    /// The file cannot be read, is not GGUF version 2 or 3 in little-endian order, is truncated or
    /// inconsistent, or passes a limit; the error says what and where.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, &Limits::default())
    }

    /// As [`Gguf::open`], under limits of the caller's choice.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn open_with(path: &Path, limits: &Limits) -> Result<Self, GgufError> {
        let io = |source| GgufError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let header = Header::parse(std::io::BufReader::new(&file), meta.len(), limits)?;
        // Key of llama.cpp's gguf-split.
        if let Some(parts) = header.metadata.u32_opt("split.count")?.filter(|parts| *parts > 1) {
            return Err(GgufError::Split { path: path.to_owned(), parts });
        }
        let names = header.tensors.iter().enumerate();
        let by_name = names.map(|(i, t)| (t.name.clone(), i)).collect();
        let mapped = Mapped::new(file, path.to_owned()).map_err(io)?;
        Ok(Self { mapped, header, by_name })
    }

    /// The path it was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mapped.path()
    }

    /// The key-value section.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// All tensors in the order of the file's directory.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// The directory entry of one tensor, if the file has it.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        let index = self.by_name.get(name)?;
        self.header.tensors.get(*index)
    }

    /// The directory entry of one tensor.
    ///
    /// # Errors
    /// [`GgufError::TensorMissing`] if the file has no tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.find_tensor(name).ok_or_else(|| GgufError::TensorMissing { name: name.to_owned() })
    }

    /// All bytes of one tensor as stored (quantised blocks in row order), at an address that is a
    /// multiple of the file's alignment. They come from the memory map: pages are read when they
    /// are touched and belong to the page cache, which all processes share.
    ///
    /// The file must not be cut while the slice is used, see the notes on replacing models in
    /// `docs/CONFIG.md`: a touched page that is gone ends the process with SIGBUS. A file that was
    /// cut or written to before this call is an error.
    ///
    /// # Errors
    /// The tensor is missing, or the file changed since it was opened.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], GgufError> {
        let range = self.range(self.tensor(name)?);
        self.mapped.bytes(range).map_err(|source| GgufError::ReadTensor {
            name: name.to_owned(),
            path: self.path().to_owned(),
            source,
        })
    }

    /// Says that a tensor is not needed for now: its pages leave this process's resident memory,
    /// and are read again should they be touched again. An unknown name is nothing to release.
    pub fn release(&self, name: &str) {
        if let Some(tensor) = self.find_tensor(name) {
            self.mapped.release(self.range(tensor));
        }
    }

    /// Where a tensor is in the file; inside of it, as the parser checked.
    fn range(&self, tensor: &TensorInfo) -> Range<u64> {
        let start = self.header.data_start + tensor.offset;
        start..start + tensor.bytes
    }
}
