//! The line of requests that wait for a plan. As long as all are young they ask as they come, so
//! that a small request takes room that a large one cannot use; once the oldest has waited
//! `queue.overtake_max`, the younger ones stop asking until it is through, so that memory frees
//! up for it.
//! What it deliberately does not do: ask; and it knows the requests of this gateway only.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::api::error::{ApiError, Kind};
use crate::cluster::Setback;
use crate::config::QueueConfig;
use crate::metrics::Rejection;

#[cfg(test)]
mod tests;

/// The line. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Queue(Arc<Line>);

#[derive(Debug)]
struct Line {
    config: QueueConfig,
    /// Places for requests that were refused or held back once.
    places: Arc<Semaphore>,
    state: Mutex<State>,
    /// Tells those held back that somebody left the line.
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Who stands in line, by ticket, and since when.
    standing: BTreeMap<u64, Instant>,
    /// What the cluster last said to any of them: why those wait that it is not asked for.
    last: Option<(ApiError, Rejection)>,
}

/// A request's place in the line; dropping it leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    line: Arc<Line>,
    number: u64,
    since: Instant,
    /// Taken by the first wait: a request that is planned at once needs none.
    place: Option<OwnedSemaphorePermit>,
}

/// Why a request waits no longer.
#[derive(Debug)]
pub(crate) struct GaveUp {
    pub(crate) error: ApiError,
    pub(crate) why: Rejection,
}

impl Queue {
    pub(crate) fn new(config: QueueConfig) -> Self {
        let places = config.waiting_max.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Line {
            config,
            places: Arc::new(Semaphore::new(places)),
            state: Mutex::default(),
            left: Notify::new(),
        }))
    }

    /// Joins the line at its end; `since` is when the request came.
    pub(crate) fn join(&self, since: Instant) -> Ticket {
        let mut state = self.0.state.lock();
        let number = state.next;
        state.next += 1;
        state.standing.insert(number, since);
        Ticket { line: Arc::clone(&self.0), number, since, place: None }
    }
}

impl Line {
    /// Whether an older request than `number` has waited so long that nobody may overtake it.
    fn holds_back(&self, number: u64, now: Instant) -> bool {
        let state = self.state.lock();
        // The oldest has waited longest: if it is not aged, nobody is.
        state.standing.first_key_value().is_some_and(|(head, since)| {
            *head < number && now.duration_since(*since) >= self.config.overtake_max.duration()
        })
    }

    /// For a request that was held back to its end.
    fn held_back(&self) -> GaveUp {
        let last = self.state.lock().last.clone();
        let (error, why) = last.unwrap_or_else(|| {
            let message = "older requests wait for memory: try again later";
            (busy(message), Rejection::Capacity)
        });
        GaveUp { error, why }
    }
}

impl Ticket {
    fn until(&self) -> Instant {
        self.since + self.line.config.wait_max.duration()
    }

    /// Waits until this request may ask for a plan.
    pub(crate) async fn turn(&mut self) -> Result<(), GaveUp> {
        let line = Arc::clone(&self.line);
        while line.holds_back(self.number, Instant::now()) {
            self.take_place()?;
            let mut left = std::pin::pin!(line.left.notified());
            left.as_mut().enable();
            // Who left between the look and the listening is seen by this second look.
            if !line.holds_back(self.number, Instant::now()) {
                break;
            }
            if timeout_at(self.until(), left).await.is_err() {
                return Err(line.held_back());
            }
        }
        Ok(())
    }

    /// Leaves the line because there is a plan; a setback leads back to the same place.
    pub(crate) fn planned(&self) {
        if self.line.state.lock().standing.remove(&self.number).is_some() {
            self.line.left.notify_waiters();
        }
    }

    /// Waits out a setback, if it is one that another try may overcome and there is time.
    pub(crate) async fn again(&mut self, setback: Setback) -> Result<(), GaveUp> {
        let (pause, error, why) = match setback {
            Setback::Final { error, why } => return Err(GaveUp { error, why }),
            Setback::Again { pause, error, why } => (pause, error, why),
        };
        self.return_to_line(&error, why);
        self.take_place()?;
        if Instant::now() + pause > self.until() {
            tracing::warn!(?why, error = error.message, "gave up on a plan");
            return Err(GaveUp { error, why });
        }
        sleep(pause).await;
        Ok(())
    }

    fn return_to_line(&self, error: &ApiError, why: Rejection) {
        let mut state = self.line.state.lock();
        state.standing.insert(self.number, self.since);
        state.last = Some((error.clone(), why));
    }

    fn take_place(&mut self) -> Result<(), GaveUp> {
        if self.place.is_none() {
            let place = Arc::clone(&self.line.places).try_acquire_owned();
            self.place = Some(place.map_err(|_| GaveUp {
                error: busy("too many requests wait already: try again later"),
                why: Rejection::QueueFull,
            })?);
        }
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.planned();
    }
}

fn busy(message: &str) -> ApiError {
    let kind = Kind::Busy { retry_after_s: 1 };
    ApiError::new(kind, "rate_limit_exceeded", None, message)
}
