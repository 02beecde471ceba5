//! An answer as server-sent events: chunks, keep-alive comments while nothing is there to send,
//! an error as the last event where there is no status left to say it with.
//! What it deliberately does not do: decide when the headers are sent.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use prometheus::IntGauge;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::error::ApiError;
use super::shape::Shape;
use crate::answer::Event;

#[cfg(test)]
mod tests;

/// What a request's task sends.
pub(crate) type Item = Result<Event, ApiError>;

/// Turns events into the text of an event stream.
#[derive(Debug)]
pub(crate) struct Encoder {
    shape: Shape,
    include_usage: bool,
    phase: Phase,
}

/// Where the stream is. Opening -> Open -> Closed, or from anywhere to Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first chunk was not sent.
    Opening,
    /// Text may follow.
    Open,
    /// Nothing follows.
    Closed,
}

impl Encoder {
    pub(crate) fn new(shape: Shape, include_usage: bool) -> Self {
        Self { shape, include_usage, phase: Phase::Opening }
    }

    /// Whether the last event was encoded.
    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// The text for an event; empty if it has none.
    pub(crate) fn encode(&mut self, item: &Item) -> String {
        let mut out = String::new();
        match item {
            Ok(Event::Planned { .. }) => {}
            Ok(Event::Begun) => self.open(&mut out),
            Ok(Event::Text(text)) => {
                self.open(&mut out);
                event(&mut out, &self.shape.delta(text, self.include_usage));
            }
            Ok(Event::Done(outcome)) => {
                self.open(&mut out);
                event(&mut out, &self.shape.finish(outcome, self.include_usage));
                if self.include_usage {
                    event(&mut out, &self.shape.usage(outcome.usage));
                }
                event(&mut out, "[DONE]");
                self.phase = Phase::Closed;
            }
            // No [DONE]: a client must be able to tell a broken answer from a short one.
            Err(error) => {
                event(&mut out, &error.body().to_string());
                self.phase = Phase::Closed;
            }
        }
        out
    }

    fn open(&mut self, out: &mut String) {
        if self.phase == Phase::Opening {
            if let Some(first) = self.shape.first(self.include_usage) {
                event(out, &first);
            }
            self.phase = Phase::Open;
        }
    }
}

fn event(out: &mut String, data: &str) {
    out.push_str("data: ");
    out.push_str(data);
    out.push_str("\n\n");
}

/// The body of a streamed answer. `first` are events that were waited for before the headers;
/// `open` counts the stream until it is dropped. Dropping the body drops `rest`, which cancels the
/// request.
pub(crate) fn body(
    encoder: Encoder,
    first: Vec<Item>,
    rest: Receiver<Item>,
    keepalive: Duration,
    open: IntGauge,
) -> Body {
    open.inc();
    let open = Open(open);
    let source = Source { encoder, first: first.into_iter(), rest, keepalive, _open: open };
    Body::from_stream(futures::stream::unfold(source, Source::next))
}

/// What the pieces of a body are made from.
struct Source {
    encoder: Encoder,
    first: std::vec::IntoIter<Item>,
    rest: Receiver<Item>,
    keepalive: Duration,
    _open: Open,
}

impl Source {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while !self.encoder.is_closed() {
            let item = match self.first.next() {
                Some(item) => item,
                None => match timeout(self.keepalive, self.rest.recv()).await {
                    Ok(Some(item)) => item,
                    // The task is gone without a last word.
                    Ok(None) => Err(ApiError::internal()),
                    Err(_) => return Some((Ok(Bytes::from_static(b": keep-alive\n\n")), self)),
                },
            };
            let text = self.encoder.encode(&item);
            if !text.is_empty() {
                return Some((Ok(Bytes::from(text)), self));
            }
        }
        None
    }
}

/// Takes a stream out of the count of open ones when it is dropped.
struct Open(IntGauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
