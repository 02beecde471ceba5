//! What `guard` puts into a template: pays in fuel for all that a value holds, as often as it holds
//! it, and then has the engine do what the template asked for.
//!
//! Deliberately a walk each time and no remembered sizes: values change hands without our seeing
//! them, and a walk ends with the fuel however often a list holds itself.

use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, functions};

use super::Watched;

/// Names of tests that pay for one value. No name in a source has a colon.
pub(super) const READ: &str = "paid:read";
pub(super) const WRITE: &str = "paid:write";
pub(super) const TEXT: &str = "paid:text";
/// The test that pays, and refuses what could hold itself.
pub(super) const PLAIN: &str = "paid:plain";
/// The filter and the test that call the one which their last argument names.
pub(super) const CALL: &str = "paid:call";
/// Filters in place of instructions.
pub(super) const SLICE: &str = "paid:slice";
pub(super) const MAP: &str = "paid:map";
pub(super) const SETTLE: &str = "paid:settle";

/// Units of one step of fuel, which is about what an instruction takes: 50 to 100 ns.
const STEP: usize = 1024;
/// Units of a list or map, and of anything else but texts.
const CONTAINER: usize = 1024;
const ITEM: usize = 64;
/// Deepest value that is walked, as in `tojson`; the engine recurses as deep afterwards.
const DEPTH_MAX: usize = 64;

/// Filters that look at the top of a value, or at numbers, whatever it holds.
const SHALLOW: [&str; 15] = [
    "length", "count", "list", "first", "last", "default", "d", "items", "reverse", "batch",
    "slice", "bool", "abs", "round", "safe",
];
/// Filters that compare the items of a list with each other.
const SORTING: [&str; 6] = ["sort", "unique", "groupby", "dictsort", "min", "max"];
/// Filters that call another, or a test, for every item, with the same arguments.
const EACH: [&str; 5] = ["map", "select", "reject", "selectattr", "rejectattr"];
/// Tests of what a value is.
const KINDS: [&str; 15] = [
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "integer",
    "int",
    "float",
    "boolean",
    "true",
    "false",
    "mapping",
    "sequence",
    "iterable",
    "callable",
];

/// What is done with texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Compared or searched, at 512 bytes for a step.
    Read,
    /// Written, at 64 bytes for a step as the engine has it.
    Write,
}

impl Use {
    fn units_per_byte(self) -> usize {
        match self {
            Self::Read => 2,
            Self::Write => 16,
        }
    }
}

/// Puts the filters, tests and functions in place that guarded templates use.
pub(super) fn add(env: &mut Environment<'_>) {
    env.add_test(READ, read);
    env.add_test(WRITE, write);
    env.add_test(TEXT, text);
    env.add_test(PLAIN, plain);
    env.add_test(CALL, call_test);
    env.add_filter(CALL, call_filter);
    env.add_filter(SLICE, slice);
    env.add_filter(MAP, map);
    env.add_filter(SETTLE, settled);
    env.add_function("namespace", namespace);
    // It shows everything; these nest lazily, and Jinja2 has none of them.
    env.remove_global("debug");
    env.remove_filter("chain");
    env.remove_filter("zip");
}

/// Pays for a value and all that it holds; the steps that it took.
pub(super) fn pay(state: &State<'_, '_>, value: &Value, used: Use) -> Result<u64, Error> {
    // The engine charges for the text that it writes itself, only not for those in lists.
    let used = if value.as_str().is_some() { Use::Read } else { used };
    let mut walk = Walk::new(state, used);
    walk.value(value, 0)?;
    Ok(walk.spent)
}

fn read(state: &State<'_, '_>, value: &Value) -> Result<bool, Error> {
    pay(state, value, Use::Read).map(|_| true)
}

fn write(state: &State<'_, '_>, value: &Value) -> Result<bool, Error> {
    pay(state, value, Use::Write).map(|_| true)
}

fn text(state: &State<'_, '_>, value: &Value) -> Result<bool, Error> {
    if value.as_str().is_some() { read(state, value) } else { Ok(true) }
}

fn plain(state: &State<'_, '_>, value: &Value) -> Result<bool, Error> {
    let mut walk = Walk { plain: true, ..Walk::new(state, Use::Read) };
    walk.value(value, 0).map(|()| true)
}

struct Walk<'a, 'state, 'env> {
    state: &'a State<'state, 'env>,
    used: Use,
    /// Whether to refuse what can be changed after it was made, and so made to hold itself.
    plain: bool,
    /// Units that are not paid for yet, less than a step.
    owed: usize,
    /// Steps that are.
    spent: u64,
}

impl<'a, 'state, 'env> Walk<'a, 'state, 'env> {
    fn new(state: &'a State<'state, 'env>, used: Use) -> Self {
        Self { state, used, plain: false, owed: 0, spent: 0 }
    }

    fn owe(&mut self, units: usize) -> Result<(), Error> {
        self.owed = self.owed.saturating_add(units);
        let steps = (self.owed / STEP) as u64;
        if steps > 0 {
            self.owed %= STEP;
            self.spent += steps;
            self.state.consume_fuel(steps)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.owe(ITEM + text.len().saturating_mul(self.used.units_per_byte()));
        }
        let Some(object) = value.as_object() else {
            return self.owe(ITEM);
        };
        if depth > DEPTH_MAX {
            return Err(refused(format!("a value is nested deeper than {DEPTH_MAX}")));
        }
        let name = object.type_name();
        if self.plain && (name.ends_with("::Namespace") || name.ends_with("::Loop")) {
            return Err(refused("a namespace can hold no namespace and no loop"));
        }
        self.owe(CONTAINER)?;
        if let Some(message) = object.downcast_ref::<Watched>() {
            // Not by its keys: it would note that the template has looked at it.
            self.value(&message.role, depth + 1)?;
            return self.value(&message.content, depth + 1);
        }
        if value.kind() == ValueKind::Map {
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                self.value(&key, depth + 1)?;
                self.value(&item, depth + 1)?;
            }
        } else {
            for item in object.try_iter().into_iter().flatten() {
                self.value(&item, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// The name that `guard` put after the arguments.
fn name_of(args: &[Value]) -> Result<(&str, &[Value]), Error> {
    let named = args.split_last().and_then(|(name, args)| Some((name.as_str()?, args)));
    named.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

fn call_test(state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>) -> Result<bool, Error> {
    let args = args.into_values();
    let (name, args) = name_of(&args)?;
    if !KINDS.contains(&name) {
        for arg in args {
            pay(state, arg, Use::Read)?;
        }
    }
    let done = state.perform_test(name, args);
    done.map_err(|error| unknown(error, ErrorKind::UnknownTest, format!("test {name} is unknown")))
}

fn call_filter(state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (name, args) = name_of(&args)?;
    let (of, others) = args.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    if EACH.contains(&name) {
        pay(state, of, Use::Read)?;
        let mut once = 0;
        for other in others {
            once += pay(state, other, Use::Read)?;
        }
        state.consume_fuel(once.saturating_mul(count(of)))?;
    } else if SORTING.contains(&name) {
        let once = pay(state, of, Use::Read)?;
        let comparisons = u64::from(count(of).max(1).ilog2());
        state.consume_fuel(once.saturating_mul(comparisons))?;
        for other in others {
            pay(state, other, Use::Read)?;
        }
    } else if !SHALLOW.contains(&name) {
        for arg in args {
            pay(state, arg, Use::Write)?;
        }
    }
    if name == "sum" {
        sums_numbers(others)?;
    }
    let made = state.apply_filter(name, args).map_err(|error| {
        unknown(error, ErrorKind::UnknownFilter, format!("filter {name} is unknown"))
    })?;
    settled(state, made)
}

/// The number of items; as long as any list of the engine where it is not known.
fn count(list: &Value) -> u64 {
    list.len().unwrap_or(100_000) as u64
}

/// The engine names what is unknown only where the template itself calls it.
fn unknown(error: Error, kind: ErrorKind, text: String) -> Error {
    if error.kind() == kind && error.detail().is_none() { Error::new(kind, text) } else { error }
}

/// Lists and texts would be joined one by one, and copied each time.
fn sums_numbers(others: &[Value]) -> Result<(), Error> {
    for other in others {
        let start = if other.is_kwargs() { other.get_attr("start")? } else { other.clone() };
        let attribute = start.as_str().is_some() && !other.is_kwargs();
        if !(start.is_number() || start.is_undefined() || start.is_none() || attribute) {
            return Err(refused("sum: only numbers can be added up"));
        }
    }
    Ok(())
}

/// A lazy list as an ordinary one, so that none is ever made of another.
fn settled(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let lazy = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && value.downcast_object_ref::<Vec<Value>>().is_none()
        && !value.is_tuple();
    if lazy { collected(state, &value).map(Value::from) } else { Ok(value) }
}

/// The items of a list; what the result costs, the engine charges.
fn collected(state: &State<'_, '_>, list: &Value) -> Result<Vec<Value>, Error> {
    let mut walk = Walk::new(state, Use::Read);
    let mut items = Vec::new();
    for item in list.try_iter()?.checked() {
        // Above what one takes in the list, so that it never grows far beyond the fuel.
        walk.owe(4 * ITEM)?;
        items.push(item?);
    }
    Ok(items)
}

/// A map of keys and values in turn. Keys are hashed again and again.
fn map(args: Rest<Value>) -> Result<Value, Error> {
    let pairs = args.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    if let Some((key, _)) = pairs.clone().find(|(key, _)| key.as_object().is_some()) {
        return Err(refused(format!("the key of a map is a {}", key.kind())));
    }
    Ok(Value::from_pairs(pairs))
}

/// As the engine's, which does not charge for what it copies.
fn namespace(state: &State<'_, '_>, given: Option<ValueOrKwargs>) -> Result<Value, Error> {
    if let Some(given) = &given {
        // 128 bytes each.
        state.consume_fuel(2 * given.len().unwrap_or(0) as u64)?;
    }
    functions::namespace(given)
}

/// `value[start:stop:step]` as in Python, of texts, lists and tuples.
fn slice(
    state: &State<'_, '_>,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => i64::try_from(value.clone()).map(Some),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(refused("cannot slice by step size of 0"));
    }
    if let Some(text) = value.as_str() {
        // The engine charges a filter for its text.
        let taken = Taken::of(text.chars().count(), start, stop, step);
        return Ok(Value::from(taken.chars(text)));
    }
    let items = match value.kind() {
        ValueKind::Undefined | ValueKind::None => return Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Seq => {
            let taken = Taken::of(value.len().unwrap_or(0), start, stop, step);
            state.consume_fuel((taken.count * ITEM / STEP) as u64)?;
            taken.indices().map(|index| value.get_item_by_index(index)).collect::<Result<_, _>>()?
        }
        ValueKind::Iterable => {
            let all = collected(state, value)?;
            let taken = Taken::of(all.len(), start, stop, step);
            taken.indices().map(|index| all[index].clone()).collect::<Vec<_>>()
        }
        other => return Err(refused(format!("value of type {other} cannot be sliced"))),
    };
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// Which items of a list a slice takes, as Python's `slice.indices` has it.
struct Taken {
    /// Length of the list.
    len: usize,
    /// The first one, if there is any.
    first: usize,
    count: usize,
    step: i64,
}

impl Taken {
    fn of(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Self {
        let end = i64::try_from(len).unwrap_or(i64::MAX);
        let (low, high) = if step > 0 { (0, end) } else { (-1, end - 1) };
        let clamp = |at: i64| if at < 0 { (at + end).max(low) } else { at.min(high) };
        let (from, to) = if step > 0 { (low, high) } else { (high, low) };
        let (from, to) = (start.map_or(from, clamp), stop.map_or(to, clamp));
        let apart = if step > 0 { to - from } else { from - to };
        let count = if apart > 0 { (apart as u64 - 1) / step.unsigned_abs() + 1 } else { 0 };
        Self { len, first: from.max(0) as usize, count: count as usize, step }
    }

    fn indices(&self) -> impl Iterator<Item = usize> {
        let (first, step) = (self.first as i64, self.step);
        (0..self.count as i64).map(move |index| (first + index * step) as usize)
    }

    fn chars(&self, text: &str) -> String {
        let by = usize::try_from(self.step.unsigned_abs()).unwrap_or(usize::MAX);
        if self.count == 0 {
            String::new()
        } else if self.step > 0 {
            text.chars().skip(self.first).step_by(by).take(self.count).collect()
        } else {
            let skipped = self.len - 1 - self.first;
            text.chars().rev().skip(skipped).step_by(by).take(self.count).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Taken;

    /// Method: CPython 3.12's `list(range(5))[start:stop:step]` and `'abcde'[..]`.
    #[test]
    fn slices_take_what_python_takes() {
        let cases: [(Option<i64>, Option<i64>, i64, &str); 14] = [
            (None, None, 1, "abcde"),
            (Some(1), None, 1, "bcde"),
            (None, Some(-1), 1, "abcd"),
            (Some(-2), None, 1, "de"),
            (Some(3), Some(1), 1, ""),
            (Some(-9), Some(9), 2, "ace"),
            (None, None, -1, "edcba"),
            (Some(3), Some(0), -2, "db"),
            (Some(-9), None, -1, ""),
            (Some(9), Some(-9), -3, "eb"),
            (None, Some(1), -1, "edc"),
            (Some(i64::MIN), Some(i64::MAX), i64::MAX, "a"),
            (Some(i64::MAX), Some(i64::MIN), i64::MIN, "e"),
            (Some(5), None, 1, ""),
        ];
        for (start, stop, step, expected) in cases {
            let taken = Taken::of(5, start, stop, step);
            assert_eq!(taken.chars("abcde"), expected, "{start:?} {stop:?} {step}");
            let by_index: String =
                taken.indices().map(|index| char::from(b"abcde"[index])).collect();
            assert_eq!(by_index, expected, "{start:?} {stop:?} {step}");
        }
    }
}
