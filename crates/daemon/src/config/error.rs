//! What can be wrong with a configuration, in the operator's words: which key, where it was set,
//! what to do. What it deliberately does not do: print, or choose exit codes.

use std::fmt;
use std::io;
use std::path::PathBuf;

use figment::error::Kind;

use super::layer::Layer;
use super::nearest;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: the built-in default.
    Default,
    /// In a file, with the line where it could be told.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: Option<usize>,
    },
    /// By an environment variable of this name.
    Variable(String),
    /// By this flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "the built-in default"),
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// Why there is no configuration. Every variant means exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not valid TOML: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        problem: String,
    },
    /// An environment variable is not UTF-8.
    #[error("environment variable {variable} is not valid UTF-8: set it to text or unset it")]
    NotText {
        /// Its name.
        variable: String,
    },
    /// A key that nothing reads.
    #[error("unknown key `{key}` in {origin}: {remedy}")]
    UnknownKey {
        /// The path of the key, with dots.
        key: String,
        /// Where it was set.
        origin: Origin,
        /// The nearest known key, or all of them.
        remedy: String,
    },
    /// A value of the wrong type or form.
    #[error("`{key}` in {origin}: {problem}")]
    Value {
        /// The path of the key, with dots.
        key: String,
        /// Where it was set.
        origin: Origin,
        /// What is wrong and what was wanted.
        problem: String,
    },
    /// A value that is well formed and cannot work.
    #[error("`{field}`: {problem}: {remedy}")]
    Invalid {
        /// The path of the field, with dots.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The configuration has no text form: a mistake in the program, not in the configuration.
    #[error("the configuration cannot be written out: {problem}")]
    Unwritable {
        /// The serializer's words.
        problem: String,
    },
}

impl ConfigError {
    /// For checks of whole configurations: `field` cannot be so because of `problem`.
    #[must_use]
    pub fn invalid(field: &str, problem: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self::Invalid {
            field: field.to_owned(),
            problem: problem.to_string(),
            remedy: remedy.to_string(),
        }
    }
}

/// Turns figment's words into ours: the first error, with the layer that set the key.
pub(super) fn explain(error: figment::Error, layers: &[Layer]) -> ConfigError {
    let mut path = error.path;
    match error.kind {
        Kind::UnknownField(field, known) => {
            // Figment's path ends with the key itself, except at the root of a value.
            if path.is_empty() {
                path.push(field);
            }
            let key = path.join(".");
            let parent = &path[..path.len() - 1];
            let remedy = nearest::remedy(&key, parent, known.iter().copied());
            ConfigError::UnknownKey { origin: origin_of(&path, layers), key, remedy }
        }
        kind => {
            let problem = match kind {
                Kind::Message(text) => text,
                Kind::UnknownVariant(found, known) => {
                    format!("{found:?} is not known: write one of {}", known.join(", "))
                }
                Kind::MissingField(name) => format!("the key `{name}` is missing: set it"),
                kind => kind.to_string(),
            };
            ConfigError::Value { key: path.join("."), origin: origin_of(&path, layers), problem }
        }
    }
}

/// The last layer that sets the key or something under or around it.
fn origin_of(path: &[String], layers: &[Layer]) -> Origin {
    layers.iter().rev().find_map(|layer| layer.origin_of(path)).unwrap_or(Origin::Default)
}
