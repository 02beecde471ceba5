//! How text is cut into words before merging, per pre-tokenizer name of the checkpoint.
//!
//! Deliberately a closed list: an unknown name is refused, because a wrong cut gives other token
//! ids without any error.

use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use crate::tokenizer::BuildError;

/// Qwen2's words: Qwen/Qwen2.5 tokenizer.json.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Llama 3's words, which differ in numbers of up to three digits: its tokenizer.json.
const LLAMA_BPE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The names that are known.
pub(crate) const NAMES: &str = "smollm, qwen2, llama-bpe";

/// What goes before the merges.
pub(crate) struct Words {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) splitter: PreTokenizerWrapper,
    /// Whether a word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, BuildError> {
    let words = Split::new(SplitPattern::Regex(pattern.to_owned()), Isolated, false);
    let words = words.map_err(|error| BuildError::Rejected { reason: error.to_string() })?;
    let bytes = ByteLevel::new(false, true, false);
    Ok(Sequence::new(vec![words.into(), bytes.into()]).into())
}

impl Words {
    /// The words of a pre-tokenizer, by the name in `tokenizer.ggml.pre`.
    pub(crate) fn named(name: &str) -> Result<Self, BuildError> {
        match name {
            // Single digits, then GPT-2's words: SmolLM2's tokenizer.json.
            "smollm" => Ok(Self {
                normalizer: None,
                splitter: Sequence::new(vec![
                    Digits::new(true).into(),
                    ByteLevel::new(false, true, true).into(),
                ])
                .into(),
                ignore_merges: false,
            }),
            "qwen2" => Ok(Self {
                normalizer: Some(NFC.into()),
                splitter: split(QWEN2)?,
                ignore_merges: false,
            }),
            "llama-bpe" => {
                Ok(Self { normalizer: None, splitter: split(LLAMA_BPE)?, ignore_merges: true })
            }
            _ => Err(BuildError::UnknownPreTokenizer {
                name: name.chars().take(80).collect(),
                known: NAMES,
            }),
        }
    }
}
