//! What the user may type as a model: an alias, a path, or a model of the hub.
//!
//! Deliberately looks at the file system only to tell a path from a hub id; whether the thing is
//! there, and is a model, is found out by whoever opens it.

use std::path::Path;

use super::{ALIASES, Alias, ResolveError};

/// Longest owner and longest name on the hub.
const PART_CHARS_MAX: usize = 96;
/// Longest revision and longest file name that are sent to the hub.
const TEXT_CHARS_MAX: usize = 255;

/// What was meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Alias(&'static Alias),
    Path(&'a Path),
    Hub(HubName),
}

/// A model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubName {
    /// `owner/name`.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
    /// Which of its files.
    pub(super) pick: Pick,
}

/// Which files of a repository make up the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// The safetensors, else the usual one of the .gguf files.
    Usual,
    /// The .gguf file of a quantisation, such as `Q4_K_M`.
    Quantisation(String),
    /// This .gguf file.
    File(String),
}

impl HubName {
    /// What the API calls the model: what the user typed, without the revision.
    pub(super) fn api_name(&self) -> String {
        match &self.pick {
            Pick::Usual => self.repository.clone(),
            Pick::Quantisation(tag) => format!("{}:{tag}", self.repository),
            Pick::File(file) => format!("{}/{file}", self.repository),
        }
    }
}

/// Tells what `spec` names.
pub(super) fn named(spec: &str) -> Result<Named<'_>, ResolveError> {
    if let Some(alias) = ALIASES.iter().find(|alias| alias.name == spec) {
        return Ok(Named::Alias(alias));
    }
    if Path::new(spec).exists() || looks_like_path(spec) {
        return Ok(Named::Path(Path::new(spec)));
    }
    let shown = || spec.chars().take(80).collect();
    if !spec.contains('/') {
        return Err(ResolveError::UnknownAlias { spec: shown() });
    }
    let hub = parse(spec).map_err(|problem| ResolveError::BadName { spec: shown(), problem })?;
    Ok(Named::Hub(hub))
}

/// A string that can only be meant as a path, so that the error says that nothing is there.
fn looks_like_path(spec: &str) -> bool {
    let lower = spec.to_ascii_lowercase();
    let is_file = [".gguf", ".safetensors", ".bin"].iter().any(|end| lower.ends_with(end));
    let hub_file = spec.matches('/').count() >= 2 && !spec.starts_with(['.', '/', '~']);
    spec.starts_with(['/', '.', '~']) || spec.ends_with('/') || (is_file && !hub_file)
}

/// Parses `owner/name`, each with `@revision`, with `:quantisation`, or with `/file.gguf`.
fn parse(spec: &str) -> Result<HubName, &'static str> {
    let spec = spec.strip_prefix("https://").unwrap_or(spec);
    let hosts = ["huggingface.co/", "hf.co/"];
    let spec = hosts.iter().find_map(|host| spec.strip_prefix(host)).unwrap_or(spec);
    let (place, revision) = match spec.split_once('@') {
        Some((place, revision)) => (place, Some(revision)),
        None => (spec, None),
    };
    let (place, mut tag) = cut_tag(place);
    let revision = revision.map(|revision| {
        let (revision, own) = cut_tag(revision);
        tag = tag.or(own);
        revision
    });
    let mut parts = place.splitn(3, '/');
    let (Some(owner), Some(name)) = (parts.next(), parts.next()) else {
        return Err("expected owner/name");
    };
    if !is_part(owner) || !is_part(name) {
        return Err("owner and name are up to 96 letters, digits, '-', '_' and '.' each");
    }
    let revision = revision.unwrap_or("main");
    if !is_revision(revision) {
        return Err("the revision after '@' is no name of a branch, tag or commit");
    }
    let pick = match (parts.next(), tag) {
        (None, None) => Pick::Usual,
        (None, Some(tag)) if is_tag(tag) => Pick::Quantisation(tag.to_owned()),
        (None, Some(_)) => return Err("expected a quantisation after ':', such as Q4_K_M"),
        (Some(file), None) if is_file(file) => Pick::File(file.to_owned()),
        (Some(_), _) => return Err("expected the name of a .gguf file after owner/name/"),
    };
    Ok(HubName { repository: format!("{owner}/{name}"), revision: revision.to_owned(), pick })
}

fn cut_tag(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((text, tag)) => (text, Some(tag)),
        None => (text, None),
    }
}

/// The hub's own rule for owners and names; keeps folders of the cache where they belong.
fn is_part(part: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=PART_CHARS_MAX).contains(&part.len())
        && part.chars().all(inside)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+');
    revision.len() <= TEXT_CHARS_MAX
        && revision.chars().all(inside)
        && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
}

fn is_tag(tag: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=40).contains(&tag.len()) && tag.chars().all(inside)
}

/// Whether a name that the hub or the user gave is a .gguf file inside of the repository.
pub(super) fn is_file(file: &str) -> bool {
    file.len() <= TEXT_CHARS_MAX
        && file.to_ascii_lowercase().ends_with(".gguf")
        && !file.contains(|c: char| c == '\\' || c.is_control())
        && file.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::{HubName, Named, Pick, named};

    fn hub(spec: &str) -> HubName {
        match named(spec).unwrap() {
            Named::Hub(name) => name,
            other => panic!("{spec} is {other:?}"),
        }
    }

    #[test]
    fn hub_ids_are_read_as_the_field_types_them() {
        let name = |repository: &str, revision: &str, pick| HubName {
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            pick,
        };
        let tag = |tag: &str| Pick::Quantisation(tag.to_owned());
        let file = |file: &str| Pick::File(file.to_owned());
        let cases = [
            ("Qwen/Qwen3-0.6B", name("Qwen/Qwen3-0.6B", "main", Pick::Usual)),
            ("o/n@v1.0", name("o/n", "v1.0", Pick::Usual)),
            ("o/n@refs/pr/1", name("o/n", "refs/pr/1", Pick::Usual)),
            ("o/n:Q4_K_M", name("o/n", "main", tag("Q4_K_M"))),
            ("o/n:Q4_K_M@v1", name("o/n", "v1", tag("Q4_K_M"))),
            ("o/n@v1:Q4_K_M", name("o/n", "v1", tag("Q4_K_M"))),
            ("o/n/m.gguf", name("o/n", "main", file("m.gguf"))),
            ("o/n/sub/m.gguf@v1", name("o/n", "v1", file("sub/m.gguf"))),
            ("hf.co/o/n:Q8_0", name("o/n", "main", tag("Q8_0"))),
            ("https://huggingface.co/o/n", name("o/n", "main", Pick::Usual)),
        ];
        for (spec, expected) in cases {
            assert_eq!(hub(spec), expected, "{spec}");
        }
        assert_eq!(hub("o/n@v1:Q8_0").api_name(), "o/n:Q8_0");
        assert_eq!(hub("hf.co/o/n/m.gguf").api_name(), "o/n/m.gguf");
    }

    #[test]
    fn what_would_leave_the_cache_or_the_repository_is_refused() {
        for spec in [
            "o/..",
            "o/.n",
            "o/n--x",
            "o/n x",
            "o/n@..",
            "o/n@a/../b",
            "o/n@",
            "o/n:",
            "o/n:a b",
            "o/n/../m.gguf",
            "o/n/sub/",
            "o/n/readme.md",
            "o//m.gguf/x.gguf",
            "a b/n",
        ] {
            let outcome = named(spec);
            assert!(!matches!(outcome, Ok(Named::Hub(_))), "{spec} is {outcome:?}");
        }
        let error = named("o/n:a b").unwrap_err().to_string();
        assert!(error.contains("\"o/n:a b\""), "{error}");
        assert!(error.contains("expected a quantisation after ':'"), "{error}");
    }

    #[test]
    fn what_exists_or_looks_like_a_path_is_one() {
        for spec in ["/a/b", "./a", "../a/b", "a/m.gguf", "m.GGUF", "a/b/", "src/fetch"] {
            assert!(matches!(named(spec), Ok(Named::Path(_))), "{spec}");
        }
    }
}
