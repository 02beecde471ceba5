//! A node that keeps blocks, behind a bulk gate and the MemoryNode service, with memory that can be
//! damaged after it was verified and a gate that can be frozen.

use std::net::TcpListener;
use std::sync::Arc;

use ids::Tier;
use parking_lot::{Condvar, Mutex};
use proto::v1;
use proto::{ChannelOptions, storage};
use remote::{Denied, Grant, SliceRef};
use tiers::Source;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use transfer::tcp::{ServeLimits, serve};
use transfer::{BulkAddress, Credential, Gate, Refusal, Slab, Slot, SlotMut, SlotRef};

use crate::keeper::{AccessRefused, Keeper, PlaceRefused};
use crate::samples::{Sample, slab};

struct Shelf {
    slab: Slab,
    keeper: Mutex<Keeper>,
    /// While set, the bulk server answers nobody.
    frozen: Mutex<bool>,
    thawed: Condvar,
    /// Told when a batch runs into the frozen gate.
    stuck: Notify,
}

/// A node at work; it dies with this.
pub(crate) struct Home {
    shelf: Arc<Shelf>,
    bulk: BulkAddress,
    control: String,
    bulk_stop: CancellationToken,
    control_stop: CancellationToken,
    /// The bulk server's own runtime, so that freezing it freezes nothing else.
    bulk_runtime: Option<tokio::runtime::Runtime>,
    bulk_tasks: TaskTracker,
    control_tasks: TaskTracker,
}

impl Home {
    /// Room for so many sample blocks.
    pub(crate) async fn start(blocks: usize) -> Self {
        let slab = slab(blocks);
        let shelf = Arc::new(Shelf {
            keeper: Mutex::new(Keeper::new(slab.clone())),
            slab,
            frozen: Mutex::new(false),
            thawed: Condvar::new(),
            stuck: Notify::new(),
        });
        let (bulk_stop, control_stop) = (CancellationToken::new(), CancellationToken::new());
        let (bulk_tasks, control_tasks) = (TaskTracker::new(), TaskTracker::new());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let bulk = {
            let _inside = runtime.enter();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (gate, limits) = (Arc::clone(&shelf) as Arc<dyn Gate>, ServeLimits::default());
            serve(listener, gate, limits, &bulk_tasks, bulk_stop.clone()).unwrap()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let control = listener.local_addr().unwrap().to_string();
        let service = proto::server::memory_node(Control(Arc::clone(&shelf)));
        let serving =
            tonic::transport::Server::builder().add_service(service).serve_with_incoming_shutdown(
                TcpListenerStream::new(listener),
                control_stop.clone().cancelled_owned(),
            );
        control_tasks.spawn(serving);
        Self {
            shelf,
            bulk: bulk.address.into(),
            control,
            bulk_stop,
            control_stop,
            bulk_runtime: Some(runtime),
            bulk_tasks,
            control_tasks,
        }
    }

    /// A grant of the test's session for so many sample blocks.
    pub(crate) fn grant(&self, blocks: usize) -> Grant {
        self.shelf.keeper.lock().grant(blocks)
    }

    pub(crate) fn source(&self, name: &str, tier: Tier, grant: &Grant) -> Source {
        Source {
            node: name.parse().unwrap(),
            tier,
            control: proto::channel(&self.control, &ChannelOptions::default()).unwrap(),
            bulk: self.bulk.clone(),
            grant: grant.clone(),
        }
    }

    /// Keeps a block; where it lies. With `flip`, one bit of that slice rotted since.
    pub(crate) fn keep(
        &self,
        grant: &Grant,
        sample: &Sample,
        flip: Option<usize>,
    ) -> Arc<[SliceRef]> {
        let mut slots = sample.slots(&self.shelf.slab);
        if let Some(slice) = flip {
            slots[slice][1234] ^= 0x10;
        }
        let mut keeper = self.shelf.keeper.lock();
        keeper.keep(grant, sample.receipt.clone(), slots);
        let located = keeper.locate(grant, &[sample.receipt.key]).unwrap();
        Arc::clone(&located.found[0].slices)
    }

    pub(crate) fn keep_all(&self, grant: &Grant, samples: &[Sample]) -> Vec<Arc<[SliceRef]>> {
        let keep = |sample| self.keep(grant, sample, None);
        samples.iter().map(keep).collect()
    }

    /// Whether a block can be read here.
    pub(crate) fn has(&self, grant: &Grant, sample: &Sample) -> bool {
        let mut keeper = self.shelf.keeper.lock();
        let located = keeper.locate(grant, &[sample.receipt.key]).unwrap();
        located.missing.is_empty()
    }

    pub(crate) fn release(&self) {
        self.shelf.keeper.lock().release();
    }

    /// Slots that wait for bytes.
    pub(crate) fn landing(&self) -> usize {
        self.shelf.keeper.lock().landing()
    }

    /// Sample blocks that are kept, readable or as cache.
    pub(crate) fn kept(&self) -> usize {
        self.shelf.keeper.lock().kept()
    }

    /// From now on the bulk server takes requests and never answers.
    pub(crate) fn freeze(&self) {
        *self.shelf.frozen.lock() = true;
    }

    /// Until a batch is stuck in the frozen gate.
    pub(crate) async fn stuck(&self) {
        self.shelf.stuck.notified().await;
    }

    /// Ends the bulk server; its port is closed when this returns.
    pub(crate) async fn kill_bulk(&self) {
        self.bulk_stop.cancel();
        self.bulk_tasks.close();
        self.bulk_tasks.wait().await;
    }

    /// Ends the gRPC server; its port is closed when this returns.
    pub(crate) async fn kill_control(&self) {
        self.control_stop.cancel();
        self.control_tasks.close();
        self.control_tasks.wait().await;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        *self.shelf.frozen.lock() = false;
        self.shelf.thawed.notify_all();
        self.bulk_stop.cancel();
        self.control_stop.cancel();
        if let Some(runtime) = self.bulk_runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shelf {
    fn wait_while_frozen(&self) {
        let mut frozen = self.frozen.lock();
        if *frozen {
            self.stuck.notify_one();
        }
        while *frozen {
            self.thawed.wait(&mut frozen);
        }
    }
}

impl Gate for Shelf {
    fn open_read(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<Slot>, Refusal> {
        self.wait_while_frozen();
        let opened = self.keeper.lock().open_read(&grant(auth), &places(refs));
        opened.map_err(refusal)
    }

    fn open_write(&self, auth: &Credential, refs: &[SlotRef]) -> Result<Vec<SlotMut>, Refusal> {
        self.wait_while_frozen();
        let opened = self.keeper.lock().open_write(&grant(auth), &places(refs));
        opened.map_err(refusal)
    }

    fn landed(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>) -> Result<(), Refusal> {
        let place = |(at, slot)| (places(&[at])[0], slot);
        let slots = slots.into_iter().map(place).collect();
        let landed = self.keeper.lock().landed(&grant(auth), slots);
        landed.map_err(|why| refusal(AccessRefused::Denied(why)))
    }

    fn aborted(&self, auth: &Credential, slots: Vec<(SlotRef, SlotMut)>) {
        let refs: Vec<SlotRef> = slots.into_iter().map(|(at, _)| at).collect();
        self.keeper.lock().aborted(&grant(auth), &places(&refs));
    }
}

fn grant(auth: &Credential) -> Grant {
    Grant { session: auth.session, epoch: auth.epoch, secret: auth.secret }
}

fn places(refs: &[SlotRef]) -> Vec<SliceRef> {
    let place = |at: &SlotRef| SliceRef { slot: at.slot, generation: at.generation };
    refs.iter().map(place).collect()
}

fn refusal(refused: AccessRefused) -> Refusal {
    match refused {
        AccessRefused::Denied(Denied::NoSession | Denied::WrongSecret) => Refusal::NoGrant,
        AccessRefused::Denied(Denied::StaleEpoch) => Refusal::StaleEpoch,
        AccessRefused::Denied(Denied::Expired) => Refusal::Expired,
        AccessRefused::NotYours(slot) => Refusal::NotYours(slot),
        AccessRefused::Stale(slot) => Refusal::StaleGeneration(slot),
    }
}

struct Control(Arc<Shelf>);

fn status(refused: PlaceRefused) -> Status {
    match refused {
        PlaceRefused::Denied(why) => Status::failed_precondition(why.to_string()),
        PlaceRefused::OverReservation => Status::resource_exhausted("reserve more"),
    }
}

#[tonic::async_trait]
impl v1::memory_node_server::MemoryNode for Control {
    async fn place(
        &self,
        request: Request<v1::PlaceRequest>,
    ) -> Result<Response<v1::PlaceResponse>, Status> {
        let storage::Place { grant, receipts } = request.into_inner().try_into()?;
        let placed = self.0.keeper.lock().place(&grant, receipts);
        Ok(Response::new(placed.map_err(status)?.into()))
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let storage::Commit { grant, keys } = request.into_inner().try_into()?;
        let committed = self.0.keeper.lock().commit(&grant, &keys);
        Ok(Response::new(committed.map_err(|why| status(why.into()))?.into()))
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        let storage::Locate { grant, keys } = request.into_inner().try_into()?;
        let located = self.0.keeper.lock().locate(&grant, &keys);
        Ok(Response::new(located.map_err(|why| status(why.into()))?.into()))
    }
}
