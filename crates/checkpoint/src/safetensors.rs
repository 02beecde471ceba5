//! Parses the header of a safetensors file: names, types, shapes and places of its tensors.
//!
//! Deliberately not the `safetensors` crate: it wants the whole file as one slice, lets a name that
//! occurs twice pass, and does not say which tensor is wrong; the format is one JSON object. The
//! tests hold that whatever is accepted here, that crate accepts with the same places.
//! Format: <https://github.com/huggingface/safetensors>, section "Format".

mod error;
mod index;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};

use crate::gguf::{GgmlType, TensorInfo};

pub use error::SafetensorsError;
pub use index::WeightMap;

/// Bytes of the header. About 100 for each tensor; large checkpoints have 2 thousand in a file.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Tensors of one file. The largest checkpoints have 92 thousand in all of their files.
pub(crate) const TENSORS_MAX: usize = 262_144;
/// Dimensions of a tensor: ggml has 4, patch embeddings of images have 5.
const DIMENSIONS_MAX: usize = 8;
/// The length of the header, which stands before it.
const LENGTH_BYTES: u64 = 8;

/// The checked header of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// All tensors in the order of their bytes; shapes are reversed to innermost first, a scalar
    /// has the shape `[1]`.
    pub tensors: Vec<TensorInfo>,
    /// First byte of the data section in the file. Tensors are not aligned to their type.
    pub data_start: u64,
}

impl Header {
    /// Parses the start of a safetensors source that is `total_bytes` long.
    ///
    /// # Errors
    /// See [`SafetensorsError`]: truncated, over a limit, damaged, of a type that is not read, or
    /// with tensors that overlap or leave a hole.
    pub fn parse(mut source: impl Read, total_bytes: u64) -> Result<Self, SafetensorsError> {
        let left = total_bytes.checked_sub(LENGTH_BYTES);
        let left = left.ok_or(SafetensorsError::TooShort { bytes: total_bytes })?;
        let mut length = [0; 8];
        source.read_exact(&mut length).map_err(|source| SafetensorsError::Read { source })?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX {
            return Err(SafetensorsError::HeaderLength { length, max: HEADER_BYTES_MAX });
        }
        if length > left {
            return Err(SafetensorsError::HeaderCut { length, left });
        }
        let mut header = vec![0; usize::try_from(length).expect("the limit is below 4 GiB")];
        source.read_exact(&mut header).map_err(|source| SafetensorsError::Read { source })?;
        // The format allows spaces after the object only, for alignment.
        if header.first() != Some(&b'{') {
            return Err(SafetensorsError::NotAnObject);
        }
        // All of it, not only the texts that are kept.
        let header = str::from_utf8(&header).map_err(|_| SafetensorsError::NotUtf8)?;
        let entries: Entries =
            serde_json::from_str(header).map_err(|source| SafetensorsError::Json { source })?;
        let tensors = check(entries.0, left - length)?;
        Ok(Self { tensors, data_start: LENGTH_BYTES + length })
    }
}

/// One tensor as the header has it.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Outermost first, with a bound on their number.
#[derive(Debug)]
struct Shape(Vec<u64>);

/// All tensors in the order of the text: a map would hide a name that occurs twice.
#[derive(Debug)]
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {DIMENSIONS_MAX} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = items.next_element()? {
                    if shape.len() == DIMENSIONS_MAX {
                        return Err(serde::de::Error::invalid_length(DIMENSIONS_MAX + 1, &self));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Named;
        impl<'de> Visitor<'de> for Named {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {TENSORS_MAX} tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut noted = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        // Notes of the writer, which the format wants to be texts.
                        map.next_value::<Option<BTreeMap<String, String>>>()?;
                        if std::mem::replace(&mut noted, true) {
                            return Err(serde::de::Error::duplicate_field("__metadata__"));
                        }
                        continue;
                    }
                    if entries.len() == TENSORS_MAX {
                        return Err(serde::de::Error::invalid_length(TENSORS_MAX + 1, &self));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Named)
    }
}

/// The tensors in order of their bytes, which must fill the data section exactly.
fn check(
    entries: Vec<(String, Entry)>,
    data_bytes: u64,
) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let mut names = BTreeSet::new();
    if let Some((name, _)) = entries.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(SafetensorsError::Duplicate { name: name.clone() });
    }
    let tensors = entries.into_iter().map(|(name, entry)| tensor(name, entry));
    let mut tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|tensor| tensor.offset);
    let mut end = 0;
    let mut last: Option<&TensorInfo> = None;
    for tensor in &tensors {
        let (name, begin) = (tensor.name.clone(), tensor.offset);
        match last {
            Some(last) if begin < end => {
                return Err(SafetensorsError::Overlap { first: last.name.clone(), second: name });
            }
            _ if begin > end => return Err(SafetensorsError::Hole { name, begin, end }),
            _ => {}
        }
        end =
            begin.checked_add(tensor.bytes).filter(|end| *end <= data_bytes).ok_or_else(|| {
                let bytes = tensor.bytes;
                SafetensorsError::Outside { name: tensor.name.clone(), begin, bytes, data_bytes }
            })?;
        last = Some(tensor);
    }
    if end != data_bytes {
        return Err(SafetensorsError::Trailing { end, data_bytes });
    }
    Ok(tensors)
}

fn tensor(name: String, entry: Entry) -> Result<TensorInfo, SafetensorsError> {
    let Entry { dtype, shape: Shape(mut shape), data_offsets: (begin, end) } = entry;
    let ty = match dtype.as_str() {
        "F32" => GgmlType::F32,
        "F16" => GgmlType::F16,
        "BF16" => GgmlType::BF16,
        _ => return Err(SafetensorsError::Type { name, found: dtype.chars().take(20).collect() }),
    };
    if shape.contains(&0) {
        return Err(SafetensorsError::Shape { name, shape, why: "a dimension is zero" });
    }
    let (_, element_bytes) = ty.block();
    let expected = shape.iter().try_fold(element_bytes, |bytes, n| bytes.checked_mul(*n));
    let Some(expected) = expected else {
        let why = "the number of elements overflows";
        return Err(SafetensorsError::Shape { name, shape, why });
    };
    match end.checked_sub(begin) {
        Some(bytes) if bytes == expected => {}
        _ => return Err(SafetensorsError::Size { name, begin, end, expected }),
    }
    if shape.is_empty() {
        shape.push(1);
    }
    shape.reverse();
    Ok(TensorInfo { name, shape, ty, offset: begin, bytes: expected })
}
