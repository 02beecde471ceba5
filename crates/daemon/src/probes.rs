//! What a process answers when it is asked how it is: started, ready (named conditions), alive
//! (heartbeats that prove forward progress). What it deliberately does not do: speak HTTP (see
//! `admin`), or read a clock to judge: the time is a parameter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

/// How one role is. Clones are the same.
#[derive(Debug, Clone)]
pub struct Probes {
    /// The role, as in `gateway`.
    pub role: String,
    /// Whether it may get work.
    pub readiness: Readiness,
    /// Whether it gets on with the work it has.
    pub liveness: Liveness,
}

impl Probes {
    /// Probes of a role that has not started.
    #[must_use]
    pub fn new(role: &str) -> Self {
        Self {
            role: role.to_owned(),
            readiness: Readiness::default(),
            liveness: Liveness::default(),
        }
    }
}

/// Named conditions that must all hold before a role may get work. Two are built in: `start`
/// fails until [`Readiness::started`], `drain` fails from [`Readiness::drain`] on.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Debug, Default)]
struct ReadinessState {
    /// Set once, when everything is built and bound.
    started: bool,
    /// Set once, when the drain begins.
    draining: bool,
    /// In order of registration: name, and why it fails (`None` while it holds).
    conditions: Vec<(String, Option<String>)>,
}

/// A condition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Its name.
    pub condition: String,
    /// Why it does not hold.
    pub reason: String,
}

impl Readiness {
    /// Adds a condition; it fails until [`Condition::hold`].
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        let mut state = self.0.lock();
        state.conditions.push((name.to_owned(), Some("not yet".to_owned())));
        Condition { readiness: self.clone(), index: state.conditions.len() - 1 }
    }

    /// Everything is built and bound, all conditions are registered.
    pub fn started(&self) {
        self.0.lock().started = true;
    }

    /// The role gets no more work; there is no way back.
    pub fn drain(&self) {
        self.0.lock().draining = true;
    }

    /// Whether the start is over.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.0.lock().started
    }

    /// What keeps the role from being ready; empty when it is.
    #[must_use]
    pub fn failed(&self) -> Vec<Failed> {
        let state = self.0.lock();
        let built_in =
            [(!state.started, "start", "not finished"), (state.draining, "drain", "shutting down")];
        let built_in = built_in.into_iter().filter(|(fails, ..)| *fails);
        let built_in = built_in.map(|(_, name, reason)| (name.to_owned(), reason.to_owned()));
        let named = state
            .conditions
            .iter()
            .filter_map(|(name, reason)| Some((name.clone(), reason.clone()?)));
        let all = built_in.chain(named);
        all.map(|(condition, reason)| Failed { condition, reason }).collect()
    }
}

/// One named condition of a [`Readiness`].
#[derive(Debug, Clone)]
pub struct Condition {
    readiness: Readiness,
    /// Its place in the list.
    index: usize,
}

impl Condition {
    /// It holds from now on.
    pub fn hold(&self) {
        self.readiness.0.lock().conditions[self.index].1 = None;
    }

    /// It fails from now on, for this reason.
    pub fn fail(&self, reason: impl Into<String>) {
        self.readiness.0.lock().conditions[self.index].1 = Some(reason.into());
    }
}

/// The heartbeats of a role.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Mutex<Vec<Heartbeat>>>);

/// A loop that has work and does not get on with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stalled {
    /// The loop's name.
    pub heartbeat: String,
    /// How much work waits.
    pub queued: u64,
    /// How long ago it last got on, in milliseconds.
    pub silent_ms: u64,
}

impl Liveness {
    /// Adds a loop: it is stalled when work is queued and it has not beaten for longer than
    /// `patience`.
    #[must_use]
    pub fn heartbeat(&self, name: &str, patience: Duration) -> Heartbeat {
        let beat = Beat {
            name: name.to_owned(),
            patience,
            origin: Instant::now(),
            progress_ms: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        };
        let heartbeat = Heartbeat(Arc::new(beat));
        self.0.lock().push(heartbeat.clone());
        heartbeat
    }

    /// The loops that are stalled at `now`; the role is alive while there are none.
    #[must_use]
    pub fn stalled(&self, now: Instant) -> Vec<Stalled> {
        self.0.lock().iter().filter_map(|heartbeat| heartbeat.stalled(now)).collect()
    }
}

/// The sign of life of one loop. Cheap enough for every step: one clock read and one atomic.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<Beat>);

#[derive(Debug)]
struct Beat {
    name: String,
    patience: Duration,
    /// The zero of `progress_ms`.
    origin: Instant,
    /// When the loop last got on, or was last idle; written by `beat` and `queued`, only upwards.
    progress_ms: AtomicU64,
    /// How much work waits; written by whoever queues.
    queued: AtomicU64,
}

impl Heartbeat {
    /// The loop finished a step.
    pub fn beat(&self) {
        self.progress(Instant::now());
    }

    /// So much work waits now. From nothing to something the patience starts afresh, so that an
    /// idle hour is not a stall.
    pub fn queued(&self, count: u64) {
        if self.0.queued.load(Ordering::Acquire) == 0 && count > 0 {
            self.progress(Instant::now());
        }
        self.0.queued.store(count, Ordering::Release);
    }

    fn progress(&self, now: Instant) {
        self.0.progress_ms.fetch_max(self.millis(now), Ordering::AcqRel);
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.0.origin).as_millis()).unwrap_or(u64::MAX)
    }

    fn stalled(&self, now: Instant) -> Option<Stalled> {
        let queued = self.0.queued.load(Ordering::Acquire);
        let silent_ms = self.millis(now).saturating_sub(self.0.progress_ms.load(Ordering::Acquire));
        let late = u128::from(silent_ms) > self.0.patience.as_millis();
        (queued > 0 && late).then(|| Stalled { heartbeat: self.0.name.clone(), queued, silent_ms })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::{Liveness, Readiness};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn names(readiness: &Readiness) -> Vec<String> {
        readiness.failed().into_iter().map(|failed| failed.condition).collect()
    }

    #[test]
    fn ready_means_started_all_conditions_and_not_draining() {
        let readiness = Readiness::default();
        let (model, members) = (readiness.condition("model"), readiness.condition("membership"));
        assert_eq!(names(&readiness), ["start", "model", "membership"]);
        readiness.started();
        model.hold();
        members.fail("no coordinator answers");
        assert_eq!(readiness.failed()[0].reason, "no coordinator answers");
        members.hold();
        assert_eq!(names(&readiness), [""; 0]);
        assert!(readiness.is_started());
        model.fail("unloaded");
        readiness.drain();
        assert_eq!(names(&readiness), ["drain", "model"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_stalled_only_with_work_and_without_steps() {
        let liveness = Liveness::default();
        let step = liveness.heartbeat("step loop", PATIENCE);
        advance(PATIENCE * 100).await;
        assert_eq!(liveness.stalled(Instant::now()), [], "idle is alive");

        step.queued(3);
        advance(PATIENCE).await;
        assert_eq!(liveness.stalled(Instant::now()), [], "patience starts when work comes");
        advance(Duration::from_millis(1)).await;
        let stalled = liveness.stalled(Instant::now());
        assert_eq!(stalled.len(), 1);
        assert_eq!((stalled[0].queued, stalled[0].silent_ms), (3, 10_001));

        step.beat();
        assert_eq!(liveness.stalled(Instant::now()), [], "a step proves progress");
        advance(PATIENCE).await;
        step.queued(5);
        advance(Duration::from_millis(1)).await;
        assert_eq!(liveness.stalled(Instant::now()).len(), 1, "more work is no progress");
        step.queued(0);
        assert_eq!(liveness.stalled(Instant::now()), [], "nothing left to do");
    }
}
