//! A client of the HTTP API: whole answers, events one by one, and breaking off by dropping.
//! What it deliberately does not do: keep connections; each request has its own, so that dropping
//! the answer closes the socket as a client's exit would.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest wait for the next piece of an answer: a bound against hanging, not a measure.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where requests go.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// The body as it came.
    pub text: String,
}

impl Answer {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// A streamed answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    /// Received and not yet a whole event.
    rest: Vec<u8>,
    /// The connection; aborted with its owner.
    _connection: JoinSet<()>,
}

impl Client {
    /// Sends a request and reads the whole answer. Dropping the future closes the connection.
    ///
    /// # Errors
    /// When the connection fails; any status is an answer.
    pub async fn send(
        self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Answer> {
        let (answer, _connection) = self.begin(method, path, body.into()).await?;
        let status = answer.status().as_u16();
        let header = answer.headers().get("retry-after");
        let retry_after = header.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = timeout(PATIENCE, answer.into_body().collect()).await??;
        let text = String::from_utf8(body.to_bytes().to_vec())?;
        Ok(Answer { status, retry_after, text })
    }

    /// Reads a page.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn get(self, path: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Posts JSON and reads the whole answer.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn post(self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// Posts JSON that must be answered well.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ask(self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.post(path, body).await?;
        if answer.status != 200 {
            bail!("{path} answered {}: {}", answer.status, answer.text);
        }
        Ok(answer.json())
    }

    /// Posts JSON for a streamed answer.
    ///
    /// # Errors
    /// When the answer is no stream.
    pub async fn stream(self, path: &str, body: &Value) -> anyhow::Result<Events> {
        let (answer, connection) = self.begin(Method::POST, path, body.to_string().into()).await?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.into_body().collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
        Ok(Events { body: answer.into_body(), rest: Vec::new(), _connection: connection })
    }

    async fn begin(
        self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(Response<Incoming>, JoinSet<()>)> {
        let stream = TcpStream::connect(self.0).await.context("connecting")?;
        stream.set_nodelay(true)?;
        let (mut sender, driver) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut connection = JoinSet::new();
        connection.spawn(async move { drop(driver.await) });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.0.to_string())
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let answer = timeout(PATIENCE, sender.send_request(request)).await??;
        Ok((answer, connection))
    }
}

impl Events {
    /// The next event; `None` after `[DONE]`.
    ///
    /// # Errors
    /// When the stream breaks off, or an event is no JSON.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                match event.strip_prefix(b"data: ") {
                    Some(data) if data.trim_ascii() == b"[DONE]" => return Ok(None),
                    Some(data) => return Ok(Some(serde_json::from_slice(data)?)),
                    // A comment that keeps the connection alive.
                    None => continue,
                }
            }
            let frame = timeout(PATIENCE, self.body.frame()).await?;
            let frame = frame.context("the answer broke off without [DONE]")??;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }

    /// All events up to `[DONE]`.
    ///
    /// # Errors
    /// As [`Events::next`].
    pub async fn all(mut self) -> anyhow::Result<Vec<Value>> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await? {
            events.push(event);
        }
        Ok(events)
    }
}
