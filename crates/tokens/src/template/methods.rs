//! Python's methods of texts, lists and maps, and filters, as templates call them.
//!
//! Deliberately the engine's own set of both (`pycompat` is that of methods), but for those that
//! can make much of little before anything is charged: `join`, `format`, `string`, `split` and
//! `splitlines` pay first here, and every method for the texts and lists that it reads.

use std::fmt::{self, Write as _};

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::paid::{self, Use};

/// Bytes that are made for one unit of fuel.
const BYTES_PER_FUEL: usize = 64;
/// Widest field of `format`.
const WIDTH_MAX: usize = 1_000;

/// Puts the filters in place; `pprint`, which is for people who write templates, goes.
pub(super) fn add_filters(env: &mut Environment<'_>) {
    env.add_filter("join", join_filter);
    env.add_filter("string", string_filter);
    env.add_filter("format", format_filter);
    env.remove_filter("pprint");
}

/// A method of a value; the engine asks for those that it does not know.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // Searching is linear in the texts, and its result says nothing of them.
    for read in args.iter().chain([value]) {
        pay(state, read.as_str().map_or(0, str::len))?;
    }
    // Keys are hashed, and some arguments written.
    for arg in args {
        paid::pay(state, arg, Use::Write)?;
    }
    if let Some(text) = value.as_str() {
        match method {
            "join" => return join(state, text, args),
            "format" => {
                pay_for_format(state, text, args)?;
                refuse_other_keys(brackets_are_ascii(text))?;
            }
            "strip" | "lstrip" | "rstrip" => {
                // Each character of the text is looked for among those to strip.
                let set = args.first().and_then(Value::as_str).map_or(1, str::len);
                pay(state, text.len().saturating_mul(set))?;
            }
            "split" | "splitlines" => {
                let separator = args.first().and_then(Value::as_str);
                let parts = match separator.filter(|separator| !separator.is_empty()) {
                    Some(separator) => text.matches(separator).count(),
                    None => text.chars().filter(|c| c.is_whitespace()).count(),
                };
                state.consume_fuel(parts as u64)?;
            }
            _ => {}
        }
    } else if method == "count" {
        paid::pay(state, value, Use::Read)?;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn pay(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}

/// Writes a value and pays for it on the way, so that a list which holds itself many times over
/// ends with the fuel.
struct Paid<'a, 'state, 'env> {
    state: &'a State<'state, 'env>,
    out: String,
}

impl fmt::Write for Paid<'_, '_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fuel = 1 + (text.len() / BYTES_PER_FUEL) as u64;
        self.state.consume_fuel(fuel).map_err(|_| fmt::Error)?;
        self.out.push_str(text);
        Ok(())
    }
}

pub(super) fn text_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut paid = Paid { state, out: String::new() };
    write!(paid, "{value}").map_err(|_| Error::from(ErrorKind::OutOfFuel))?;
    Ok(paid.out)
}

fn string_filter(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value),
        _ => text_of(state, &value).map(Value::from),
    }
}

fn join_filter(
    state: &State<'_, '_>,
    items: Value,
    separator: Option<String>,
    attribute: Option<String>,
    named: Kwargs,
) -> Result<Value, Error> {
    let named_attribute: Option<String> = named.get("attribute")?;
    let separator = match separator {
        Some(separator) => separator,
        None => named.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    named.assert_all_used()?;
    let attribute = attribute.or(named_attribute);
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        add_joined(state, &mut out, &separator, index, &text_of(state, &item)?)?;
    }
    Ok(Value::from(out))
}

fn add_joined(
    state: &State<'_, '_>,
    out: &mut String,
    separator: &str,
    index: usize,
    text: &str,
) -> Result<(), Error> {
    state.consume_fuel(1)?;
    pay(state, text.len() + separator.len())?;
    if index > 0 {
        out.push_str(separator);
    }
    out.push_str(text);
    Ok(())
}

/// Joins texts; as in Python, anything else is an error.
fn join(state: &State<'_, '_>, separator: &str, args: &[Value]) -> Result<Value, Error> {
    let [items] = args else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let Some(text) = item.as_str() else {
            return Err(refused(format!("join: item {index} is {}, not a string", item.kind())));
        };
        add_joined(state, &mut out, separator, index, text)?;
    }
    Ok(Value::from(out))
}

fn format_filter(state: &State<'_, '_>, format: String, args: Rest<Value>) -> Result<Value, Error> {
    pay_for_format(state, &format, &args)?;
    refuse_other_keys(percent_keys_are_ascii(&format))?;
    formatting::format(FormatStyle::Printf, &format, &args).map(Value::from)
}

/// Every field may show the longest argument, at the widest width.
fn pay_for_format(state: &State<'_, '_>, format: &str, args: &[Value]) -> Result<(), Error> {
    let mut longest = 0;
    for value in args {
        longest = longest.max(match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => 64,
            other => return Err(refused(format!("format: {other} is not supported"))),
        });
    }
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        if digits.parse::<usize>().is_ok_and(|width| width <= WIDTH_MAX) {
            continue;
        }
        return Err(refused(format!("format: a number is larger than {WIDTH_MAX}")));
    }
    if format.contains("%*") || format.contains(".*") || nested(format) {
        return Err(refused("format: a width must be written in the format itself"));
    }
    let fields = format.matches(['{', '%']).count();
    pay(state, format.len().saturating_add(fields.saturating_mul(longest + WIDTH_MAX)))
}

/// The engine steps through the key of a field byte by byte and panics inside of a character.
fn refuse_other_keys(are_ascii: bool) -> Result<(), Error> {
    if are_ascii { Ok(()) } else { Err(refused("format: a key of a field is not ASCII")) }
}

/// Whether every `%(key)` is ASCII; rather refuses more than the engine would read as a key.
fn percent_keys_are_ascii(format: &str) -> bool {
    let fields = format.replace("%%", "");
    fields.split("%(").skip(1).all(|field| {
        let key = field.split(')').next().unwrap_or_default();
        key.is_ascii()
    })
}

/// As [`percent_keys_are_ascii`], for every `{0[key]}`.
fn brackets_are_ascii(format: &str) -> bool {
    let fields = format.replace("{{", "");
    let mut rest = fields.as_str();
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        while let Some(at) = rest.find(['[', ':', '{', '}']) {
            let Some(key) = rest[at..].strip_prefix('[') else {
                break;
            };
            let end = key.find(']').unwrap_or(key.len());
            if !key[..end].is_ascii() {
                return false;
            }
            rest = &key[end..];
        }
    }
    true
}

/// Whether a field holds a field, such as `{:{}}`.
fn nested(format: &str) -> bool {
    let mut open = false;
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        let brace = &rest[at..];
        rest = match (open, brace.as_bytes()) {
            (false, [b'{', b'{', ..] | [b'}', b'}', ..]) => &brace[2..],
            (true, [b'{', ..]) => return true,
            (_, bytes) => {
                open = bytes.first() == Some(&b'{');
                &brace[1..]
            }
        };
    }
    false
}
