//! What can be wrong with a GGUF file: every variant says what and where.
//!
//! Deliberately has no catch-all variant: a caller and a user can tell truncation, corruption and
//! a limit apart.

use std::path::PathBuf;

/// Why a GGUF file was refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened.
    #[error("cannot open model file {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{} is not a regular file: give the path of a .gguf file", path.display())]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// One part of a checkpoint in several files.
    #[error(
        "{} is one of {parts} parts, which are not read: join them with llama-gguf-split --merge",
        path.display()
    )]
    Split {
        /// The file.
        path: PathBuf,
        /// How many there are.
        parts: u32,
    },
    /// Reading failed in the middle.
    #[error("cannot read {what} at byte {at}")]
    Read {
        /// Which part.
        what: String,
        /// Where it starts.
        at: u64,
        /// Why.
        source: std::io::Error,
    },
    /// The file ends inside a part.
    #[error(
        "truncated: {what} at byte {at} needs {needed} bytes, the file has {left} left; \
         fetch the file again"
    )]
    Truncated {
        /// Which part.
        what: String,
        /// Where it starts.
        at: u64,
        /// Bytes that it needs at least.
        needed: u64,
        /// Bytes from there to the end of the file.
        left: u64,
    },
    /// The first four bytes are something else.
    #[error("not a GGUF file: it starts with {found:02x?}, expected \"GGUF\"")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that this reader does not know.
    #[error("GGUF version {version} is not supported, 2 and 3 are: convert the file again")]
    Version {
        /// As stored.
        version: u32,
    },
    /// Written by a big-endian machine.
    #[error("big-endian GGUF is not supported: convert the file to little-endian")]
    BigEndian,
    /// A length or count above a named limit.
    #[error("{what} at byte {at} is {value}, over the limit {limit} of {max}")]
    OverLimit {
        /// Which number.
        what: String,
        /// Where it is.
        at: u64,
        /// As stored.
        value: u64,
        /// Name of the field of [`super::Limits`].
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at byte {at} is not valid UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
        /// Where it is.
        at: u64,
    },
    /// A number that stands for no type, or a Boolean that is neither 0 nor 1.
    #[error("{what} at byte {at} has the unknown value {value}")]
    UnknownValue {
        /// Which field.
        what: String,
        /// Where it is.
        at: u64,
        /// As stored.
        value: u64,
    },
    /// A key or a tensor name that occurs twice.
    #[error("{what} {name:?} occurs twice")]
    Duplicate {
        /// Key or tensor.
        what: &'static str,
        /// Which.
        name: String,
    },
    /// `general.alignment` is unusable.
    #[error("general.alignment is {value}, expected a power of two from 8 to 65536")]
    Alignment {
        /// As stored.
        value: u64,
    },
    /// The metadata has no such key.
    #[error("metadata key {key:?} is missing")]
    KeyMissing {
        /// Which.
        key: String,
    },
    /// The metadata has the key with another type or an unusable value.
    #[error("metadata key {key:?} is {found}, expected {expected}")]
    KeyType {
        /// Which.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
    /// A tensor with an impossible shape.
    #[error("tensor {name:?} has shape {shape:?}: {why}")]
    Shape {
        /// Which.
        name: String,
        /// As stored, innermost first.
        shape: Vec<u64>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A tensor that does not start on the alignment.
    #[error("tensor {name:?} starts at data byte {offset}, no multiple of {alignment}")]
    Misaligned {
        /// Which.
        name: String,
        /// Relative to the data section.
        offset: u64,
        /// `general.alignment`.
        alignment: u64,
    },
    /// A tensor that reaches past the end of the file.
    #[error(
        "tensor {name:?} needs data bytes {offset}..+{bytes}, the file has {data_bytes}; \
         it is truncated or corrupt, fetch it again"
    )]
    TensorOutside {
        /// Which.
        name: String,
        /// Relative to the data section.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Size of the data section.
        data_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
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
