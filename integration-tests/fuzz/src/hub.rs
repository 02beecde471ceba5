//! A tokenizer from the text of a tokenizer.json, and a text through it.
//!
//! Input: the file, then after a NUL byte the text. Deliberately without the configurations beside
//! it: they only name ids, which are checked against the vocabulary.

use ids::TokenId;
use tokens::{ControlTokens, HubFiles, SpecialTokens, Tokenizer};

use crate::Target;

pub(crate) const TARGET: Target = Target {
    name: "tokenizer-json",
    run,
    // A file may number its last token with two million, and the table is as long.
    heap_bytes_max: 512 << 20,
    input_bytes_max: 8192,
    words: &[
        b"\"type\":\"BPE\"",
        b"\"type\":\"Unigram\"",
        b"\"type\":\"Sequence\",\"pretokenizers\":[",
        b"\"type\":\"Sequence\",\"normalizers\":[",
        b"\"type\":\"Sequence\",\"decoders\":[",
        b"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\
          \"use_regex\":true}",
        b"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\
          \"split\":true}",
        b"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"},\"behavior\":\"Isolated\",\
          \"invert\":false}",
        b"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"}",
        b"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\"},\"content\":\"a\"}",
        b"{\"type\":\"Prepend\",\"prepend\":\"a\"}",
        b"{\"type\":\"NFKC\"}",
        b"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}",
        b"{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}",
        b"\"byte_fallback\":true",
        b"\"fuse_unk\":true",
        b"\"ignore_merges\":true",
        b"\"unk_token\":\"a\"",
        b"\"continuing_subword_prefix\":\"a\"",
        b"\"special\":true",
        b"\"single_word\":true",
        b"\"normalized\":true",
        b"2097151",
        b"4294967295",
        b"[\"a\",\"b\"]",
        b"\"a b\"",
        b"null",
        b"\\ud83d",
        b"\0",
        b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ],
};

fn run(input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    let (tokenizer, text) = input.split_once('\0').unwrap_or((&input, "a text of two words"));
    let files =
        HubFiles { tokenizer, tokenizer_config: None, config: None, generation_config: None };
    let Ok(tokenizer) = Tokenizer::from_hub_files(&files) else {
        return;
    };
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        // Unlike that of GGUF arrays, the file's own words may refuse a text.
        let Ok(ids) = tokenizer.encode(text, special) else {
            continue;
        };
        let known = |id: &TokenId| (id.0 as usize) < tokenizer.vocabulary_len();
        assert!(ids.iter().all(known), "an id outside of the vocabulary");
        for control in [ControlTokens::Show, ControlTokens::Skip] {
            let whole = tokenizer.decode(&ids, control);
            let mut stream = tokenizer.stream_decoder(control);
            let mut pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
            pieces.push_str(&stream.finish());
            assert_eq!(whole, pieces, "a stream gives what the whole gives");
        }
    }
    let _prompt = tokenizer.encode_prompt(text);
    let _says = tokenizer.has_control_text(text);
}
