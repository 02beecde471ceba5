//! A compiled template with a payment before each instruction that the engine does not charge by
//! its work: lists that hold themselves many times over take no memory, but for ever to compare.
//!
//! Deliberately on the engine's instructions and not on the source: these are few, every operator
//! of a template ends in one, and `payment` does not compile when the engine gets another.
//! What pays is in `paid`; the engine still does the work, so that nothing renders differently.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::Value;

use super::paid;

/// No slot in the engine's cache of filters and tests.
const UNCACHED: u8 = u8::MAX;

/// The line (0 if unknown) and the reason, where a template asks for what cannot be bounded.
pub(super) type Refused = (usize, String);

/// The same instructions and the payments, as the engine runs them.
pub(super) fn guarded<'source>(
    plain: &Instructions<'source>,
) -> Result<Instructions<'source>, Refused> {
    let mut out = Instructions::new(plain.name(), plain.source());
    // Where each of the plain instructions begins now, and where they end.
    let mut starts: Vec<u32> = Vec::new();
    let mut next = 0;
    let mut at = 0;
    while let Some(instruction) = plain.get(at) {
        starts.push(next);
        let (line, span) = (plain.get_line(at), plain.get_span(at));
        let mut add = |instruction| {
            next = 1 + match (span, line.map(u16::try_from)) {
                (Some(span), _) => out.add_with_span(instruction, span),
                (None, Some(Ok(line))) => out.add_with_line(instruction, line),
                (None, Some(Err(_)) | None) => out.add(instruction),
            };
        };
        let refused = |reason: &str| (line.unwrap_or(0), reason.to_owned());
        rewrite(instruction, &mut add).map_err(refused)?;
        at += 1;
    }
    starts.push(next);
    for index in 0..next {
        let (Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _)) = out.get_mut(index).expect("just added")
        else {
            continue;
        };
        let moved = starts.get(*target as usize);
        *target = *moved.ok_or_else(|| (0, "a jump leads nowhere".to_owned()))?;
    }
    Ok(out)
}

/// What an instruction has to pay.
enum Payment {
    /// The engine charges by what it makes or does, and it looks at the top of its values only.
    Charged,
    /// For the value on top of the stack, with this test.
    Top(&'static str),
    /// For the one below it.
    Below(&'static str),
    /// For both.
    Both { top: &'static str, below: &'static str },
    /// Something of ours stands in its place, or comes after it: see [`replace`].
    Replaced,
    /// There is no bound for it, or no use.
    Refused(&'static str),
}

fn payment(instruction: &Instruction<'_>) -> Payment {
    use Instruction as I;
    use paid::{PLAIN, READ, TEXT, WRITE};
    match instruction {
        // Hashing and comparing, by all that both sides hold.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            Payment::Both { top: READ, below: READ }
        }
        // The key is hashed; a character of a text is counted up to.
        I::GetItem => Payment::Both { top: READ, below: TEXT },
        I::PushLoop(_) => Payment::Top(TEXT),
        I::Emit => Payment::Top(WRITE),
        I::StringConcat => Payment::Both { top: WRITE, below: WRITE },
        I::SetAttr(_) => Payment::Below(PLAIN),
        I::MergeKwargs(1) => Payment::Top(READ),
        I::MergeKwargs(2) => Payment::Both { top: READ, below: READ },
        I::MergeKwargs(_) => Payment::Refused("a call has `**` more than once"),
        I::UnpackLists(_) => Payment::Refused("`*` before an argument is not supported"),
        I::PushAutoEscape => Payment::Refused("`autoescape` is not supported"),
        // The first keeps what it was given, the second panics without arguments.
        I::CallMethod("changed" | "cycle", _) => {
            Payment::Refused("`loop.changed` and `loop.cycle` are not supported")
        }
        I::Slice | I::BuildMap(_) | I::Add | I::Mul => Payment::Replaced,
        I::ApplyFilter(..) | I::PerformTest(..) => Payment::Replaced,
        // Names, constants and variables.
        I::EmitRaw(_) | I::StoreLocal(_) | I::Lookup(_) | I::GetAttr(_) | I::LoadConst(_) => {
            Payment::Charged
        }
        I::BuildKwargs(_) | I::BuildList(_) | I::BuildTuple(_) | I::UnpackList(_) => {
            Payment::Charged
        }
        // Numbers, and whether something is empty.
        I::Sub | I::Div | I::IntDiv | I::Rem | I::Pow | I::Neg | I::Not => Payment::Charged,
        I::Jump(_) | I::JumpIfFalse(_) | I::JumpIfFalseOrPop(_) | I::JumpIfTrueOrPop(_) => {
            Payment::Charged
        }
        I::PushWith | I::PopFrame | I::PopLoopFrame | I::PopAutoEscape => Payment::Charged,
        I::Iterate(_) | I::PushDidNotIterate | I::FastRecurse => Payment::Charged,
        I::BeginCapture(_) | I::EndCapture => Payment::Charged,
        I::DupTop | I::DiscardTop | I::Swap | I::IsUndefined => Payment::Charged,
        // Ours, and those of `methods`, pay themselves.
        I::CallFunction(..) | I::CallMethod(..) | I::CallObject(_) => Payment::Charged,
        I::BuildMacro(..) | I::Return | I::Enclose(_) | I::GetClosure => Payment::Charged,
    }
}

/// One instruction with what it has to pay, or why it is refused.
fn rewrite<'source>(
    instruction: &Instruction<'source>,
    add: &mut impl FnMut(Instruction<'source>),
) -> Result<(), &'static str> {
    match payment(instruction) {
        Payment::Charged => {}
        Payment::Top(test) => pay(test, add),
        Payment::Below(test) => below(test, add),
        Payment::Both { top, below: under } => {
            pay(top, add);
            below(under, add);
        }
        Payment::Replaced => return replace(instruction, add),
        Payment::Refused(reason) => return Err(reason),
    }
    add(instruction.clone());
    Ok(())
}

fn replace<'source>(
    instruction: &Instruction<'source>,
    add: &mut impl FnMut(Instruction<'source>),
) -> Result<(), &'static str> {
    match instruction {
        Instruction::Slice => add(Instruction::ApplyFilter(paid::SLICE, Some(4), UNCACHED)),
        Instruction::BuildMap(pairs) => {
            let items = u16::try_from(2 * pairs).map_err(|_| "a map has too many keys")?;
            add(Instruction::ApplyFilter(paid::MAP, Some(items), UNCACHED));
        }
        Instruction::ApplyFilter(name, count, _) => {
            let count = named(name, *count, add)?;
            add(Instruction::ApplyFilter(paid::CALL, Some(count), UNCACHED));
        }
        Instruction::PerformTest(name, count, _) => {
            let count = named(name, *count, add)?;
            add(Instruction::PerformTest(paid::CALL, Some(count), UNCACHED));
        }
        // Sums and products of lists are lazy: they become ordinary ones right after.
        lazy => {
            add(lazy.clone());
            add(Instruction::ApplyFilter(paid::SETTLE, Some(1), UNCACHED));
        }
    }
    Ok(())
}

/// Pays for the top of the stack, which stays.
fn pay<'source>(test: &'static str, add: &mut impl FnMut(Instruction<'source>)) {
    add(Instruction::DupTop);
    add(Instruction::PerformTest(test, Some(1), UNCACHED));
    add(Instruction::DiscardTop);
}

/// As [`pay`], for the value below the top.
fn below<'source>(test: &'static str, add: &mut impl FnMut(Instruction<'source>)) {
    add(Instruction::Swap);
    pay(test, add);
    add(Instruction::Swap);
}

/// Puts the name after the arguments; their new number.
fn named<'source>(
    name: &str,
    count: Option<u16>,
    add: &mut impl FnMut(Instruction<'source>),
) -> Result<u16, &'static str> {
    // Without a number it is on the stack, which only `*` does.
    let count = count.and_then(|count| count.checked_add(1)).ok_or("too many arguments")?;
    add(Instruction::LoadConst(Value::from(name)));
    Ok(count)
}
