//! The order of a drain, what cuts it short, and what begins it; on paused time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Daemon, DrainConfig, Ending, OnExit};
use crate::units::Span;

type Log = Arc<Mutex<Vec<String>>>;

const CONFIG: DrainConfig = DrainConfig { grace: Span::secs(10), flush: Span::secs(1) };

fn note(log: &Log, what: &str) {
    log.lock().push(what.to_owned());
}

#[tokio::test(start_paused = true)]
async fn roles_drain_last_first_and_hooks_run_in_order() {
    let (daemon, log) = (Daemon::new(CONFIG), Log::default());
    for name in ["decode", "gateway"] {
        let role = daemon.role(name);
        role.readiness().started();
        for hook in ["refuse", "finish"] {
            let (log, role) = (Arc::clone(&log), role.clone());
            role.clone().on_drain(hook, async move {
                assert!(role.draining().is_cancelled() && !role.stop().is_cancelled());
                assert!(!role.readiness().failed().is_empty(), "not ready before any hook");
                note(&log, &format!("{} {hook}", role.name()));
            });
        }
        let (log, stop) = (Arc::clone(&log), role.stop());
        role.clone().spawn("serve", OnExit::Shutdown, async move {
            stop.cancelled().await;
            note(&log, &format!("{} stopped", role.name()));
        });
    }
    daemon.end(Ending::Signal("SIGTERM"));
    daemon.end(Ending::Finished);
    let drained = daemon.finish().await;
    assert_eq!(drained.ending, Ending::Signal("SIGTERM"), "the first reason stands");
    assert!(drained.overran.is_empty(), "{drained:?}");
    let order = ["gateway refuse", "gateway finish", "gateway stopped"];
    assert_eq!(log.lock()[..3], order);
    assert_eq!(log.lock()[3..], order.map(|line| line.replace("gateway", "decode")));
}

#[tokio::test(start_paused = true)]
async fn the_grace_is_one_for_all_and_the_rest_still_gets_a_flush_p4() {
    let (daemon, log) = (Daemon::new(CONFIG), Log::default());
    let role = daemon.role("decode");
    role.on_drain("hang", std::future::pending());
    let flushed = Arc::clone(&log);
    role.on_drain("leave", async move {
        sleep(Duration::from_millis(900)).await;
        note(&flushed, "left");
    });
    role.on_drain("hang again", std::future::pending());
    role.spawn("deaf", OnExit::Ignore, std::future::pending::<()>());
    daemon.end(Ending::Finished);
    let begun = Instant::now();
    let drained = daemon.finish().await;
    assert_eq!(drained.overran, ["decode: hang", "decode: hang again", "decode: deaf"]);
    assert_eq!(*log.lock(), ["left"]);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(12_900) && took < Duration::from_secs(13), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_must_not_end_takes_the_process_along() {
    let daemon = Daemon::new(CONFIG);
    let role = daemon.role("prefill");
    role.spawn("short", OnExit::Ignore, async {});
    role.spawn("listen", OnExit::Shutdown, async { Err::<(), _>("the socket is gone") });
    let drained = daemon.finish().await;
    let why = "prefill: listen ended: the socket is gone".to_owned();
    assert_eq!(drained.ending, Ending::Failed(why));
}

#[tokio::test]
async fn threads_are_waited_for_like_tasks() {
    let (daemon, log) = (Daemon::new(CONFIG), Log::default());
    let role = daemon.role("decode");
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let noted = Arc::clone(&log);
    role.spawn_thread("step loop", OnExit::Shutdown, move || {
        // Ends when the sender is dropped, which the drain hook does.
        while receive.recv().is_ok() {}
        note(&noted, "thread over");
    })
    .expect("a thread");
    role.on_drain("stop the loop", async move { drop(send) });
    daemon.end(Ending::Finished);
    assert!(daemon.finish().await.overran.is_empty());
    assert_eq!(*log.lock(), ["thread over"]);
}
