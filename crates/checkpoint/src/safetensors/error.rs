//! What can be wrong with a safetensors file or its index: every variant says what and where.
//!
//! Deliberately does not name the file: whoever opened it adds that.

/// Why a safetensors header or index was refused.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// Not even the length of the header.
    #[error("it has {bytes} bytes, too few for a safetensors file: fetch it again")]
    TooShort {
        /// Size of the file.
        bytes: u64,
    },
    /// Reading failed.
    #[error("the header cannot be read")]
    Read {
        /// Why.
        source: std::io::Error,
    },
    /// The first eight bytes are no sensible length.
    #[error(
        "the header has {length} bytes, over the limit of {max}: this is no safetensors file, or \
         it is corrupt"
    )]
    HeaderLength {
        /// As stored.
        length: u64,
        /// The limit.
        max: u64,
    },
    /// The file ends inside the header.
    #[error(
        "the header needs {length} bytes, the file has {left} left: it is truncated, fetch it \
             again"
    )]
    HeaderCut {
        /// As stored.
        length: u64,
        /// Bytes after the length.
        left: u64,
    },
    /// The header does not begin with a brace.
    #[error("the header is no JSON object: this is no safetensors file, or it is corrupt")]
    NotAnObject,
    /// Bytes that are no text.
    #[error("the header is not valid UTF-8: the file is corrupt, fetch it again")]
    NotUtf8,
    /// The text is no JSON of the expected form.
    #[error("it is not of the expected form: {source}; fetch it again")]
    Json {
        /// Where and why.
        source: serde_json::Error,
    },
    /// A name that occurs twice.
    #[error("tensor {name:?} occurs twice: the file is corrupt")]
    Duplicate {
        /// Which.
        name: String,
    },
    /// Stored in a way that is not read.
    #[error(
        "tensor {name:?} is stored as {found}, supported are F32, F16 and BF16: take the model's \
         unquantised checkpoint, or a .gguf file of it"
    )]
    Type {
        /// Which.
        name: String,
        /// As stored.
        found: String,
    },
    /// An impossible shape.
    #[error("tensor {name:?} has shape {shape:?}: {why}")]
    Shape {
        /// Which.
        name: String,
        /// As stored, outermost first.
        shape: Vec<u64>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The range is not as long as the shape says.
    #[error(
        "tensor {name:?} has data bytes {begin} to {end}, its shape needs {expected}: the file is \
         corrupt"
    )]
    Size {
        /// Which.
        name: String,
        /// First byte, relative to the data section.
        begin: u64,
        /// First byte after it.
        end: u64,
        /// Bytes of its shape and type.
        expected: u64,
    },
    /// A tensor that reaches past the end of the file.
    #[error(
        "tensor {name:?} needs data bytes {begin}..+{bytes}, the file has {data_bytes}: it is \
         truncated, fetch it again"
    )]
    Outside {
        /// Which.
        name: String,
        /// First byte, relative to the data section.
        begin: u64,
        /// Its size.
        bytes: u64,
        /// Size of the data section.
        data_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap: the file is corrupt")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// Bytes that belong to no tensor, which the format forbids.
    #[error(
        "data bytes {end} to {begin} before tensor {name:?} belong to no tensor: the file is \
             corrupt"
    )]
    Hole {
        /// The tensor after the hole.
        name: String,
        /// Where it starts.
        begin: u64,
        /// Where the one before it ends.
        end: u64,
    },
    /// Bytes after the last tensor, which the format forbids.
    #[error("the tensors end at data byte {end}, the file has {data_bytes}: it is corrupt")]
    Trailing {
        /// Where the last tensor ends.
        end: u64,
        /// Size of the data section.
        data_bytes: u64,
    },
    /// The index sends a tensor to a file that is none of the directory's.
    #[error(
        "tensor {name:?} is to be in {file:?}, which is no name of a .safetensors file in the same \
         directory: the index is corrupt"
    )]
    ShardName {
        /// Which tensor.
        name: String,
        /// As stored, cut to 80 characters.
        file: String,
    },
    /// More tensors than are taken, over all files.
    #[error("the checkpoint has more than {max} tensors")]
    TensorCount {
        /// The limit.
        max: usize,
    },
    /// More files than are opened.
    #[error("the index names more than {max} files")]
    ShardCount {
        /// The limit.
        max: usize,
    },
    /// An index without tensors.
    #[error("the index names no tensor: fetch it again")]
    NoTensor,
}
