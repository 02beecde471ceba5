//! Configuration of a process: defaults < TOML file < environment < flags, into one typed value.
//! A key that nothing reads is an error that names its place and the nearest known key.
//! What it deliberately does not do: reload, or fetch from anywhere but this host.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::units::ByteSize;

mod error;
mod layer;
mod nearest;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, Origin};
use layer::Layer;

/// A configuration file is text written by people; more than this is a mistaken path.
const FILE_BYTES_MAX: ByteSize = ByteSize::mib(1);

/// Where a configuration comes from, beside its defaults.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The TOML file; `None` reads none.
    pub file: Option<PathBuf>,
    /// The first part of the environment's names: with `OASISKV_GATEWAY`, the variable
    /// `OASISKV_GATEWAY__LOG__LEVEL` sets `log.level`. Names with a single underscore after the
    /// prefix are left alone, because Kubernetes makes such names for every service.
    pub env_prefix: String,
    /// What flags set.
    pub overrides: Overrides,
}

/// Settings from flags, by key path, the later one winning.
#[derive(Debug, Clone, Default)]
pub struct Overrides(Vec<Setting>);

/// One setting from outside a file.
#[derive(Debug, Clone)]
struct Setting {
    origin: Origin,
    /// Key path with dots, as in `log.level`.
    key: String,
    value: Given,
}

/// A value as it was given.
#[derive(Debug, Clone)]
enum Given {
    /// Text whose type the default at its key decides.
    Text(String),
    /// A typed value.
    Typed(Value),
    /// Not a value, with the serializer's words.
    Unwritable(String),
}

impl Overrides {
    /// Sets `key` (a path with dots) to text; the type of the default at that key decides how the
    /// text is read. `flag` is named in errors, as in `--set`.
    pub fn set_text(&mut self, flag: &str, key: &str, text: &str) {
        let value = Given::Text(text.to_owned());
        self.0.push(Setting { origin: Origin::Flag(flag.to_owned()), key: key.to_owned(), value });
    }

    /// Sets `key` to what a flag was parsed into; `None` leaves the key alone. A value without a
    /// JSON form is reported by [`load`].
    pub fn set<T: Serialize>(&mut self, flag: &str, key: &str, value: Option<T>) {
        let Some(value) = value else { return };
        let value = match serde_json::to_value(value) {
            Ok(value) => Given::Typed(value),
            Err(error) => Given::Unwritable(error.to_string()),
        };
        self.0.push(Setting { origin: Origin::Flag(flag.to_owned()), key: key.to_owned(), value });
    }
}

/// Reads the configuration `C`: its defaults, then the file, the environment and the flags, each
/// overriding single keys of those before. Arrays are replaced as a whole.
///
/// `C` must print every key that it reads (no `skip_serializing`): a key that was given and does
/// not appear in the result is how unknown keys are found, also in structs that forgot serde's
/// `deny_unknown_fields`.
///
/// # Errors
/// [`ConfigError`], which names key, place and remedy.
pub fn load<C: DeserializeOwned + Serialize + Default>(
    sources: &Sources,
) -> Result<C, ConfigError> {
    load_with(sources, std::env::vars_os())
}

fn load_with<C: DeserializeOwned + Serialize + Default>(
    sources: &Sources,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<C, ConfigError> {
    let defaults = to_json(&C::default())?;
    let mut layers = Vec::new();
    if let Some(path) = &sources.file {
        layers.push(Layer::file(path, &read_file(path)?)?);
    }
    let environment = settings_in(&sources.env_prefix, environment)?;
    for setting in environment.iter().chain(&sources.overrides.0) {
        layers.push(Layer::setting(setting, &defaults)?);
    }
    let mut figment = Figment::from(Serialized::defaults(&defaults));
    for layer in &layers {
        figment = figment.merge(Serialized::defaults(layer.value()));
    }
    let config: C = figment.extract().map_err(|e| error::explain(e, &layers))?;
    let effective = to_json(&config)?;
    match layers.iter().find_map(|layer| layer.unread(&effective)) {
        Some(unknown) => Err(unknown),
        None => Ok(config),
    }
}

/// The effective configuration as TOML that `load` reads back to the same value.
///
/// # Errors
/// [`ConfigError::Unwritable`] if `C` has no TOML form.
pub fn print<C: Serialize>(config: &C) -> Result<String, ConfigError> {
    toml::to_string_pretty(config).map_err(|e| ConfigError::Unwritable { problem: e.to_string() })
}

fn to_json<C: Serialize>(config: &C) -> Result<Value, ConfigError> {
    serde_json::to_value(config).map_err(|e| ConfigError::Unwritable { problem: e.to_string() })
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    // One byte more than allowed tells "full" from "too long".
    file.take(FILE_BYTES_MAX.get() + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > FILE_BYTES_MAX.as_usize() {
        let problem = format!("larger than {FILE_BYTES_MAX}, which no configuration is");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, problem)));
    }
    Ok(text)
}

/// The settings in the environment under a prefix, by name, so that the outcome does not depend on
/// the order in which the system lists them.
fn settings_in(
    prefix: &str,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<Setting>, ConfigError> {
    let prefix = format!("{prefix}__");
    let mut settings = Vec::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else {
            continue;
        };
        let Some(value) = value.to_str() else {
            return Err(ConfigError::NotText { variable: name.to_owned() });
        };
        let key = name[prefix.len()..].to_lowercase().replace("__", ".");
        let value = Given::Text(value.to_owned());
        settings.push(Setting { origin: Origin::Variable(name.to_owned()), key, value });
    }
    settings.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(settings)
}
