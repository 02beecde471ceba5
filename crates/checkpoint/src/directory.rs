//! A directory in the hub's layout: config.json, tokenizer files, and safetensors in one file or
//! in several with an index.
//!
//! Deliberately knows what the files are called and how they are checked, not what they mean: no
//! architecture, no tokenizer. Never reads a pickle. The weights stay in the files, mapped.

mod error;
mod layout;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gguf::TensorInfo;
use crate::mapped::Mapped;
use crate::safetensors::{Header, SafetensorsError, TENSORS_MAX};

pub use error::DirectoryError;
pub(crate) use layout::{CONFIG, INDEX, Layout, SINGLE, TEXTS, TOKENIZER, is_hub_blob};
use layout::{GENERATION_CONFIG, TEMPLATE, TEMPLATE_JSON, TOKENIZER_CONFIG};

/// An opened directory whose files were checked against each other.
#[derive(Debug)]
pub struct Directory {
    /// As it was given.
    path: PathBuf,
    /// config.json.
    config: Value,
    /// generation_config.json, if there is one.
    generation_config: Option<Value>,
    /// Text of tokenizer.json, if there is one.
    tokenizer: Option<String>,
    /// tokenizer_config.json, if there is one.
    tokenizer_config: Option<Value>,
    /// The chat template that stands in a file of its own, if there is one.
    chat_template: Option<String>,
    /// The files of weights.
    shards: Vec<Shard>,
    /// All tensors, file by file.
    tensors: Vec<TensorInfo>,
    /// For each of `tensors` its index in `shards`.
    homes: Vec<usize>,
    /// Tensor name to index in `tensors`.
    by_name: BTreeMap<String, usize>,
}

/// One file of weights.
#[derive(Debug)]
struct Shard {
    mapped: Mapped,
    /// First byte of the data section.
    data_start: u64,
}

impl Directory {
    /// Opens and checks a directory.
    ///
    /// # Errors
    /// See [`DirectoryError`]: a file is missing, damaged, over a limit or a link to somewhere
    /// else; the files do not belong together; a tensor is stored in a type that is not read.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let layout = Layout::read(path)?;
        let missing = || DirectoryError::Missing { dir: path.to_owned(), file: CONFIG };
        let mut opened = Self {
            path: path.to_owned(),
            config: layout.json(CONFIG)?.ok_or_else(missing)?,
            generation_config: layout.json(GENERATION_CONFIG)?,
            tokenizer: layout.text(TOKENIZER)?,
            tokenizer_config: layout.json(TOKENIZER_CONFIG)?,
            chat_template: None,
            shards: Vec::new(),
            tensors: Vec::new(),
            homes: Vec::new(),
            by_name: BTreeMap::new(),
        };
        opened.chat_template = chat_template(&layout, opened.tokenizer_config.as_ref())?;
        for file in layout.shards() {
            opened.add_shard(&layout, &file)?;
        }
        if let Some(index) = &layout.index {
            for (tensor, file) in &index.files {
                if !opened.by_name.contains_key(tensor) {
                    let (path, tensor) = (path.join(file), tensor.clone());
                    return Err(DirectoryError::NotInShard { path, tensor });
                }
            }
        }
        Ok(opened)
    }

    /// Maps one file and takes those of its tensors that the index gives to it.
    fn add_shard(&mut self, layout: &Layout, file: &str) -> Result<(), DirectoryError> {
        let path = self.path.join(file);
        let io = |source| DirectoryError::Read { path: path.clone(), source };
        let bad = |source| DirectoryError::Safetensors { path: path.clone(), source };
        let handle = File::open(&layout.files[file]).map_err(io)?;
        let bytes = handle.metadata().map_err(io)?.len();
        let header = Header::parse(std::io::BufReader::new(&handle), bytes).map_err(bad)?;
        let (mut taken, mut others) = (0, 0);
        for tensor in header.tensors {
            let owner = layout.index.as_ref().and_then(|index| index.files.get(&tensor.name));
            if layout.index.is_some() && owner.is_none_or(|owner| owner != file) {
                others += 1;
                continue;
            }
            if self.tensors.len() == TENSORS_MAX {
                return Err(bad(SafetensorsError::TensorCount { max: TENSORS_MAX }));
            }
            taken += 1;
            self.by_name.insert(tensor.name.clone(), self.tensors.len());
            self.tensors.push(tensor);
            self.homes.push(self.shards.len());
        }
        if others > 0 {
            // As the field's own loader does: the index says what belongs to the checkpoint.
            tracing::warn!(path = %path.display(), others, "tensors that the index does not name");
        }
        tracing::debug!(path = %path.display(), taken, "file of weights opened");
        let mapped = Mapped::new(handle, path.clone()).map_err(io)?;
        self.shards.push(Shard { mapped, data_start: header.data_start });
        Ok(())
    }

    /// The path it was opened from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// config.json, as it is. Bounded in size and depth, its content is not checked.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// generation_config.json, if there is one.
    #[must_use]
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// The text of tokenizer.json, if there is one. Bounded in size, its content is not checked.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&str> {
        self.tokenizer.as_deref()
    }

    /// tokenizer_config.json, if there is one.
    #[must_use]
    pub fn tokenizer_config(&self) -> Option<&Value> {
        self.tokenizer_config.as_ref()
    }

    /// The chat template that stands in a file of its own and wins over the one of
    /// [`Directory::tokenizer_config`]: chat_template.jinja, else, where that configuration has
    /// none, the chat_template.json of older processors.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// All tensors, shapes innermost first; `offset` is relative to the data section of the
    /// tensor's own file.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The entry of one tensor, if the checkpoint has it.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }

    /// All bytes of one tensor as stored: little-endian, outermost dimension slowest, at any
    /// address. See [`crate::Gguf::tensor_bytes`] for what holds while the slice lives.
    ///
    /// # Errors
    /// The tensor is missing, or the file changed since it was opened.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], DirectoryError> {
        let (mapped, range) = self
            .place(name)
            .ok_or_else(|| DirectoryError::TensorMissing { name: name.to_owned() })?;
        mapped.bytes(range).map_err(|source| DirectoryError::ReadTensor {
            name: name.to_owned(),
            path: mapped.path().to_owned(),
            source,
        })
    }

    /// As [`crate::Gguf::release`].
    pub fn release(&self, name: &str) {
        if let Some((mapped, range)) = self.place(name) {
            mapped.release(range);
        }
    }

    fn place(&self, name: &str) -> Option<(&Mapped, Range<u64>)> {
        let index = *self.by_name.get(name)?;
        let shard = &self.shards[self.homes[index]];
        let tensor = &self.tensors[index];
        let start = shard.data_start + tensor.offset;
        Some((&shard.mapped, start..start + tensor.bytes))
    }
}

/// The template in a file of its own.
fn chat_template(
    layout: &Layout,
    tokenizer_config: Option<&Value>,
) -> Result<Option<String>, DirectoryError> {
    if let Some(text) = layout.text(TEMPLATE)? {
        return Ok(Some(text));
    }
    let elsewhere = tokenizer_config.and_then(|config| config.get("chat_template"));
    if elsewhere.is_some_and(|template| !template.is_null()) {
        return Ok(None);
    }
    let old = layout.json(TEMPLATE_JSON)?;
    let text = old.as_ref().and_then(|value| value.get("chat_template")?.as_str());
    Ok(text.map(str::to_owned))
}
