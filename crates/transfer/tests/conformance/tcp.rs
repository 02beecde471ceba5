//! The suite, run by the TCP transport over loopback.

use std::net::TcpListener;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use transfer::tcp::{ClientLimits, ServeLimits, Serving, TcpTransport, serve};
use transfer::{BulkAddress, Gate};

use crate::suite::{self, Make};

pub(crate) struct Loopback {
    pub(crate) serve: ServeLimits,
    pub(crate) client: ClientLimits,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Loopback {
    pub(crate) fn new() -> Self {
        Self {
            serve: ServeLimits::default(),
            client: ClientLimits::default(),
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(crate) fn serve(&self, gate: Arc<dyn Gate>) -> Serving {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        serve(listener, gate, self.serve, &self.tracker, self.stop.clone()).unwrap()
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Make for Loopback {
    type Client = TcpTransport;

    fn make(&self, gate: Arc<dyn Gate>) -> (TcpTransport, BulkAddress) {
        let serving = self.serve(gate);
        (TcpTransport::new(self.client), serving.address.into())
    }
}

macro_rules! run {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            suite::$name(&Loopback::new()).await;
        }
    )*};
}

run! {
    batches_arrive_whole_and_in_order
    case_13_refusals_are_typed_and_harmless
    p7_a_removed_slot_is_refused_not_replaced
    p7_a_write_that_lost_its_right_is_not_confirmed
    concurrent_batches_do_not_mix
    p6_a_cancelled_batch_leaves_nothing_behind
}
