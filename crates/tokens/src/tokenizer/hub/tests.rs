//! Small handmade files: what is read, and what is refused by name; tests/oracles.rs compares real
//! forms with the reference.

use ids::TokenId;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{SpecialTokens, Tokenizer};
use super::{HubError, HubFiles};
use crate::stream::ControlTokens;

/// Llama 2's form: SentencePiece as merges with byte fallback.
fn llama2() -> Value {
    let mut vocab = json!({ "<unk>": 0, "<s>": 1, "</s>": 2 });
    for byte in 0..=255u32 {
        vocab[format!("<0x{byte:02X}>")] = json!(byte + 3);
    }
    for (index, piece) in ["▁h", "ell", "▁", "h", "e", "l", "o", "el"].iter().enumerate() {
        vocab[*piece] = json!(index + 259);
    }
    let added = |id: u32, content: &str, special: bool| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special })
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [
            added(0, "<unk>", true),
            added(1, "<s>", true),
            added(2, "</s>", true),
            added(300, "[keep]", false),
        ],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
            ],
            "pair": [],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ]},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": "<unk>",
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "vocab": vocab,
            "merges": ["▁ h", ["e", "l"], "el l"],
        },
    })
}

fn build(file: &Value) -> Result<Tokenizer, HubError> {
    Tokenizer::from_hub_files(&HubFiles {
        tokenizer: &file.to_string(),
        tokenizer_config: None,
        config: None,
        generation_config: None,
    })
}

fn configured(tokenizer_config: Value, config: Value) -> Result<Tokenizer, HubError> {
    Tokenizer::from_hub_files(&HubFiles {
        tokenizer: &llama2().to_string(),
        tokenizer_config: Some(&tokenizer_config),
        config: Some(&config),
        generation_config: Some(&json!({ "eos_token_id": [2, 300, 4_000] })),
    })
}

fn numbers(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

#[test]
fn a_file_in_llama_2_form_encodes_and_decodes() {
    let t = build(&llama2()).unwrap();
    let encode = |text: &str| numbers(&t.encode(text, SpecialTokens::Parse).unwrap());
    assert_eq!(encode("hello"), [259, 260, 265]);
    assert_eq!(encode("é"), [261, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(encode("h</s>[keep]"), [259, 2, 300]);
    let text = numbers(&t.encode("</s>h", SpecialTokens::AsText).unwrap());
    assert!(!text.contains(&2), "{text:?}");
    assert_eq!(numbers(&t.encode_prompt("h").unwrap()), [1, 259]);
    assert_eq!(numbers(&t.encode_prompt("<s>h").unwrap()), [1, 259]);
    for text in ["hello", " h", "é삼👨", "[keep]"] {
        let tokens = t.encode(text, SpecialTokens::Parse).unwrap();
        assert_eq!(t.decode(&tokens, ControlTokens::Skip), text);
    }
    assert_eq!(t.vocabulary_len(), 301);
    assert_eq!(t.token_bytes(TokenId(299)), None);
    assert!(t.has_control_text("a</s>") && !t.has_control_text("[keep]"));
}

#[test]
fn the_configs_name_special_tokens_as_texts_objects_ids_and_lists() {
    let t = configured(
        json!({ "bos_token": { "content": "<s>", "lstrip": false }, "eos_token": "</s>",
                "pad_token": "<pad>", "unk_token": null }),
        json!({ "eos_token_id": 5, "bos_token_id": 1 }),
    )
    .unwrap();
    assert_eq!((t.bos(), t.eos()), (Some(TokenId(1)), Some(TokenId(2))));
    // 4,000 is a row beyond the tokens.
    assert_eq!(numbers(&t.end_tokens()), [2, 5, 300]);
    let names: Vec<_> = t.named_tokens().iter().map(|(name, text)| (*name, &**text)).collect();
    assert_eq!(names, [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")]);
    let bare = configured(json!({}), json!({ "bos_token_id": 1, "eos_token_id": null })).unwrap();
    assert_eq!((bare.bos(), bare.eos()), (Some(TokenId(1)), Some(TokenId(2))));
}

#[test]
fn add_bos_token_wins_over_the_post_processor() {
    let prompt = |config: Value| {
        let t = configured(config, json!({ "bos_token_id": 1 })).unwrap();
        numbers(&t.encode_prompt("h").unwrap())
    };
    assert_eq!(prompt(json!({})), [1, 259]);
    assert_eq!(prompt(json!({ "add_bos_token": false })), [259]);
    assert_eq!(prompt(json!({ "add_bos_token": true, "bos_token": "</s>" })), [2, 259]);
    // A prompt is to be continued: nothing is put after it.
    assert_eq!(prompt(json!({ "add_eos_token": true })), [1, 259]);
}

/// Method: one change each to a good file; the error must name the place.
#[test]
fn bad_files_are_refused_by_name() {
    let check = |path: &str, value: Value, expected: &str| {
        let mut file = llama2();
        *file.pointer_mut(path).unwrap() = value;
        let error = build(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{path}: {error} has no {expected:?}");
    };
    check("/model/type", json!("Unigram"), "model.type is \"Unigram\", supported: \"BPE\"");
    check("/model/dropout", json!(0.1), "model.dropout is 0.1");
    check("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix is \"##\"");
    check("/model/unk_token", json!("<none>"), "model.unk_token: \"<none>\" is no token");
    check("/model/merges/0", json!("▁h hello"), "model.merges[0]: \"hello\" is no token");
    check("/model/merges/1", json!(["h", "ell"]), "model.merges[1]: \"hell\" is no token");
    check("/model/merges/1", json!(["h"]), "invalid length 1");
    check("/model/merges/1", json!("a b c"), "two tokens");
    check("/model/vocab/▁", json!(0), "the id 0 is also that of \"<unk>\"");
    check("/model/vocab/▁", json!(4_000_000_000u32), "is not below the limit of 2097152");
    check("/model/vocab/▁", json!(-1), "invalid value: integer `-1`");
    check("/added_tokens/1/content", json!(""), "added_tokens[1]: a token without text");
    check("/added_tokens/3/content", json!("▁h"), "has the id 300, in model.vocab 259");
    check("/added_tokens/3/id", json!(259), "added_tokens[3]: the id 259 is also that of");
    check("/added_tokens/3/content", json!("x".repeat(3 << 20)), "more than the limit of 2097152");
    check("/normalizer", json!({ "type": "Precompiled" }), "normalizer is \"Precompiled\"");
    check("/normalizer", json!({}), "normalizer is without a type");
    check("/pre_tokenizer", json!({ "type": "BertPreTokenizer" }), "pre_tokenizer is \"Bert");
    check("/post_processor", json!({ "type": "RobertaProcessing" }), "post_processor is \"Rob");
    let ids = "/post_processor/special_tokens/<s>/ids";
    check(ids, json!([299]), "post_processor: 299 is no token");
    check("/decoder", json!({ "type": "WordPiece" }), "decoder is \"WordPiece\"");
    check("/decoder", Value::Null, "decoder is without a type");
    check("/model", json!([]), "tokenizer.json: ");
    let unknown = configured(json!({ "eos_token": "<end>" }), json!({})).unwrap_err();
    assert!(
        unknown.to_string().contains("tokenizer_config.json: eos_token: \"<end>\" is no token")
    );
    let no_id = configured(json!({}), json!({ "eos_token_id": "2" })).unwrap_err();
    assert!(no_id.to_string().starts_with("config.json: eos_token_id: expected a token id"));
    assert!(matches!(build(&json!({})), Err(HubError::Json { .. })));
}

/// P4: no component may multiply a text, and none may be too large or too deep to look at.
#[test]
fn p4_components_are_bounded() {
    let check = |part: &str, value: Value, expected: &str| {
        let mut file = llama2();
        file[part] = value;
        let error = build(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{part}: {error} has no {expected:?}");
    };
    let replace = |content: &str| {
        let pattern = json!({ "Regex": "." });
        json!({ "type": "Replace", "pattern": pattern, "content": content })
    };
    check("normalizer", replace(&"x".repeat(40)), "over 32 times longer");
    let twice = json!({ "type": "Sequence", "normalizers": [replace("xxxxx"), replace("xxxxx")] });
    check("normalizer", twice, "over 32 times longer");
    let prepend = json!({ "type": "Prepend", "prepend": "x".repeat(40) });
    check("normalizer", prepend, "longer than 32 bytes");
    let long = json!({ "type": "Split", "pattern": { "Regex": "a".repeat(70_000) },
                       "behavior": "Isolated", "invert": false });
    check("pre_tokenizer", long, "more than the limit of 65536");
    let many = vec![json!({ "type": "NFC" }); 17];
    check("normalizer", json!({ "type": "Sequence", "normalizers": many }), "at most 16");
    let mut deep = json!({ "type": "NFC" });
    for _ in 0..6 {
        deep = json!({ "type": "Sequence", "normalizers": [deep] });
    }
    check("normalizer", deep, "normalizer is \"Sequence\"");
    let bomb = json!({ "type": "Split", "pattern": { "Regex": "((((a{999}){999}){999}){999})" },
                       "behavior": "Isolated", "invert": false });
    check("pre_tokenizer", bomb, "tokenizer.json: pre_tokenizer");
}

/// A pattern that would backtrack for ever gives up: the rest of the text is one word.
#[test]
fn p4_a_hostile_pattern_gives_up() {
    let mut file = llama2();
    file["pre_tokenizer"] = json!({ "type": "Split", "behavior": "Isolated", "invert": false,
                                    "pattern": { "Regex": "(?:(?=h)h|hh)+(?!h)$x" } });
    let t = build(&file).unwrap();
    let text = "h".repeat(5_000);
    let tokens = t.encode(&text, SpecialTokens::Parse).unwrap();
    assert_eq!(t.decode(&tokens, ControlTokens::Skip), text);
}

proptest! {
    /// Any text encodes and comes back, and neither panics; the pieces of literals are in it often.
    #[test]
    fn any_text_round_trips(text in "\\PC*|[hel<s>/ \n\\[\\]kep▁é삼👨]*") {
        let t = build(&llama2()).unwrap();
        let tokens = t.encode(&text, SpecialTokens::AsText).unwrap();
        let decoded = t.decode(&tokens, ControlTokens::Show);
        // The meta symbol is a space to decoding; a literal ends the text before it, so that a new
        // space begins after it.
        let flat = |text: &str| text.replace(['▁', ' '], "");
        prop_assert_eq!(flat(&decoded), flat(&text));
        t.encode(&text, SpecialTokens::Parse).unwrap();
    }

    /// One value anywhere replaced by another: an error or a tokenizer, never a panic.
    #[test]
    fn mutated_files_never_panic(pick in any::<prop::sample::Index>(), with in 0usize..8) {
        fn paths(value: &Value, path: &str, out: &mut Vec<String>) {
            out.push(path.to_owned());
            match value {
                Value::Array(items) => {
                    for (index, item) in items.iter().enumerate() {
                        paths(item, &format!("{path}/{index}"), out);
                    }
                }
                // The bytes are all alike.
                Value::Object(map) => {
                    for (key, item) in map.iter().filter(|(key, _)| !key.starts_with("<0x")) {
                        paths(item, &format!("{path}/{}", key.replace('/', "~1")), out);
                    }
                }
                _ => {}
            }
        }
        let mut file = llama2();
        let mut all = Vec::new();
        paths(&file, "", &mut all);
        let path = pick.get(&all);
        let values = [
            json!(null), json!(0), json!(-1), json!(1e30), json!(""), json!("▁ "), json!([]),
            json!({ "type": "Sequence" }),
        ];
        *file.pointer_mut(path).unwrap() = values[with].clone();
        if let Ok(t) = build(&file) {
            for text in ["", "hello h</s>[keep] é", "▁▁"] {
                if let Ok(tokens) = t.encode(text, SpecialTokens::Parse) {
                    drop(t.decode(&tokens, ControlTokens::Show));
                }
            }
        }
    }
}
