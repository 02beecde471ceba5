//! Two small vocabularies, in the forms of Llama 3 (byte-level BPE, words that are tokens whatever
//! the merges say) and Llama 2 (SentencePiece), against what llama.cpp, sentencepiece and
//! `tokenizers` make of 500 lines (integration-tests/goldens says how the files were made).

#![expect(clippy::unwrap_used, reason = "clippy spares #[test] functions, not their helpers")]

use std::path::{Path, PathBuf};

use ids::TokenId;
use serde::Deserialize;
use serde_json::Value;
use tokens::{ControlTokens, HubFiles, SpecialTokens, Tokenizer, TokenizerArrays};

#[derive(Deserialize)]
struct Arrays {
    model: String,
    #[serde(default)]
    pre: String,
    tokens: Vec<String>,
    #[serde(default)]
    merges: Vec<String>,
    #[serde(default)]
    scores: Vec<f32>,
    token_types: Vec<i32>,
    bos: u32,
    eos: u32,
}

struct Vocabulary {
    from_arrays: Tokenizer,
    from_json: Tokenizer,
    /// Texts, and per oracle the ids.
    lines: Vec<(String, Value)>,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/goldens").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(golden(name)).unwrap()
}

fn open(name: &str) -> Vocabulary {
    let arrays: Arrays = serde_json::from_str(&read(&format!("{name}/arrays.json"))).unwrap();
    let Arrays { model, pre, tokens, merges, scores, token_types, bos, eos } = arrays;
    let from_arrays = Tokenizer::from_gguf_arrays(TokenizerArrays {
        model,
        pre,
        tokens,
        merges,
        scores,
        token_types,
        bos: Some(bos),
        eos: Some(eos),
        ..TokenizerArrays::default()
    })
    .unwrap();
    let ends: Vec<u32> = from_arrays.end_tokens().iter().map(|id| id.0).collect();
    let from_json = Tokenizer::from_hub_files(&HubFiles {
        tokenizer: &read(&format!("{name}/tokenizer.json")),
        tokenizer_config: None,
        config: None,
        generation_config: Some(&serde_json::json!({ "eos_token_id": ends })),
    })
    .unwrap();
    let texts = read("tokenizer.jsonl");
    let texts: Vec<Value> = texts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = read(&format!("{name}/lines.jsonl"));
    let lines = lines.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        let index = usize::try_from(row["line"].as_u64().unwrap()).unwrap();
        (texts[index]["text"].as_str().unwrap().to_owned(), row)
    });
    Vocabulary { from_arrays, from_json, lines: lines.collect() }
}

/// The ids of one oracle; a text names the one that it agrees with.
fn expected(row: &Value, oracle: &str) -> Vec<TokenId> {
    match &row[oracle] {
        Value::String(same) => expected(row, same),
        ids => {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            ids.into_iter().map(TokenId).collect()
        }
    }
}

fn check(tokenizer: &Tokenizer, lines: &[(String, Value)], parsed: &str, plain: &str) {
    assert_eq!(lines.len(), 500);
    for (text, row) in lines {
        let ids = tokenizer.encode(text, SpecialTokens::Parse).unwrap();
        assert_eq!(ids, expected(row, parsed), "{parsed}: {text:?}");
        let ids = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(ids, expected(row, plain), "{plain}: {text:?}");
    }
}

#[test]
fn byte_level_arrays_give_the_ids_of_llama_cpp() {
    let vocabulary = open("small_bpe");
    check(&vocabulary.from_arrays, &vocabulary.lines, "llama", "llama_plain");
}

#[test]
fn scored_arrays_give_the_ids_of_llama_cpp() {
    let vocabulary = open("small_spm");
    check(&vocabulary.from_arrays, &vocabulary.lines, "llama", "llama_plain");
}

/// sentencepiece puts no space after a user-defined piece in the text, where llama.cpp and
/// transformers do: twelve lines.
#[test]
fn scored_arrays_give_the_ids_of_sentencepiece() {
    let vocabulary = open("small_spm");
    let mut differ = 0;
    for (text, row) in &vocabulary.lines {
        let ids = vocabulary.from_arrays.encode(text, SpecialTokens::AsText).unwrap();
        if ids != expected(row, "sentencepiece_plain") {
            differ += 1;
            assert!(["<repo_name>", "<file_sep>", "<gh_stars>"].iter().any(|t| text.contains(t)));
        }
    }
    assert_eq!(differ, 12);
}

#[test]
fn tokenizer_files_give_the_ids_of_the_reference() {
    for name in ["small_bpe", "small_spm"] {
        let vocabulary = open(name);
        check(&vocabulary.from_json, &vocabulary.lines, "hf", "hf_plain");
    }
}

/// Both forms agree on what surrounds the text too, and every line comes back, streamed or not.
#[test]
fn both_forms_begin_end_and_decode_alike() {
    for name in ["small_bpe", "small_spm"] {
        let Vocabulary { from_arrays, from_json, lines } = open(name);
        assert_eq!(from_arrays.end_tokens(), from_json.end_tokens(), "{name}");
        for (text, _) in &lines {
            let ids = from_arrays.encode_prompt(text).unwrap();
            assert_eq!(ids, from_json.encode_prompt(text).unwrap(), "{name}: {text:?}");
            assert_eq!(ids[0], from_arrays.bos().unwrap(), "{name}: {text:?}");
            let ids = from_arrays.encode(text, SpecialTokens::AsText).unwrap();
            let decoded = from_arrays.decode(&ids, ControlTokens::Show);
            assert_eq!(decoded, from_json.decode(&ids, ControlTokens::Show), "{name}: {text:?}");
            let mut stream = from_json.stream_decoder(ControlTokens::Show);
            let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
            assert_eq!(streamed + &stream.finish(), decoded, "{name}: {text:?}");
            // The space after a user-defined piece is the tokenizer's, not the text's.
            if name == "small_bpe" || !text.contains('<') {
                assert_eq!(&decoded, text, "{name}");
            }
        }
    }
}
