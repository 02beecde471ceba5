//! Sessions of one node: who may use what until when.
//!
//! ```text
//!           grant                 release | expire | grant with a higher epoch
//!  (none) ---------> held <T> ------------------------------------------------> (tombstone)
//!                     | ^
//!                     +-+ extend, check
//! ```
//! `T` is whatever the node holds for a session; dropping it frees that. A tombstone remembers a
//! released epoch for one lease, so that a reservation that was overtaken by its own release is
//! refused instead of being held for nobody (case 1).

use std::collections::BTreeMap;

use ids::{Epoch, Moment, SessionId, Span};

use crate::{Grant, Granted, Reservation, ReserveRefused};

#[cfg(test)]
mod tests;

/// Why a grant does not open anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nothing is held for the session: never granted, released, or expired.
    #[error("no such session here")]
    NoSession,
    /// The session has a newer owner.
    #[error("the session has a newer owner")]
    StaleEpoch,
    /// The secret is not the one that was granted.
    #[error("wrong secret")]
    WrongSecret,
    /// The lease ran out and its end was not yet acted on.
    #[error("the lease has ended")]
    Expired,
}

/// Bounds of a node's session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Sessions held at once.
    pub sessions_max: usize,
    /// Longest lease granted, however much is asked.
    pub lease_max: Span,
}

/// The sessions of a node, and what it holds for each.
#[derive(Debug)]
pub struct Leases<T> {
    limits: LeaseLimits,
    held: BTreeMap<SessionId, Lease<T>>,
    /// Released sessions: their epoch, and until when that is remembered.
    tombstones: BTreeMap<SessionId, (Epoch, Moment)>,
}

#[derive(Debug)]
struct Lease<T> {
    epoch: Epoch,
    secret: [u8; 16],
    ends: Moment,
    state: T,
}

impl<T> Leases<T> {
    /// No sessions.
    #[must_use]
    pub fn new(limits: LeaseLimits) -> Self {
        Self { limits, held: BTreeMap::new(), tombstones: BTreeMap::new() }
    }

    /// Grants what `make` can take for the session, all or nothing.
    ///
    /// Asking again under the same epoch gives the same grant and does not call `make`; a higher
    /// epoch ends what the former owner held before `make` is called.
    ///
    /// # Errors
    /// What `make` says, `StaleEpoch` behind a newer owner or a release, `Full` when the session
    /// table is.
    pub fn grant(
        &mut self,
        request: &Reservation,
        secret: [u8; 16],
        now: Moment,
        make: impl FnOnce() -> Result<T, ReserveRefused>,
    ) -> Result<Granted, ReserveRefused> {
        let (session, epoch) = (request.session, request.epoch);
        let stale = |seen: Epoch| ReserveRefused::StaleEpoch { given: epoch.0, seen: seen.0 };
        if let Some((seen, until)) = self.tombstones.get(&session)
            && *seen >= epoch
            && *until > now
        {
            return Err(stale(*seen));
        }
        let lease = request.lease.min(self.limits.lease_max);
        let ends = now + lease;
        match self.held.get_mut(&session) {
            Some(held) if held.epoch > epoch => return Err(stale(held.epoch)),
            Some(held) if held.epoch == epoch => {
                held.ends = held.ends.max(ends);
                let grant = Grant { session, epoch, secret: held.secret };
                return Ok(Granted { grant, lease });
            }
            Some(_) => {
                // Dropped first: what the former owner held may be what the new one needs.
                self.held.remove(&session);
            }
            None => {}
        }
        if self.held.len() >= self.limits.sessions_max {
            return Err(ReserveRefused::Full { wanted: request.slices, free: 0 });
        }
        let state = make()?;
        self.held.insert(session, Lease { epoch, secret, ends, state });
        Ok(Granted { grant: Grant { session, epoch, secret }, lease })
    }

    /// What the node holds for the bearer of a grant.
    ///
    /// # Errors
    /// [`Denied`], which says no more than the bearer may know.
    pub fn check(&mut self, grant: &Grant, now: Moment) -> Result<&mut T, Denied> {
        self.find(grant, now).map(|lease| &mut lease.state)
    }

    /// Prolongs a lease; returns what is in force.
    ///
    /// # Errors
    /// [`Denied`] as for [`Self::check`].
    pub fn extend(&mut self, grant: &Grant, lease: Span, now: Moment) -> Result<Span, Denied> {
        let lease = lease.min(self.limits.lease_max);
        let held = self.find(grant, now)?;
        held.ends = held.ends.max(now + lease);
        Ok(lease)
    }

    /// Ends a session. Idempotent; a release by a former owner does nothing. Returns what was
    /// held, to be dropped by the caller.
    pub fn release(&mut self, session: SessionId, epoch: Epoch, now: Moment) -> Option<T> {
        if self.held.get(&session).is_some_and(|held| held.epoch > epoch) {
            return None;
        }
        self.bury(now);
        let seen = self.tombstones.get(&session).map_or(epoch, |(seen, _)| epoch.max(*seen));
        self.tombstones.insert(session, (seen, now + self.limits.lease_max));
        self.held.remove(&session).map(|held| held.state)
    }

    /// Ends every session whose lease ran out; to be called by a timer (case 8).
    pub fn expire(&mut self, now: Moment) -> Vec<(SessionId, T)> {
        let over: Vec<SessionId> = self
            .held
            .iter()
            .filter(|(_, held)| held.ends <= now)
            .map(|(session, _)| *session)
            .collect();
        self.bury(now);
        over.into_iter()
            .filter_map(|session| self.held.remove(&session).map(|held| (session, held.state)))
            .collect()
    }

    /// Under which ownership a session is held here, whether or not its lease ran out.
    #[must_use]
    pub fn epoch_of(&self, session: SessionId) -> Option<Epoch> {
        self.held.get(&session).map(|held| held.epoch)
    }

    /// When [`Self::expire`] has something to do next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.held.values().map(|held| held.ends).min()
    }

    /// What is held, in order of session.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &T)> {
        self.held.iter().map(|(session, held)| (*session, &held.state))
    }

    /// Sessions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no session is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn find(&mut self, grant: &Grant, now: Moment) -> Result<&mut Lease<T>, Denied> {
        let held = self.held.get_mut(&grant.session).ok_or(Denied::NoSession)?;
        if !same_secret(&held.secret, &grant.secret) {
            return Err(Denied::WrongSecret);
        }
        if held.epoch != grant.epoch {
            return Err(Denied::StaleEpoch);
        }
        if held.ends <= now {
            return Err(Denied::Expired);
        }
        Ok(held)
    }

    /// Forgets old tombstones, and the oldest beyond the bound.
    fn bury(&mut self, now: Moment) {
        self.tombstones.retain(|_, (_, until)| *until > now);
        while self.tombstones.len() >= self.limits.sessions_max.max(1) * 4 {
            let oldest = self.tombstones.iter().min_by_key(|(_, (_, until))| *until);
            let Some(session) = oldest.map(|(session, _)| *session) else {
                break;
            };
            self.tombstones.remove(&session);
        }
    }
}

/// Compares in time that does not depend on where the two differ.
fn same_secret(a: &[u8; 16], b: &[u8; 16]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}
