//! From sampled tokens to the text that a client sees: stop texts, counts, the reason of the end.
//! What it deliberately does not do: wait, or know how the text is sent.

use ids::SessionId;
use session::{Finish, Ledger, Usage};

use crate::stops::StopMatcher;

#[cfg(test)]
mod tests;

/// What happens to an answer, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// The request is planned. May come again when a reservation was refused and another plan made.
    Planned {
        /// Under which the cluster knows the request.
        session: SessionId,
        /// The class in which the answer is computed.
        numerics_class: String,
    },
    /// The prompt is in place; sampling begins.
    Begun,
    /// More text, never empty.
    Text(String),
    /// The last one.
    Done(Box<Outcome>),
}

/// Why an answer ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it, or a stop text did.
    Stop,
    /// It may not be longer.
    Length,
}

impl Reason {
    /// As OpenAI writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) reason: Reason,
    pub(crate) usage: Usage,
    /// `None` when a stop text ended it: decode was cancelled and has nothing more to say.
    pub(crate) ledger: Option<Ledger>,
}

/// Puts one answer together.
#[derive(Debug)]
pub(crate) struct Assembler {
    stops: StopMatcher,
    usage: Usage,
}

impl Assembler {
    pub(crate) fn new(stops: Vec<String>, prompt_tokens: u32) -> Self {
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Self { stops: StopMatcher::new(stops), usage }
    }

    /// Sampling begins; so many tokens of the prompt were not computed.
    pub(crate) fn begun(&mut self, cached_tokens: u32) -> Event {
        self.usage.cached_tokens = cached_tokens;
        Event::Begun
    }

    /// One token more, which completes `piece` (perhaps no character at all).
    pub(crate) fn token(&mut self, piece: &str) -> Vec<Event> {
        self.usage.completion_tokens += 1;
        let released = self.stops.push(piece);
        let mut events = text(released.text);
        if released.matched {
            events.push(self.stopped());
        }
        events
    }

    /// Decode is done; `tail` is what its last tokens leave, `None` if decode gave up.
    pub(crate) fn finished(
        &mut self,
        tail: &str,
        finish: Finish,
        ledger: Ledger,
    ) -> Option<Vec<Event>> {
        let reason = match finish {
            Finish::Stop => Reason::Stop,
            Finish::Length => Reason::Length,
            Finish::Abort => return None,
        };
        let pushed = self.stops.push(tail);
        let mut events = text(pushed.text);
        let rest = self.stops.finish();
        events.extend(text(rest.text));
        if rest.matched {
            events.push(self.stopped());
        } else {
            let usage = ledger.usage;
            let ledger = Some(ledger);
            events.push(Event::Done(Box::new(Outcome { reason, usage, ledger })));
        }
        Some(events)
    }

    fn stopped(&self) -> Event {
        let (reason, usage) = (Reason::Stop, self.usage);
        Event::Done(Box::new(Outcome { reason, usage, ledger: None }))
    }
}

fn text(text: String) -> Vec<Event> {
    if text.is_empty() { Vec::new() } else { vec![Event::Text(text)] }
}
