//! Scripted tokens in, events out: texts, counts and reasons.

use session::{Finish, Ledger, Usage};

use super::{Assembler, Event, Outcome, Reason};

fn ledger(completion_tokens: u32) -> Ledger {
    let usage = Usage { prompt_tokens: 20, cached_tokens: 16, completion_tokens };
    Ledger { usage, ..Ledger::default() }
}

/// Runs the pieces through and ends with `finish`, unless a stop text did before.
fn run(stops: &[&str], pieces: &[&str], tail: &str, finish: Finish) -> (String, Option<Outcome>) {
    let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
    let mut assembler = Assembler::new(stops, 20);
    let mut events = vec![assembler.begun(16)];
    for piece in pieces {
        events.extend(assembler.token(piece));
        if matches!(events.last(), Some(Event::Done(_))) {
            break;
        }
    }
    if !matches!(events.last(), Some(Event::Done(_))) {
        let count = u32::try_from(pieces.len()).expect("a short script");
        events.extend(assembler.finished(tail, finish, ledger(count)).unwrap_or_default());
    }
    let mut text = String::new();
    let mut outcome = None;
    for event in events {
        match event {
            Event::Text(more) => text.push_str(&more),
            Event::Done(done) => outcome = Some(*done),
            Event::Planned { .. } | Event::Begun => {}
        }
    }
    (text, outcome)
}

#[test]
fn an_answer_has_all_its_text_and_decodes_counts() {
    let (text, outcome) = run(&[], &["Hel", "", "lo"], "\u{fffd}", Finish::Length);
    let outcome = outcome.expect("an end");
    assert_eq!(text, "Hello\u{fffd}", "a truly truncated character shows at the end");
    assert_eq!(outcome.reason, Reason::Length);
    assert_eq!(outcome.usage, ledger(3).usage);
    assert!(outcome.ledger.is_some());
}

#[test]
fn a_stop_text_ends_the_answer_with_the_tokens_so_far() {
    let (text, outcome) = run(&["STOP"], &["a S", "TO", "P b", "never"], "", Finish::Length);
    let outcome = outcome.expect("an end");
    assert_eq!((text.as_str(), outcome.reason), ("a ", Reason::Stop));
    let usage = Usage { prompt_tokens: 20, cached_tokens: 16, completion_tokens: 3 };
    assert_eq!(outcome.usage, usage);
    assert_eq!(outcome.ledger, None);
}

#[test]
fn what_looked_like_a_stop_text_comes_out_at_the_end() {
    let (text, outcome) = run(&["STOP"], &["a ST"], "", Finish::Stop);
    assert_eq!(text, "a ST");
    assert_eq!(outcome.map(|outcome| outcome.reason), Some(Reason::Stop));
}

#[test]
fn an_answer_that_decode_broke_off_has_no_end() {
    let (text, outcome) = run(&[], &["a"], "", Finish::Abort);
    assert_eq!((text.as_str(), outcome), ("a", None));
}
