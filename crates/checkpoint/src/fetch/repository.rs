//! What a repository of the hub has, and which of its files make up the model.
//!
//! Deliberately pure: text in, names out; requests and files are the callers'.

use std::collections::{BTreeMap, BTreeSet};

use ids::ModelDigest;
use serde::Deserialize;

use super::SourceError;
use super::name::{Pick, is_file};
use crate::cache::hub::is_hex;
use crate::directory::{CONFIG, INDEX, SINGLE, TEXTS};

/// Bytes of the list of a repository's files: about 300 for each file.
pub(super) const LIST_BYTES_MAX: u64 = 16 << 20;
/// What people mean who name no quantisation, as llama.cpp and Ollama have it.
const USUAL_QUANTISATION: &str = "Q4_K_M";
/// Names that an error shows.
const SHOWN_MAX: usize = 30;

/// A repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    /// Hash of the commit that the revision stands for.
    pub(super) commit: String,
    /// Name in the repository to what is known about the file.
    pub(super) files: BTreeMap<String, Listed>,
}

/// What the hub says about a file before it is fetched. Mirrors may say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) bytes: Option<u64>,
    /// What the file's blob is called in the cache.
    pub(super) etag: Option<String>,
    /// Of large files.
    pub(super) sha256: Option<ModelDigest>,
}

/// Which files to have.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// config.json, tokenizer files and safetensors.
    Directory,
    /// One file.
    Gguf(String),
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Reads the hub's answer to `/api/models/<repository>/revision/<revision>?blobs=true`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, SourceError> {
        let bad = |reason: String| SourceError::Listing { reason };
        let answer: Answer = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        if !crate::cache::hub::is_commit(&answer.sha) {
            return Err(bad("its commit is no hash of 40 digits".to_owned()));
        }
        let files = answer.siblings.into_iter().map(|sibling| {
            let large = sibling.lfs.as_ref();
            let sha256 = large.and_then(|large| large.sha256.clone());
            let etag = sha256.clone().or(sibling.blob_id);
            let etag = etag.filter(|tag| matches!(tag.len(), 40 | 64) && is_hex(tag));
            let listed = Listed {
                bytes: large.and_then(|large| large.size).or(sibling.size),
                etag,
                sha256: sha256.and_then(|text| text.parse().ok()),
            };
            (sibling.rfilename, listed)
        });
        Ok(Self { commit: answer.sha, files: files.collect() })
    }

    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.files.keys().map(String::as_str).collect()
    }
}

/// Chooses among the files of a repository, or of what the cache has of it.
pub(super) fn choose(pick: &Pick, names: &BTreeSet<&str>) -> Result<Choice, SourceError> {
    if let Pick::File(file) = pick {
        if names.contains(file.as_str()) {
            return choose_file(file);
        }
        return Err(SourceError::NoSuchFile { wanted: file.clone(), found: ggufs(names) });
    }
    let candidates = ggufs(names);
    if let Pick::Quantisation(tag) = pick {
        return match matching(tag, &candidates).as_slice() {
            [file] => choose_file(file),
            [] => Err(SourceError::NoSuchFile { wanted: tag.clone(), found: candidates }),
            several => Err(SourceError::Ambiguous { found: shown(several) }),
        };
    }
    if names.contains(CONFIG) && (names.contains(SINGLE) || names.contains(INDEX)) {
        return Ok(Choice::Directory);
    }
    if let [file] = candidates.as_slice() {
        return choose_file(file);
    }
    match matching(USUAL_QUANTISATION, &candidates).as_slice() {
        [file] => choose_file(file),
        _ if !candidates.is_empty() => Err(SourceError::Ambiguous { found: shown(&candidates) }),
        _ => {
            let pickle = names.iter().find(|name| name.ends_with(".bin") || name.ends_with(".pth"));
            Err(SourceError::NotServable { pickle: pickle.map(|name| (*name).to_owned()) })
        }
    }
}

/// One .gguf file, unless it is a part of one.
pub(super) fn choose_file(file: &str) -> Result<Choice, SourceError> {
    if !is_file(file) {
        return Err(SourceError::NoSuchFile { wanted: file.to_owned(), found: Vec::new() });
    }
    if is_part(file) {
        return Err(SourceError::Split { file: file.to_owned() });
    }
    Ok(Choice::Gguf(file.to_owned()))
}

/// Whether a name ends with `-00001-of-00003.gguf`.
fn is_part(file: &str) -> bool {
    let stem = &file[..file.len() - ".gguf".len()];
    let mut ends = stem.rsplit('-');
    let number = |text: Option<&str>| {
        text.is_some_and(|text| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()))
    };
    number(ends.next()) && ends.next() == Some("of") && number(ends.next())
}

/// The .gguf files that have a language model's weights.
fn ggufs(names: &BTreeSet<&str>) -> Vec<String> {
    let language_model = |name: &&&str| {
        let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        is_file(name) && !file.contains("mmproj") && !file.contains("imatrix")
    };
    names.iter().filter(language_model).map(|name| (*name).to_owned()).collect()
}

/// The files of a quantisation: its name as a word of its own, in either case. The parts of one
/// file count as that file.
fn matching(tag: &str, files: &[String]) -> Vec<String> {
    let tag = tag.to_ascii_lowercase();
    let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let has = |file: &&String| {
        let lower = file.to_ascii_lowercase();
        lower.match_indices(&tag).any(|(at, _)| {
            let (before, after) = (&lower[..at], &lower[at + tag.len()..]);
            !word(before.chars().next_back()) && !word(after.chars().next())
        })
    };
    let mut found: Vec<String> = files.iter().filter(has).cloned().collect();
    if found.iter().all(|file| is_part(file)) {
        found.truncate(1);
    }
    found
}

fn shown(files: &[String]) -> Vec<String> {
    files.iter().take(SHOWN_MAX).cloned().collect()
}

/// The names of the texts of a directory, in order, without the index.
pub(super) fn text_names() -> impl Iterator<Item = (&'static str, u64)> {
    TEXTS.into_iter().filter(|(name, _)| *name != INDEX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Choice, Listing, choose};
    use crate::fetch::name::Pick;

    fn choice(pick: &Pick, names: &[&str]) -> Result<String, String> {
        let names: BTreeSet<_> = names.iter().copied().collect();
        match choose(pick, &names) {
            Ok(Choice::Directory) => Ok("directory".to_owned()),
            Ok(Choice::Gguf(file)) => Ok(file),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_usual_files_are_what_the_field_means() {
        let usual = |names: &[&str]| choice(&Pick::Usual, names);
        let whole = ["config.json", "model.safetensors", "m-Q4_K_M.gguf", "pytorch_model.bin"];
        assert_eq!(usual(&whole).unwrap(), "directory");
        assert_eq!(usual(&["config.json", "only.gguf", "mmproj-f16.gguf"]).unwrap(), "only.gguf");
        assert_eq!(usual(&["a.Q8_0.gguf", "a.Q4_K_M.gguf"]).unwrap(), "a.Q4_K_M.gguf");
        let several = usual(&["a.Q8_0.gguf", "a.Q5_0.gguf"]).unwrap_err();
        assert!(several.contains("a.Q5_0.gguf, a.Q8_0.gguf"), "{several}");
        let pickle = usual(&["config.json", "pytorch_model.bin"]).unwrap_err();
        assert!(pickle.contains("pytorch_model.bin"), "{pickle}");
        assert!(usual(&["README.md"]).unwrap_err().contains("neither"));
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_files_name() {
        let names = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-Q4_K.gguf",
            "m-q8_0.gguf",
            "m-IQ4_K.gguf",
            "m-UD-Q6_K.gguf",
            "m-Q6_K.gguf",
            "big-Q5_0-00001-of-00002.gguf",
            "big-Q5_0-00002-of-00002.gguf",
            "BF16/m-BF16.gguf",
        ];
        let of = |tag: &str| choice(&Pick::Quantisation(tag.to_owned()), &names);
        assert_eq!(of("q4_k_m").unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(of("Q4_K").unwrap(), "m-Q4_K.gguf");
        assert_eq!(of("Q8_0").unwrap(), "m-q8_0.gguf");
        assert_eq!(of("bf16").unwrap(), "BF16/m-BF16.gguf");
        assert!(of("Q6_K").unwrap_err().contains("m-Q6_K.gguf, m-UD-Q6_K.gguf"));
        assert_eq!(of("UD-Q6_K").unwrap(), "m-UD-Q6_K.gguf");
        assert!(of("Q5_0").unwrap_err().contains("llama-gguf-split --merge"));
        assert!(of("Q2_K").unwrap_err().contains("it has"));
        let file = |file: &str| choice(&Pick::File(file.to_owned()), &names);
        assert_eq!(file("m-Q4_K.gguf").unwrap(), "m-Q4_K.gguf");
        assert!(file("m.gguf").is_err());
    }

    #[test]
    fn a_listing_gives_names_sizes_and_digests_and_is_not_believed() {
        let sha = "0123456789abcdef0123456789abcdef01234567";
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let text = format!(
            r#"{{"id":"o/n","sha":"{sha}","siblings":[
                {{"rfilename":"a","size":3,"blobId":"{sha}"}},
                {{"rfilename":"b","size":9,"blobId":"../x","lfs":{{"sha256":"{digest}","size":5}}}},
                {{"rfilename":"c"}}, {{"rfilename":"d","blobId":"../../x"}}]}}"#
        );
        let listing = Listing::parse(text.as_bytes()).unwrap();
        assert_eq!(listing.commit, sha);
        assert_eq!(listing.files["a"].etag.as_deref(), Some(sha));
        let large = &listing.files["b"];
        assert_eq!((large.bytes, large.etag.as_deref()), (Some(5), Some(digest)));
        assert_eq!(large.sha256, digest.parse().ok());
        assert_eq!(listing.files["c"].bytes, None);
        assert_eq!(listing.files["d"].etag, None);
        for bad in ["", "[]", r#"{"sha":"../..","siblings":[]}"#, r#"{"sha":"x"}"#] {
            assert!(Listing::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
