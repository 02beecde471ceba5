//! `/v1/models`: the one model that is served.
//! What it deliberately does not do: load or unload.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::Api;
use super::error::{ApiError, Kind};
use super::fields::shorten;

/// The list, with one model.
pub(super) async fn list(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [entry(&api)] }))
}

/// One model by name.
pub(super) async fn one(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    check(&api, &name)?;
    Ok(Json(entry(&api)))
}

/// Whether this is the served model.
pub(super) fn check(api: &Api, name: &str) -> Result<(), ApiError> {
    let served = api.model.name();
    if name == served {
        return Ok(());
    }
    let message = format!("there is no model {:?}: this server has {served:?}", shorten(name));
    Err(ApiError::new(Kind::NotFound, "model_not_found", Some("model"), message))
}

fn entry(api: &Api) -> Value {
    json!({
        "id": api.model.name(),
        "object": "model",
        "created": api.started,
        "owned_by": "oasiskv",
        "max_model_len": api.model.context(),
    })
}
