//! Text to token ids and back, chat templates, incremental detokenising, the block hash chain.
//!
//! Deliberately without IO, clocks and randomness, and without knowledge of where a vocabulary
//! came from: the caller hands over the arrays of the checkpoint and the time of day.

mod bytelevel;
mod chain;
mod pretokenize;
mod special;
mod spm;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use chain::{BlockChain, BlockHashes, BlockNamespace, HowComputed, KvDtype, KvLayout};
pub use stream::{ControlTokens, StreamDecoder};
pub use template::{
    ChatTemplate, GenerationPrompt, Message, ParseTemplateError, RenderError, RenderLimits,
    TemplateValue,
};
pub use tokenizer::{
    BuildError, EncodeError, HubError, HubFiles, SpecialTokens, Tokenizer, TokenizerArrays,
};
