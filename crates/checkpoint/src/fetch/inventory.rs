//! What is on this machine already: the aliases, and what the hub's tools fetched that is a model
//! in a form that is read.
//!
//! Deliberately reads no weights and checks no digest: names and sizes for a list.

use std::path::{Path, PathBuf};

use ids::ByteCount;

use super::repository::Choice;
use super::{ALIASES, FetchConfig};
use crate::cache::hub::gguf_files;
use crate::directory::{CONFIG, Layout};

/// A model that can be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What to type as a model's name.
    pub name: String,
    /// Size of the files that are read.
    pub bytes: ByteCount,
    /// What it is.
    pub form: Form,
    /// Where it is.
    pub place: Place,
}

/// What a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// One .gguf file.
    Gguf,
    /// A directory with safetensors.
    Safetensors {
        /// `model_type` of its config.json, as it stands there; empty if it has none.
        model_type: String,
    },
}

/// Where a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere yet.
    NotFetched,
    /// In our own cache.
    Cache(PathBuf),
    /// In the cache that the hub's tools share.
    HubCache(PathBuf),
}

/// All aliases, then all models of the hub's cache in order of their names.
#[must_use]
pub fn inventory(config: &FetchConfig) -> Vec<Held> {
    let aliases = ALIASES.iter().map(|alias| {
        let path = config.cache.model_dir(alias.name).join(alias.file);
        let place = if path.exists() { Place::Cache(path) } else { Place::NotFetched };
        let bytes = ByteCount(alias.bytes);
        Held { name: alias.name.to_owned(), bytes, form: Form::Gguf, place }
    });
    let mut found: Vec<_> = aliases.collect();
    for cached in config.hub_cache.repositories() {
        found.extend(directory(&cached.repository, &cached.snapshot));
        for file in gguf_files(&cached.snapshot) {
            let choice = super::repository::choose_file(&file);
            let Ok(Choice::Gguf(_)) = choice else {
                continue;
            };
            let path = cached.snapshot.join(&file);
            let bytes = path.metadata().map_or(0, |meta| meta.len());
            found.push(Held {
                name: format!("{}/{file}", cached.repository),
                bytes: ByteCount(bytes),
                form: Form::Gguf,
                place: Place::HubCache(path),
            });
        }
    }
    found
}

fn directory(repository: &str, snapshot: &Path) -> Option<Held> {
    let layout = Layout::read(snapshot).ok()?;
    let sizes = layout.files.values().filter_map(|place| Some(place.metadata().ok()?.len()));
    let bytes = ByteCount(sizes.sum());
    let config = layout.json(CONFIG).ok()??;
    let model_type = config.get("model_type").and_then(|value| value.as_str()).unwrap_or_default();
    let model_type = model_type.chars().filter(|c| !c.is_control()).take(40).collect();
    let place = Place::HubCache(snapshot.to_owned());
    let form = Form::Safetensors { model_type };
    Some(Held { name: repository.to_owned(), bytes, form, place })
}
