//! One program of the product as a child process: its output line by line, its end, its death.
//! What it deliberately does not do: let a child outlive the test; dropping kills it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest wait for a start or an end: a bound against hanging, not a measure.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    /// Lines of standard output and error in the order in which they were read.
    lines: watch::Receiver<Vec<String>>,
    readers: JoinSet<()>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// Everything it printed.
    pub text: String,
}

impl Program {
    /// Starts a binary from the folder where this test's own build lies. The environment is empty
    /// but for what finds tools and the cache, so that no setting of the caller leaks in.
    ///
    /// # Errors
    /// When the binary is not there: build it first.
    pub fn start(binary: &str, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<Self> {
        let path = binary_path(binary)?;
        let mut command = Command::new(&path);
        command.args(arguments).env_clear();
        for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().with_context(|| {
            format!("{}: run `cargo build --release --workspace` first", path.display())
        })?;
        let (sender, lines) = watch::channel(Vec::new());
        let mut readers = JoinSet::new();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        readers.spawn(collect(out.context("piped")?, sender.clone()));
        readers.spawn(collect(err.context("piped")?, sender));
        Ok(Self { name: binary.to_owned(), child, lines, readers })
    }

    /// Waits for a line that `wanted` makes something of.
    ///
    /// # Errors
    /// When the program ends first, or says nothing of the kind; with what it said.
    pub async fn line<T>(
        &mut self,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut seen = 0;
        let mut found = None;
        let search = self.lines.wait_for(|lines| {
            while found.is_none() && seen < lines.len() {
                found = wanted(&lines[seen]);
                seen += 1;
            }
            found.is_some()
        });
        drop(timeout(PATIENCE, search).await);
        found.with_context(|| format!("{} did not say it; it said:\n{}", self.name, self.said()))
    }

    /// What it printed so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.lines.borrow().join("\n")
    }

    /// Kills it the hard way (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// When it cannot be asked for.
    pub fn runs(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Asks it to end (SIGTERM), by the system's own tool.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("it has ended")?;
        let sent = Command::new("kill").arg(id.to_string()).status().await?;
        if !sent.success() {
            bail!("cannot signal {}", self.name);
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it goes on.
    pub async fn ended(mut self) -> anyhow::Result<Ended> {
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            bail!("{} goes on; it said:\n{}", self.name, self.said());
        };
        while self.readers.join_next().await.is_some() {}
        Ok(Ended { code: status?.code(), text: self.said() })
    }
}

async fn collect(pipe: impl AsyncRead + Unpin, lines: watch::Sender<Vec<String>>) {
    let mut read = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = read.next_line().await {
        lines.send_modify(|lines| lines.push(line));
    }
}

fn binary_path(binary: &str) -> anyhow::Result<PathBuf> {
    // target/release/deps/<test>: two up are the binaries of the same profile.
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|deps| deps.parent());
    Ok(folder.context("a test lies in target")?.join(binary))
}
