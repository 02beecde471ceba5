//! `tojson` as transformers defines it: Python's `json.dumps` without HTML escapes, with its
//! `ensure_ascii`, `indent`, `separators` and `sort_keys`.
//!
//! Deliberately our own writer: the engine's escapes for HTML, spaces otherwise, and takes no fuel
//! on the way, so that a list which holds itself twice, forty times over, would fill the memory.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Deepest value; Python gives up at about a thousand, the real ones have ten.
const DEPTH_MAX: usize = 64;
/// Widest indentation.
const INDENT_MAX: usize = 16;
/// Bytes that are written for one unit of fuel.
const BYTES_PER_FUEL: usize = 64;

/// How to write.
struct Style {
    ascii: bool,
    /// Spaces per level; `None` writes one line.
    indent: Option<usize>,
    between: String,
    after_key: String,
    sort_keys: bool,
}

struct Writer<'a, 'state, 'env> {
    state: &'a State<'state, 'env>,
    style: Style,
    out: String,
    /// Length of `out` that is paid for.
    paid: usize,
}

pub(super) fn tojson(
    state: &State<'_, '_>,
    value: Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let style = style(&positional, &named)?;
    named.assert_all_used()?;
    let mut writer = Writer { state, style, out: String::new(), paid: 0 };
    writer.value(&value, 0)?;
    Ok(Value::from(writer.out))
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn style(positional: &[Value], named: &Kwargs) -> Result<Style, Error> {
    if positional.len() > 2 {
        return Err(refused("tojson takes ensure_ascii and indent, name the others"));
    }
    let argument = |index: usize, name: &'static str| -> Result<Value, Error> {
        match positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(named.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let indent = argument(1, "indent")?;
    let indent = match indent.is_none() || indent.is_undefined() {
        true => None,
        false => match usize::try_from(indent) {
            Ok(spaces) if spaces <= INDENT_MAX => Some(spaces),
            _ => return Err(refused(format!("tojson: indent must be 0 to {INDENT_MAX}"))),
        },
    };
    let separators: Option<Vec<String>> = named.get("separators")?;
    let (between, after_key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([between, after]) if between.len() + after.len() <= INDENT_MAX => {
            (between.clone(), after.clone())
        }
        Some(_) => return Err(refused("tojson: separators must be two short texts")),
    };
    let sort_keys = named.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = argument(0, "ensure_ascii")?.is_true();
    Ok(Style { ascii, indent, between, after_key, sort_keys })
}

impl Writer<'_, '_, '_> {
    fn pay(&mut self) -> Result<(), Error> {
        let owed = (self.out.len() - self.paid) / BYTES_PER_FUEL;
        self.paid += owed * BYTES_PER_FUEL;
        self.state.consume_fuel(1 + owed as u64)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refused(format!("tojson: nested deeper than {DEPTH_MAX}")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Map => return self.map(value, depth),
            ValueKind::Seq | ValueKind::Iterable => return self.list(value, depth),
            other => return Err(refused(format!("tojson: {other} is not JSON serializable"))),
        }
        self.pay()
    }

    fn line(&mut self, depth: usize) {
        if let Some(spaces) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', spaces * depth));
        }
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in list.try_iter()? {
            if !empty {
                self.out.push_str(&self.style.between);
            }
            empty = false;
            self.line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(']');
        self.pay()
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<(String, Value)> = Vec::new();
        for key in map.try_iter()? {
            self.state.consume_fuel(1)?;
            let text = match key.kind() {
                ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                ValueKind::None => "null".to_owned(),
                ValueKind::Bool => key.is_true().to_string(),
                ValueKind::Number => key.to_string(),
                other => return Err(refused(format!("tojson: {other} cannot be a key"))),
            };
            keys.push((text, key));
        }
        if self.style.sort_keys {
            keys.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        for (index, (text, key)) in keys.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.between);
            }
            self.line(depth + 1);
            self.text(text);
            self.out.push_str(&self.style.after_key);
            self.value(&map.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(depth);
        }
        self.out.push('}');
        self.pay()
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        let text = match value.is_integer() {
            true => value.to_string(),
            false => float(f64::try_from(value.clone())?),
        };
        self.out.push_str(&text);
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python's `repr` writes it: the shortest digits, with an exponent below 1e-4 and from
/// 1e16 on.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match exponent {
        -4..16 => format!("{value:?}"),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.5, "0.5"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (1.5e300, "1.5e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }
}
