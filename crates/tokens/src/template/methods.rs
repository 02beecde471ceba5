//! Python's methods of texts, lists and maps, as templates call them.
//!
//! Deliberately the engine's own set of them (`pycompat`), but for those that can make much of
//! little before anything is charged: `join`, `format`, `split` and `splitlines` pay first here.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Bytes that are made for one unit of fuel.
const BYTES_PER_FUEL: usize = 64;
/// Widest field of `format`.
const WIDTH_MAX: usize = 1_000;

pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match method {
            "join" => return join(state, text, args),
            "format" => pay_for_format(state, text, args)?,
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
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

fn pay(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
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
        state.consume_fuel(1)?;
        pay(state, text.len() + separator.len())?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
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
    let fields = format.matches('{').count();
    pay(state, format.len().saturating_add(fields.saturating_mul(longest + WIDTH_MAX)))
}
