//! The first source: a file of a repository on the model hub.
//!
//! Deliberately uses `hf-hub` for addressing only: its own download has no connect timeout, no
//! bound on the size and no way to stop, and writes outside of our staging directory.

use std::io::Read;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo, RepoType};

use super::{HubSettings, SourceError};
use crate::cache::TICK;
use crate::progress::Progress;

/// Where a file of a repository lies. The revision is `main`: the pinned digest fixes the content.
fn url(endpoint: &str, repository: &str, file: &str) -> Result<String, SourceError> {
    let builder = ApiBuilder::from_cache(Cache::new(std::path::PathBuf::new()));
    let builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    let api = builder.build().map_err(|error| SourceError::Setting {
        field: "hub.endpoint",
        reason: error.to_string(),
    })?;
    let repository = Repo::new(repository.to_owned(), RepoType::Model);
    Ok(api.repo(repository).url(file))
}

fn agent(settings: &HubSettings) -> Result<ureq::Agent, SourceError> {
    let mut builder = ureq::AgentBuilder::new()
        .timeout_connect(settings.connect_wait_max)
        .timeout_read(settings.read_wait_max)
        .timeout_write(settings.read_wait_max)
        .redirects(5)
        .redirect_auth_headers(ureq::RedirectAuthHeaders::SameHost)
        // A redirect to plain HTTP would show the token; only a plain endpoint may be plain.
        .https_only(settings.endpoint.starts_with("https://"))
        .user_agent(concat!("oasiskv/", env!("CARGO_PKG_VERSION")));
    if let Some(address) = &settings.proxy {
        let proxy = ureq::Proxy::new(address).map_err(|_| SourceError::Setting {
            field: "hub.proxy",
            reason: "expected a form like http://host:3128".to_owned(),
        })?;
        builder = builder.proxy(proxy);
    }
    Ok(builder.build())
}

/// Asks for a file of `bytes` bytes and gives its body once the hub began to answer.
pub(super) fn open(
    repository: &str,
    file: &str,
    bytes: u64,
    settings: &HubSettings,
    progress: &mut dyn Progress,
) -> Result<Box<dyn Read + Send>, SourceError> {
    if settings.offline {
        return Err(SourceError::Offline);
    }
    let url = url(&settings.endpoint, repository, file)?;
    let mut request = agent(settings)?.get(&url);
    if let Some(token) = &settings.token {
        request = request.set("Authorization", &format!("Bearer {}", token.0));
    }
    progress.started(&format!("asking {}", settings.endpoint), None);
    let answer = call(request, settings, progress);
    progress.finished();
    let response = match answer? {
        Ok(response) => response,
        Err(ureq::Error::Status(status, _)) => return Err(SourceError::Status { url, status }),
        Err(ureq::Error::Transport(transport)) => {
            return Err(SourceError::Unreachable {
                endpoint: settings.endpoint.clone(),
                reason: reason(&transport),
            });
        }
    };
    let length = response.header("Content-Length");
    if let Some(found) = length.filter(|text| text.parse() != Ok(bytes)) {
        return Err(SourceError::Size { expected: bytes, found: found.chars().take(20).collect() });
    }
    Ok(response.into_reader())
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
    settings: &HubSettings,
    progress: &dyn Progress,
) -> Result<Result<ureq::Response, ureq::Error>, SourceError> {
    let unreachable =
        |reason: String| SourceError::Unreachable { endpoint: settings.endpoint.clone(), reason };
    let (answer_tx, answer_rx) = sync_channel(1);
    let work = move || {
        // The receiver may have given up; then nobody wants the answer.
        drop(answer_tx.send(request.call()));
    };
    std::thread::Builder::new()
        .name("hub-request".to_owned())
        .spawn(work)
        .map_err(|error| unreachable(error.to_string()))?;
    // Connecting, and as long again for the first byte of the answer.
    let wait_max = settings.connect_wait_max * 2;
    let mut waited = Duration::ZERO;
    while waited < wait_max {
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
    Err(unreachable(format!("no answer within {wait_max:?}")))
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn addresses_follow_the_endpoint() {
        let expected = "https://mirror.example/o/n/resolve/main/a.gguf";
        assert_eq!(url("https://mirror.example/", "o/n", "a.gguf").unwrap(), expected);
    }
}
