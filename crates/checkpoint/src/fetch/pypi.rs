//! The second source: a Python wheel that carries the file, fetched by pip and unpacked here.
//!
//! Deliberately never installs or imports the package: pip only downloads, a wheel only
//! (`--only-binary`), so that no code of the package runs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::alias::Package;
use super::{PipSettings, SourceError, write_failed};
use crate::cache::TICK;
use crate::progress::Progress;

/// How much of pip's last words an error shows.
const TAIL_BYTES: u64 = 1500;

/// A child that does not outlive its guard.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Downloads the package's wheel into `dir` and gives its path.
pub(super) fn download(
    package: &Package,
    dir: &Path,
    settings: &PipSettings,
    progress: &mut dyn Progress,
) -> Result<PathBuf, SourceError> {
    let title = format!("fetching python package {} {}", package.name, package.version);
    progress.started(&title, Some(package.wheel_bytes));
    let outcome = run_pip(package, dir, settings, progress);
    progress.finished();
    let (status, log) = outcome?;
    if !status.success() {
        return Err(pip_failed(package, dir, &status, &log));
    }
    let entries = std::fs::read_dir(dir).map_err(|error| write_failed(dir, 0, error))?;
    let mut wheels: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .collect();
    match (wheels.pop(), wheels.len()) {
        (Some(wheel), 0) => Ok(wheel),
        (_, more) => Err(SourceError::Wheel {
            reason: format!("pip left {more} wheels more than the one asked for"),
        }),
    }
}

fn run_pip(
    package: &Package,
    dir: &Path,
    settings: &PipSettings,
    progress: &mut dyn Progress,
) -> Result<(ExitStatus, PathBuf), SourceError> {
    let log = dir.join("pip.log");
    let failed = |error| write_failed(&log, 0, error);
    // A file, not a pipe: nobody has to drain it while we look at sizes.
    let log_file = File::create(&log).map_err(failed)?;
    let mut command = Command::new(&settings.python);
    command
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:"])
        .args(["--no-input", "--no-cache-dir", "--disable-pip-version-check"])
        .args(["--progress-bar", "off", "--timeout", "15", "--retries", "2"])
        .arg("--dest")
        .arg(dir)
        .arg(format!("{}=={}", package.name, package.version))
        // An empty directory of ours: `-m` would import a pip that lies in the user's.
        .current_dir(dir)
        // pip's unfinished download then lies here too: measurable, and removed with the rest.
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file);
    let child = command.spawn().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => {
            SourceError::PythonMissing { python: settings.python.clone() }
        }
        _ => SourceError::Python { python: settings.python.clone(), source },
    })?;
    let mut running = Running(child);
    let mut seen = 0u64;
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = running.0.try_wait().map_err(failed)? {
            return Ok((status, log));
        }
        if progress.cancelled() {
            return Err(SourceError::Cancelled);
        }
        if waited >= settings.time_max {
            return Err(SourceError::PipTimeout { seconds: settings.time_max.as_secs() });
        }
        let now = bytes_below(dir, 3).min(package.wheel_bytes);
        progress.advanced(now.saturating_sub(seen));
        seen = seen.max(now);
        // Parking, not sleeping: this thread belongs to the fetch and nothing else runs on it.
        std::thread::park_timeout(TICK);
        waited += TICK;
    }
}

/// Bytes of all files below `dir`; files that vanish meanwhile count as nothing.
fn bytes_below(dir: &Path, depth: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

fn pip_failed(package: &Package, dir: &Path, status: &ExitStatus, log: &Path) -> SourceError {
    let tail = tail(log).unwrap_or_default();
    if tail.contains("No space left on device") {
        return SourceError::NoSpace {
            path: dir.to_owned(),
            needed: package.wheel_bytes,
            free: crate::space::free_space(dir).map_or(0, |free| free.0),
        };
    }
    if tail.contains("No module named pip") {
        return SourceError::Pip {
            status: status.to_string(),
            tail: "this python has no pip: install it (python3-pip)".to_owned(),
        };
    }
    SourceError::Pip { status: status.to_string(), tail }
}

/// The last lines of a log, on one line.
fn tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    Ok(lines[lines.len().saturating_sub(3)..].join("; "))
}

/// Hands the unpacked member of a wheel to `read`, after a look at its size.
pub(super) fn with_member<T>(
    wheel: &Path,
    member: &str,
    bytes: u64,
    read: impl FnOnce(&mut dyn Read) -> Result<T, SourceError>,
) -> Result<T, SourceError> {
    let bad = |error: zip::result::ZipError| SourceError::Wheel { reason: error.to_string() };
    let file = File::open(wheel).map_err(|source| SourceError::Interrupted { source })?;
    let mut archive = zip::ZipArchive::new(std::io::BufReader::new(file)).map_err(bad)?;
    let mut entry = archive.by_name(member).map_err(bad)?;
    if entry.size() != bytes {
        return Err(SourceError::Size { expected: bytes, found: entry.size().to_string() });
    }
    read(&mut entry)
}
