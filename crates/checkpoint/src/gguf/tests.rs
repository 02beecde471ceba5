//! Tests of the GGUF reader over files made here, good and damaged.

use std::io::Cursor;

use proptest::prelude::*;

use super::{Array, GgmlType, Gguf, GgufError, Header, Limits, Value};

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn key(out: &mut Vec<u8>, name: &str, ty: u32) {
    text(out, name);
    out.extend(ty.to_le_bytes());
}

/// One tensor of the made file: name, shape, type number, offset.
type Entry<'a> = (&'a str, &'a [u64], u32, u64);

const GOOD: &[Entry<'_>] = &[("a", &[32, 2], 3, 0), ("b", &[3], 0, 64)];

/// A version 3 file with one key of each kind, the given tensors and `data` bytes of data.
fn file(entries: &[Entry<'_>], data: usize) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend(6u64.to_le_bytes());
    key(&mut out, "llama.block_count", 4);
    out.extend(30u32.to_le_bytes());
    key(&mut out, "eps", 6);
    out.extend(1e-5f32.to_le_bytes());
    key(&mut out, "flag", 7);
    out.push(1);
    key(&mut out, "name", 8);
    text(&mut out, "é");
    key(&mut out, "words", 9);
    out.extend(8u32.to_le_bytes());
    out.extend(2u64.to_le_bytes());
    text(&mut out, "x");
    text(&mut out, "");
    key(&mut out, "nested", 9);
    out.extend(9u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(5u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend((-7i32).to_le_bytes());
    for (name, shape, ty, offset) in entries {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend((0..data).map(|i| i as u8));
    out
}

fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    Header::parse(Cursor::new(bytes), bytes.len() as u64, &Limits::default())
}

fn refused(entries: &[Entry<'_>], data: usize) -> String {
    parse(&file(entries, data)).unwrap_err().to_string()
}

#[test]
fn a_good_file_gives_typed_values_and_tensor_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, file(GOOD, 76)).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.u32("llama.block_count").unwrap(), 30);
    assert_eq!(meta.f32("eps").unwrap(), 1e-5);
    assert!(meta.bool("flag").unwrap());
    assert_eq!(meta.text("name").unwrap(), "é");
    assert_eq!(meta.texts("words").unwrap(), ["x", ""]);
    let nested = Array::Nested(vec![Array::I32(vec![-7])]);
    assert_eq!(meta.get("nested"), Some(&Value::Array(nested)));
    let a = gguf.tensor("a").unwrap();
    assert_eq!((a.ty, a.bytes, a.row_bytes()), (GgmlType::Q4_1, 40, 20));
    assert_eq!(gguf.tensor_bytes("a").unwrap(), (0..40).collect::<Vec<u8>>());
    assert_eq!(gguf.tensor_bytes("b").unwrap(), (64..76).collect::<Vec<u8>>());
    gguf.release("b");
    gguf.release("no such tensor");
    assert_eq!(gguf.tensor_bytes("b").unwrap(), (64..76).collect::<Vec<u8>>());
}

#[test]
fn getters_name_the_key_that_is_missing_or_of_another_type() {
    let header = parse(&file(GOOD, 76)).unwrap();
    let meta = &header.metadata;
    let missing = meta.u32("llama.head_count").unwrap_err().to_string();
    assert_eq!(missing, "metadata key \"llama.head_count\" is missing");
    let wrong = meta.u32("eps").unwrap_err().to_string();
    assert!(wrong.contains("\"eps\" is the f32 0.00001, expected an integer"), "{wrong}");
    assert_eq!(meta.u32_opt("llama.head_count").unwrap(), None);
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error_not_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let bytes = file(GOOD, 76);
    std::fs::write(&path, &bytes).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 20]).unwrap();
    assert!(matches!(gguf.tensor_bytes("b"), Err(GgufError::ReadTensor { .. })));
}

#[test]
fn a_part_of_a_file_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    key(&mut bytes, "split.count", 2);
    bytes.extend(2u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = Gguf::open(&path).unwrap_err().to_string();
    assert!(error.contains("one of 2 parts"), "{error}");
    assert!(error.contains("llama-gguf-split --merge"), "{error}");
}

#[test]
fn every_truncation_is_refused_and_says_where() {
    let bytes = file(GOOD, 76);
    for len in 0..bytes.len() {
        let error = parse(&bytes[..len]).unwrap_err().to_string();
        assert!(error.contains("truncated") || error.contains("is truncated"), "{len}: {error}");
    }
}

#[test]
fn places_and_shapes_of_tensors_are_checked() {
    let cases: &[(&[Entry<'_>], &str)] = &[
        (&[("a", &[32, 2], 3, 0), ("b", &[3], 0, 32)], "overlap"),
        (&[("a", &[3], 0, 0), ("a", &[3], 0, 32)], "occurs twice"),
        (&[("a", &[3], 0, 8)], "no multiple of 32"),
        (&[("a", &[33], 3, 0)], "no whole number of quantisation blocks"),
        (&[("a", &[0], 0, 0)], "a dimension is zero"),
        (&[("a", &[1 << 40, 1 << 40], 0, 0)], "overflows"),
        (&[("a", &[32; 5], 0, 0)], "number of dimensions"),
        (&[("a", &[32], 99, 0)], "unknown value 99"),
        (&[("a", &[32], 0, u64::MAX - 31)], "the file has 76"),
        (&[("a", &[20], 0, 0)], "the file has 76"),
    ];
    for (entries, expected) in cases {
        let error = refused(entries, 76);
        assert!(error.contains(expected), "{error} has no {expected:?}");
    }
}

#[test]
fn other_files_versions_and_byte_orders_are_told_apart() {
    let mut bytes = file(GOOD, 76);
    bytes[4] = 1;
    assert!(matches!(parse(&bytes), Err(GgufError::Version { version: 1 })));
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(matches!(parse(&bytes), Err(GgufError::BigEndian)));
    bytes[..4].copy_from_slice(b"PK\x03\x04");
    assert!(matches!(parse(&bytes), Err(GgufError::Magic { .. })));
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Gguf::open(dir.path()), Err(GgufError::NotAFile { .. })));
}

/// P4: what a file claims is checked against its size and the limits before memory is taken.
#[test]
fn p4_claims_are_refused_before_allocation() {
    let huge = |at: usize| {
        let mut bytes = file(GOOD, 76);
        bytes[at..at + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        parse(&bytes).unwrap_err().to_string()
    };
    assert!(huge(8).contains("over the limit tensors_max"));
    assert!(huge(16).contains("over the limit keys_max"));
    assert!(huge(24).contains("over the limit key length"));
    let small = Limits { directory_bytes_max: 1024, ..Limits::default() };
    let bytes = file(GOOD, 76);
    let error = Header::parse(Cursor::new(&bytes), bytes.len() as u64, &small).unwrap_err();
    assert!(error.to_string().contains("directory_bytes_max"), "{error}");
    let flat = Limits { nesting_max: 1, ..Limits::default() };
    let error = Header::parse(Cursor::new(&bytes), bytes.len() as u64, &flat).unwrap_err();
    assert!(error.to_string().contains("nesting_max"), "{error}");
}

proptest! {
    /// P4: damage gives an error or another valid file, never a panic or a huge allocation.
    #[test]
    fn p4_damaged_files_never_panic(
        cut in 0usize..600,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = file(GOOD, 76);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.max(1));
        if let Ok(header) = parse(&bytes) {
            let data = bytes.len() as u64 - header.data_start.min(bytes.len() as u64);
            for tensor in &header.tensors {
                prop_assert!(tensor.offset + tensor.bytes <= data);
            }
        }
    }

    /// Under a small budget the parser takes no more than that, whatever the bytes say.
    #[test]
    fn p4_noise_after_a_good_start_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = file(GOOD, 0);
        bytes.truncate(24);
        bytes.extend(noise);
        let small = Limits { directory_bytes_max: 4096, ..Limits::default() };
        let _outcome = Header::parse(Cursor::new(&bytes), bytes.len() as u64, &small);
    }
}
