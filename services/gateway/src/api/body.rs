//! Reads a request's body under limits and parses it as JSON.
//! What it deliberately does not do: look at what the JSON says.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use futures::StreamExt;
use serde_json::Value;

use super::error::{ApiError, Kind};

/// What a body may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: usize,
    pub(crate) wait_max: Duration,
}

/// The bytes of the body, if it claims to be JSON and stays within the limits.
pub(crate) async fn read(request: Request, limits: BodyLimits) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        // Absent is taken as JSON: there is nothing else that it could be.
        let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if essence != "application/json" && !essence.ends_with("+json") {
            let message = "the body must be JSON: send the header `content-type: application/json`";
            return Err(ApiError::new(
                Kind::MediaType,
                "unsupported_media_type",
                None,
                message,
            ));
        }
    }
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.bytes_max as u64) {
        return Err(too_large(limits.bytes_max));
    }
    match tokio::time::timeout(limits.wait_max, collect(body, limits.bytes_max)).await {
        Ok(bytes) => bytes,
        Err(_) => {
            let message = "the body did not arrive in time: send it faster";
            Err(ApiError::new(Kind::Slow, "request_timeout", None, message))
        }
    }
}

async fn collect(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| {
            ApiError::new(
                Kind::Invalid,
                "invalid_body",
                None,
                "the body broke off: send it again",
            )
        })?;
        if whole.len() + piece.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Bytes::from(whole))
}

fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the body is larger than {bytes_max} bytes: shorten the prompt");
    ApiError::new(Kind::TooLarge, "request_too_large", None, message)
}

/// The body as JSON.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("the body is not UTF-8 from byte {} on", error.valid_up_to());
        ApiError::new(Kind::Invalid, "invalid_utf8", None, message)
    })?;
    serde_json::from_str(text).map_err(|error| {
        // serde_json's text ends with line and column, and quotes nothing of the body.
        let message = format!("the body is not valid JSON: {error}");
        ApiError::new(Kind::Invalid, "invalid_json", None, message)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::extract::Request;
    use futures::stream;

    use super::{BodyLimits, parse, read};

    const LIMITS: BodyLimits = BodyLimits {
        bytes_max: 16,
        wait_max: Duration::from_secs(1),
    };

    async fn code(kind: &str, body: Body) -> &'static str {
        let request = Request::builder().header("content-type", kind).body(body);
        match read(request.expect("a request"), LIMITS).await {
            Ok(_) => "ok",
            Err(error) => error.code,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded_in_size_and_time_p4() {
        let json = "application/json; charset=utf-8";
        assert_eq!(code(json, Body::from("{}")).await, "ok");
        assert_eq!(
            code(json, Body::from("x".repeat(17))).await,
            "request_too_large"
        );
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>("12345678"));
        assert_eq!(
            code(json, Body::from_stream(endless)).await,
            "request_too_large"
        );
        let silent = stream::pending::<Result<&str, std::io::Error>>();
        assert_eq!(
            code(json, Body::from_stream(silent)).await,
            "request_timeout"
        );
        assert_eq!(
            code("text/plain", Body::from("{}")).await,
            "unsupported_media_type"
        );
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        let error = parse(b"{\"model\": }").unwrap_err();
        assert!(
            error.message.contains("line 1 column 11"),
            "{}",
            error.message
        );
        assert_eq!(
            parse(b"{\"a\": \"\xff\"}").unwrap_err().code,
            "invalid_utf8"
        );
        for body in [
            "",
            "{",
            "[1,]",
            "nul",
            "{\"a\": 1e999}",
            "{\"a\": \"\\ud800\"}",
        ] {
            assert_eq!(
                parse(body.as_bytes()).unwrap_err().code,
                "invalid_json",
                "{body}"
            );
        }
        assert!(
            parse("[".repeat(100_000).as_bytes()).is_err(),
            "deep nesting"
        );
    }
}
