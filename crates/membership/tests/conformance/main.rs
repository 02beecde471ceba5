//! One suite for every registry: in memory, and over gRPC. Time is paused, so that hours pass in
//! no time; the gRPC connections are pipes within the process.

#![expect(clippy::panic, reason = "how a test fails; clippy knows tests by their attribute only")]

mod fixture;

use std::time::Duration;

use fixture::{Fixture, record};
use ids::Span;
use membership::{
    Event, KeepAliveError, LeaseId, Membership, Register, RegisterError, Standing, Watch,
};

/// Runs each case against each kind of registry.
macro_rules! suite {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(&mut super::Fixture::memory()).await;
            })*
        }
        mod remote {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(&mut super::Fixture::remote()).await;
            })*
        }
    };
}

suite! {
    a_watch_tells_who_is_there_and_then_every_change
    a_node_that_falls_silent_is_gone_after_its_lease_p6
    case_09_an_idle_node_stays_listed
    a_restarted_node_replaces_its_former_self
    an_older_start_of_a_node_is_turned_away_and_told
    a_dropped_registration_leaves
    the_granted_time_to_live_counts_not_the_asked_one
    a_repeated_registration_changes_nothing_but_the_lease
    a_full_registry_refuses_and_says_its_limit_p4
    an_unknown_lease_is_told
}

const TTL: Span = Span::from_secs(5);

async fn watch(membership: &Membership) -> (Vec<String>, Watch) {
    let mut watch = membership.watch().await.expect("the registry is there");
    match watch.next().await {
        Some(Event::Snapshot(records)) => {
            (records.into_iter().map(|record| record.id.to_string()).collect(), watch)
        }
        other => panic!("a watch begins with a snapshot, not {other:?}"),
    }
}

/// `+name/incarnation` or `-name/incarnation`.
async fn change(watch: &mut Watch) -> String {
    match watch.next().await {
        Some(Event::Joined(record)) => format!("+{}/{}", record.id, record.incarnation.0),
        Some(Event::Gone { node, incarnation }) => format!("-{node}/{}", incarnation.0),
        other => panic!("no change: {other:?}"),
    }
}

fn ask(name: &str, incarnation: u64, ttl: Span) -> Register {
    Register { node: record(name, incarnation), ttl }
}

async fn a_watch_tells_who_is_there_and_then_every_change(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let (mut first, keeper) = membership.register(record("memory-0", 1), TTL);
    fixture.spawn(keeper);
    assert!(first.listed().await);
    let (names, mut watch) = watch(&membership).await;
    assert_eq!(names, ["memory-0"]);

    let (mut second, keeper) = membership.register(record("decode-0", 2), TTL);
    fixture.spawn(keeper);
    assert!(second.listed().await);
    assert_eq!(change(&mut watch).await, "+decode-0/2");
    first.leave().await;
    assert_eq!(change(&mut watch).await, "-memory-0/1");
}

async fn a_node_that_falls_silent_is_gone_after_its_lease_p6(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let registered = membership.try_register(ask("memory-0", 1, TTL)).await.expect("listed");
    let (_, mut watch) = watch(&membership).await;
    let before = tokio::time::Instant::now();
    assert_eq!(change(&mut watch).await, "-memory-0/1");
    assert!(before.elapsed() <= Duration::from(TTL) + Duration::from_millis(500));
    let late = membership.keep_alive(registered.lease).await;
    assert_eq!(late, Err(KeepAliveError::Forgotten));
}

async fn case_09_an_idle_node_stays_listed(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let (mut registration, keeper) = membership.register(record("memory-0", 1), TTL);
    fixture.spawn(keeper);
    assert!(registration.listed().await);
    let (_, mut watch) = watch(&membership).await;
    let hour = Duration::from_secs(3_600);
    let event = tokio::time::timeout(hour, watch.next()).await;
    assert!(event.is_err(), "something changed: {event:?}");
    assert_eq!(*registration.standing().borrow(), Standing::Listed);
}

async fn a_restarted_node_replaces_its_former_self(fixture: &mut Fixture) {
    let membership = fixture.membership();
    membership.try_register(ask("memory-0", 1, TTL)).await.expect("listed");
    let (_, mut watch) = watch(&membership).await;
    membership.try_register(ask("memory-0", 2, TTL)).await.expect("listed");
    assert_eq!(change(&mut watch).await, "-memory-0/1");
    assert_eq!(change(&mut watch).await, "+memory-0/2");
}

async fn an_older_start_of_a_node_is_turned_away_and_told(fixture: &mut Fixture) {
    let membership = fixture.membership();
    membership.try_register(ask("memory-0", 7, TTL)).await.expect("listed");
    let (mut registration, keeper) = membership.register(record("memory-0", 3), TTL);
    let superseded = keeper.await.expect_err("a later start is listed");
    assert_eq!((superseded.given.0, superseded.seen.0), (3, 7));
    assert!(!registration.listed().await);
}

async fn a_dropped_registration_leaves(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let (mut registration, keeper) = membership.register(record("memory-0", 1), TTL);
    fixture.spawn(keeper);
    assert!(registration.listed().await);
    let (_, mut watch) = watch(&membership).await;
    let before = tokio::time::Instant::now();
    drop(registration);
    assert_eq!(change(&mut watch).await, "-memory-0/1");
    assert!(before.elapsed() < Duration::from_secs(1), "it left, the lease did not run out");
}

async fn the_granted_time_to_live_counts_not_the_asked_one(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let asked = Span::from_millis(1);
    let registered = membership.try_register(ask("memory-0", 1, asked)).await.expect("listed");
    assert!(registered.ttl > asked);
    let (names, mut watch) = watch(&membership).await;
    assert_eq!(names, ["memory-0"]);
    let before = tokio::time::Instant::now();
    assert_eq!(change(&mut watch).await, "-memory-0/1");
    assert!(before.elapsed() + Duration::from_millis(500) > Duration::from(registered.ttl));
}

async fn a_repeated_registration_changes_nothing_but_the_lease(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let first = membership.try_register(ask("memory-0", 1, TTL)).await.expect("listed");
    let again = membership.try_register(ask("memory-0", 1, TTL)).await.expect("listed");
    assert_eq!(first.revision, again.revision);
    assert_ne!(first.lease, again.lease);
    membership.leave(first.lease).await.expect("the registry is there");
    let (names, _) = watch(&membership).await;
    assert_eq!(names, ["memory-0"], "the former lease is not the node's any more");
    assert!(membership.keep_alive(again.lease).await.is_ok());
}

async fn a_full_registry_refuses_and_says_its_limit_p4(fixture: &mut Fixture) {
    let membership = fixture.membership();
    for index in 0..fixture::NODES_MAX {
        let name = format!("memory-{index}");
        membership.try_register(ask(&name, 1, TTL)).await.expect("room");
    }
    let refused = membership.try_register(ask("one-more", 1, TTL)).await;
    assert_eq!(refused, Err(RegisterError::Full { nodes_max: fixture::NODES_MAX }));
    membership.try_register(ask("memory-0", 2, TTL)).await.expect("a restart takes no new place");
}

async fn an_unknown_lease_is_told(fixture: &mut Fixture) {
    let membership = fixture.membership();
    let answer = membership.keep_alive(LeaseId(12)).await;
    assert_eq!(answer, Err(KeepAliveError::Forgotten));
    membership.leave(LeaseId(12)).await.expect("that it is not there is what was wanted");
}

/// Case 52: clients reattach within two seconds.
#[tokio::test(start_paused = true)]
async fn case_52_a_restarted_registry_knows_its_nodes_within_two_seconds() {
    let mut fixture = Fixture::remote();
    let membership = fixture.membership();
    let (mut registration, keeper) = membership.register(record("memory-0", 1), TTL);
    fixture.spawn(keeper);
    assert!(registration.listed().await);
    let (_, mut before) = watch(&membership).await;

    fixture.restart();
    let restarted = tokio::time::Instant::now();
    assert_eq!(before.next().await, None, "a watch ends with its registry");
    let (names, mut after) = watch(&membership).await;
    if names.is_empty() {
        assert_eq!(change(&mut after).await, "+memory-0/1");
    }
    assert!(restarted.elapsed() <= Duration::from_secs(2));
    assert!(registration.listed().await);
}

/// A process that was stopped (or its host suspended) comes back to leases that all ran out
/// meanwhile; the nodes were alive and must not be believed dead.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_registry_did_not_run_kills_nobody_p3() {
    let mut fixture = Fixture::memory();
    let membership = fixture.membership();
    let (mut registration, keeper) = membership.register(record("memory-0", 1), TTL);
    fixture.spawn(keeper);
    assert!(registration.listed().await);
    let (_, mut watch) = watch(&membership).await;
    tokio::time::advance(Duration::from_secs(600)).await;
    let event = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
    assert!(event.is_err(), "something changed: {event:?}");
}
