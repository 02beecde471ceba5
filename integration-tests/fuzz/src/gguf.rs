//! The header of a GGUF file from any bytes, and every getter on what was accepted.
//!
//! Twice: as the whole file, and as the start of a file that claims to be huge, because lengths are
//! checked against the size of the file first. Deliberately without tensor data, which nothing
//! parses.

use std::collections::BTreeSet;

use checkpoint::gguf::{Header, Limits, Metadata};

use crate::Target;

/// The directory's own budget. Small, so that what is not charged to it shows.
const DIRECTORY_BYTES_MAX: u64 = 256 << 10;

pub(crate) const TARGET: Target = Target {
    name: "gguf",
    run,
    // Errors and the growth of lists come on top of what is charged.
    heap_bytes_max: 3 * DIRECTORY_BYTES_MAX as usize,
    input_bytes_max: 4096,
    words: &[
        b"GGUF",
        b"general.alignment",
        b"general.architecture",
        b"tokenizer.ggml.tokens",
        // A count of tensors and of keys, a length, types of arrays.
        b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
        b"\x11\0\0\0\0\0\0\0general.alignment\x04\0\0\0\x40\0\0\0",
        b"\x01\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0",
        b"\x09\0\0\0\x09\0\0\0\x02\0\0\0\0\0\0\0",
    ],
};

/// A file size that no length of the format can exceed.
const HUGE: u64 = 1 << 62;

fn run(input: &[u8]) {
    let limits = Limits { directory_bytes_max: DIRECTORY_BYTES_MAX, ..Limits::default() };
    for total in [input.len() as u64, HUGE] {
        if let Ok(header) = Header::parse(input, total, &limits) {
            check_places(&header, total);
            getters(&header.metadata);
        }
    }
}

/// Every tensor lies inside of the data section and shares no byte.
fn check_places(header: &Header, total: u64) {
    let mut names = BTreeSet::new();
    let mut spans = Vec::new();
    for tensor in &header.tensors {
        assert!(names.insert(&tensor.name), "{} occurs twice", tensor.name);
        let start = header.data_start.checked_add(tensor.offset).expect("it starts in the file");
        let end = start.checked_add(tensor.bytes).expect("it ends in the file");
        assert!(end <= total, "{tensor:?} is outside");
        let rows: u64 = tensor.shape[1..].iter().product();
        assert_eq!(tensor.row_bytes().checked_mul(rows), Some(tensor.bytes));
        assert_eq!(tensor.elements(), tensor.shape[0] * rows);
        spans.push((start, end));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
}

/// Asks for keys that loaders ask for, as every type: an answer or an error that names the key.
fn getters(metadata: &Metadata) {
    const KEYS: [&str; 6] = [
        "general.architecture",
        "general.alignment",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "k",
    ];
    for key in KEYS {
        let errors = [
            metadata.u32(key).err(),
            metadata.f32(key).err(),
            metadata.bool(key).err(),
            metadata.text(key).err(),
            metadata.texts(key).err(),
            metadata.i32s(key).err(),
        ];
        for error in errors.into_iter().flatten() {
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
