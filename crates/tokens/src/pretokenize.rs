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

/// Tekken's words (Mistral Nemo), which know upper case from lower: its tokenizer.json.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The names that are known. The aliases are those of llama.cpp, which has also "default" for files
/// that do not say: their words are a guess, so they are not here.
pub(crate) const NAMES: &str = "smollm, starcoder, refact, qwen2, deepseek-r1-qwen, \
     megrez, llama-bpe, llama3, llama-v3, falcon3, smaug-bpe, dbrx, tekken, gpt-2, phi-2, olmo";

/// What goes before the merges.
pub(crate) struct Words {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) splitter: PreTokenizerWrapper,
    /// Whether a word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Whether prompts begin with the beginning-of-text token where the file does not say.
    pub(crate) add_bos: bool,
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, BuildError> {
    let words = Split::new(SplitPattern::Regex(pattern.to_owned()), Isolated, false);
    let words = words.map_err(|error| BuildError::Rejected { reason: error.to_string() })?;
    let bytes = ByteLevel::new(false, true, false);
    Ok(Sequence::new(vec![words.into(), bytes.into()]).into())
}

impl Words {
    fn plain(splitter: PreTokenizerWrapper) -> Self {
        Self { normalizer: None, splitter, ignore_merges: false, add_bos: false }
    }

    /// The words of a pre-tokenizer, by the name in `tokenizer.ggml.pre`.
    pub(crate) fn named(name: &str) -> Result<Self, BuildError> {
        let gpt2 = ByteLevel::new(false, true, true);
        match name {
            // Single digits, then GPT-2's words: SmolLM2's tokenizer.json.
            "smollm" | "starcoder" | "refact" => {
                let parts = vec![Digits::new(true).into(), gpt2.into()];
                Ok(Self::plain(Sequence::new(parts).into()))
            }
            "gpt-2" | "phi-2" | "olmo" => Ok(Self::plain(gpt2.into())),
            "qwen2" => Ok(Self { normalizer: Some(NFC.into()), ..Self::plain(split(QWEN2)?) }),
            // The same words; that their text is composed first is not known of these.
            "deepseek-r1-qwen" | "megrez" => Ok(Self::plain(split(QWEN2)?)),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" => {
                let plain = Self::plain(split(LLAMA_BPE)?);
                Ok(Self { ignore_merges: true, add_bos: true, ..plain })
            }
            "smaug-bpe" | "dbrx" => Ok(Self::plain(split(LLAMA_BPE)?)),
            "tekken" => {
                let plain = Self::plain(split(TEKKEN)?);
                Ok(Self { ignore_merges: true, add_bos: true, ..plain })
            }
            _ => Err(BuildError::UnknownPreTokenizer {
                name: name.chars().take(80).collect(),
                known: NAMES,
            }),
        }
    }
}
