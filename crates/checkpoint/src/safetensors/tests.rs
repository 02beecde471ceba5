//! Tests of the header and index parsers, over headers made here and by the reference crate.

use std::io::Cursor;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};

use super::{Header, SafetensorsError, WeightMap};
use crate::gguf::GgmlType;

/// A file with the given header text, padded as the reference does, and `data` bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut header = header.to_owned();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend((0..data).map(|i| i as u8));
    out
}

fn parse(bytes: &[u8]) -> Result<Header, SafetensorsError> {
    Header::parse(Cursor::new(bytes), bytes.len() as u64)
}

fn refused(header: &str, data: usize) -> String {
    parse(&file(header, data)).unwrap_err().to_string()
}

/// Two tensors and a scalar, written by the reference crate.
fn good() -> Vec<u8> {
    let data: Vec<u8> = (0..24).collect();
    let view =
        |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("m", view(Dtype::BF16, &[2, 3], &data[..12])),
        ("v", view(Dtype::F16, &[4], &data[12..20])),
        ("s", view(Dtype::F32, &[], &data[20..])),
    ];
    let note = [("format".to_owned(), "pt".to_owned())].into();
    serialize(tensors, Some(note)).unwrap()
}

#[test]
fn a_file_of_the_reference_gives_shapes_innermost_first() {
    let bytes = good();
    let header = parse(&bytes).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(header.tensors.len(), 3);
    for tensor in &header.tensors {
        let expected = reference.tensor(&tensor.name).unwrap();
        let start = (header.data_start + tensor.offset) as usize;
        assert_eq!(&bytes[start..start + tensor.bytes as usize], expected.data());
    }
    let named = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!((named("m").ty, &named("m").shape[..]), (GgmlType::BF16, &[3, 2][..]));
    assert_eq!((named("v").ty, &named("v").shape[..]), (GgmlType::F16, &[4][..]));
    assert_eq!((named("s").ty, &named("s").shape[..]), (GgmlType::F32, &[1][..]));
}

#[test]
fn damaged_headers_are_told_apart_and_name_the_tensor() {
    let entry = |name: &str, shape: &str, begin: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let two = |first: String, second: String| format!("{{{first},{second}}}");
    let a = || entry("a", "[2]", 0, 8);
    let cases = [
        (two(a(), entry("a", "[2]", 8, 16)), "\"a\" occurs twice"),
        (two(a(), entry("b", "[2]", 4, 12)), "\"a\" and \"b\" overlap"),
        (two(a(), entry("b", "[1]", 12, 16)), "8 to 12 before tensor \"b\""),
        (two(a(), entry("b", "[1]", 8, 12)), "end at data byte 12, the file has 16"),
        (two(a(), entry("b", "[4]", 8, 24)), "\"b\" needs data bytes 8..+16, the file has 16"),
        (two(a(), entry("b", "[3]", 8, 16)), "its shape needs 12"),
        (two(a(), entry("b", "[2]", 16, 8)), "its shape needs 8"),
        (two(a(), entry("b", "[0]", 8, 8)), "a dimension is zero"),
        (two(a(), entry("b", "[4294967296,4294967296]", 8, 16)), "overflows"),
        (two(a(), entry("b", "[1,1,1,1,1,1,1,1,1]", 8, 12)), "at most 8 dimensions"),
        (two(a(), entry("b", "[-1]", 8, 16)), "invalid value: integer `-1`"),
        (
            two(a(), r#""b":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[8,16]}"#.into()),
            "F8_E4M3",
        ),
        (two(a(), r#""b":{"dtype":"F32","shape":[2]}"#.into()), "missing field `data_offsets`"),
        (two(a(), r#""b":7"#.into()), "invalid type"),
        ("[]".into(), "no JSON object"),
        (two(a(), r#""__metadata__":{"x":1}"#.into()), "expected a string"),
        (two(r#""__metadata__":null"#.into(), r#""__metadata__":{}"#.into()), "duplicate field"),
        (format!("{{\"__metadata__\":{}", "[".repeat(1000)), "expected a map"),
    ];
    for (header, expected) in cases {
        let error = refused(&header, 16);
        assert!(error.contains(expected), "{error} has no {expected:?}");
    }
}

#[test]
fn every_truncation_is_refused_and_lengths_are_not_believed() {
    let bytes = good();
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "{len}");
    }
    let mut long = bytes.clone();
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(parse(&long), Err(SafetensorsError::HeaderLength { .. })));
    long[..8].copy_from_slice(&4096u64.to_le_bytes());
    assert!(matches!(parse(&long), Err(SafetensorsError::HeaderCut { length: 4096, .. })));
}

#[test]
fn an_index_names_only_files_of_its_own_directory() {
    let good = r#"{"metadata":{"total_size":1},
        "weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}}"#;
    let map = WeightMap::parse(good.as_bytes()).unwrap();
    assert_eq!(map.files["b"], "x-2.safetensors");
    assert_eq!(
        map.shards().into_iter().collect::<Vec<_>>(),
        ["x-1.safetensors", "x-2.safetensors"]
    );
    let refused = |text: &str| WeightMap::parse(text.as_bytes()).unwrap_err().to_string();
    for name in ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "x.bin", ".x.safetensors"]
    {
        let error = refused(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#));
        assert!(error.contains("\"a\" is to be in"), "{error}");
        assert!(error.contains(name), "{error}");
    }
    let twice = refused(r#"{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}"#);
    assert!(twice.contains("\"a\" occurs twice"), "{twice}");
    assert!(refused(r#"{"weight_map":{}}"#).contains("names no tensor"));
    assert!(refused(r#"{"weight_map":[]}"#).contains("not of the expected form"));
    let many: Vec<_> = (0..600).map(|i| format!(r#""{i}":"{i}.safetensors""#)).collect();
    assert!(
        refused(&format!("{{\"weight_map\":{{{}}}}}", many.join(","))).contains("more than 512")
    );
}

proptest! {
    /// P4: damage gives an error or another valid file, never a panic; and whatever is accepted,
    /// the reference accepts too, with the same places.
    #[test]
    fn p4_damaged_files_never_panic_and_agree_with_the_reference(
        cut in 0usize..400,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = good();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Most cuts are behind the end, so that flips are tried alone.
        bytes.truncate(cut.max(bytes.len() / 8));
        if let Ok(header) = parse(&bytes) {
            let reference = SafeTensors::deserialize(&bytes).unwrap();
            prop_assert_eq!(header.tensors.len(), reference.len());
            for tensor in &header.tensors {
                let expected = reference.tensor(&tensor.name).unwrap();
                let mut shape: Vec<_> = expected.shape().iter().map(|n| *n as u64).collect();
                if shape.is_empty() {
                    shape.push(1);
                }
                shape.reverse();
                prop_assert_eq!(&tensor.shape, &shape);
                let start = (header.data_start + tensor.offset) as usize;
                prop_assert_eq!(&bytes[start..start + tensor.bytes as usize], expected.data());
            }
        }
    }

    #[test]
    fn p4_noise_in_an_index_never_panics(noise in "\\PC{0,200}") {
        let _outcome = WeightMap::parse(noise.as_bytes());
        let _outcome = WeightMap::parse(format!("{{\"weight_map\":{{{noise}}}}}").as_bytes());
    }
}
