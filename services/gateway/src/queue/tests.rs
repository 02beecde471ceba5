//! The order of the line, on paused time, in front of a cluster whose memory is a number.

use std::sync::Arc;
use std::time::Duration;

use daemon::Span;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::{GaveUp, Queue, busy};
use crate::api::error::ApiError;
use crate::cluster::Setback;
use crate::config::QueueConfig;
use crate::metrics::Rejection;

const SECOND: Duration = Duration::from_secs(1);

fn queue(waiting_max: usize) -> Queue {
    Queue::new(QueueConfig { wait_max: Span::secs(10), overtake_max: Span::secs(1), waiting_max })
}

/// Free slots, and who got some, in order.
#[derive(Clone, Default)]
struct Cluster {
    free: Arc<Mutex<u32>>,
    admitted: Arc<Mutex<Vec<String>>>,
    tasks: TaskTracker,
}

impl Cluster {
    fn with(free: u32) -> Self {
        let cluster = Self::default();
        *cluster.free.lock() = free;
        cluster
    }

    fn admit(&self, slots: u32) -> Result<(), Setback> {
        let mut free = self.free.lock();
        *free = free.checked_sub(slots).ok_or_else(|| Setback::Again {
            pause: Duration::from_millis(250),
            error: busy("full"),
            why: Rejection::Capacity,
        })?;
        Ok(())
    }

    fn admitted(&self) -> Vec<String> {
        self.admitted.lock().clone()
    }

    /// A request as `generate` runs it: it holds its slots for so long, once it has them.
    fn request(&self, queue: &Queue, name: &str, slots: u32, hold: Duration) -> Request {
        let (cluster, name) = (self.clone(), name.to_owned());
        let mut ticket = queue.join(Instant::now());
        self.tasks.spawn(async move {
            loop {
                ticket.turn().await?;
                match cluster.admit(slots) {
                    Ok(()) => break,
                    Err(setback) => ticket.again(setback).await?,
                }
            }
            ticket.planned();
            cluster.admitted.lock().push(name);
            sleep(hold).await;
            *cluster.free.lock() += slots;
            Ok(())
        })
    }
}

type Request = tokio::task::JoinHandle<Result<(), GaveUp>>;

#[tokio::test(start_paused = true)]
async fn a_large_request_is_overtaken_only_while_it_is_young_p4() {
    let (queue, cluster) = (queue(32), Cluster::with(4));
    let mut small = Vec::new();
    // Four small ones hold everything, and one more comes whenever one ends.
    for index in 0..4 {
        let hold = Duration::from_millis(400 * (index + 1));
        small.push(cluster.request(&queue, "small", 1, hold));
    }
    sleep(Duration::from_millis(1)).await;
    let large = cluster.request(&queue, "large", 4, SECOND);
    for _ in 0..20 {
        sleep(Duration::from_millis(200)).await;
        small.push(cluster.request(&queue, "small", 1, 4 * SECOND / 5));
    }
    large.await.expect("runs").expect("the large one gets in");
    let order = cluster.admitted();
    let place = order.iter().position(|name| name == "large");
    let place = place.expect("admitted");
    assert!(place > 4, "young, it is overtaken: {order:?}");
    assert!(place < 12, "aged, it is not: {order:?}");
    // With this much memory the small ones could go on for ever; none of them is lost either.
    for request in small {
        request.await.expect("runs").expect("small ones get in after it");
    }
    assert_eq!(cluster.admitted().len(), 25);
}

#[tokio::test(start_paused = true)]
async fn the_aged_go_in_the_order_they_came_p4() {
    let (queue, cluster) = (queue(32), Cluster::with(0));
    let names = ["first", "second", "third"];
    let requests = names.map(|name| cluster.request(&queue, name, 2, SECOND));
    sleep(2 * SECOND).await;
    // Room for a small one alone does not let it by.
    let small = cluster.request(&queue, "small", 1, SECOND);
    *cluster.free.lock() = 1;
    sleep(SECOND).await;
    assert!(cluster.admitted().is_empty(), "{:?}", cluster.admitted());
    *cluster.free.lock() = 2;
    for request in requests.into_iter().chain([small]) {
        request.await.expect("runs").expect("gets in");
    }
    assert_eq!(cluster.admitted(), ["first", "second", "third", "small"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_head_lets_the_others_go_p6() {
    let (queue, cluster) = (queue(32), Cluster::with(1));
    let large = cluster.request(&queue, "large", 2, SECOND);
    sleep(2 * SECOND).await;
    let small = cluster.request(&queue, "small", 1, SECOND);
    sleep(SECOND).await;
    assert!(cluster.admitted().is_empty());
    large.abort();
    small.await.expect("runs").expect("gets in");
}

#[tokio::test(start_paused = true)]
async fn every_wait_has_its_own_end_and_places_are_bounded_p4() {
    let (queue, cluster) = (queue(8), Cluster::with(1));
    let begun = Instant::now();
    let large = cluster.request(&queue, "large", 2, SECOND);
    sleep(8 * SECOND).await;
    // The head gives up at 10 s; a request held back by it goes on then.
    let small = cluster.request(&queue, "small", 1, SECOND);
    let gave_up = large.await.expect("runs").expect_err("never fits");
    assert_eq!(gave_up.why, Rejection::Capacity);
    assert!(begun.elapsed() <= 10 * SECOND);
    small.await.expect("runs").expect("gets in");

    *cluster.free.lock() = 0;
    let waiting: Vec<Request> =
        (0..9).map(|_| cluster.request(&queue, "more", 1, SECOND)).collect();
    let mut why = Vec::new();
    for request in waiting {
        why.push(request.await.expect("runs").expect_err("no room").why);
    }
    assert_eq!(why.iter().filter(|why| **why == Rejection::QueueFull).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_is_held_back_is_told_what_the_cluster_said() {
    let queue = queue(8);
    let mut old = queue.join(Instant::now());
    let missing = Setback::Again {
        pause: 9 * SECOND,
        error: ApiError::unavailable("no node"),
        why: Rejection::Unavailable,
    };
    let mut young = queue.join(Instant::now() - 8 * SECOND);
    let (_, told) = tokio::join!(old.again(missing), async {
        sleep(SECOND).await;
        young.turn().await
    });
    let told = told.expect_err("its time is over first");
    assert_eq!((told.why, told.error.status().as_u16()), (Rejection::Unavailable, 503));
}

#[tokio::test(start_paused = true)]
async fn a_planned_request_holds_nobody_back_and_keeps_its_age() {
    let queue = queue(32);
    let mut old = queue.join(Instant::now());
    let mut young = queue.join(Instant::now());
    sleep(2 * SECOND).await;
    old.planned();
    young.turn().await.expect("the old one is not in line");
    let setback = Setback::Again {
        pause: Duration::from_millis(50),
        error: busy("decode is full"),
        why: Rejection::Capacity,
    };
    old.again(setback).await.expect("there is time");
    old.turn().await.expect("the head asks at once");
    let held = tokio::time::timeout(SECOND, young.turn()).await;
    assert!(held.is_err(), "back in line it is as old as before");
}
