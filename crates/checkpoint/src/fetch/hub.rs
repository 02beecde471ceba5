//! Requests to the model hub: addresses, redirects, the token, bounded waits.
//!
//! Deliberately not `hf-hub`: its download has no connect timeout, no bound on the size and no way
//! to stop, which leaves the addresses. Knows no model and no cache.

use std::io::Read;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use url::Url;

use super::{HubSettings, SourceError};
use crate::cache::TICK;
use crate::progress::Progress;

/// A file passes one, from the hub to where its bytes are; mirrors may add another.
const REDIRECTS_MAX: u32 = 5;
/// Longest tag of a version that becomes a file's name in the cache.
const ETAG_BYTES_MAX: usize = 128;

/// The hub's answer to a request for a file.
pub(super) struct Answer {
    pub(super) body: Box<dyn Read + Send>,
    /// The name of this version of the file, if it is one that can be a file's name. For large
    /// files it is their SHA-256.
    pub(super) etag: Option<String>,
    /// Size of the file, if the hub or the server with the bytes says so.
    pub(super) bytes: Option<u64>,
}

/// An address below the hub's endpoint; every part is escaped. There is none when it is off.
fn address<'a>(
    settings: &HubSettings,
    parts: impl IntoIterator<Item = &'a str>,
) -> Result<Url, SourceError> {
    if settings.offline {
        return Err(SourceError::Offline);
    }
    let unusable = |reason: String| SourceError::Setting { field: "HF_ENDPOINT", reason };
    let mut url = Url::parse(&settings.endpoint).map_err(|error| unusable(error.to_string()))?;
    url.path_segments_mut()
        .map_err(|()| unusable("expected a form like https://huggingface.co".to_owned()))?
        .pop_if_empty()
        .extend(parts);
    Ok(url)
}

/// Where a file of a repository lies.
pub(super) fn file_address(
    settings: &HubSettings,
    repository: &str,
    revision: &str,
    file: &str,
) -> Result<Url, SourceError> {
    let parts = repository.split('/').chain(["resolve", revision]).chain(file.split('/'));
    address(settings, parts)
}

/// Where the list of a repository's files lies.
pub(super) fn list_address(
    settings: &HubSettings,
    repository: &str,
    revision: &str,
) -> Result<Url, SourceError> {
    let parts = ["api", "models"].into_iter().chain(repository.split('/'));
    let mut url = address(settings, parts.chain(["revision", revision]))?;
    // Sizes and digests of the files, without which there would be one more request for each.
    url.set_query(Some("blobs=true"));
    Ok(url)
}

fn agent(settings: &HubSettings) -> Result<ureq::Agent, SourceError> {
    let mut builder = ureq::AgentBuilder::new()
        .timeout_connect(settings.connect_wait_max)
        .timeout_read(settings.read_wait_max)
        .timeout_write(settings.read_wait_max)
        // They are followed here, because the answer that redirects names the file's version.
        .redirects(0)
        // A redirect to plain HTTP would show what is fetched; only a plain endpoint may be plain.
        .https_only(settings.endpoint.starts_with("https://"))
        .user_agent(concat!("oasiskv/", env!("CARGO_PKG_VERSION")));
    if let Some(address) = &settings.proxy {
        let proxy = ureq::Proxy::new(address).map_err(|_| SourceError::Setting {
            field: "HTTPS_PROXY",
            reason: "expected a form like http://host:3128".to_owned(),
        })?;
        builder = builder.proxy(proxy);
    }
    Ok(builder.build())
}

/// Asks for `url` and gives its body once the hub began to answer, within `answer_wait_max`.
pub(super) fn get(
    url: &Url,
    settings: &HubSettings,
    answer_wait_max: Duration,
    progress: &mut dyn Progress,
) -> Result<Answer, SourceError> {
    let endpoint = address(settings, [])?;
    let agent = agent(settings)?;
    let mut target = url.clone();
    let (mut etag, mut linked_bytes) = (None, None);
    for _ in 0..=REDIRECTS_MAX {
        let at_endpoint = target.origin() == endpoint.origin();
        let mut request = agent.request_url("GET", &target);
        if let Some(token) = settings.token.as_ref().filter(|_| at_endpoint) {
            request = request.set("Authorization", &format!("Bearer {}", token.0));
        }
        progress.started(&format!("asking {}", settings.endpoint), None);
        let answer = call(request, &target, answer_wait_max, progress);
        progress.finished();
        let response = match answer? {
            Ok(response) => response,
            Err(ureq::Error::Status(status, response)) => {
                let gated = response.header("X-Error-Code") == Some("GatedRepo");
                return Err(SourceError::Status { url: url.to_string(), status, gated });
            }
            Err(ureq::Error::Transport(transport)) => {
                let reason = reason(&transport);
                return Err(SourceError::Unreachable { endpoint: host(&target), reason });
            }
        };
        if at_endpoint && etag.is_none() {
            let tag = response.header("X-Linked-Etag").or_else(|| response.header("ETag"));
            etag = tag.and_then(file_name_of_etag);
            linked_bytes = number(&response, "X-Linked-Size");
        }
        if !(300..400).contains(&response.status()) {
            let bytes = linked_bytes.or_else(|| number(&response, "Content-Length"));
            return Ok(Answer { body: response.into_reader(), etag, bytes });
        }
        let location = response.header("Location").and_then(|to| target.join(to).ok());
        target = location.ok_or_else(|| SourceError::Status {
            url: url.to_string(),
            status: response.status(),
            gated: false,
        })?;
    }
    let reason = format!("more than {REDIRECTS_MAX} redirects");
    Err(SourceError::Unreachable { endpoint: host(&target), reason })
}

fn number(response: &ureq::Response, header: &str) -> Option<u64> {
    response.header(header)?.parse().ok()
}

/// An `ETag` without its quotes, if it can be a file's name.
fn file_name_of_etag(tag: &str) -> Option<String> {
    let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let usable = (1..=ETAG_BYTES_MAX).contains(&tag.len()) && tag.chars().all(inside);
    usable.then(|| tag.to_owned())
}

/// Scheme, host and port, without the path and query, which may be signed.
fn host(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// What failed, without the address, which the error names anyway.
fn reason(transport: &ureq::Transport) -> String {
    let mut text = transport.kind().to_string();
    if let Some(message) = transport.message() {
        text = format!("{text}: {message}");
    }
    match std::error::Error::source(transport) {
        Some(source) => format!("{text}: {source}"),
        None => text,
    }
}

/// Sends the request from a thread of its own. Name resolution has no timeout of its own and can
/// hang for long on a host without network: then the thread is left to end by itself, and its
/// answer, if any, is dropped with the connection.
fn call(
    request: ureq::Request,
    target: &Url,
    answer_wait_max: Duration,
    progress: &dyn Progress,
) -> Result<Result<ureq::Response, ureq::Error>, SourceError> {
    let unreachable = |reason: String| SourceError::Unreachable { endpoint: host(target), reason };
    let (answer_tx, answer_rx) = sync_channel(1);
    let work = move || {
        // The receiver may have given up; then nobody wants the answer.
        drop(answer_tx.send(request.call()));
    };
    std::thread::Builder::new()
        .name("hub-request".to_owned())
        .spawn(work)
        .map_err(|error| unreachable(error.to_string()))?;
    let mut waited = Duration::ZERO;
    while waited < answer_wait_max {
        match answer_rx.recv_timeout(TICK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(unreachable("the request ended without an answer".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => waited += TICK,
        }
        if progress.cancelled() {
            return Err(SourceError::Cancelled);
        }
    }
    Err(unreachable(format!("no answer within {answer_wait_max:?}")))
}

#[cfg(test)]
mod tests {
    use super::{HubSettings, file_address, file_name_of_etag, list_address};

    #[test]
    fn addresses_follow_the_endpoint_and_escape_what_they_are_given() {
        let endpoint = "https://mirror.example/hub/".to_owned();
        let settings = HubSettings { endpoint, ..HubSettings::default() };
        let file = file_address(&settings, "o/n", "refs/pr/1", "a b/c?.gguf").unwrap();
        let expected = "https://mirror.example/hub/o/n/resolve/refs%2Fpr%2F1/a%20b/c%3F.gguf";
        assert_eq!(file.as_str(), expected);
        let list = list_address(&settings, "o/n", "main").unwrap();
        let expected = "https://mirror.example/hub/api/models/o/n/revision/main?blobs=true";
        assert_eq!(list.as_str(), expected);
    }

    #[test]
    fn only_tags_that_can_be_names_become_names() {
        assert_eq!(file_name_of_etag("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(file_name_of_etag("W/\"a-1\"").as_deref(), Some("a-1"));
        for tag in ["", "\"\"", "../x", "a/b", "a.b", &"x".repeat(200)] {
            assert_eq!(file_name_of_etag(tag), None, "{tag}");
        }
    }
}
