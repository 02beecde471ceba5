//! Which gRPC status each refusal of the store becomes. In-band answers (`ReserveRefused`) do not
//! come here.

use remote::Denied;
use tonic::Status;

use crate::store::PlaceRefused;

pub(crate) fn denied(denied: Denied) -> Status {
    let text = denied.to_string();
    match denied {
        Denied::NoSession => Status::not_found(text),
        Denied::StaleEpoch | Denied::Expired => Status::failed_precondition(text),
        Denied::WrongSecret => Status::permission_denied(text),
    }
}

pub(crate) fn place(refused: PlaceRefused) -> Status {
    let text = refused.to_string();
    match refused {
        PlaceRefused::Denied(why) => denied(why),
        PlaceRefused::OverReservation { .. } => Status::resource_exhausted(text),
        PlaceRefused::Busy { .. } => Status::unavailable(text),
        PlaceRefused::Conflict { .. } => Status::already_exists(text),
        PlaceRefused::Twice { .. } => Status::invalid_argument(text),
    }
}
