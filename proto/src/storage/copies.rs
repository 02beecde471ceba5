//! Conversions of the memory node's own calls: place, commit, locate.

use super::{Commit, Committed, Locate, Located, Place, Placed};
use crate::limits::BLOCKS_PER_MESSAGE_MAX;
use crate::{InvalidMessage, read, v1};

impl TryFrom<v1::PlaceRequest> for Place {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PlaceRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            grant: read::message("grant", wire.grant)?,
            receipts: read::list("receipts", wire.receipts, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Place> for v1::PlaceRequest {
    fn from(place: Place) -> Self {
        Self { grant: Some(place.grant.into()), receipts: each(place.receipts) }
    }
}

impl TryFrom<v1::PlaceResponse> for Placed {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PlaceResponse) -> Result<Self, InvalidMessage> {
        Ok(Self {
            place: read::list("place", wire.place, BLOCKS_PER_MESSAGE_MAX)?,
            held: read::list("held", wire.held, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Placed> for v1::PlaceResponse {
    fn from(placed: Placed) -> Self {
        Self { place: each(placed.place), held: each(placed.held) }
    }
}

impl TryFrom<v1::CommitRequest> for Commit {
    type Error = InvalidMessage;

    fn try_from(wire: v1::CommitRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            grant: read::message("grant", wire.grant)?,
            keys: read::list("keys", wire.keys, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Commit> for v1::CommitRequest {
    fn from(commit: Commit) -> Self {
        Self { grant: Some(commit.grant.into()), keys: each(commit.keys) }
    }
}

impl TryFrom<v1::CommitResponse> for Committed {
    type Error = InvalidMessage;

    fn try_from(wire: v1::CommitResponse) -> Result<Self, InvalidMessage> {
        Ok(Self {
            committed: read::list("committed", wire.committed, BLOCKS_PER_MESSAGE_MAX)?,
            rejected: read::list("rejected", wire.rejected, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Committed> for v1::CommitResponse {
    fn from(committed: Committed) -> Self {
        Self { committed: each(committed.committed), rejected: each(committed.rejected) }
    }
}

impl TryFrom<v1::LocateRequest> for Locate {
    type Error = InvalidMessage;

    fn try_from(wire: v1::LocateRequest) -> Result<Self, InvalidMessage> {
        Ok(Self {
            grant: read::message("grant", wire.grant)?,
            keys: read::list("keys", wire.keys, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Locate> for v1::LocateRequest {
    fn from(locate: Locate) -> Self {
        Self { grant: Some(locate.grant.into()), keys: each(locate.keys) }
    }
}

impl TryFrom<v1::LocateResponse> for Located {
    type Error = InvalidMessage;

    fn try_from(wire: v1::LocateResponse) -> Result<Self, InvalidMessage> {
        Ok(Self {
            found: read::list("found", wire.found, BLOCKS_PER_MESSAGE_MAX)?,
            missing: read::list("missing", wire.missing, BLOCKS_PER_MESSAGE_MAX)?,
        })
    }
}

impl From<Located> for v1::LocateResponse {
    fn from(located: Located) -> Self {
        Self { found: each(located.found), missing: each(located.missing) }
    }
}

fn each<D, W: From<D>>(values: Vec<D>) -> Vec<W> {
    values.into_iter().map(W::from).collect()
}
