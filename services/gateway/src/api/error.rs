//! Errors as OpenAI's clients know them: status, type, code, parameter, message, and when to come
//! back. What it deliberately does not do: carry internal detail; that is logged where it arose.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A refusal or failure, in the client's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    /// A stable word for programs, such as `context_length_exceeded`.
    pub(crate) code: &'static str,
    /// The request field that is to blame, as in `messages[0].role`.
    pub(crate) param: Option<String>,
    /// What is wrong and what to do, for people.
    pub(crate) message: String,
}

/// The families of errors; each has one status and one OpenAI type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request can never work as it is.
    Invalid,
    /// There is no such model or path.
    NotFound,
    /// The path does not know this method.
    Method,
    /// The body did not come in time.
    Slow,
    /// The body is too large.
    TooLarge,
    /// The body is not JSON by its own word.
    MediaType,
    /// More than fits now; the seconds say when to try again.
    Busy { retry_after_s: u32 },
    /// A part of the cluster is missing; the seconds say when to try again.
    Unavailable { retry_after_s: u32 },
    /// Ours.
    Internal,
}

impl ApiError {
    /// A field that can never work as it is.
    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, "invalid_value", Some(param), message)
    }

    /// A field that is known and not supported.
    pub(crate) fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, "unsupported_parameter", Some(param), message)
    }

    pub(crate) fn new(
        kind: Kind,
        code: &'static str,
        param: Option<&str>,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, code, param: param.map(str::to_owned), message: message.into() }
    }

    /// A failure of ours: the client learns no more than that.
    pub(crate) fn internal() -> Self {
        Self::new(
            Kind::Internal,
            "internal_error",
            None,
            "the server failed on this request; its log says why",
        )
    }

    /// Something in the cluster did not answer or went away.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable { retry_after_s: 1 }, "kv_unavailable", None, message)
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Slow => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// When to try again.
    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        match self.kind {
            Kind::Busy { retry_after_s } | Kind::Unavailable { retry_after_s } => {
                Some(retry_after_s)
            }
            Kind::Invalid
            | Kind::NotFound
            | Kind::Method
            | Kind::Slow
            | Kind::TooLarge
            | Kind::MediaType
            | Kind::Internal => None,
        }
    }

    /// The body, all four keys always there.
    pub(crate) fn body(&self) -> Value {
        let kind = match self.kind {
            Kind::Invalid | Kind::Method | Kind::Slow | Kind::TooLarge | Kind::MediaType => {
                "invalid_request_error"
            }
            Kind::NotFound => "not_found_error",
            Kind::Busy { .. } => "rate_limit_error",
            Kind::Unavailable { .. } => "service_unavailable",
            Kind::Internal => "server_error",
        };
        json!({ "error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use axum::response::IntoResponse;
    use serde_json::json;

    use super::{ApiError, Kind};

    #[test]
    fn errors_have_all_four_keys() {
        let error = ApiError::invalid("top_p", "must be above 0");
        let body = json!({ "error": {
            "message": "must be above 0",
            "type": "invalid_request_error",
            "param": "top_p",
            "code": "invalid_value",
        }});
        assert_eq!(error.body(), body);
        assert_eq!(ApiError::internal().body()["error"]["param"], json!(null));
    }

    #[test]
    fn busy_and_unavailable_say_when_to_come_back_p4() {
        for (kind, status) in
            [(Kind::Busy { retry_after_s: 3 }, 429), (Kind::Unavailable { retry_after_s: 3 }, 503)]
        {
            let response = ApiError::new(kind, "x", None, "later").into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        }
    }
}
