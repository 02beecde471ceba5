//! Asking other nodes for memory, prolonging it, and giving it back.

use std::time::Duration;

use ids::{Epoch, SessionId, Span};
use proto::storage::{Extend, Release};
use proto::{Channels, v1};
use remote::{Grant, Granted, Reservation, ReserveRefused};
use session::{Event, Holder, LEASE};
use tokio::time::Instant;

/// For one attempt to prolong or to give back.
const CALL_WAIT_MAX: Span = Span::from_secs(2);

/// Between attempts to give back.
const RELEASE_RETRY: Duration = Duration::from_millis(200);

/// The node behind a holder; `None` for the device.
fn control(holder: &Holder) -> Option<&str> {
    match holder {
        Holder::Home(target) | Holder::PrefillHost(target) => Some(&target.control),
        Holder::Device => None,
    }
}

/// Asks a holder on another node; the answer is an event.
pub(crate) async fn reserve(
    channels: &Channels,
    holder: &Holder,
    request: Reservation,
    wait_max: Span,
) -> Event {
    match try_reserve(channels, holder, request, wait_max).await {
        Ok(Ok(granted)) => Event::Reserved(Some(granted)),
        Ok(Err(refused)) => Event::ReserveRefused(refused),
        Err(detail) => Event::ReserveUnknown { detail },
    }
}

async fn try_reserve(
    channels: &Channels,
    holder: &Holder,
    request: Reservation,
    wait_max: Span,
) -> Result<Result<Granted, ReserveRefused>, String> {
    let address = control(holder).ok_or("the device is not asked by gRPC")?;
    let channel = channels.to(address).map_err(|error| error.to_string())?;
    let request: v1::ReserveRequest = request.into();
    let mut client = proto::client::reservations(channel);
    let answer = client.reserve(proto::with_deadline(request, wait_max));
    let answer = tokio::time::timeout(wait_max.into(), answer).await;
    let answer = answer.map_err(|_| format!("{address} did not answer in time"))?;
    let answer = answer.map_err(|status| format!("{address}: {status}"))?;
    answer.into_inner().try_into().map_err(|invalid: proto::InvalidMessage| invalid.to_string())
}

/// Prolongs one lease.
///
/// # Errors
/// What was seen, for the log.
pub(crate) async fn extend(
    channels: &Channels,
    holder: &Holder,
    grant: Grant,
) -> Result<(), String> {
    let address = control(holder).ok_or("the device has no lease")?;
    let channel = channels.to(address).map_err(|error| error.to_string())?;
    let request: v1::ExtendRequest = Extend { grant, lease: LEASE }.into();
    let mut client = proto::client::reservations(channel);
    let answer = client.extend(proto::with_deadline(request, CALL_WAIT_MAX));
    match tokio::time::timeout(CALL_WAIT_MAX.into(), answer).await {
        Ok(Ok(_extended)) => Ok(()),
        Ok(Err(status)) => Err(format!("{address}: {status}")),
        Err(_) => Err(format!("{address} did not answer in time")),
    }
}

/// Gives back, again and again until the holder heard it or its lease has ended anyway.
pub(crate) async fn release(
    channels: &Channels,
    holder: &Holder,
    session: SessionId,
    epoch: Epoch,
) {
    let Some(address) = control(holder) else {
        return;
    };
    let over = Instant::now() + LEASE.into();
    while Instant::now() < over {
        let Ok(channel) = channels.to(address) else {
            return;
        };
        let request: v1::ReleaseRequest = Release { session, epoch }.into();
        let mut client = proto::client::reservations(channel);
        let answer = client.release(proto::with_deadline(request, CALL_WAIT_MAX));
        match tokio::time::timeout(CALL_WAIT_MAX.into(), answer).await {
            Ok(Ok(_released)) => return,
            Ok(Err(status)) => tracing::debug!(address, %status, "release not heard"),
            Err(_) => tracing::debug!(address, "release not heard in time"),
        }
        tokio::time::sleep(RELEASE_RETRY).await;
    }
}
