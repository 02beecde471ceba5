//! A checkpoint of either kind behind one face: tensors by name, their bytes from a memory map.
//!
//! Deliberately gives no common view of the metadata: a GGUF's keys and a directory's JSON say
//! different things, and who reads them must know which it is.

use std::path::{Path, PathBuf};

use crate::directory::{Directory, DirectoryError};
use crate::gguf::{Gguf, GgufError, TensorInfo};

/// An opened checkpoint: a .gguf file, or a directory in the hub's layout.
#[derive(Debug)]
pub enum Checkpoint {
    /// One file with everything.
    Gguf(Gguf),
    /// config.json, tokenizer files and safetensors.
    Directory(Directory),
}

/// Why a checkpoint could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing there, or no right to look.
    #[error("cannot open model {}", path.display())]
    Open {
        /// What was given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of weights without the files beside it.
    #[error("{} has weights only: give the path of its directory, with config.json beside it",
        path.display())]
    WeightsOnly {
        /// What was given.
        path: PathBuf,
    },
    /// The file is no GGUF that can be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The directory is no checkpoint that can be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl Checkpoint {
    /// Opens a .gguf file, or a directory with config.json and safetensors.
    ///
    /// # Errors
    /// [`CheckpointError`] names the file, what is wrong and the remedy.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let meta = std::fs::metadata(path)
            .map_err(|source| CheckpointError::Open { path: path.to_owned(), source })?;
        if meta.is_dir() {
            return Ok(Self::Directory(Directory::open(path)?));
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            return Err(CheckpointError::WeightsOnly { path: path.to_owned() });
        }
        Ok(Self::Gguf(Gguf::open(path)?))
    }

    /// The path it was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(gguf) => gguf.path(),
            Self::Directory(directory) => directory.path(),
        }
    }

    /// All tensors in the order of the files. Shapes are innermost first in both kinds; names are
    /// each kind's own.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        match self {
            Self::Gguf(gguf) => gguf.tensors(),
            Self::Directory(directory) => directory.tensors(),
        }
    }

    /// The entry of one tensor, if the checkpoint has it.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        match self {
            Self::Gguf(gguf) => gguf.find_tensor(name),
            Self::Directory(directory) => directory.find_tensor(name),
        }
    }

    /// All bytes of one tensor as stored; see [`Gguf::tensor_bytes`] and
    /// [`Directory::tensor_bytes`].
    ///
    /// # Errors
    /// The tensor is missing, or the file changed since it was opened.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], CheckpointError> {
        Ok(match self {
            Self::Gguf(gguf) => gguf.tensor_bytes(name)?,
            Self::Directory(directory) => directory.tensor_bytes(name)?,
        })
    }

    /// Takes a tensor's pages out of this process's resident memory; see [`Gguf::release`].
    pub fn release(&self, name: &str) {
        match self {
            Self::Gguf(gguf) => gguf.release(name),
            Self::Directory(directory) => directory.release(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Checkpoint, CheckpointError};

    #[test]
    fn what_is_given_decides_the_kind_and_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |name: &str| Checkpoint::open(&dir.path().join(name)).unwrap_err();
        assert!(matches!(refused("nothing"), CheckpointError::Open { .. }));
        std::fs::write(dir.path().join("model.safetensors"), "x").unwrap();
        let alone = refused("model.safetensors");
        assert!(alone.to_string().contains("give the path of its directory"), "{alone}");
        std::fs::write(dir.path().join("m.gguf"), "x").unwrap();
        assert!(matches!(refused("m.gguf"), CheckpointError::Gguf(_)));
        assert!(matches!(refused(""), CheckpointError::Directory(_)));
    }
}
