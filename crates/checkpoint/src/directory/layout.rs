//! Which files of a directory make up a checkpoint, and reading them with bounds.
//!
//! Deliberately follows a link only to where a checkpoint's own files can be: a directory from
//! elsewhere must not show what else is on this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::DirectoryError;
use crate::safetensors::WeightMap;

/// The one file of weights of a checkpoint that is not split.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The table of the files of one that is.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The model's shape.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const TEMPLATE: &str = "chat_template.jinja";
/// Where processors of older versions keep the template, as `{"chat_template": ".."}`.
pub(crate) const TEMPLATE_JSON: &str = "chat_template.json";

/// All files beside the weights that are read, each with a bound on its size. The largest in the
/// field: tokenizers of 33 MB, indices of 9 MB, tokenizer configurations of 2 MB, the others tens
/// of KB.
pub(crate) const TEXTS: [(&str, u64); 7] = [
    (TEMPLATE, 4 << 20),
    (TEMPLATE_JSON, 4 << 20),
    (CONFIG, 4 << 20),
    (GENERATION_CONFIG, 1 << 20),
    (INDEX, 64 << 20),
    (TOKENIZER, 128 << 20),
    (TOKENIZER_CONFIG, 32 << 20),
];

/// What a directory has of what is read.
#[derive(Debug)]
pub(crate) struct Layout {
    /// As it was given.
    pub(crate) dir: PathBuf,
    /// File name to the place of its bytes, links resolved; in the order of names.
    pub(crate) files: BTreeMap<String, PathBuf>,
    /// `None` if all weights are in one file.
    pub(crate) index: Option<WeightMap>,
}

impl Layout {
    /// Finds the files of a checkpoint. That they are there is all it says about the weights.
    pub(crate) fn read(dir: &Path) -> Result<Self, DirectoryError> {
        let io = |source| DirectoryError::Read { path: dir.to_owned(), source };
        let real = dir.canonicalize().map_err(io)?;
        std::fs::read_dir(&real).map_err(io)?;
        let mut layout = Self { dir: dir.to_owned(), files: BTreeMap::new(), index: None };
        for name in TEXTS.map(|(name, _)| name).into_iter().chain([SINGLE]) {
            if let Some(place) = place(dir, &real, name)? {
                layout.files.insert(name.to_owned(), place);
            }
        }
        if !layout.files.contains_key(CONFIG) {
            if let Some(found) = other_weights(&real).filter(|found| found.ends_with(".gguf")) {
                return Err(DirectoryError::NoWeights { dir: dir.to_owned(), found: Some(found) });
            }
            return Err(DirectoryError::Missing { dir: dir.to_owned(), file: CONFIG });
        }
        // As the field's own loader does: the single file wins, and then the index is not read.
        if layout.files.contains_key(SINGLE) {
            layout.files.remove(INDEX);
            return Ok(layout);
        }
        let Some(text) = layout.bytes(INDEX)? else {
            let found = other_weights(&real);
            return Err(DirectoryError::NoWeights { dir: dir.to_owned(), found });
        };
        let index = WeightMap::parse(&text)
            .map_err(|source| DirectoryError::Safetensors { path: dir.join(INDEX), source })?;
        for (tensor, file) in &index.files {
            if layout.files.contains_key(file) {
                continue;
            }
            let missing =
                || DirectoryError::ShardMissing { path: dir.join(file), tensor: tensor.clone() };
            let place = place(dir, &real, file)?.ok_or_else(missing)?;
            layout.files.insert(file.clone(), place);
        }
        layout.index = Some(index);
        Ok(layout)
    }

    /// The names of the files that have weights, in order.
    pub(crate) fn shards(&self) -> Vec<String> {
        match &self.index {
            None => vec![SINGLE.to_owned()],
            Some(index) => index.shards().into_iter().map(str::to_owned).collect(),
        }
    }

    /// A file of [`TEXTS`] as UTF-8; `None` if the directory has none.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, DirectoryError> {
        let text = self.bytes(name)?.map(String::from_utf8).transpose();
        text.map_err(|_| DirectoryError::NotUtf8 { path: self.dir.join(name) })
    }

    /// A file of [`TEXTS`] as JSON, at most 128 levels deep; `None` if the directory has none.
    pub(crate) fn json(&self, name: &str) -> Result<Option<serde_json::Value>, DirectoryError> {
        let Some(bytes) = self.bytes(name)? else {
            return Ok(None);
        };
        let value = serde_json::from_slice(&bytes)
            .map_err(|source| DirectoryError::Json { path: self.dir.join(name), source })?;
        Ok(Some(value))
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, DirectoryError> {
        let Some(place) = self.files.get(name) else {
            return Ok(None);
        };
        let max = TEXTS.iter().find(|(text, _)| *text == name).map_or(0, |(_, max)| *max);
        let path = self.dir.join(name);
        let io = |source| DirectoryError::Read { path: path.clone(), source };
        let file = File::open(place).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let too_large = |bytes| DirectoryError::TooLarge { path: path.clone(), bytes, max };
        if bytes > max {
            return Err(too_large(bytes));
        }
        // The size may be a lie, as it is for files that the kernel makes up.
        let mut text = Vec::new();
        file.take(max + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > max {
            return Err(too_large(text.len() as u64));
        }
        Ok(Some(text))
    }
}

/// Where the bytes of a file are; `None` if the directory has no such file.
fn place(dir: &Path, real: &Path, name: &str) -> Result<Option<PathBuf>, DirectoryError> {
    let path = dir.join(name);
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DirectoryError::Read { path, source }),
    };
    if !target.starts_with(real) && !is_hub_blob(&target) {
        return Err(DirectoryError::Link { path, target });
    }
    if !target.is_file() {
        return Err(DirectoryError::NotAFile { path });
    }
    Ok(Some(target))
}

/// Whether a path is `models--<owner>--<name>/blobs/<etag>`, to which the links of the hub's
/// snapshots lead, and those that its tools make for `--local-dir`.
pub(crate) fn is_hub_blob(path: &Path) -> bool {
    let mut parts = path.components().rev().map(|part| part.as_os_str().to_string_lossy());
    parts.next().is_some()
        && parts.next().is_some_and(|part| part == "blobs")
        && parts.next().is_some_and(|part| part.starts_with("models--"))
}

/// A file whose name says that it has weights in a form that is not read, for the message.
fn other_weights(dir: &Path) -> Option<String> {
    const FORMS: [&str; 5] = [".gguf", ".safetensors", ".bin", ".pt", ".pth"];
    // A bound, because a directory of anything can be named.
    let entries = std::fs::read_dir(dir).ok()?.take(10_000);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let of_a_form = |name: &String| FORMS.iter().position(|form| name.ends_with(form));
    let mut found: Vec<_> = names.filter_map(|name| Some((of_a_form(&name)?, name))).collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).find(|name| name != "training_args.bin")
}
