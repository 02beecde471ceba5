//! Drives one session: carries out what its machine says, and tells it what happened.
//!
//! All work of the session runs in tasks that end with the driver; the driver ends when the machine
//! does. Only giving back outlives it, on the role's own tracker.

use std::sync::Arc;

use daemon::OnExit;
use engine::{Admission, DecodeItem, PromptKv};
use ids::Tier;
use proto::v1;
use remote::{Grant, Reservation};
use session::{
    Effect, Ended, Event, GenerateRequest, Handover, Holder, LEASE, Owner, PrefillEvent,
    PrefillRequest, SealedBlock, StreamItem,
};
use sparse::Policy;
use tiers::Source;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tonic::Status;

use crate::load::{Loader, Order};
use crate::{Node, holders};

/// Events of one session that may wait; who has more to tell waits.
const EVENTS_MAX: usize = 64;

type Output = mpsc::Sender<Result<v1::GenerateEvent, Status>>;

pub(crate) struct Driver {
    node: Arc<Node>,
    request: Arc<GenerateRequest>,
    owner: Owner,
    tell: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    output: Output,
    /// Everything that works for the session; aborted when the driver goes.
    tasks: JoinSet<()>,
    device: Option<kv::SlotReservation>,
    loader: Option<mpsc::Sender<Order>>,
}

impl Driver {
    pub(crate) fn new(node: Arc<Node>, request: GenerateRequest, output: Output) -> Self {
        let (tell, events) = mpsc::channel(EVENTS_MAX);
        let slices = u32::try_from(node.memory.shape().slices()).unwrap_or(u32::MAX);
        let owner = Owner::new(&request, slices, node.now());
        Self {
            node,
            request: Arc::new(request),
            owner,
            tell,
            events,
            output,
            tasks: JoinSet::new(),
            device: None,
            loader: None,
        }
    }

    /// Until the session has ended.
    pub(crate) async fn run(mut self) {
        let mut next = Event::Begin;
        loop {
            // Finished ones: a long session prolongs its leases many times.
            while self.tasks.try_join_next().is_some() {}
            let effects = self.owner.on(next, self.node.now());
            for effect in effects {
                self.carry_out(effect).await;
            }
            if self.owner.is_ended() {
                return;
            }
            next = self.wait().await;
        }
    }

    /// The next thing that happens. Cancel-safe: nothing is taken before it is returned.
    async fn wait(&mut self) -> Event {
        let due = self.owner.wake_at().map(|moment| self.node.at(moment));
        let due = due.unwrap_or_else(tokio::time::Instant::now);
        tokio::select! {
            biased;
            () = self.output.closed() => Event::Cancelled,
            () = tokio::time::sleep_until(due) => Event::Tick,
            event = self.events.recv() => event.unwrap_or(Event::Cancelled),
        }
    }

    async fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Reserve { holder: Holder::Device, slices } => self.reserve_device(slices),
            Effect::Reserve { holder, slices } => self.reserve(holder, slices),
            Effect::Release(holder) => self.release(holder),
            Effect::StartPrefill { grant, home_grants } => self.start_prefill(grant, home_grants),
            Effect::Fetch(blocks) => self.fetch(blocks),
            Effect::Decode(handover) => self.decode(handover).await,
            Effect::Extend(held) => self.extend(held),
            Effect::Emit(item) => self.emit(item).await,
            Effect::End(ended) => self.end(ended).await,
        }
    }

    fn reserve(&mut self, holder: Holder, slices: u32) {
        let plan = &self.request.plan;
        let request = Reservation {
            session: plan.session,
            epoch: plan.epoch,
            tenant: plan.tenant.clone(),
            slices,
            lease: LEASE,
        };
        let (node, tell) = (Arc::clone(&self.node), self.tell.clone());
        self.tasks.spawn(async move {
            let event =
                holders::reserve(&node.channels, &holder, request, node.reserve_wait_max).await;
            drop(tell.send(event).await);
        });
    }

    fn reserve_device(&mut self, slices: u32) {
        let event = match self.node.memory.pool().try_reserve(slices) {
            Ok(reservation) => {
                self.device = Some(reservation);
                Event::Reserved(None)
            }
            Err(full) if full.wanted > full.total => {
                Event::ReserveRefused(remote::ReserveRefused::NeverFits {
                    wanted: full.wanted,
                    total: full.total,
                })
            }
            Err(full) => Event::ReserveRefused(remote::ReserveRefused::Full {
                wanted: full.wanted,
                free: full.free,
            }),
        };
        let tell = self.tell.clone();
        self.tasks.spawn(async move { drop(tell.send(event).await) });
    }

    fn release(&mut self, holder: Holder) {
        if holder == Holder::Device {
            // Loader, table, and sequence go with their tasks.
            self.tasks.abort_all();
            self.loader = None;
            self.device = None;
            return;
        }
        let (node, plan) = (Arc::clone(&self.node), &self.request.plan);
        let (session, epoch) = (plan.session, plan.epoch);
        let role = self.node.role.clone();
        role.spawn("release", OnExit::Ignore, async move {
            holders::release(&node.channels, &holder, session, epoch).await;
        });
    }

    fn extend(&mut self, held: Vec<(Holder, Grant)>) {
        for (holder, grant) in held {
            let node = Arc::clone(&self.node);
            self.tasks.spawn(async move {
                if let Err(detail) = holders::extend(&node.channels, &holder, grant).await {
                    tracing::warn!(detail, "a lease was not extended");
                }
            });
        }
    }

    fn start_prefill(&mut self, grant: Grant, home_grants: Vec<(ids::NodeId, Grant)>) {
        let sources = match self.sources(&grant, &home_grants) {
            Ok(sources) => sources,
            Err(detail) => return self.tell_later(Event::PrefillFailed { detail }),
        };
        let prompt = self.request.prompt.clone();
        if let Some(reservation) = self.device.take() {
            // Room for an order per block, so that giving one never waits.
            let (orders, inbox) = mpsc::channel(prompt.hashes.len() + 2);
            self.loader = Some(orders);
            let loader = Loader {
                fetcher: Arc::clone(&self.node.fetcher),
                memory: self.node.memory.clone(),
                prompt: prompt.clone(),
                sources,
                reservation,
                events: self.tell.clone(),
            };
            self.tasks.spawn(loader.run(inbox));
        }
        let plan = self.request.plan.clone();
        let request = PrefillRequest { plan, prompt, grant, home_grants };
        let (node, tell) = (Arc::clone(&self.node), self.tell.clone());
        self.tasks.spawn(async move {
            if let Err(detail) = follow_prefill(&node, request, &tell).await {
                drop(tell.send(Event::PrefillFailed { detail }).await);
            }
        });
    }

    /// Where the prompt's blocks can be read: the prefill host, then the homes.
    fn sources(
        &self,
        grant: &Grant,
        home_grants: &[(ids::NodeId, Grant)],
    ) -> Result<Vec<Source>, String> {
        let plan = &self.request.plan;
        let targets = plan.homes.iter().flat_map(|home| &home.nodes);
        let homes = home_grants.iter().filter_map(|(node, grant)| {
            let target = targets.clone().find(|target| target.node == *node)?;
            Some((target, Tier::Remote, grant))
        });
        std::iter::once((&plan.prefill, Tier::PrefillHost, grant))
            .chain(homes)
            .map(|(target, tier, grant)| {
                Ok(Source {
                    node: target.node.clone(),
                    tier,
                    control: self.node.channels.to(&target.control).map_err(|e| e.to_string())?,
                    bulk: format!("tcp://{}", target.bulk)
                        .parse()
                        .map_err(|error: transfer::InvalidAddress| error.to_string())?,
                    grant: grant.clone(),
                })
            })
            .collect()
    }

    fn fetch(&mut self, blocks: Vec<SealedBlock>) {
        let Some(loader) = &self.loader else { return };
        match loader.try_send(Order::Fetch(blocks)) {
            Ok(()) => {}
            // It has told why it ended, or will.
            Err(TrySendError::Closed(_)) => tracing::debug!("the loader takes no more orders"),
            // There is room for an order per block: prefill sent orders without any.
            Err(TrySendError::Full(_)) => self.tell_later(Event::FetchFailed {
                detail: "prefill announced more batches than the prompt has blocks".to_owned(),
            }),
        }
    }

    async fn decode(&mut self, handover: Box<Handover>) {
        let Some(loader) = self.loader.take() else {
            return;
        };
        let (to, table) = oneshot::channel();
        drop(loader.send(Order::Finish(to)).await);
        let Ok((table, reservation)) = table.await else {
            return self.tell_later(Event::EngineFailed { detail: "the loader ended".to_owned() });
        };
        let prompt = &self.request.prompt;
        let admission = Admission {
            kv: PromptKv::Dense { table, reservation },
            tokens: Arc::clone(&prompt.tokens),
            policy: Policy::dense(),
            last_hidden: handover.last_hidden,
            parent: prompt.hashes.last().copied().unwrap_or(prompt.root),
            generation: self.request.generation.clone(),
            probe: None,
        };
        let mut sequence = match self.node.engine.admit(admission) {
            Ok(sequence) => sequence,
            Err(error) => {
                return self.tell_later(Event::EngineFailed { detail: error.to_string() });
            }
        };
        let tell = self.tell.clone();
        self.tasks.spawn(async move {
            while let Some(item) = sequence.next().await {
                let event = match item {
                    DecodeItem::Token { token, logprob } => Event::Token { token, logprob },
                    DecodeItem::Finished { finish, sampled, elapsed, logits_digest, .. } => {
                        Event::EngineFinished { finish, sampled, elapsed, logits_digest }
                    }
                    DecodeItem::Failed { detail } => Event::EngineFailed { detail },
                };
                if tell.send(event).await.is_err() {
                    return;
                }
            }
        });
    }

    fn tell_later(&mut self, event: Event) {
        let tell = self.tell.clone();
        self.tasks.spawn(async move { drop(tell.send(event).await) });
    }

    /// Sends an item; a reader that is slow for long does not cost the session its leases.
    async fn emit(&mut self, item: StreamItem) {
        if let StreamItem::Token { .. } = item {
            self.node.metrics.tokens.inc();
        }
        let message = Ok(item.into());
        loop {
            let due = self.owner.wake_at().map(|moment| self.node.at(moment));
            let late = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                room = self.output.reserve() => {
                    // A reader that left is noticed by `wait`.
                    if let Ok(room) = room {
                        room.send(message);
                    }
                    return;
                }
                () = late => {}
            }
            for effect in self.owner.on(Event::Tick, self.node.now()) {
                if let Effect::Extend(held) = effect {
                    self.extend(held);
                }
            }
        }
    }

    async fn end(&mut self, ended: Ended) {
        let metrics = &self.node.metrics;
        match ended {
            Ended::Finished => metrics.ended("finished"),
            Ended::Refused => metrics.ended("refused"),
            Ended::Cancelled => metrics.ended("cancelled"),
            Ended::Failed { detail } => {
                metrics.ended("failed");
                let session = self.request.plan.session;
                tracing::error!(%session, detail, "a session failed");
                let status = Status::unavailable("the session failed on its way; ask again");
                drop(self.output.send(Err(status)).await);
            }
        }
    }
}

/// Turns prefill's stream into events.
async fn follow_prefill(
    node: &Node,
    request: PrefillRequest,
    tell: &mpsc::Sender<Event>,
) -> Result<(), String> {
    let address = request.plan.prefill.control.clone();
    let channel = node.channels.to(&address).map_err(|error| error.to_string())?;
    let request: v1::PrefillRequest = request.into();
    let stream = proto::client::prefill(channel).run(request).await;
    let mut stream = stream.map_err(|status| format!("{address}: {status}"))?.into_inner();
    while let Some(event) = stream.message().await.map_err(|status| status.to_string())? {
        let event = PrefillEvent::try_from(event).map_err(|invalid| invalid.to_string())?;
        let (event, last) = match event {
            PrefillEvent::Sealed(blocks) => (Event::Sealed(blocks), false),
            PrefillEvent::Handover(handover) => (Event::Handover(handover), false),
            PrefillEvent::Copied(copied) => (Event::Copied(copied), true),
        };
        if tell.send(event).await.is_err() || last {
            return Ok(());
        }
    }
    Err("the stream ended before the hand-over".to_owned())
}
