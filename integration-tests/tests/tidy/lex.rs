//! Rust text with comments and literals taken apart, as far as the checks need it.
//!
//! Deliberately no parser: the checks look at lines, braces and literals, and must also read code
//! that does not compile yet.

/// A source text taken apart.
#[derive(Debug)]
pub(crate) struct Lexed {
    /// The text with the insides of comments and literals blanked: same bytes, same lines.
    pub(crate) code: String,
    /// Contents of the string literals that stand outside test modules, in order.
    pub(crate) literals: Vec<String>,
    /// Byte ranges of items under `#[cfg(test)]`.
    tests: Vec<std::ops::Range<usize>>,
}

impl Lexed {
    /// Whether a byte of the text belongs to an item that is compiled for tests only.
    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }
}

/// Takes a text apart.
pub(crate) fn lex(text: &str) -> Lexed {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = match token(bytes, at) {
            Token::Comment(end) => end,
            Token::Literal { inside, end } => {
                found.push((at, text[inside].to_owned()));
                end
            }
            Token::Other(end) => {
                at = end;
                continue;
            }
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    let code = String::from_utf8(code).expect("only whole comments and literals were blanked");
    let tests = test_items(&code);
    let literals = found
        .into_iter()
        .filter(|(at, _)| !tests.iter().any(|range| range.contains(at)))
        .map(|(_, literal)| literal)
        .collect();
    Lexed { code, literals, tests }
}

enum Token {
    Comment(usize),
    Literal { inside: std::ops::Range<usize>, end: usize },
    Other(usize),
}

fn token(bytes: &[u8], at: usize) -> Token {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let len = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        return Token::Comment(at + len);
    }
    if rest.starts_with(b"/*") {
        return Token::Comment(block_comment_end(bytes, at));
    }
    match rest[0] {
        b'"' => {
            let end = string_end(bytes, at + 1);
            Token::Literal { inside: at + 1..(end - 1).max(at + 1), end }
        }
        b'r' if !continues_word(bytes, at) => raw_string(bytes, at).unwrap_or(Token::Other(at + 1)),
        b'\'' => char_literal(bytes, at),
        _ => Token::Other(at + 1),
    }
}

/// Whether the byte before belongs to a name, the `b` and `c` of `br".."` and `cr".."` apart.
fn continues_word(bytes: &[u8], at: usize) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    match at.checked_sub(1).map(|i| bytes[i]) {
        Some(b'b' | b'c') => at >= 2 && word(bytes[at - 2]),
        Some(before) => word(before),
        None => false,
    }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// One past the closing quote.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string(bytes: &[u8], at: usize) -> Option<Token> {
    let hashes = bytes[at + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let inside = open + 1;
    let len = bytes[inside..].windows(close.len()).position(|w| w == close);
    let len = len.unwrap_or(bytes.len() - inside);
    Some(Token::Literal {
        inside: inside..inside + len,
        end: (inside + len + close.len()).min(bytes.len()),
    })
}

/// A character literal, or the tick of a lifetime.
fn char_literal(bytes: &[u8], at: usize) -> Token {
    let rest = &bytes[at + 1..];
    if rest.first() == Some(&b'\\') {
        let close = rest.iter().skip(2).position(|&b| b == b'\'');
        return close.map_or(Token::Other(at + 1), |len| Token::Comment(at + len + 4));
    }
    let width = match rest.first() {
        Some(0..0x80) => 1,
        Some(0x80..0xe0) => 2,
        Some(0xe0..0xf0) => 3,
        _ => 4,
    };
    match rest.get(width) {
        Some(b'\'') => Token::Comment(at + width + 2),
        _ => Token::Other(at + 1),
    }
}

fn test_items(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        if ranges.last().is_some_and(|range| range.contains(&start)) {
            continue;
        }
        let from = start + attribute.len();
        let stop = code[from..].find(['{', ';']).map(|len| from + len);
        let end = match stop {
            Some(open) if code.as_bytes()[open] == b'{' => closing_brace(code, open),
            Some(semicolon) => semicolon,
            None => code.len(),
        };
        ranges.push(start..end);
    }
    ranges
}

/// Where the brace that opens at `open` is closed, or the end of the text.
pub(crate) fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    code.len()
}

mod tests {
    use super::lex;

    #[test]
    fn braces_in_comments_and_literals_are_no_code() {
        let text = "fn a<'x>() { // }\n let b = \"}\\\"}\"; let c = '}'; /* } /* } */ } */ \n}";
        let code = lex(text).code;
        assert_eq!(code.len(), text.len());
        assert_eq!(code.matches('}').count(), 1, "{code}");
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn literals_are_found_in_all_spellings() {
        let text =
            r####"f("a\"b", r"c", r#"d"e"#, br"g", b'"', '\'', '\u{1f600}', "é", 'é', "h")"####;
        assert_eq!(lex(text).literals, ["a\\\"b", "c", "d\"e", "g", "é", "h"]);
    }

    #[test]
    fn what_only_tests_see_is_told_apart() {
        let text = "const A: &str = \"a\";\n#[cfg(test)]\nmod tests { const B: &str = \"b\"; }\n\
                    const C: &str = \"c\";\n#[cfg(test)]\nmod more;\nconst D: &str = \"d\";";
        let lexed = lex(text);
        assert_eq!(lexed.literals, ["a", "c", "d"]);
        assert!(lexed.is_test(text.find("const B").expect("is there")));
        assert!(!lexed.is_test(text.find("const C").expect("is there")));
    }
}
