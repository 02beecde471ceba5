//! Reads a request's body under limits and parses it as JSON.
//! What it deliberately does not do: look at what the JSON says.

use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use futures::StreamExt;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::{ApiError, Kind};
use super::fields::shorten;

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
            return Err(ApiError::new(Kind::MediaType, "unsupported_media_type", None, message));
        }
    }
    let encoded = parts.headers.get_all(header::CONTENT_ENCODING).iter();
    if let Some(encoding) = encoded.into_iter().find(|value| !is_identity(value)) {
        let encoding = shorten(&String::from_utf8_lossy(encoding.as_bytes()));
        let message = format!("`content-encoding` {encoding:?} is not supported: send plain JSON");
        let kind = Kind::MediaType;
        return Err(ApiError::new(kind, "unsupported_media_type", None, message));
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

fn is_identity(encoding: &HeaderValue) -> bool {
    let encoding = encoding.as_bytes().trim_ascii();
    encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity")
}

async fn collect(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| {
            ApiError::new(Kind::Invalid, "invalid_body", None, "the body broke off: send it again")
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
    let parsed: Result<Strict, _> = serde_json::from_str(text);
    parsed.map(|Strict(value)| value).map_err(|error| {
        // The text ends with line and column; of the body it has a doubled key, cut, at most.
        let message = format!("the body is not valid JSON: {error}");
        ApiError::new(Kind::Invalid, "invalid_json", None, message)
    })
}

/// A JSON value all of whose objects have each key once. Readers differ on which of two counts, so
/// a body with two could mean one thing to a filter in front of this server and another to it.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                let problem = format!("the key {:?} is there twice", shorten(&key));
                return Err(de::Error::custom(problem));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::extract::Request;
    use futures::stream;

    use super::{BodyLimits, parse, read};

    const LIMITS: BodyLimits = BodyLimits { bytes_max: 16, wait_max: Duration::from_secs(1) };

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
        assert_eq!(code(json, Body::from("x".repeat(17))).await, "request_too_large");
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>("12345678"));
        assert_eq!(code(json, Body::from_stream(endless)).await, "request_too_large");
        let silent = stream::pending::<Result<&str, std::io::Error>>();
        assert_eq!(code(json, Body::from_stream(silent)).await, "request_timeout");
        assert_eq!(code("text/plain", Body::from("{}")).await, "unsupported_media_type");
    }

    #[tokio::test]
    async fn encoded_bodies_are_refused() {
        for (encoding, ok) in [("identity", true), ("gzip", false), ("br", false)] {
            let request = Request::builder().header("content-encoding", encoding);
            let request = request.body(Body::from("{}")).expect("a request");
            let outcome = read(request, LIMITS).await.map_err(|error| error.code);
            assert_eq!(outcome.is_ok(), ok, "{encoding}: {outcome:?}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_by_name() {
        for body in ["{\"a\": 1, \"a\": 1}", "{\"b\": [{\"a\": 1, \"c\": {}, \"\\u0061\": 2}]}"] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.message.contains("\"a\" is there twice"), "{}", error.message);
        }
        let text =
            r#"{"a": [null, true, -1, 18446744073709551615, 0.5, "\u00e9"], "b": {"a": {}}}"#;
        let plain: serde_json::Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(parse(text.as_bytes()), Ok(plain));
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        let error = parse(b"{\"model\": }").unwrap_err();
        assert!(error.message.contains("line 1 column 11"), "{}", error.message);
        assert_eq!(parse(b"{\"a\": \"\xff\"}").unwrap_err().code, "invalid_utf8");
        for body in ["", "{", "[1,]", "nul", "{\"a\": 1e999}", "{\"a\": \"\\ud800\"}"] {
            assert_eq!(parse(body.as_bytes()).unwrap_err().code, "invalid_json", "{body}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err(), "deep nesting");
    }
}
