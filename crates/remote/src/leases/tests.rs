//! Grants, fences, leases and releases of one node's session table.

use super::{Denied, LeaseLimits, Leases};
use crate::{Reservation, ReserveRefused};
use ids::{Epoch, Moment, SessionId, Span, Tenant};

const LIMITS: LeaseLimits = LeaseLimits { sessions_max: 4, lease_max: Span::from_secs(30) };

fn ask(session: u128, epoch: u64) -> Reservation {
    Reservation {
        session: SessionId(session),
        epoch: Epoch(epoch),
        tenant: Tenant::default(),
        slices: 1,
        lease: Span::from_secs(10),
    }
}

fn at(secs: u64) -> Moment {
    Moment(0) + Span::from_secs(secs)
}

#[test]
fn p7_only_the_granted_secret_of_the_newest_epoch_opens_a_session() {
    let mut leases = Leases::new(LIMITS);
    let old = leases.grant(&ask(1, 1), [7; 16], at(0), || Ok("first")).unwrap().grant;
    assert_eq!(leases.check(&old, at(1)), Ok(&mut "first"));
    let mut forged = old.clone();
    forged.secret[15] ^= 1;
    assert_eq!(leases.check(&forged, at(1)), Err(Denied::WrongSecret));
    let new = leases.grant(&ask(1, 2), [8; 16], at(1), || Ok("second")).unwrap().grant;
    assert_eq!(leases.check(&new, at(1)), Ok(&mut "second"));
    assert_eq!(leases.check(&old, at(1)), Err(Denied::WrongSecret));
    let stale = leases.grant(&ask(1, 1), [9; 16], at(1), || Ok("third"));
    assert_eq!(stale, Err(ReserveRefused::StaleEpoch { given: 1, seen: 2 }));
}

#[test]
fn a_repeated_reservation_is_the_same_one() {
    let mut leases = Leases::new(LIMITS);
    let first = leases.grant(&ask(1, 1), [1; 16], at(0), || Ok(())).unwrap();
    let again = leases.grant(&ask(1, 1), [2; 16], at(1), || unreachable!("made once")).unwrap();
    assert_eq!(first.grant, again.grant);
}

#[test]
fn p6_a_release_that_overtakes_its_reservation_wins() {
    let mut leases = Leases::<()>::new(LIMITS);
    assert!(leases.release(SessionId(1), Epoch(1), at(0)).is_none());
    let late = leases.grant(&ask(1, 1), [1; 16], at(1), || Ok(()));
    assert!(matches!(late, Err(ReserveRefused::StaleEpoch { .. })), "{late:?}");
    assert!(leases.grant(&ask(1, 2), [1; 16], at(1), || Ok(())).is_ok(), "a new owner may");
    assert!(leases.release(SessionId(1), Epoch(1), at(2)).is_none(), "the old one ends nothing");
    assert_eq!(leases.len(), 1);
}

#[test]
fn case_08_leases_end_by_the_timer_alone() {
    let mut leases = Leases::new(LIMITS);
    let grant = leases.grant(&ask(1, 1), [1; 16], at(0), || Ok("held")).unwrap().grant;
    assert_eq!(leases.next_expiry(), Some(at(10)));
    assert_eq!(leases.extend(&grant, Span::from_secs(99), at(5)), Ok(Span::from_secs(30)));
    assert!(leases.expire(at(34)).is_empty());
    assert_eq!(leases.check(&grant, at(35)), Err(Denied::Expired));
    assert_eq!(leases.expire(at(35)), [(SessionId(1), "held")]);
    assert_eq!(leases.check(&grant, at(35)), Err(Denied::NoSession));
    assert_eq!(leases.next_expiry(), None);
}

#[test]
fn p4_the_session_table_is_bounded_and_a_refused_make_leaves_nothing() {
    let mut leases = Leases::new(LIMITS);
    for session in 0..4 {
        leases.grant(&ask(session, 1), [1; 16], at(0), || Ok(())).unwrap();
    }
    let fifth = leases.grant(&ask(9, 1), [1; 16], at(0), || Ok(()));
    assert_eq!(fifth, Err(ReserveRefused::Full { wanted: 1, free: 0 }));
    leases.release(SessionId(0), Epoch(1), at(0));
    let refused = ReserveRefused::Full { wanted: 1, free: 0 };
    let full = leases.grant(&ask(9, 1), [1; 16], at(0), || Err(refused.clone()));
    assert_eq!(full, Err(refused));
    assert_eq!(leases.len(), 3);
    for session in 100..200 {
        leases.release(SessionId(session), Epoch(1), at(0));
    }
    assert!(leases.tombstones.len() <= 16, "tombstones are bounded too");
}
