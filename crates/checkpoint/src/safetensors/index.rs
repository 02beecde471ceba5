//! Parses `model.safetensors.index.json`: which file of a directory has which tensor.
//!
//! Deliberately opens no file and believes no total of sizes: the files' own headers say them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use super::{SafetensorsError, TENSORS_MAX};

/// Files of one checkpoint, each of which stays open. The largest have about 200.
const SHARDS_MAX: usize = 512;
/// Longest name of a file that file systems take.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Which file has which tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightMap {
    /// Tensor name to file name, a plain name in the index's own directory.
    pub files: BTreeMap<String, String>,
}

impl WeightMap {
    /// Parses the text of an index.
    ///
    /// # Errors
    /// See [`SafetensorsError`]: no JSON of the expected form, a tensor twice, a file name that
    /// leads out of the directory, over a limit.
    pub fn parse(text: &[u8]) -> Result<Self, SafetensorsError> {
        let index: Index =
            serde_json::from_slice(text).map_err(|source| SafetensorsError::Json { source })?;
        let mut files = BTreeMap::new();
        let mut shards = BTreeSet::new();
        for (name, file) in index.weight_map.0 {
            if !is_shard_name(&file) {
                let file = file.chars().take(80).collect();
                return Err(SafetensorsError::ShardName { name, file });
            }
            shards.insert(file.clone());
            if shards.len() > SHARDS_MAX {
                return Err(SafetensorsError::ShardCount { max: SHARDS_MAX });
            }
            if files.contains_key(&name) {
                return Err(SafetensorsError::Duplicate { name });
            }
            files.insert(name, file);
        }
        if files.is_empty() {
            return Err(SafetensorsError::NoTensor);
        }
        Ok(Self { files })
    }

    /// The names of all files, each once, in order.
    #[must_use]
    pub fn shards(&self) -> BTreeSet<&str> {
        self.files.values().map(String::as_str).collect()
    }
}

/// A plain name: no way into another directory, no hidden file.
fn is_shard_name(file: &str) -> bool {
    file.ends_with(".safetensors")
        && !file.starts_with('.')
        && file.len() <= FILE_NAME_BYTES_MAX
        && !file.contains(|c: char| matches!(c, '/' | '\\') || c.is_control())
}

#[derive(Deserialize)]
struct Index {
    weight_map: Pairs,
}

/// Tensor and file in the order of the text: a map would hide a name that occurs twice.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Named;
        impl<'de> Visitor<'de> for Named {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {TENSORS_MAX} tensors and their files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    if pairs.len() == TENSORS_MAX {
                        return Err(serde::de::Error::invalid_length(TENSORS_MAX + 1, &self));
                    }
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Named)
    }
}
