//! A registry to test, in memory or behind a gRPC server that can be restarted.

use std::future::Future;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use ids::{ByteCount, Incarnation, Role};
use membership::{LeaseId, Membership, Registry, RegistryConfig, Remote, Service};
use parking_lot::Mutex;
use placement::NodeRecord;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};

pub(crate) const NODES_MAX: usize = 4;

/// Where a connector finds the server of the day.
type Listener = Arc<Mutex<mpsc::Sender<DuplexStream>>>;

pub(crate) struct Fixture {
    membership: Membership,
    registry: Registry,
    /// Only with a server.
    listener: Option<Listener>,
    stop: CancellationToken,
    starts: u64,
    /// Aborted when dropped.
    tasks: JoinSet<()>,
}

impl Fixture {
    pub(crate) fn memory() -> Self {
        let mut tasks = JoinSet::new();
        let registry = registry(1);
        tasks.spawn(registry.clone().expire());
        Self {
            membership: Membership::Memory(registry.clone()),
            registry,
            listener: None,
            stop: CancellationToken::new(),
            starts: 1,
            tasks,
        }
    }

    pub(crate) fn remote() -> Self {
        let mut fixture = Self::memory();
        let listener: Listener = Arc::new(Mutex::new(mpsc::channel(1).0));
        let connect = Arc::clone(&listener);
        let connector = tower::service_fn(move |_| {
            let server = connect.lock().clone();
            async move {
                let (near, far) = tokio::io::duplex(64 << 10);
                let refused = |_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                server.send(far).await.map_err(refused)?;
                Ok::<_, std::io::Error>(TokioIo::new(near))
            }
        });
        let channel =
            Endpoint::from_static("http://registry").connect_with_connector_lazy(connector);
        fixture.membership = Membership::Remote(Remote::new(channel));
        fixture.listener = Some(listener);
        fixture.serve();
        fixture
    }

    pub(crate) fn membership(&self) -> Membership {
        self.membership.clone()
    }

    pub(crate) fn spawn<T>(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.tasks.spawn(async move { drop(task.await) });
    }

    /// The server ends and a new one, which knows nobody, takes its place.
    pub(crate) fn restart(&mut self) {
        self.registry.close();
        self.stop.cancel();
        self.starts += 1;
        self.registry = registry(self.starts);
        self.stop = CancellationToken::new();
        self.tasks.spawn(self.registry.clone().expire());
        self.serve();
    }

    fn serve(&mut self) {
        let (tx, rx) = mpsc::channel(8);
        let listener = self.listener.as_ref().expect("a fixture with a server");
        *listener.lock() = tx;
        let server = Server::builder()
            .add_service(Service::serve(self.registry.clone()))
            .serve_with_incoming_shutdown(
                ReceiverStream::new(rx).map(Ok::<_, std::io::Error>),
                self.stop.clone().cancelled_owned(),
            );
        self.spawn(server);
    }
}

fn registry(start: u64) -> Registry {
    let config = RegistryConfig { nodes_max: NODES_MAX, ..RegistryConfig::default() };
    Registry::new(config, LeaseId(start << 32))
}

pub(crate) fn record(name: &str, incarnation: u64) -> NodeRecord {
    NodeRecord {
        id: name.parse().expect("a DNS label"),
        role: Role::Memory,
        incarnation: Incarnation(incarnation),
        control: "127.0.0.1:7000".into(),
        bulk: "127.0.0.1:7001".into(),
        numerics_class: String::new(),
        model: None,
        host: "host-0".parse().expect("a DNS label"),
        zone: "zone-0".parse().expect("a DNS label"),
        shards: 1,
        block_bytes: ByteCount(0),
    }
}
