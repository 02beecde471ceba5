//! A client of the gateway for this program's own commands: one request, its events one by one.
//! What it deliberately does not do: encrypt, keep connections, or try again. Each request has a
//! connection of its own, so that dropping the answer is the cancel (P6).

use anyhow::{Context, bail};
use http::Uri;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Longest event that is read; the final one carries usage and ledger.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Longest answer that is not a stream: an error, or the list of models.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Where a gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway {
    /// `host:port`.
    authority: String,
}

/// What a gateway says of the model that it serves.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// What the API calls it.
    pub(crate) model: String,
    /// Tokens of prompt and answer together; `None` where the server does not say.
    pub(crate) context: Option<u64>,
}

/// The gateway answered, and its answer is no.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refused {
    /// The API's word for the reason, as in `context_length_exceeded`.
    pub(crate) code: Option<String>,
    /// What a reader can do.
    message: String,
}

/// The events of one streamed answer. Dropping it closes the connection.
pub(crate) struct Events {
    body: Incoming,
    /// Received and not yet a whole event.
    rest: Vec<u8>,
    /// The connection; aborted with its owner.
    _connection: JoinSet<()>,
}

impl Gateway {
    /// One of this process or of a known address.
    pub(crate) fn at(address: std::net::SocketAddr) -> Self {
        Self { authority: address.to_string() }
    }

    /// From what a user knows it by, as in `http://127.0.0.1:8000`, with or without `/v1`.
    pub(crate) fn from_url(text: &str) -> Result<Self, String> {
        const FORM: &str = "write it as in http://127.0.0.1:8000";
        let uri: Uri = text.parse().map_err(|error| format!("{error}; {FORM}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("https is not supported yet; use http on a trusted network".to_owned());
            }
            _ => return Err(format!("no scheme http; {FORM}")),
        }
        if !matches!(uri.path(), "" | "/" | "/v1" | "/v1/") || uri.query().is_some() {
            return Err(format!("a path beside /v1 has no meaning here; {FORM}"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| format!("no host; {FORM}"))?;
        Ok(Self { authority: format!("{host}:{}", uri.port_u16().unwrap_or(80)) })
    }

    /// Which model it serves.
    pub(crate) async fn served(&self) -> anyhow::Result<Served> {
        let request = self.request(http::Method::GET, "/v1/models", Bytes::new())?;
        let (answer, _connection) = self.send(request).await?;
        let (status, body) = (answer.status(), answer.into_body());
        let page = page(body).await?;
        let entry = &page["data"][0];
        match entry["id"].as_str() {
            Some(id) => {
                Ok(Served { model: id.to_owned(), context: entry["max_model_len"].as_u64() })
            }
            None => bail!("{} lists no model ({status})", self.authority),
        }
    }

    /// Posts a streaming request.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Events> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        let request = self.request(http::Method::POST, path, body)?;
        let (answer, connection) = self.send(request).await?;
        let status = answer.status();
        let body = answer.into_body();
        if status.is_success() {
            return Ok(Events { body, rest: Vec::new(), _connection: connection });
        }
        let said = page(body).await.unwrap_or_default();
        Err(match refused(&said) {
            Some(refused) => refused.into(),
            None => anyhow::anyhow!("the gateway answered {status}"),
        })
    }

    fn request(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<http::Request<Full<Bytes>>> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, &self.authority)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        Ok(request)
    }

    async fn send(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> anyhow::Result<(http::Response<Incoming>, JoinSet<()>)> {
        let stream = TcpStream::connect(&self.authority).await;
        let stream =
            stream.with_context(|| format!("connecting to the gateway at {}", self.authority))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the gateway ended");
            }
        });
        Ok((sender.send_request(request).await?, driver))
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

async fn page(body: Incoming) -> anyhow::Result<Value> {
    let text = Limited::new(body, PAGE_BYTES_MAX).collect().await;
    let text = text.map_err(|error| anyhow::anyhow!("reading the gateway's answer: {error}"))?;
    serde_json::from_slice(&text.to_bytes()).context("the gateway's answer is not JSON")
}

/// An error event ends the answer.
fn checked(event: Value) -> anyhow::Result<Value> {
    match refused(&event) {
        Some(refused) => Err(refused.into()),
        None => Ok(event),
    }
}

fn refused(said: &Value) -> Option<Refused> {
    let error = &said["error"];
    let message = error["message"].as_str()?.to_owned();
    Some(Refused { code: error["code"].as_str().map(str::to_owned), message })
}

#[cfg(test)]
mod tests {
    use super::Gateway;

    #[test]
    fn a_url_is_a_host_and_a_port_and_mistakes_name_the_form() {
        let fine = |url: &str| Gateway::from_url(url).unwrap().authority;
        assert_eq!(fine("http://127.0.0.1:8000"), "127.0.0.1:8000");
        assert_eq!(fine("http://gpu-box/v1/"), "gpu-box:80");
        assert_eq!(fine("http://[::1]:9/v1"), "[::1]:9");
        for wrong in ["127.0.0.1:8000", "gpu-box", "ftp://x", "http://x/api", "http://x?y=1", ""] {
            let refused = Gateway::from_url(wrong).unwrap_err();
            assert!(refused.contains("http://127.0.0.1:8000"), "{wrong}: {refused}");
        }
        assert!(Gateway::from_url("https://x").unwrap_err().contains("use http"));
    }
}
