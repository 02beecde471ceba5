//! A coordinator and a decode node that follow a script and note what they see.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use ids::{ByteCount, Epoch, Incarnation, ModelDigest, NodeId, Role, Term, TokenId};
use parking_lot::Mutex;
use placement::{AdmitRequest, NodeRecord, NodeReport, NodeStatus, Plan, Refused, Target};
use proto::v1::coordinator_server::Coordinator;
use proto::v1::decode_server::Decode;
use proto::{server, v1};
use session::{Finish, GenerateRequest, Ledger, StreamItem, Usage};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

const CLASS: &str = "test-1";

/// Both peers behind one address.
pub(crate) struct Peers {
    pub(crate) address: String,
    script: Arc<Script>,
}

struct Script {
    address: String,
    model: ModelDigest,
    state: Mutex<State>,
    /// A permit per answer whose items were all taken, but for those held back.
    begun: Semaphore,
    /// A permit per answer that was cancelled.
    cancelled: Semaphore,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    refusals: VecDeque<Refused>,
    always: Option<Refused>,
    answers: VecDeque<Answer>,
    admitted: usize,
    generated: Vec<GenerateRequest>,
}

/// One scripted answer.
struct Answer {
    items: Vec<StreamItem>,
    end: End,
}

/// What follows the items.
enum End {
    /// Silence, until the client cancels.
    Never,
    /// The stream ends, whether the last item was one or not.
    Now,
    /// This item, once told so.
    Told(oneshot::Receiver<()>, StreamItem),
}

pub(crate) fn started(cached_tokens: u32) -> StreamItem {
    StreamItem::Started { cached_tokens }
}

pub(crate) fn token(id: u32) -> StreamItem {
    StreamItem::Token { token: TokenId(id), logprob: -0.5 }
}

pub(crate) fn finished(finish: Finish, prompt_tokens: u32, completion_tokens: usize) -> StreamItem {
    let completion_tokens = u32::try_from(completion_tokens).expect("a short script");
    let usage = Usage { prompt_tokens, cached_tokens: 16, completion_tokens };
    StreamItem::Finished { finish, ledger: Box::new(Ledger { usage, ..Ledger::default() }) }
}

impl Peers {
    pub(crate) async fn start(model: ModelDigest) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let script = Arc::new(Script {
            address: address.clone(),
            model,
            state: Mutex::default(),
            begun: Semaphore::new(0),
            cancelled: Semaphore::new(0),
            tasks: TaskTracker::new(),
        });
        let coordinator = server::coordinator(Scripted(Arc::clone(&script)));
        let decode = server::decode(Scripted(Arc::clone(&script)));
        let serving = tonic::transport::Server::builder()
            .add_service(coordinator)
            .add_service(decode)
            .serve_with_incoming(TcpListenerStream::new(listener));
        script.tasks.spawn(serving);
        Self { address, script }
    }

    /// The next plan is refused.
    pub(crate) fn refuses(&self, refused: Refused) {
        self.script.state.lock().refusals.push_back(refused);
    }

    /// All plans are refused, or none any more.
    pub(crate) fn always_refuses(&self, refused: Option<Refused>) {
        self.script.state.lock().always = refused;
    }

    /// The next answer has these items; if none of them is a last one it never ends.
    pub(crate) fn answers(&self, items: Vec<StreamItem>) {
        let last =
            matches!(items.last(), Some(StreamItem::Finished { .. } | StreamItem::Refused(_)));
        self.answer(items, if last { End::Now } else { End::Never });
    }

    /// The next answer has these items and then breaks off.
    pub(crate) fn answers_and_ends(&self, items: Vec<StreamItem>) {
        self.answer(items, End::Now);
    }

    /// The next answer has these items, and `last` when told.
    pub(crate) fn answers_until_told(
        &self,
        items: Vec<StreamItem>,
        last: StreamItem,
    ) -> oneshot::Sender<()> {
        let (tell, told) = oneshot::channel();
        self.answer(items, End::Told(told, last));
        tell
    }

    fn answer(&self, items: Vec<StreamItem>, end: End) {
        self.script.state.lock().answers.push_back(Answer { items, end });
    }

    /// How many plans were asked for.
    pub(crate) fn admitted(&self) -> usize {
        self.script.state.lock().admitted
    }

    /// What decode was asked for, in order.
    pub(crate) fn generated(&self) -> Vec<GenerateRequest> {
        self.script.state.lock().generated.clone()
    }

    /// Waits for an answer to have sent all its items.
    pub(crate) async fn begun(&self) {
        self.script.begun.acquire().await.expect("open").forget();
    }

    /// Waits for an answer to be cancelled.
    pub(crate) async fn cancelled(&self) {
        self.script.cancelled.acquire().await.expect("open").forget();
    }
}

struct Scripted(Arc<Script>);

impl Script {
    fn plan(&self, request: &AdmitRequest) -> Plan {
        let target = |name: &str| Target {
            node: name.parse::<NodeId>().expect("a name"),
            incarnation: Incarnation(1),
            control: self.address.clone(),
            bulk: self.address.clone(),
        };
        Plan {
            session: request.session,
            epoch: Epoch(1),
            term: Term(1),
            sequence: 1,
            tenant: request.tenant.clone(),
            model: request.model,
            policy: request.policy,
            numerics_class: CLASS.to_owned(),
            prefill: target("prefill-0"),
            decode: target("decode-0"),
            homes: Vec::new(),
            final_tokens: request.prompt_tokens + request.max_tokens,
        }
    }

    fn node(&self, name: &str, role: Role) -> NodeStatus {
        let computes = matches!(role, Role::Prefill | Role::Decode);
        let record = NodeRecord {
            id: name.parse().expect("a name"),
            role,
            incarnation: Incarnation(1),
            control: self.address.clone(),
            bulk: self.address.clone(),
            numerics_class: if computes { CLASS.to_owned() } else { String::new() },
            model: computes.then_some(self.model),
            host: "host".parse().expect("a name"),
            zone: "zone".parse().expect("a name"),
            shards: 1,
            block_bytes: ByteCount(4_096),
        };
        let report = NodeReport { accepting: true, ..NodeReport::default() };
        NodeStatus { record, report: Some(report) }
    }
}

#[tonic::async_trait]
impl Coordinator for Scripted {
    async fn admit(
        &self,
        request: Request<v1::AdmitRequest>,
    ) -> Result<Response<v1::AdmitResponse>, Status> {
        let request: AdmitRequest = request.into_inner().try_into()?;
        let mut state = self.0.state.lock();
        state.admitted += 1;
        let refused = state.refusals.pop_front().or_else(|| state.always.clone());
        let answer = match refused {
            Some(refused) => Err(refused),
            None => Ok(self.0.plan(&request)),
        };
        Ok(Response::new(answer.into()))
    }

    async fn nodes(
        &self,
        _request: Request<v1::NodesRequest>,
    ) -> Result<Response<v1::NodesResponse>, Status> {
        let nodes = vec![
            self.0.node("prefill-0", Role::Prefill),
            self.0.node("decode-0", Role::Decode),
            self.0.node("memory-0", Role::Memory),
        ];
        Ok(Response::new(nodes.into()))
    }
}

#[tonic::async_trait]
impl Decode for Scripted {
    type GenerateStream = Watched;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Watched>, Status> {
        let request: GenerateRequest = request.into_inner().try_into()?;
        let answer = {
            let mut state = self.0.state.lock();
            state.generated.push(request);
            state.answers.pop_front()
        };
        let Answer { items, end } = answer.ok_or_else(|| Status::internal("no script left"))?;
        let (sender, receiver) = mpsc::channel(1);
        let script = Arc::clone(&self.0);
        self.0.tasks.spawn(async move {
            for item in items {
                if sender.send(Ok(item.into())).await.is_err() {
                    script.cancelled.add_permits(1);
                    return;
                }
            }
            script.begun.add_permits(1);
            let last = match end {
                End::Now => return,
                End::Never => None,
                End::Told(told, last) => told.await.ok().map(|()| last),
            };
            match last {
                Some(last) => drop(sender.send(Ok(last.into())).await),
                None => {
                    sender.closed().await;
                    script.cancelled.add_permits(1);
                }
            }
        });
        Ok(Response::new(Watched(ReceiverStream::new(receiver))))
    }
}

/// The items of one answer; dropping it tells the script's task.
pub(crate) struct Watched(ReceiverStream<Result<v1::GenerateEvent, Status>>);

impl Stream for Watched {
    type Item = Result<v1::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx)
    }
}
