//! Which peers a reader leaves alone for a while after they failed it.
//!
//! ```text
//!            failed                         until is reached
//!  (trusted) ------> held, span = min .. max ---------------> on probation --worked--> (trusted)
//!                     ^                                            |
//!                     +------------ failed, span doubles ----------+
//! ```
//! Local to one reader. Held peers are asked last, never not at all: the last copy is always
//! tried. A core: time is a parameter.

use std::collections::BTreeMap;

use ids::{Moment, NodeId, Span};
use proto::limits::NODES_MAX;

/// Peers that failed lately; at most as many as a cluster has nodes.
#[derive(Debug)]
pub(crate) struct Quarantine {
    /// After a first failure.
    span_min: Span,
    /// However often it failed.
    span_max: Span,
    held: BTreeMap<NodeId, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// When the last failure that counted was noted. What began earlier fails of the same trouble.
    since: Moment,
    /// `since + span`.
    until: Moment,
    span: Span,
}

impl Quarantine {
    pub(crate) fn new(span_min: Span, span_max: Span) -> Self {
        Self { span_min, span_max, held: BTreeMap::new() }
    }

    pub(crate) fn is_held(&self, node: &NodeId, now: Moment) -> bool {
        self.held.get(node).is_some_and(|held| now < held.until)
    }

    /// Notes that what `began` then has failed now.
    pub(crate) fn failed(&mut self, node: &NodeId, began: Moment, now: Moment) {
        let span = match self.held.get(node) {
            Some(held) if began < held.since => return,
            Some(held) if now < held.until + self.span_max => {
                Span(held.span.0.saturating_mul(2)).min(self.span_max)
            }
            Some(_) | None => self.span_min,
        };
        if self.held.len() >= NODES_MAX && !self.held.contains_key(node) {
            self.held.retain(|_, held| now < held.until);
            if self.held.len() >= NODES_MAX {
                return;
            }
        }
        let (since, until) = (now, now + span);
        self.held.insert(node.clone(), Held { since, until, span });
    }

    /// Notes that what `began` then went well: trusted again, unless it failed since.
    pub(crate) fn worked(&mut self, node: &NodeId, began: Moment) {
        if self.held.get(node).is_some_and(|held| held.since <= began) {
            self.held.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use ids::{Moment, NodeId, Span};

    use super::Quarantine;

    fn ms(at: u64) -> Moment {
        Moment(0) + Span::from_millis(at)
    }

    fn fresh() -> (Quarantine, NodeId) {
        let quarantine = Quarantine::new(Span::from_millis(100), Span::from_secs(5));
        (quarantine, "m0".parse().unwrap())
    }

    #[test]
    fn quarantine_doubles_from_100_ms_to_5_s() {
        let (mut quarantine, node) = fresh();
        let mut now = 0;
        for span in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            quarantine.failed(&node, ms(now), ms(now));
            assert!(quarantine.is_held(&node, ms(now + span - 1)));
            now += span;
            assert!(!quarantine.is_held(&node, ms(now)), "{span}");
        }
    }

    #[test]
    fn batches_that_fail_together_count_once() {
        let (mut quarantine, node) = fresh();
        for _ in 0..4 {
            quarantine.failed(&node, ms(0), ms(2000));
        }
        assert!(!quarantine.is_held(&node, ms(2100)));
    }

    #[test]
    fn a_success_that_began_after_the_failure_restores_trust_and_an_older_one_does_not() {
        let (mut quarantine, node) = fresh();
        quarantine.failed(&node, ms(0), ms(10));
        quarantine.worked(&node, ms(5));
        assert!(quarantine.is_held(&node, ms(50)));
        quarantine.worked(&node, ms(20));
        assert!(!quarantine.is_held(&node, ms(50)));
    }

    #[test]
    fn an_old_failure_does_not_lengthen_a_new_one() {
        let (mut quarantine, node) = fresh();
        quarantine.failed(&node, ms(0), ms(0));
        quarantine.failed(&node, ms(60_000), ms(60_000));
        assert!(!quarantine.is_held(&node, ms(60_100)));
    }
}
