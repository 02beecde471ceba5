//! A client of the gateway for this program's own commands: one request, its events one by one.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest event that is read; the final one carries usage and ledger.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// The events of one streamed answer.
pub(crate) struct Events {
    body: Incoming,
    /// Received and not yet a whole event.
    rest: Vec<u8>,
}

/// Posts a streaming request.
pub(crate) async fn post(gateway: SocketAddr, path: &str, body: &Value) -> anyhow::Result<Events> {
    let stream = TcpStream::connect(gateway).await.context("connecting to the gateway")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    #[expect(clippy::disallowed_methods, reason = "the connection ends with its request")]
    tokio::spawn(connection);
    let request = http::Request::post(path)
        .header(http::header::HOST, gateway.to_string())
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body();
    if status.is_success() {
        return Ok(Events { body, rest: Vec::new() });
    }
    let text = body.collect().await?.to_bytes();
    let said: Value = serde_json::from_slice(&text).unwrap_or_default();
    match said["error"]["message"].as_str() {
        Some(message) => bail!("{message}"),
        None => bail!("the gateway answered {status}"),
    }
}

impl Events {
    /// The next event; `None` after `[DONE]`.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                match event.strip_prefix(b"data: ") {
                    Some(data) if data.trim_ascii() == b"[DONE]" => return Ok(None),
                    Some(data) => return Ok(Some(checked(serde_json::from_slice(data)?)?)),
                    // A comment that keeps the connection alive.
                    None => continue,
                }
            }
            if self.rest.len() > EVENT_BYTES_MAX {
                bail!("the gateway sent an event of over {EVENT_BYTES_MAX} bytes");
            }
            let frame = self.body.frame().await.context("the answer broke off")??;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}

/// An error event ends the answer.
fn checked(event: Value) -> anyhow::Result<Value> {
    match event["error"]["message"].as_str() {
        Some(message) => bail!("{message}"),
        None => Ok(event),
    }
}
