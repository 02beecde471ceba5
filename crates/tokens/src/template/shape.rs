//! Whether a source is of a shape that the engine can compile on an ordinary thread's stack.
//!
//! Deliberately ahead of the engine's parser: that one bounds brackets and blocks in each other,
//! but not chains (`1+1+1..`, `x.a.a..`, `elif` after `elif`), which it builds as deep trees too.

/// Longest source; the longest published one, with everything about tools, has 20 KB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Most characters of one tag, without its texts and spaces; published ones stay below 500.
const TAG_MAX: usize = 2_000;
/// Most `elif` of one source.
const ELIF_MAX: usize = 200;
/// Longest source with `raw` blocks, whose text only the engine tells from tags.
const RAW_BYTES_MAX: usize = 4_000;

/// The line and the reason, if the source is refused.
pub(super) fn refused(source: &str) -> Option<(usize, String)> {
    if source.len() > SOURCE_BYTES_MAX {
        return Some((
            0,
            format!("{} bytes, more than the limit of {SOURCE_BYTES_MAX}", source.len()),
        ));
    }
    if source.matches("elif").count() > ELIF_MAX {
        return Some((0, format!("`elif` occurs more than {ELIF_MAX} times: use a map")));
    }
    if source.contains("endraw") {
        let reason = format!("over {RAW_BYTES_MAX} bytes with `raw` blocks: use texts instead");
        return (source.len() > RAW_BYTES_MAX).then_some((0, reason));
    }
    let mut rest = source;
    while let Some(at) = rest.find(['{']) {
        let tag = &rest[at + 1..];
        rest = match tag.as_bytes().first() {
            Some(b'#') => tag.split_once("#}").map_or("", |(_, after)| after),
            Some(b'{') => match tag_end(&tag[1..], "}}") {
                Ok(end) => &tag[1 + end..],
                Err(TooLong) => return Some((line(source, tag), too_long())),
            },
            Some(b'%') => match tag_end(&tag[1..], "%}") {
                Ok(end) => &tag[1 + end..],
                Err(TooLong) => return Some((line(source, tag), too_long())),
            },
            _ => tag,
        };
    }
    None
}

fn too_long() -> String {
    format!("a tag has over {TAG_MAX} characters besides its texts: break it up with `set`")
}

/// The line on which the rest of a source begins, from 1.
fn line(source: &str, rest: &str) -> usize {
    source[..source.len() - rest.len()].matches('\n').count() + 1
}

/// Too many characters in one tag.
struct TooLong;

/// Where a tag ends, as the engine's lexer has it: not in a text, and not within brackets.
fn tag_end(tag: &str, end: &str) -> Result<usize, TooLong> {
    let bytes = tag.as_bytes();
    let (mut at, mut open, mut count) = (0, 0_i64, 0);
    while at < bytes.len() {
        if open == 0 && bytes[at..].starts_with(end.as_bytes()) {
            return Ok(at + end.len());
        }
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open -= 1,
            _ => {}
        }
        count += usize::from(bytes.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()));
        if count > TAG_MAX {
            return Err(TooLong);
        }
        at += 1;
    }
    Ok(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn long_texts_are_no_long_tags() {
        let long = "x y\n".repeat(2_000);
        let fits = [
            long.clone(),
            format!("{{{{ '{long}' }}}}{{# {long} #}}"),
            format!("{{% if x == \"\\\"{long}\" %}}{long}{{% endif %}}"),
            format!("{{{{ {{'a': {{}}}} }}}}{long}"),
            "{{ 1 }}{ {% if a %}}}{% endif %}".repeat(1_000),
        ];
        for source in fits {
            assert_eq!(refused(&source), None);
        }
    }

    #[test]
    fn chains_are_refused_with_their_line() {
        let chain = "+1".repeat(2_000);
        for (source, line) in [
            (format!("a\n{{{{ 1{chain} }}}}"), 2),
            (format!("{{% set x = 1{chain} %}}"), 1),
            (format!("{{{{ {{'}}}}': 1, 'b': {{}}}}{chain} }}}}"), 1),
            (format!("{{# }}}} #}}\n\n{{{{ '\\'}}}}'{chain} }}}}"), 3),
            ("{% elif a %}".repeat(1_000), 0),
            (format!("{{% raw %}}{{% endraw %}}{chain}"), 0),
            ("x".repeat(2 << 20), 0),
        ] {
            assert_eq!(refused(&source).map(|(line, _)| line), Some(line), "{source:.60}");
        }
    }
}
