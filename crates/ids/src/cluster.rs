//! Who is in the cluster and where bytes can live.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A name that is not a lower-case DNS label.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} {name:?} must be 1 to 63 of a-z, 0-9 and '-', and start with a letter or digit")]
pub struct InvalidName {
    /// Which kind of name was read.
    pub what: &'static str,
    /// What was given, cut to 80 characters.
    pub name: String,
}

fn label(what: &'static str, text: &str) -> Result<Arc<str>, InvalidName> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ok = (1..=63).contains(&text.len()) && text.chars().all(allowed) && !text.starts_with('-');
    if !ok {
        return Err(InvalidName { what, name: text.chars().take(80).collect() });
    }
    Ok(Arc::from(text))
}

/// Defines a cheap-to-clone DNS-label newtype.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                label($what, text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

label! {
    /// A node's name, stable over restarts (the pod name in Kubernetes).
    NodeId, "node id"
}

label! {
    /// A failure domain (`host` or `zone`): copies go to distinct ones.
    Domain, "failure domain"
}

/// Which start of a node: a restarted process holds nothing that its predecessor held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A leadership term of the coordinators; nodes refuse commands of lower terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Speaks OpenAI to clients.
    Gateway,
    /// Plans.
    Coordinator,
    /// Computes prompts and keeps their sealed blocks in host DRAM.
    Prefill,
    /// Owns sessions and samples.
    Decode,
    /// Holds copies.
    Memory,
}

impl Role {
    /// All of them, in the order a request meets them.
    pub const ALL: [Self; 5] =
        [Self::Gateway, Self::Coordinator, Self::Prefill, Self::Decode, Self::Memory];

    /// The lower-case name used in configs, metrics and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Coordinator => "coordinator",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where KV can live, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// HBM on a GPU, a bounded arena of its own on the host device.
    Device,
    /// DRAM of the decode host.
    DecodeHost,
    /// DRAM of the prefill host.
    PrefillHost,
    /// A memory node.
    Remote,
}

impl Tier {
    /// All of them, nearest first.
    pub const ALL: [Self; 4] = [Self::Device, Self::DecodeHost, Self::PrefillHost, Self::Remote];

    /// The lower-case name used in metrics and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::DecodeHost => "decode_host",
            Self::PrefillHost => "prefill_host",
            Self::Remote => "remote",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::NodeId;

    #[test]
    fn node_names_are_dns_labels() {
        for good in ["a", "memory-0", "0x"] {
            assert_eq!(good.parse::<NodeId>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "A", "a_b", "é", &"a".repeat(64)] {
            let error = bad.parse::<NodeId>().unwrap_err();
            assert_eq!(error.what, "node id");
        }
    }
}
