//! Why a directory is no checkpoint: every variant names the file and the remedy.
//!
//! Deliberately does not judge the model that the files describe: `model` does.

use std::path::PathBuf;

use crate::safetensors::SafetensorsError;

/// Why a directory in the hub's layout was refused, or one of its tensors.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The file system says no.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file without which there is no model.
    #[error("{} has no {file}: fetch the model again, or give the path of a .gguf file",
        dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
        /// What is missing.
        file: &'static str,
    },
    /// No weights, or none that are read.
    #[error("{} has no model.safetensors and no model.safetensors.index.json{}",
        dir.display(), instead(found))]
    NoWeights {
        /// The directory.
        dir: PathBuf,
        /// A file with weights in another form, if there is one.
        found: Option<String>,
    },
    /// The index names a file that is not there.
    #[error("{} is missing, tensor {tensor:?} is to be in it: fetch the model again",
        path.display())]
    ShardMissing {
        /// The file.
        path: PathBuf,
        /// One of its tensors.
        tensor: String,
    },
    /// A file does not have what the index says.
    #[error(
        "{} has no tensor {tensor:?}, but the index says so: the files belong to different \
         revisions, fetch the model again", path.display()
    )]
    NotInShard {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A link to a place that is not the checkpoint's.
    #[error(
        "{} is a link to {}, outside of the directory and of the hub's cache: put the file itself \
         there", path.display(), target.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A directory, a pipe, a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What it is not.
        path: PathBuf,
    },
    /// Larger than any such file in the field.
    #[error("{} has {bytes} bytes, over the limit of {max} for this file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Text that is not UTF-8.
    #[error("{} is not valid UTF-8: fetch it again", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// Text that is not JSON, or nests too deep.
    #[error("{} is not valid JSON: {source}; fetch it again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A damaged file of weights, or a damaged index.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SafetensorsError,
    },
    /// No tensor of that name.
    #[error("tensor {name:?} is missing")]
    TensorMissing {
        /// Which.
        name: String,
    },
    /// The file was readable when it was opened and is not now.
    #[error("cannot read tensor {name:?} of {}: the file changed or the disk failed",
        path.display())]
    ReadTensor {
        /// Which.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What to do about weights in another form.
fn instead(found: &Option<String>) -> String {
    match found {
        None => ": fetch the model again, or give the path of a .gguf file".to_owned(),
        Some(file) if file.ends_with(".gguf") => format!(": give the path of {file} itself"),
        Some(file) if file.starts_with("adapter_") => format!(
            ": {file} is an adapter without its model; merge it into the model and save that"
        ),
        Some(file) if file.ends_with(".safetensors") => {
            format!(": {file} is not of the hub's layout; rename it if it has all of the weights")
        }
        Some(file) => format!(
            ": {file} is a pickle, which can run code when it is read; convert it with \
             save_pretrained(.., safe_serialization=True), or take a .gguf file"
        ),
    }
}
