//! From start to exit: the process ([`Daemon`]), the roles that live in it ([`Role`]), their tasks,
//! and the drain that ends them in order. Nothing is global: six roles fit in one process.
//! What it deliberately does not do: restart anything; what must not end takes the process along.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::Registry;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::probes::{Heartbeat, Probes, Readiness};
use crate::units::Span;
use backstage::Backstage;

mod backstage;
mod interrupt;
#[cfg(test)]
mod tests;

pub use interrupt::Interrupt;

/// How long an orderly end may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainConfig {
    /// What all roles together get to finish what they have begun.
    pub grace: Span,
    /// What a step of the drain still gets when the grace is used up: enough to give back a lease.
    pub flush: Span,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self { grace: Span::secs(30), flush: Span::secs(1) }
    }
}

/// Why the process ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// A signal asked for it.
    Signal(&'static str),
    /// The program's work is done.
    Finished,
    /// Something that must not end has ended.
    Failed(String),
}

/// What follows when a task ends before the drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// Nothing: the task may end whenever it is done.
    Ignore,
    /// The process drains and ends as failed: without this task the role is not what it claims.
    Shutdown,
}

/// What a task leaves behind: nothing, or perhaps an error that is logged.
pub trait TaskOutput: Send + 'static {
    /// The error as text.
    fn failure(self) -> Option<String>;
}

impl TaskOutput for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Display + Send + 'static> TaskOutput for Result<(), E> {
    fn failure(self) -> Option<String> {
        // The alternate form of anyhow's errors has their causes.
        self.err().map(|error| format!("{error:#}"))
    }
}

/// The moment at which the end begins, and why; shared by the process and its roles.
#[derive(Debug, Clone, Default)]
struct End {
    begun: CancellationToken,
    why: Arc<OnceLock<Ending>>,
}

impl End {
    /// The first reason stands.
    fn begin(&self, ending: Ending) {
        // A failure is told in full by whoever ends the process.
        let why = match &ending {
            Ending::Signal(name) => *name,
            Ending::Finished => "finished",
            Ending::Failed(_) => "failed",
        };
        if self.why.set(ending).is_ok() {
            tracing::info!(why, "the process drains and ends");
        }
        self.begun.cancel();
    }
}

/// The process. Clones are the same process.
#[derive(Debug, Clone)]
pub struct Daemon(Arc<Process>);

#[derive(Debug)]
struct Process {
    drain: DrainConfig,
    end: End,
    /// In order of creation; drained from the last to the first.
    roles: Mutex<Vec<Role>>,
    /// The thread of signals and admin endpoints; started by the first that needs it.
    backstage: Arc<OnceLock<Backstage>>,
    /// Who gets the next SIGINT, where that is not the end of the process.
    interrupts: interrupt::Slot,
}

/// How an orderly end went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// Why it began.
    pub ending: Ending,
    /// Steps and tasks (`role: name`) that did not end in their time and were cut off.
    pub overran: Vec<String>,
}

impl Daemon {
    /// A process without roles.
    #[must_use]
    pub fn new(drain: DrainConfig) -> Self {
        let (end, roles) = (End::default(), Mutex::default());
        let (backstage, interrupts) = (Arc::default(), interrupt::Slot::default());
        Self(Arc::new(Process { drain, end, roles, backstage, interrupts }))
    }

    /// Adds a role. Roles drain in the reverse order of their creation, so create first what
    /// others need.
    #[must_use]
    pub fn role(&self, name: &str) -> Role {
        let role = Role(Arc::new(Part {
            probes: Probes::new(name),
            end: self.0.end.clone(),
            draining: CancellationToken::new(),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            live: Mutex::default(),
            hooks: Mutex::default(),
            backstage: Arc::clone(&self.0.backstage),
        }));
        self.0.roles.lock().push(role.clone());
        role
    }

    /// The probes of all roles so far, for one endpoint that speaks for the whole process.
    #[must_use]
    pub fn probes(&self) -> Vec<Probes> {
        self.0.roles.lock().iter().map(|role| role.0.probes.clone()).collect()
    }

    /// Begins the end; the first reason stands.
    pub fn end(&self, ending: Ending) {
        self.0.end.begin(ending);
    }

    /// Waits until something begins the end.
    pub async fn ended(&self) {
        self.0.end.begun.cancelled().await;
    }

    /// Whether the end has begun, for work that blocks and must look.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.0.end.begun.is_cancelled()
    }

    /// Lets SIGTERM and SIGINT begin the end; a second signal exits at once, with 128 plus its
    /// number. One caller per process.
    ///
    /// # Errors
    /// What the system says when the thread or the handlers cannot be had.
    pub fn watch_signals(&self) -> Result<(), io::Error> {
        let (end, interrupts) = (self.0.end.clone(), self.0.interrupts.clone());
        let used_up = move |name| name == "SIGINT" && interrupts.take();
        Backstage::of(&self.0.backstage)?.watch_signals(used_up, move |name| {
            end.begin(Ending::Signal(name));
        })
    }

    /// Takes the next SIGINT for work that a user may stop without ending the process. One holder
    /// at a time: a later one takes over.
    pub fn catch_interrupt(&self) -> Interrupt {
        self.0.interrupts.catch()
    }

    /// Waits for the end to begin, then drains: every role not ready; then role by role, from the
    /// last created to the first: its `draining` token, its hooks in the order they were added,
    /// its `stop` token, its tasks.
    pub async fn finish(&self) -> Drained {
        self.ended().await;
        let roles: Vec<Role> = self.0.roles.lock().iter().rev().cloned().collect();
        for role in &roles {
            role.0.probes.readiness.drain();
        }
        let deadline = Instant::now() + self.0.drain.grace.duration();
        let flush = self.0.drain.flush.duration();
        let mut overran = Vec::new();
        for role in &roles {
            role.drain(deadline, flush, &mut overran).await;
        }
        for name in &overran {
            tracing::warn!(name, "did not end within its time and was cut off");
        }
        let ending = self.0.end.why.get().cloned().unwrap_or(Ending::Finished);
        Drained { ending, overran }
    }
}

/// One role of the process, as in `gateway`. Clones are the same role.
#[derive(Debug, Clone)]
pub struct Role(Arc<Part>);

struct Part {
    probes: Probes,
    end: End,
    /// Cancelled when this role's drain begins: refuse what is new.
    draining: CancellationToken,
    /// Cancelled after the hooks: stop at once.
    stop: CancellationToken,
    tracker: TaskTracker,
    /// How many tasks of each name run; for naming those that do not end.
    live: Mutex<BTreeMap<&'static str, usize>>,
    /// In the order they were added; taken by the drain.
    hooks: Mutex<Vec<Hook>>,
    backstage: Arc<OnceLock<Backstage>>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Role").field("name", &self.probes.role).finish_non_exhaustive()
    }
}

struct Hook {
    name: &'static str,
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Counts a task as running until it is dropped.
struct Running {
    role: Role,
    name: &'static str,
}

impl Role {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.probes.role
    }

    /// Its probes, for a router of one role.
    #[must_use]
    pub fn probes(&self) -> Probes {
        self.0.probes.clone()
    }

    /// Its conditions for getting work.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.0.probes.readiness
    }

    /// Adds a loop to its liveness.
    #[must_use]
    pub fn heartbeat(&self, name: &str, patience: Duration) -> Heartbeat {
        self.0.probes.liveness.heartbeat(name, patience)
    }

    /// Cancelled when this role's drain begins: take no new work.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.0.draining.clone()
    }

    /// Cancelled after this role's drain hooks: end now.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.0.stop.clone()
    }

    /// Begins the end of the whole process; the first reason stands.
    pub fn end(&self, ending: Ending) {
        self.0.end.begin(ending);
    }

    /// Adds a step to the drain, run after those added before. The future is first polled then.
    pub fn on_drain(&self, name: &'static str, step: impl Future<Output = ()> + Send + 'static) {
        self.0.hooks.lock().push(Hook { name, run: Box::pin(step) });
    }

    /// Starts a task that the drain waits for. Inside a runtime only. An error is logged, with
    /// the task's name; what else its end means, `on_exit` says.
    pub fn spawn<F>(&self, name: &'static str, on_exit: OnExit, task: F)
    where
        F: Future<Output: TaskOutput> + Send + 'static,
    {
        let running = self.running(name);
        let span = tracing::info_span!("task", role = self.name(), name);
        let task = async move {
            let failure = task.await.failure();
            running.finished(on_exit, failure);
        };
        self.0.tracker.spawn(task.instrument(span));
    }

    /// Starts a thread that the drain waits for, for work that would block a runtime.
    ///
    /// # Errors
    /// What the system says when no thread can be had.
    pub fn spawn_thread<T: TaskOutput>(
        &self,
        name: &'static str,
        on_exit: OnExit,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(), io::Error> {
        let running = self.running(name);
        let counted = self.0.tracker.token();
        let span = tracing::info_span!("thread", role = self.name(), name);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let entered = span.entered();
            let failure = body().failure();
            running.finished(on_exit, failure);
            drop((entered, counted));
        })?;
        Ok(())
    }

    /// Serves the admin endpoint of this role, on the process's own thread for that.
    ///
    /// # Errors
    /// What the system says when the thread cannot be had or the socket not watched.
    pub fn serve_admin(
        &self,
        listener: std::net::TcpListener,
        connections_max: usize,
        registries: Vec<Registry>,
    ) -> Result<SocketAddr, io::Error> {
        let router = crate::admin::router(vec![self.probes()], registries);
        Backstage::of(&self.0.backstage)?.serve(listener, connections_max, router)
    }

    fn running(&self, name: &'static str) -> Running {
        *self.0.live.lock().entry(name).or_insert(0) += 1;
        Running { role: self.clone(), name }
    }

    async fn drain(&self, deadline: Instant, flush: Duration, overran: &mut Vec<String>) {
        self.0.draining.cancel();
        let hooks = std::mem::take(&mut *self.0.hooks.lock());
        for Hook { name, run } in hooks {
            let until = deadline.max(Instant::now() + flush);
            if timeout_at(until, run).await.is_err() {
                overran.push(format!("{}: {name}", self.name()));
            }
        }
        self.0.stop.cancel();
        self.0.tracker.close();
        if timeout(flush, self.0.tracker.wait()).await.is_err() {
            let live = self.0.live.lock();
            overran.extend(live.keys().map(|name| format!("{}: {name}", self.name())));
        }
    }
}

impl Running {
    fn finished(self, on_exit: OnExit, failure: Option<String>) {
        let ending = self.role.0.end.begun.is_cancelled();
        match (&failure, ending) {
            (Some(error), false) => tracing::error!(error, "a task failed"),
            (Some(error), true) => tracing::debug!(error, "a task failed while draining"),
            (None, _) => {}
        }
        if on_exit == OnExit::Shutdown && !ending {
            let why = failure.unwrap_or_else(|| "it just ended".to_owned());
            let failed = format!("{}: {} ended: {why}", self.role.name(), self.name);
            self.role.end(Ending::Failed(failed));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut live = self.role.0.live.lock();
        if let Some(count) = live.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                live.remove(self.name);
            }
        }
    }
}
