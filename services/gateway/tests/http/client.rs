//! A client of few words: one request per connection, read to the end or given up on the way.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Talks to one gateway.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

/// A reply, whole.
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

/// A request whose reply is not read yet; dropping it closes the connection.
pub(crate) struct Open {
    stream: TcpStream,
}

impl Client {
    pub(crate) async fn try_connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(self.address).await
    }

    async fn send(&self, head: &str, body: &[u8]) -> Open {
        self.keep(&format!("{head}\r\nconnection: close"), body).await
    }

    /// Sends a request without asking for the connection's end after it.
    pub(crate) async fn keep(&self, head: &str, body: &[u8]) -> Open {
        let mut stream = self.try_connect().await.expect("connected");
        let head = format!("{head}\r\nhost: a\r\n");
        let head = format!("{head}content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream.write_all(body).await.expect("sent");
        Open { stream }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1"), b"").await.rest().await
    }

    pub(crate) async fn raw(&self, path: &str, kind: &str, body: &[u8]) -> Reply {
        let head = format!("POST {path} HTTP/1.1\r\ncontent-type: {kind}");
        self.send(&head, body).await.rest().await
    }

    pub(crate) async fn open(&self, path: &str, body: &Value) -> Open {
        let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json");
        self.send(&head, body.to_string().as_bytes()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.open(path, body).await.rest().await
    }

    /// Reads the metrics until they have this text; the test's own time limit is the bound.
    pub(crate) async fn until_metric(&self, text: &str) {
        while !self.get("/metrics").await.body.contains(text) {
            tokio::task::yield_now().await;
        }
    }

    /// Asks until the gateway is ready.
    pub(crate) async fn until_ready(&self) {
        while self.get("/readyz").await.status != 200 {
            tokio::task::yield_now().await;
        }
    }
}

impl Open {
    /// Waits for the first event of a stream and closes the connection.
    pub(crate) async fn first_event(mut self) {
        let mut seen = String::new();
        while !seen.contains("data: ") {
            let mut buffer = [0; 1024];
            let count = self.stream.read(&mut buffer).await.expect("readable");
            assert_ne!(count, 0, "the stream ended: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> Reply {
        let mut bytes = Vec::new();
        // The server may close while bytes that it will not read are on their way to it.
        let read = self.stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).expect("text");
        let parts = text.split_once("\r\n\r\n");
        assert!(parts.is_some(), "{read:?} gave {text:?}");
        let (head, body) = parts.expect("checked just above");
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { dechunk(body) } else { body.to_owned() };
        Reply { status, head, body }
    }
}

/// Takes HTTP's chunk sizes out of a body; they count bytes.
fn dechunk(body: &str) -> String {
    let (mut rest, mut out) = (body, String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        out.push_str(&more[..size]);
        rest = more[size..].trim_start_matches("\r\n");
    }
    out
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let prefix = format!("{name}: ");
        let line = self.head.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(line.to_owned())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The documents of an event stream, and whether it ended with `[DONE]`.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let (done, documents): (Vec<&str>, Vec<&str>) = data.partition(|data| *data == "[DONE]");
        let documents = documents.into_iter().map(|text| serde_json::from_str(text).expect("JSON"));
        (documents.collect(), done.len() == 1 && self.body.ends_with("data: [DONE]\n\n"))
    }
}
