//! A tokenizer from the arrays of a GGUF file, and texts through it.
//!
//! Input: lines of text, so that inputs can be read. The first is `model pre flags`, then one line
//! per token with its type in front, an empty line, one line per merge, an empty line, and the rest
//! is the text. The flag `a` puts the alphabet of all bytes before the tokens, `b` asks for a
//! beginning-of-text token, `n` for no space before SentencePiece's text.

use ids::TokenId;
use tokens::{ControlTokens, SpecialTokens, Tokenizer, TokenizerArrays};

use crate::Target;

pub(crate) const TARGET: Target = Target {
    name: "tokenizer",
    run,
    // Two regexes and their caches, and some dozen bytes for each byte of text.
    heap_bytes_max: 16 << 20,
    input_bytes_max: 4096,
    words: &[
        b"gpt2 smollm a\n",
        b"gpt2 qwen2 ab\n",
        b"gpt2 llama-bpe a\n",
        b"llama default ab\n",
        b"\n\n",
        b"1h\n1e\n1he\n",
        b"h e\n",
        b"3<|end|>\n",
        b"4keep\n",
        b"6<0x41>\n",
        "1Ġ\n".as_bytes(),
        "\u{e9}\u{301}".as_bytes(),
        "\u{200d}\u{1f9d1}".as_bytes(),
        b"'s 're 'LL",
        b"   \r\n\t",
        b"1234567890",
    ],
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.splitn(3, "\n\n");
    let (tokens, merges) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let text = parts.next().unwrap_or_default();
    let Ok(tokenizer) = Tokenizer::from_gguf_arrays(arrays(tokens, merges)) else {
        return;
    };
    let count = tokenizer.vocabulary_len();
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        let ids = tokenizer.encode(text, special).expect("no text is refused");
        assert!(ids.iter().all(|id| (id.0 as usize) < count), "an id outside of the vocabulary");
        for control in [ControlTokens::Show, ControlTokens::Skip] {
            let whole = tokenizer.decode(&ids, control);
            let mut stream = tokenizer.stream_decoder(control);
            let mut pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
            pieces.push_str(&stream.finish());
            assert_eq!(whole, pieces, "a stream gives what the whole gives");
        }
    }
    let prompt = tokenizer.encode_prompt(text).expect("no text is refused");
    assert!(prompt.iter().all(|id| (id.0 as usize) < count));
    // Ids of a client, some of them outside.
    let any: Vec<_> = text.bytes().map(|byte| TokenId(u32::from(byte).pow(3))).collect();
    let _shown = tokenizer.decode(&any, ControlTokens::Show);
    let _says = tokenizer.has_control_text(text);
}

fn arrays(tokens: &str, merges: &str) -> TokenizerArrays {
    let mut lines = tokens.lines();
    let mut head = lines.next().unwrap_or_default().split(' ');
    let model = head.next().unwrap_or_default().to_owned();
    let pre = head.next().unwrap_or_default().to_owned();
    let flags = head.next().unwrap_or_default();
    let (mut texts, mut types) = (Vec::new(), Vec::new());
    if flags.contains('a') {
        texts.extend(alphabet().map(String::from));
        types.resize(texts.len(), 1);
    }
    for line in lines {
        let kind = line.chars().next().and_then(|c| c.to_digit(10));
        let kind = kind.and_then(|digit| i32::try_from(digit).ok());
        types.push(kind.unwrap_or(1));
        texts.push(if kind.is_some() { &line[1..] } else { line }.to_owned());
    }
    let last = u32::try_from(texts.len()).ok().and_then(|count| count.checked_sub(1));
    // SentencePiece's own: later pieces score lower. Other models ignore them.
    let scores = (0..texts.len()).map(|index| -(index as f32)).collect();
    TokenizerArrays {
        model,
        pre,
        tokens: texts,
        merges: merges.lines().map(str::to_owned).collect(),
        scores,
        token_types: types,
        bos: last,
        eos: last,
        add_bos: Some(flags.contains('b')),
        add_space_prefix: Some(!flags.contains('n')),
        ..TokenizerArrays::default()
    }
}

/// GPT-2's printable alphabet for bytes: printable ones stand for themselves, the others follow.
fn alphabet() -> impl Iterator<Item = char> {
    let printable = |code: &u32| matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let itself = (0..0x100).filter(printable);
    itself.chain(0x100..0x144).filter_map(char::from_u32)
}
