//! The header of a safetensors file and the index of a checkpoint in several files, from any bytes.
//!
//! The length of the header is made right, so that a mutation of the JSON reaches the parser; then
//! the bytes as they are. Deliberately without tensor data: it is never parsed.

use std::collections::BTreeSet;

use checkpoint::safetensors::{Header, WeightMap};

use crate::Target;

const INPUT_BYTES_MAX: usize = 4096;

pub(crate) const TARGET: Target = Target {
    name: "safetensors",
    run,
    // The text, its entries, the tensors and the index of their names; a header that claims more
    // is read into a buffer of what it claims, up to the format's limit of 16 MiB.
    heap_bytes_max: (16 << 20) + 256 * INPUT_BYTES_MAX,
    input_bytes_max: INPUT_BYTES_MAX,
    words: &[
        b"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        b"\"__metadata__\":{\"format\":\"pt\"},",
        b"\"dtype\":\"BF16\"",
        b"\"shape\":[]",
        b"\"data_offsets\":[0,18446744073709551615]",
        b"18446744073709551615",
        b"4294967296",
        b"1e999",
        b"\\ud800",
        b"{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
        b"../a.safetensors",
        b"[[[[[[[[",
        b"{\"a\":{\"a\":",
        b",",
    ],
};

/// A file size that no length of the format can exceed.
const HUGE: u64 = 1 << 62;

fn run(input: &[u8]) {
    for total in [input.len() as u64, HUGE] {
        check(input, total);
    }
    let mut framed = (input.len() as u64).to_le_bytes().to_vec();
    framed.extend(input);
    // As much data as the header asks for, else nothing but an empty one is ever accepted.
    for data in [0, 8, asked_for(input)] {
        check(&framed, (framed.len() as u64).saturating_add(data));
    }
    if let Ok(index) = WeightMap::parse(input) {
        for file in index.shards() {
            let plain = !file.contains(['/', '\\', '\0']) && !file.starts_with('.');
            assert!(plain && file.ends_with(".safetensors"), "{file:?} leads elsewhere");
        }
    }
}

/// The largest number of the text: where the data may end.
fn asked_for(input: &[u8]) -> u64 {
    let digits = input.split(|byte| !byte.is_ascii_digit());
    let numbers = digits.filter_map(|digits| str::from_utf8(digits).ok()?.parse().ok());
    numbers.max().unwrap_or(0)
}

/// What is accepted fills the data section exactly, in order and without a name twice.
fn check(file: &[u8], total: u64) {
    let Ok(header) = Header::parse(file, total) else {
        return;
    };
    let (mut names, mut end) = (BTreeSet::new(), 0);
    for tensor in &header.tensors {
        assert!(names.insert(&tensor.name), "{} occurs twice", tensor.name);
        assert_eq!(tensor.offset, end, "{tensor:?} leaves a hole or overlaps");
        let (per_block, block_bytes) = tensor.ty.block();
        assert_eq!(tensor.elements() / per_block * block_bytes, tensor.bytes);
        assert!(tensor.row_bytes() <= tensor.bytes);
        end += tensor.bytes;
    }
    assert_eq!(header.data_start.checked_add(end), Some(total), "bytes that belong to nobody");
}
