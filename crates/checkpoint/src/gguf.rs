//! A GGUF file on disk: parsed directory in memory, tensor bytes read on request by position.
//!
//! Deliberately does not map the file: a file that shrinks while mapped kills the process, a read
//! past its end is an error. The packed weights are copies anyway, so nothing is held twice.

mod error;
mod header;
mod metadata;
mod reader;
mod tensor;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use error::GgufError;
pub use header::{Header, Limits};
pub use metadata::{Array, Metadata, Value};
pub use tensor::{GgmlType, TensorInfo};

/// An open GGUF file whose directory was checked against the size of the file.
#[derive(Debug)]
pub struct Gguf {
    /// Read by position, so several threads may load tensors at once.
    file: File,
    /// For messages only.
    path: PathBuf,
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
        let names = header.tensors.iter().enumerate();
        let by_name = names.map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { file, path: path.to_owned(), header, by_name })
    }

    /// The path it was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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

    /// All bytes of one tensor, as stored (quantised blocks in row order).
    ///
    /// # Errors
    /// The tensor is missing, or the file can no longer be read at that place.
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>, GgufError> {
        let tensor = self.tensor(name)?;
        let too_large =
            |_| GgufError::TooLargeForHost { name: name.to_owned(), bytes: tensor.bytes };
        let bytes = usize::try_from(tensor.bytes).map_err(too_large)?;
        let mut out = vec![0; bytes];
        self.read_tensor_at(name, 0, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with the tensor's bytes from byte `at` on, for callers that pack row by row.
    ///
    /// # Errors
    /// The tensor is missing, the range is not inside it, or the file cannot be read there.
    pub fn read_tensor_at(&self, name: &str, at: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let tensor = self.tensor(name)?;
        let inside = at.checked_add(out.len() as u64);
        if inside.is_none_or(|end| end > tensor.bytes) {
            return Err(GgufError::RangeOutsideTensor {
                name: name.to_owned(),
                at,
                len: out.len() as u64,
                bytes: tensor.bytes,
            });
        }
        let start = self.header.data_start + tensor.offset;
        self.file.read_exact_at(out, start + at).map_err(|source| GgufError::ReadTensor {
            name: name.to_owned(),
            path: self.path.clone(),
            source,
        })
    }
}
