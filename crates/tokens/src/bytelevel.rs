//! GPT-2's printable alphabet for bytes, in which byte-level vocabularies are written.
//!
//! Deliberately a table of our own for decoding: `tokenizers` keeps its own private.
//! Source: `bytes_to_unicode` of openai/gpt-2, src/encoder.py.

/// The byte that stands behind a character of the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        // Printable bytes stand for themselves.
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        // The others follow from 256 on, in their own order.
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::byte_of;

    #[test]
    fn alphabet_has_each_byte_once() {
        let all = (0..0x200).filter_map(|code| byte_of(char::from_u32(code)?));
        let bytes: Vec<u8> = all.collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes.iter().collect::<BTreeSet<_>>().len(), 256);
        // From the published vocabulary: space is Ġ, line feed Ċ.
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('Ń'), Some(0xad));
        assert_eq!(byte_of('ń'), None);
    }
}
