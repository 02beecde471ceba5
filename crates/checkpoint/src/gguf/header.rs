//! Parses everything before the tensor data: counts, metadata, tensor directory.
//!
//! Deliberately takes any `Read` plus a size, so that a fuzzer needs no file. Every length is
//! checked against the bytes that are left and a named limit before anything is allocated.
//! Format: docs/gguf.md of the ggml project, versions 2 and 3, little-endian.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use super::error::GgufError;
use super::metadata::{Array, Metadata, Value};
use super::reader::Reader;
use super::tensor::{GgmlType, TensorInfo, stored_bytes};

/// Bounds of what a file may make the reader do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Metadata keys. Real files have 20 to 60.
    pub keys_max: u64,
    /// Tensors. Real files have up to a few thousand.
    pub tensors_max: u64,
    /// Elements of one array. The largest vocabularies have about 300 thousand.
    pub array_len_max: u64,
    /// Bytes of one text. Chat templates are the longest, tens of KiB.
    pub text_bytes_max: u64,
    /// Arrays inside arrays. Real files have none.
    pub nesting_max: u64,
    /// Heap that the parsed directory may take in all.
    pub directory_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys_max: 65_536,
            tensors_max: 65_536,
            array_len_max: 4 << 20,
            text_bytes_max: 4 << 20,
            nesting_max: 2,
            directory_bytes_max: 256 << 20,
        }
    }
}

/// Longest metadata key: the specification's 2^16 - 1.
const KEY_BYTES_MAX: (&str, u64) = ("key length of the format", 65_535);
/// Longest tensor name: the specification's 64.
const NAME_BYTES_MAX: (&str, u64) = ("tensor name length of the format", 64);
/// Most dimensions of a tensor: GGML_MAX_DIMS.
const DIMENSIONS_MAX: u32 = 4;
/// Key length, type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Name length, dimension count, one dimension, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;
/// Heap charged per tensor and key beside its texts: the entry and its place in an index.
const ENTRY_HEAP_BYTES: u64 = 256;

/// Everything before the tensor data, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// The key-value section.
    pub metadata: Metadata,
    /// The tensor directory in file order.
    pub tensors: Vec<TensorInfo>,
    /// First byte of the data section in the file.
    pub data_start: u64,
}

impl Header {
    /// Parses the start of a GGUF source that is `total_bytes` long.
    ///
    /// # Errors
    /// See [`GgufError`]: truncated, corrupt, unsupported, or over one of the `limits`.
    pub fn parse(source: impl Read, total_bytes: u64, limits: &Limits) -> Result<Self, GgufError> {
        let mut reader = Reader::new(source, total_bytes, limits.directory_bytes_max);
        let version = version(&mut reader)?;
        let tensor_limit = ("tensors_max", limits.tensors_max);
        let tensor_count = reader.count("tensor count", TENSOR_BYTES_MIN, tensor_limit)?;
        let key_limit = ("keys_max", limits.keys_max);
        let key_count = reader.count("metadata key count", KEY_BYTES_MIN, key_limit)?;
        let metadata = metadata(&mut reader, key_count, limits)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(tensor(&mut reader, index, alignment)?);
        }
        let data_start = reader.at().next_multiple_of(alignment);
        check_places(&tensors, total_bytes.saturating_sub(data_start))?;
        Ok(Self { version, metadata, tensors, data_start })
    }
}

fn version<R: Read>(reader: &mut Reader<R>) -> Result<u32, GgufError> {
    let found = reader.array::<4>("magic")?;
    if &found != b"GGUF" {
        return Err(GgufError::Magic { found });
    }
    let version = reader.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(GgufError::BigEndian),
        _ => Err(GgufError::Version { version }),
    }
}

fn metadata<R: Read>(
    reader: &mut Reader<R>,
    count: usize,
    limits: &Limits,
) -> Result<Metadata, GgufError> {
    let mut map = BTreeMap::new();
    for index in 0..count {
        reader.charge(ENTRY_HEAP_BYTES, "metadata")?;
        let key = reader.text(&format!("metadata key {index}"), KEY_BYTES_MAX)?;
        let what = format!("metadata {key:?}");
        let at = reader.at();
        let ty = reader.u32(&what)?;
        let value = if ty == ARRAY {
            Value::Array(array(reader, &what, limits, 0)?)
        } else {
            scalar(reader, ty, at, &what, limits)?
        };
        if map.insert(key.clone(), value).is_some() {
            return Err(GgufError::Duplicate { what: "metadata key", name: key });
        }
    }
    Ok(Metadata(map))
}

const ARRAY: u32 = 9;

fn scalar<R: Read>(
    reader: &mut Reader<R>,
    ty: u32,
    at: u64,
    what: &str,
    limits: &Limits,
) -> Result<Value, GgufError> {
    Ok(match ty {
        0 => Value::U8(u8::from_le_bytes(reader.array(what)?)),
        1 => Value::I8(i8::from_le_bytes(reader.array(what)?)),
        2 => Value::U16(u16::from_le_bytes(reader.array(what)?)),
        3 => Value::I16(i16::from_le_bytes(reader.array(what)?)),
        4 => Value::U32(u32::from_le_bytes(reader.array(what)?)),
        5 => Value::I32(i32::from_le_bytes(reader.array(what)?)),
        6 => Value::F32(f32::from_le_bytes(reader.array(what)?)),
        7 => Value::Bool(boolean(reader, what)?),
        8 => Value::Text(reader.text(what, ("text_bytes_max", limits.text_bytes_max))?),
        10 => Value::U64(u64::from_le_bytes(reader.array(what)?)),
        11 => Value::I64(i64::from_le_bytes(reader.array(what)?)),
        12 => Value::F64(f64::from_le_bytes(reader.array(what)?)),
        _ => return Err(unknown_type(what, at, ty)),
    })
}

fn boolean<R: Read>(reader: &mut Reader<R>, what: &str) -> Result<bool, GgufError> {
    let at = reader.at();
    match reader.array::<1>(what)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [value] => Err(GgufError::UnknownValue {
            what: format!("bool of {what}"),
            at,
            value: value.into(),
        }),
    }
}

fn unknown_type(what: &str, at: u64, ty: u32) -> GgufError {
    GgufError::UnknownValue { what: format!("type of {what}"), at, value: ty.into() }
}

/// Reads `$len` elements of a fixed-size number type in one go.
macro_rules! numbers {
    ($reader:expr, $what:expr, $len:expr, $ty:ty) => {{
        const BYTES: usize = size_of::<$ty>();
        let mut out = Vec::<$ty>::with_capacity($len);
        for _ in 0..$len {
            out.push(<$ty>::from_le_bytes($reader.array::<BYTES>($what)?));
        }
        out
    }};
}

fn array<R: Read>(
    reader: &mut Reader<R>,
    what: &str,
    limits: &Limits,
    depth: u64,
) -> Result<Array, GgufError> {
    let at = reader.at();
    let ty = reader.u32(what)?;
    // Bytes that an element takes at least in the file, and in memory beside its own heap.
    let (file_min, heap) = match ty {
        0 | 1 | 7 => (1, 1),
        2 | 3 => (2, 2),
        4..=6 => (4, 4),
        8 => (8, size_of::<String>() as u64),
        ARRAY => (12, size_of::<Array>() as u64),
        10..=12 => (8, 8),
        _ => return Err(unknown_type(what, at, ty)),
    };
    let len = reader.count(what, file_min, ("array_len_max", limits.array_len_max))?;
    reader.charge(len as u64 * heap, what)?;
    Ok(match ty {
        0 => Array::U8(numbers!(reader, what, len, u8)),
        1 => Array::I8(numbers!(reader, what, len, i8)),
        2 => Array::U16(numbers!(reader, what, len, u16)),
        3 => Array::I16(numbers!(reader, what, len, i16)),
        4 => Array::U32(numbers!(reader, what, len, u32)),
        5 => Array::I32(numbers!(reader, what, len, i32)),
        6 => Array::F32(numbers!(reader, what, len, f32)),
        7 => {
            let items = (0..len).map(|_| boolean(reader, what));
            Array::Bool(items.collect::<Result<_, _>>()?)
        }
        8 => {
            let limit = ("text_bytes_max", limits.text_bytes_max);
            let items = (0..len).map(|_| reader.text(what, limit));
            Array::Text(items.collect::<Result<_, _>>()?)
        }
        ARRAY if depth + 1 >= limits.nesting_max => {
            return Err(GgufError::OverLimit {
                what: format!("nesting of {what}"),
                at,
                value: depth + 2,
                limit: "nesting_max",
                max: limits.nesting_max,
            });
        }
        ARRAY => {
            let items = (0..len).map(|_| array(reader, what, limits, depth + 1));
            Array::Nested(items.collect::<Result<_, _>>()?)
        }
        10 => Array::U64(numbers!(reader, what, len, u64)),
        11 => Array::I64(numbers!(reader, what, len, i64)),
        _ => Array::F64(numbers!(reader, what, len, f64)),
    })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    // 32 is the format's GGUF_DEFAULT_ALIGNMENT.
    let value = metadata.u32_opt("general.alignment")?.unwrap_or(32).into();
    let usable = u64::is_power_of_two(value) && (8..=65_536).contains(&value);
    usable.then_some(value).ok_or(GgufError::Alignment { value })
}

fn tensor<R: Read>(
    reader: &mut Reader<R>,
    index: usize,
    alignment: u64,
) -> Result<TensorInfo, GgufError> {
    reader.charge(ENTRY_HEAP_BYTES, "tensor directory")?;
    let name = reader.text(&format!("name of tensor {index}"), NAME_BYTES_MAX)?;
    let what = format!("tensor {name:?}");
    let at = reader.at();
    let dimensions = reader.u32(&what)?;
    if dimensions == 0 || dimensions > DIMENSIONS_MAX {
        return Err(GgufError::UnknownValue {
            what: format!("number of dimensions of {what}"),
            at,
            value: dimensions.into(),
        });
    }
    let shape = (0..dimensions).map(|_| reader.u64(&what));
    let shape = shape.collect::<Result<Vec<_>, _>>()?;
    let at = reader.at();
    let number = reader.u32(&what)?;
    let ty = GgmlType::from_number(number).ok_or_else(|| unknown_type(&what, at, number))?;
    let offset = reader.u64(&what)?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Misaligned { name, offset, alignment });
    }
    match stored_bytes(ty, &shape) {
        Ok(bytes) => Ok(TensorInfo { name, shape, ty, offset, bytes }),
        Err(why) => Err(GgufError::Shape { name, shape, why }),
    }
}

/// No two tensors share a name or a byte, and all lie inside the data section.
fn check_places(tensors: &[TensorInfo], data_bytes: u64) -> Result<(), GgufError> {
    let mut names = BTreeSet::new();
    for tensor in tensors {
        if !names.insert(&tensor.name) {
            return Err(GgufError::Duplicate { what: "tensor", name: tensor.name.clone() });
        }
        let end = tensor.offset.checked_add(tensor.bytes);
        if end.is_none_or(|end| end > data_bytes) {
            return Err(GgufError::TensorOutside {
                name: tensor.name.clone(),
                offset: tensor.offset,
                bytes: tensor.bytes,
                data_bytes,
            });
        }
    }
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(GgufError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}
