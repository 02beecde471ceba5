//! Quantities read what they print, and refuse what readers could misunderstand.

use super::{ByteSize, Span, UnitError};

fn size(text: &str) -> Result<u64, UnitError> {
    text.parse::<ByteSize>().map(ByteSize::get)
}

fn span(text: &str) -> Result<u128, UnitError> {
    text.parse::<Span>().map(|s| s.duration().as_nanos())
}

#[test]
fn sizes_read_binary_decimal_and_bare() {
    assert_eq!(size("64GiB"), Ok(64 << 30));
    assert_eq!(size("512 mib"), Ok(512 << 20));
    assert_eq!(size("64Gi"), Ok(64 << 30));
    assert_eq!(size("1.5KB"), Ok(1_500));
    assert_eq!(size("1_024"), Ok(1_024));
    assert_eq!(size("18446744073709551615"), Ok(u64::MAX));
}

#[test]
fn spans_read_with_a_unit_only() {
    assert_eq!(span("250ms"), Ok(250_000_000));
    assert_eq!(span("1.5s"), Ok(1_500_000_000));
    assert_eq!(span("2m"), Ok(120_000_000_000));
    let bare = span("10").unwrap_err();
    assert!(bare.to_string().contains("no unit"), "{bare}");
}

#[test]
fn text_that_is_no_quantity_is_refused() {
    for text in ["", "GiB", "-1GiB", "1.2.3GiB", ".5GiB", "1e9", "\u{0661}GiB", "5 parsecs"] {
        assert!(size(text).is_err(), "{text:?}");
        assert!(span(text).is_err(), "{text:?}");
    }
    for text in ["18446744073709551616", "16777216TiB", "0.3B", &"9".repeat(5_000)] {
        assert!(size(text).is_err(), "{text:?}");
    }
    assert!(span("600y").is_err());
    assert!(span("300000d").is_err());
}

#[test]
fn what_is_printed_reads_back() {
    for bytes in [0, 1, 1_000, 1_024, 1_536, 3 << 20, 64 << 30, u64::MAX] {
        let size = ByteSize::bytes(bytes);
        assert_eq!(size.to_string().parse(), Ok(size), "{size}");
    }
    for ms in [0, 1, 250, 1_000, 90_000, 3_600_000, 86_400_000 * 3] {
        let span = Span::millis(ms);
        assert_eq!(span.to_string().parse(), Ok(span), "{span}");
    }
    assert_eq!(ByteSize::gib(64).to_string(), "64GiB");
    assert_eq!(ByteSize::bytes(1_536).to_string(), "1536B");
    assert_eq!(Span::millis(250).to_string(), "250ms");
    assert_eq!(Span::secs(90).to_string(), "90s");
}

#[test]
fn people_read_one_decimal() {
    assert_eq!(ByteSize::bytes(900).approx(), "900 B");
    assert_eq!(ByteSize::mib(1_536).approx(), "1.5 GiB");
    assert_eq!(ByteSize::bytes(u64::MAX).approx(), "16777215.9 TiB");
}
