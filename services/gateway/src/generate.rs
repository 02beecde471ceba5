//! One request from valid to answered: wait for a plan, start decode, pass on what it says.
//! Runs as a task of its own; when its receiver is dropped everything behind it is cancelled (P6).
//! What it deliberately does not do: HTTP.

use std::sync::Arc;
use std::time::Duration;

use daemon::{OnExit, Role};
use ids::{PolicyDigest, SessionId, Tenant, TokenId};
use parking_lot::Mutex;
use placement::{AdmitRequest, Plan};
use session::{GenerateRequest, Generation, Sampling, StreamItem};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout};

use crate::answer::{Assembler, Event, Outcome, Reason};
use crate::api::error::ApiError;
use crate::api::stream::Item;
use crate::cluster::{Answer, Cluster, Setback, refused};
use crate::config::{QueueConfig, StreamConfig};
use crate::metrics::{End, Metrics, Rejection};
use crate::queue::{GaveUp, Queue, Ticket};
use crate::text::{Encoded, ServedModel};

/// Digest of the only KV policy of this version: dense attention. A name, not a hash: it has no
/// settings that could differ.
const DENSE: PolicyDigest = PolicyDigest(*b"oasiskv/dense/1\0");

/// A valid request, encoded.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) encoded: Encoded,
    /// How tokens are drawn; the seed is set.
    pub(crate) sampling: Sampling,
    /// Most tokens to generate; with the prompt it fits the context.
    pub(crate) max_tokens: u32,
    /// Empty to go on after the model's own end.
    pub(crate) stop_tokens: Arc<[TokenId]>,
    pub(crate) stops: Vec<String>,
    pub(crate) digest_logits: bool,
    /// Counts towards the bound on requests until it is dropped.
    pub(crate) place: OwnedSemaphorePermit,
    /// When the request came.
    pub(crate) since: Instant,
}

/// Runs jobs. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Generator(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    role: Role,
    cluster: Arc<Cluster>,
    model: Arc<ServedModel>,
    metrics: Arc<Metrics>,
    queue: Queue,
    stream: StreamConfig,
    /// The numerics class that plans are likely to name; empty until a survey succeeds.
    class: Arc<Mutex<String>>,
}

/// What a generator is made of.
pub(crate) struct Ingredients {
    pub(crate) role: Role,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) queue: QueueConfig,
    pub(crate) stream: StreamConfig,
    pub(crate) class: Arc<Mutex<String>>,
}

/// How far a job came, for its last line in the metrics.
struct Progress {
    since: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    usage: session::Usage,
    planned: bool,
}

impl Generator {
    pub(crate) fn new(parts: Ingredients) -> Self {
        let Ingredients { role, cluster, model, metrics, queue, stream, class } = parts;
        let queue = Queue::new(queue);
        Self(Arc::new(Parts { role, cluster, model, metrics, queue, stream, class }))
    }

    /// Starts a job. Dropping the receiver cancels it.
    pub(crate) fn start(&self, job: Job) -> Receiver<Item> {
        let (sender, receiver) = channel(self.0.stream.buffer);
        let parts = Arc::clone(&self.0);
        self.0.role.spawn("request", OnExit::Ignore, async move {
            parts.run(job, sender).await;
        });
        receiver
    }
}

impl Parts {
    async fn run(&self, job: Job, sender: Sender<Item>) {
        let mut progress = Progress {
            since: job.since,
            first_token: None,
            last_token: None,
            usage: session::Usage::default(),
            planned: false,
        };
        progress.usage.prompt_tokens = job.encoded.len();
        let stop = self.role.stop();
        let end = tokio::select! {
            // Gone before anything else: a client that left must not get one more token computed.
            biased;
            () = sender.closed() => Ok(None),
            () = stop.cancelled() => {
                Err(ApiError::unavailable("the gateway is shutting down: try again"))
            }
            outcome = self.answer(&job, &sender, &mut progress) => outcome,
        };
        let end = match end {
            Ok(Some(Reason::Stop)) => End::Stop,
            Ok(Some(Reason::Length)) => End::Length,
            Ok(None) => End::Abort,
            Err(error) => {
                // The client may be gone or stuck; the error is for it alone.
                drop(timeout(self.stream.stall_max.duration(), sender.send(Err(error))).await);
                End::Error
            }
        };
        if progress.planned || end == End::Abort {
            let decoding = match (progress.first_token, progress.last_token) {
                (Some(first), Some(last)) => last - first,
                _ => Duration::ZERO,
            };
            self.metrics.ended(end, progress.usage, progress.since.elapsed(), decoding);
        }
        drop(job.place);
    }

    /// Answers the job; `None` if the client is gone.
    async fn answer(
        &self,
        job: &Job,
        sender: &Sender<Item>,
        progress: &mut Progress,
    ) -> Result<Option<Reason>, ApiError> {
        let Some((mut answer, first)) = self.begin(job, sender, progress).await? else {
            return Ok(None);
        };
        let _running = Gauge::up(&self.metrics.running);
        let mut text = self.model.decoder(&job.encoded);
        let mut assembler = Assembler::new(job.stops.clone(), job.encoded.len());
        let mut item = first;
        loop {
            let events = match item {
                StreamItem::Started { cached_tokens } => {
                    progress.usage.cached_tokens = cached_tokens;
                    vec![assembler.begun(cached_tokens)]
                }
                StreamItem::Token { token, .. } => {
                    self.token_came(progress);
                    // A token that ends the text is counted and is not part of it.
                    let ends = job.stop_tokens.contains(&token);
                    let piece = if ends { String::new() } else { text.push(token) };
                    assembler.token(&piece)
                }
                StreamItem::Finished { finish, ledger } => {
                    let events = assembler.finished(&text.finish(), finish, *ledger);
                    events.ok_or_else(|| {
                        ApiError::unavailable("the answer was broken off: try again")
                    })?
                }
                // Only ever the first item, which `begin` takes.
                StreamItem::Refused(_) => {
                    tracing::error!("decode refused an answer that it had begun");
                    return Err(ApiError::internal());
                }
            };
            for event in events {
                let done = match &event {
                    Event::Done(outcome) => Some(self.settle(outcome, progress)),
                    Event::Planned { .. } | Event::Begun | Event::Text(_) => None,
                };
                if !self.send(sender, event).await {
                    return Ok(None);
                }
                if done.is_some() {
                    return Ok(done);
                }
            }
            item = match answer.next(self.stream.silence_max.duration()).await {
                Ok(item) => item,
                Err(Setback::Final { error, .. } | Setback::Again { error, .. }) => {
                    tracing::warn!(error = error.message, "an answer was lost on its way");
                    return Err(error);
                }
            };
        }
    }

    /// Waits for a plan and for the first item of its answer, asking again as long as nothing was
    /// begun and there is time. `None` if the client is gone.
    async fn begin(
        &self,
        job: &Job,
        sender: &Sender<Item>,
        progress: &mut Progress,
    ) -> Result<Option<(Answer, StreamItem)>, ApiError> {
        let _waiting = Gauge::up(&self.metrics.waiting);
        let mut ticket = self.queue.join(job.since);
        loop {
            let outcome = match ticket.turn().await {
                Ok(()) => match self.attempt(job, sender, progress, &ticket).await {
                    Ok(begun) => return Ok(begun),
                    Err(setback) => ticket.again(setback).await,
                },
                Err(gave_up) => Err(gave_up),
            };
            if let Err(GaveUp { error, why }) = outcome {
                self.metrics.rejected(why);
                return Err(error);
            }
            self.metrics.replanned.inc();
        }
    }

    /// One plan and one start. A fresh session each time: what an attempt that failed may have
    /// left behind belongs to the old one and runs out.
    async fn attempt(
        &self,
        job: &Job,
        sender: &Sender<Item>,
        progress: &mut Progress,
        ticket: &Ticket,
    ) -> Result<Option<(Answer, StreamItem)>, Setback> {
        let session = SessionId(draw_u128().map_err(no_randomness)?);
        let class = self.class.lock().clone();
        let prompt = self.hashed(job, &class).await?;
        let request = AdmitRequest {
            session,
            tenant: Tenant::default(),
            model: self.model.digest(),
            prompt_tokens: job.encoded.len(),
            max_tokens: job.max_tokens,
            hashes: prompt.hashes.to_vec(),
            policy: DENSE,
        };
        let plan = self.cluster.admit(request).await?;
        ticket.planned();
        let prompt = match plan.numerics_class == class {
            true => prompt,
            // The hashes name the class; a plan in another one needs others.
            false => self.hashed(job, &plan.numerics_class).await?,
        };
        tracing::debug!(%session, decode = %plan.decode.node, prefill = %plan.prefill.node,
            "planned");
        if !progress.planned {
            progress.planned = true;
            self.metrics.planned(progress.since.elapsed());
        }
        let numerics_class = plan.numerics_class.clone();
        let mut answer = self.cluster.generate(self.request(job, plan, prompt)).await?;
        if !self.send(sender, Event::Planned { session, numerics_class }).await {
            return Ok(None);
        }
        match answer.next(self.stream.silence_max.duration()).await? {
            StreamItem::Refused(reason) => Err(refused(reason)),
            item @ (StreamItem::Started { .. }
            | StreamItem::Token { .. }
            | StreamItem::Finished { .. }) => Ok(Some((answer, item))),
        }
    }

    fn request(&self, job: &Job, plan: Plan, prompt: session::Prompt) -> GenerateRequest {
        let generation = Generation {
            sampling: job.sampling,
            max_tokens: job.max_tokens,
            stop_tokens: Arc::clone(&job.stop_tokens),
            digest_logits: job.digest_logits,
        };
        GenerateRequest { plan, prompt, generation }
    }

    /// The prompt with its block hashes in a numerics class; long ones off the runtime.
    async fn hashed(&self, job: &Job, class: &str) -> Result<session::Prompt, Setback> {
        let (model, encoded) = (Arc::clone(&self.model), job.encoded.clone());
        let class = class.to_owned();
        let hashed = tokio::task::spawn_blocking(move || model.prompt(&encoded, &class)).await;
        hashed.map_err(|error| {
            tracing::error!(%error, "hashing a prompt failed");
            Setback::Final { error: ApiError::internal(), why: Rejection::Unavailable }
        })
    }

    fn token_came(&self, progress: &mut Progress) {
        let now = Instant::now();
        match progress.last_token {
            None => self.metrics.first_token(now - progress.since),
            Some(last) => self.metrics.next_token(now - last),
        }
        progress.first_token.get_or_insert(now);
        progress.last_token = Some(now);
        progress.usage.completion_tokens += 1;
    }

    fn settle(&self, outcome: &Outcome, progress: &mut Progress) -> Reason {
        progress.usage = outcome.usage;
        outcome.reason
    }

    /// Whether the client took the event, or left room for it in time.
    async fn send(&self, sender: &Sender<Item>, event: Event) -> bool {
        match timeout(self.stream.stall_max.duration(), sender.send(Ok(event))).await {
            Ok(sent) => sent.is_ok(),
            Err(_) => {
                tracing::info!("a client stopped reading; its request is cancelled");
                false
            }
        }
    }
}

/// Counts in a gauge until it is dropped.
struct Gauge(prometheus::IntGauge);

impl Gauge {
    fn up(gauge: &prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// 128 random bits.
fn draw_u128() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_be_bytes(bytes))
}

/// A seed for a request that has none: 53 bits, which every JSON reader gives back exactly.
pub(crate) fn draw_seed() -> Result<i64, getrandom::Error> {
    Ok(i64::try_from(getrandom::u64()? >> 11).expect("53 bits fit 63"))
}

fn no_randomness(error: getrandom::Error) -> Setback {
    tracing::error!(%error, "the system gives no random numbers");
    Setback::Final { error: ApiError::internal(), why: Rejection::Unavailable }
}
