//! Texts to decode: two that every build brings along, or files.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;

/// Prose and tables.
const DOCS: &[&str] = &[
    include_str!("../../../../docs/ARCHITECTURE.md"),
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/METRICS.md"),
    include_str!("../../../../docs/CONFIG.md"),
    include_str!("../../../../docs/API.md"),
    include_str!("../../../../docs/STYLE.md"),
    include_str!("../../../../LICENSE"),
];

/// Rust.
const CODE: &[&str] = &[
    include_str!("../loops.rs"),
    include_str!("../eval.rs"),
    include_str!("../models.rs"),
    include_str!("../chat.rs"),
    include_str!("../up.rs"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Own { name: &'static str, parts: &'static [&'static str] },
    File { name: String, path: PathBuf },
}

impl FromStr for Text {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once('=')) {
            ("docs", _) => Ok(Self::Own { name: "docs", parts: DOCS }),
            ("code", _) => Ok(Self::Own { name: "code", parts: CODE }),
            (_, Some((name, path))) if !name.is_empty() && !path.is_empty() => {
                Ok(Self::File { name: name.to_owned(), path: path.into() })
            }
            _ => Err("use docs, code, or NAME=FILE".to_owned()),
        }
    }
}

impl Text {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Own { name, .. } => name,
            Self::File { name, .. } => name,
        }
    }

    pub(crate) fn read(&self) -> anyhow::Result<String> {
        match self {
            Self::Own { parts, .. } => Ok(parts.join("\n")),
            Self::File { path, .. } => {
                std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
            }
        }
    }
}
