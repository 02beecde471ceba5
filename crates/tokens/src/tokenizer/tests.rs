//! Tests over a small handmade vocabulary; tests/golden.rs compares with the reference.

use ids::TokenId;
use proptest::prelude::*;

use super::{BuildError, SpecialTokens, Tokenizer, TokenizerArrays};
use crate::bytelevel::byte_of;
use crate::pretokenize::NAMES;
use crate::stream::{ControlTokens, StreamDecoder};

/// The alphabet's character of a byte.
fn letter(byte: u8) -> char {
    let found = (0..0x200).filter_map(char::from_u32).find(|c| byte_of(*c) == Some(byte));
    found.unwrap()
}

/// All 256 bytes as ids 0 to 255, then merged words, then special tokens.
fn arrays() -> TokenizerArrays {
    let mut tokens: Vec<String> = (0..=255).map(|b| letter(b).to_string()).collect();
    tokens.extend(["he", "ll", "hell", "hello", "Ġw"].map(str::to_owned));
    let mut token_types = vec![1; tokens.len()];
    tokens.extend(["<|end|>", "<|start|>", "keep"].map(str::to_owned));
    token_types.extend([3, 3, 4]);
    TokenizerArrays {
        model: "gpt2".into(),
        pre: "smollm".into(),
        tokens,
        merges: ["h e", "l l", "he ll", "hell o", "Ġ w"].map(str::to_owned).into(),
        token_types,
        bos: Some(262),
        eos: Some(261),
        eot: Some(261),
        ..TokenizerArrays::default()
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf_arrays(arrays()).unwrap()
}

fn ids(numbers: &[u32]) -> Vec<TokenId> {
    numbers.iter().copied().map(TokenId).collect()
}

#[test]
fn merges_apply_by_rank_and_digits_stand_alone() {
    let encode = |text: &str| tokenizer().encode(text, SpecialTokens::Parse).unwrap();
    assert_eq!(encode("hello w"), ids(&[259, 260]));
    assert_eq!(encode("hellhe"), ids(&[258, 256]));
    assert_eq!(encode("12"), ids(&[49, 50]));
    assert_eq!(encode(""), []);
    assert_eq!(encode("é"), ids(&[0xc3, 0xa9]));
}

#[test]
fn control_tokens_are_parsed_only_when_asked_and_user_tokens_always() {
    let t = tokenizer();
    let parsed = t.encode("<|start|>hello<|end|>keep", SpecialTokens::Parse).unwrap();
    assert_eq!(parsed, ids(&[262, 259, 261, 263]));
    let text = t.encode("<|end|>keep", SpecialTokens::AsText).unwrap();
    let bytes = b"<|end|>".map(u32::from);
    assert_eq!(text, ids(&[&bytes[..], &[263]].concat()));
    assert!(t.has_control_text("a<|end|>") && !t.has_control_text("keep <|en"));
}

/// Case 41 (dynamo#12562): `<|user|>` leaked into the text.
#[test]
fn case_41_control_tokens_show_only_where_asked_for() {
    let t = tokenizer();
    let tokens = ids(&[262, 259, 0xc3, 261, 0xa9, 263]);
    assert_eq!(t.decode(&tokens, ControlTokens::Skip), "helloékeep");
    let shown = t.decode(&tokens, ControlTokens::Show);
    assert_eq!(shown, "<|start|>hello\u{fffd}<|end|>\u{fffd}keep");
    assert_eq!(t.decode(&ids(&[259, 9999]), ControlTokens::Skip), "hello\u{fffd}");
    assert_eq!(t.end_tokens(), ids(&[261]));
    assert_eq!(t.token_text(TokenId(262)).unwrap(), "<|start|>");
}

#[test]
fn beginning_of_text_is_added_once_where_the_checkpoint_wants_it() {
    let mut with = arrays();
    assert_eq!(tokenizer().encode_prompt("he").unwrap(), ids(&[256]));
    with.add_bos = Some(true);
    let t = Tokenizer::from_gguf_arrays(with).unwrap();
    assert_eq!(t.encode_prompt("he").unwrap(), ids(&[262, 256]));
    assert_eq!(t.encode_prompt("<|start|>he").unwrap(), ids(&[262, 256]));
    assert_eq!(t.encode_prompt("").unwrap(), ids(&[262]));
}

#[test]
fn bad_arrays_are_refused_by_name() {
    let check = |change: fn(&mut TokenizerArrays), expected: &str| {
        let mut bad = arrays();
        change(&mut bad);
        let error = Tokenizer::from_gguf_arrays(bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} has no {expected:?}");
    };
    check(|a| a.model = "t5".into(), "tokenizer.ggml.model \"t5\" is not supported");
    check(|a| a.pre = "default".into(), "these are: smollm, ");
    check(|a| a.tokens.clear(), "has 0 entries");
    check(|a| a.token_types.truncate(3), "token_type has 3 entries for 264 tokens");
    check(|a| a.token_types[5] = 9, "token_type 5 is 9");
    check(|a| a.tokens[7] = a.tokens[6].clone(), "occurs before");
    check(|a| a.tokens[261].clear(), "261 is a special token without text");
    check(|a| a.tokens[256] = "ń".into(), "no byte-level text");
    check(|a| a.merges[0] = "he".into(), "merges 0 is \"he\": expected two tokens");
    check(|a| a.merges[0] = "hx e".into(), "one side is no token");
    check(|a| a.merges[0] = "hello hello".into(), "the result is no token");
    check(|a| a.bos = Some(264), "bos_token_id is 264, but there are 264 tokens");
    check(|a| (a.add_bos, a.bos) = (Some(true), None), "bos_token_id is missing");
    let mut duplicate = arrays();
    duplicate.eos = Some(u32::MAX);
    let error = Tokenizer::from_gguf_arrays(duplicate).unwrap_err();
    assert!(matches!(error, BuildError::SpecialId { field: "eos_token_id", .. }));
}

#[test]
fn every_known_pre_tokenizer_builds_and_round_trips() {
    for pre in NAMES.split(", ") {
        let t = Tokenizer::from_gguf_arrays(TokenizerArrays { pre: pre.into(), ..arrays() });
        let t = t.unwrap();
        let text = "hello  world 1234\r\n\n\tit's 삼겹살 👨‍👩‍👧 “x”   ";
        let tokens = t.encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(t.decode(&tokens, ControlTokens::Skip), text, "{pre}");
    }
}

/// P4: one huge word or one huge run of spaces must not make the splitter give up half-way.
#[test]
fn p4_long_runs_are_encoded_whole() {
    let t = tokenizer();
    for unit in [" ", "a", "\n", "1", "!", "é", "<|", "x "] {
        let text = unit.repeat(300_000);
        let tokens = t.encode(&text, SpecialTokens::Parse).unwrap();
        assert!(t.decode(&tokens, ControlTokens::Skip) == text, "{unit:?}");
    }
}

/// Case 39 (dynamo#12630): streamed text loses syllables at token boundaries. Each byte is its own
/// token here, so every character is cut in every way.
#[test]
fn case_39_streaming_never_cuts_a_character_and_equals_one_shot_decoding() {
    let t = tokenizer();
    for text in ["삼겹살", "👨‍👩‍👧", "“x”", "a\u{fffd}b", "é"] {
        let tokens: Vec<TokenId> = text.bytes().map(|b| TokenId(b.into())).collect();
        for cut in 0..=tokens.len() {
            let mut stream = t.stream_decoder(ControlTokens::Skip);
            let deltas: Vec<String> = tokens[..cut].iter().map(|id| stream.push(*id)).collect();
            let whole = deltas.concat();
            assert!(text.starts_with(&whole), "{whole:?} is no start of {text:?}");
            let truncated = !text.is_char_boundary(cut);
            let last = stream.finish();
            assert_eq!(last, if truncated { "\u{fffd}" } else { "" });
            assert_eq!(whole + &last, t.decode(&tokens[..cut], ControlTokens::Skip));
        }
    }
}

proptest! {
    #[test]
    fn any_text_round_trips(text in "\\PC*|[a-z<|> \n\t0-9é삼👨]*") {
        let t = tokenizer();
        for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
            let tokens = t.encode(&text, special).unwrap();
            prop_assert_eq!(t.decode(&tokens, ControlTokens::Show), text.clone());
        }
    }

    #[test]
    fn any_bytes_stream_as_they_decode(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let t = tokenizer();
        let tokens: Vec<TokenId> = bytes.iter().map(|b| TokenId((*b).into())).collect();
        let mut stream = t.stream_decoder(ControlTokens::Skip);
        let mut text: String = tokens.iter().map(|id| stream.push(*id)).collect();
        text += &stream.finish();
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
    }
}

/// SentencePiece: `<unk>`, `<s>`, `</s>`, 256 bytes, then pieces with falling scores from id 259.
fn scored() -> TokenizerArrays {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut token_types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.extend([6; 256]);
    let pieces = ["▁h", "ello", "▁hello", "el", "lo", "▁w", "▁", "h", "e", "l", "o", "w", "<"];
    tokens.extend(pieces.map(str::to_owned));
    token_types.extend([1; 13]);
    tokens.push("[keep]".into());
    token_types.push(4);
    let scores = (0..tokens.len()).map(|index| -(index as f32)).collect();
    TokenizerArrays { model: "llama".into(), tokens, scores, token_types, ..Default::default() }
}

fn scored_tokenizer() -> Tokenizer {
    Tokenizer::from_gguf_arrays(scored()).unwrap()
}

#[test]
fn pieces_are_merged_by_score_after_a_space_that_decoding_takes_away() {
    let t = scored_tokenizer();
    let encode = |text: &str| t.encode(text, SpecialTokens::Parse).unwrap();
    // "el" and "lo" are joined before "ello", which needs both.
    assert_eq!(encode("hello"), ids(&[261]));
    assert_eq!(encode(" w"), ids(&[265, 264]));
    assert_eq!(encode("é"), ids(&[265, 3 + 0xc3, 3 + 0xa9]));
    assert_eq!(encode(""), []);
    for text in ["hello", " hello", "hello  w", "é삼👨\n\t", " ", "</", "<0x41>"] {
        assert_eq!(t.decode(&encode(text), ControlTokens::Skip), text);
    }
    assert_eq!(t.encode_prompt("w").unwrap(), ids(&[1, 264]));
    assert_eq!(t.encode_prompt("<s>w").unwrap(), ids(&[1, 264]));
    assert_eq!((t.bos(), t.eos()), (Some(TokenId(1)), Some(TokenId(2))));
    assert_eq!(t.end_tokens(), ids(&[2]));
    let named = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
    assert_eq!(t.named_tokens(), named.map(|(name, text)| (name, text.to_owned())));
}

#[test]
fn literals_are_cut_out_before_pieces_and_a_space_follows_them() {
    let t = scored_tokenizer();
    let parsed = t.encode("h</s>w[keep]h", SpecialTokens::Parse).unwrap();
    assert_eq!(parsed, ids(&[259, 2, 264, 272, 259]));
    let text = t.encode("<s>[keep]", SpecialTokens::AsText).unwrap();
    assert_eq!(text, ids(&[265, 271, 3 + u32::from(b's'), 3 + u32::from(b'>'), 272]));
    let without = TokenizerArrays { add_space_prefix: Some(false), ..scored() };
    let without = Tokenizer::from_gguf_arrays(without).unwrap();
    assert_eq!(without.encode("h h", SpecialTokens::Parse).unwrap(), ids(&[266, 259]));
    assert_eq!(without.decode(&ids(&[259, 266]), ControlTokens::Skip), " hh");
}

/// Case 39 (dynamo#12630): text is lost or broken at chunk boundaries, with byte-fallback tokens
/// too. Every character of the text is cut in every way here.
#[test]
fn case_39_byte_tokens_stream_as_whole_characters() {
    let t = scored_tokenizer();
    for text in ["삼겹살", "👨‍👩‍👧", "“hello”", "h\u{fffd}w", " é"] {
        let tokens = t.encode(text, SpecialTokens::AsText).unwrap();
        for cut in 0..=tokens.len() {
            let mut stream = t.stream_decoder(ControlTokens::Skip);
            let whole: String = tokens[..cut].iter().map(|id| stream.push(*id)).collect();
            assert!(text.starts_with(&whole), "{whole:?} is no start of {text:?}");
            let last = stream.finish();
            assert!(last.is_empty() || last == "\u{fffd}");
            assert_eq!(whole + &last, t.decode(&tokens[..cut], ControlTokens::Skip));
        }
    }
}

#[test]
fn a_stream_that_goes_on_keeps_its_first_space() {
    let t = scored_tokenizer();
    let tokens = ids(&[1, 261, 264]);
    let text = |mut stream: StreamDecoder| -> String {
        tokens.iter().map(|id| stream.push(*id)).collect()
    };
    assert_eq!(text(t.stream_decoder(ControlTokens::Skip)), "hello w");
    assert_eq!(text(t.continuing_decoder(ControlTokens::Skip)), " hello w");
    assert_eq!(text(t.stream_decoder(ControlTokens::Show)), "<s> hello w");
}

#[test]
fn bad_scored_arrays_are_refused_by_name() {
    let check = |change: fn(&mut TokenizerArrays), expected: &str| {
        let mut bad = scored();
        change(&mut bad);
        let error = Tokenizer::from_gguf_arrays(bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} has no {expected:?}");
    };
    check(|a| a.scores.truncate(5), "scores has 5 entries for 273 tokens");
    check(|a| a.scores[7] = f32::NAN, "scores 7 is not a finite number");
    check(|a| a.tokens[5] = "<0xZZ>".into(), "tokens 5 is \"<0xZZ>\", expected a byte");
    check(|a| a.unknown = Some(999), "unknown_token_id is 999");
    check(|a| a.tokens[272] = "x".repeat(3 << 20), "have more than 2097152 bytes together");
}

/// Files name one end of an answer, models write others too.
#[test]
fn well_known_control_tokens_end_an_answer() {
    let mut more = scored();
    more.tokens.extend(["<|im_end|>", "<|eot_id|>", "<|end|>"].map(str::to_owned));
    more.token_types.extend([3, 1, 4]);
    more.scores.extend([0.0, 0.0, 0.0]);
    let t = Tokenizer::from_gguf_arrays(more).unwrap();
    assert_eq!(t.end_tokens(), ids(&[2, 273, 275]));
}
