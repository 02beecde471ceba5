//! One program of the product as a child process: its output line by line, its end, its death.
//! What it deliberately does not do: let a child outlive the test; dropping kills it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
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
    lines: watch::Receiver<Vec<Line>>,
    readers: JoinSet<()>,
    /// What it reads; `None` once the end was shown to it, and for one that reads nothing.
    input: Option<ChildStdin>,
}

/// A line, and which of the two pipes it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    Out,
    Err,
}

/// What was printed.
type Line = (Pipe, String);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    /// Everything it printed.
    pub text: String,
    /// Of that, standard output alone.
    pub out: String,
}

impl Program {
    /// Starts a binary from the folder where this test's own build lies. The environment is empty
    /// but for what finds tools and the cache, so that no setting of the caller leaks in.
    ///
    /// # Errors
    /// When the binary is not there: build it first.
    pub fn start(binary: &str, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<Self> {
        Self::spawn(binary, arguments, Stdio::null())
    }

    /// As [`Program::start`], for a program that reads what [`Program::write`] writes.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub fn listening(binary: &str, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<Self> {
        Self::spawn(binary, arguments, Stdio::piped())
    }

    fn spawn(binary: &str, arguments: &[impl AsRef<OsStr>], input: Stdio) -> anyhow::Result<Self> {
        let path = binary_path(binary)?;
        let mut command = Command::new(&path);
        command.args(arguments).env_clear();
        for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| {
            format!("{}: run `cargo build --release --workspace` first", path.display())
        })?;
        let (sender, lines) = watch::channel(Vec::new());
        let mut readers = JoinSet::new();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        readers.spawn(collect(Pipe::Out, out.context("piped")?, sender.clone()));
        readers.spawn(collect(Pipe::Err, err.context("piped")?, sender));
        let input = child.stdin.take();
        Ok(Self { name: binary.to_owned(), child, lines, readers, input })
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
                found = wanted(&lines[seen].1);
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
        self.said_on(&[Pipe::Out, Pipe::Err])
    }

    fn said_on(&self, pipes: &[Pipe]) -> String {
        let lines = self.lines.borrow();
        let wanted = lines.iter().filter(|(pipe, _)| pipes.contains(pipe));
        wanted.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// When it reads no more.
    pub async fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("it reads nothing")?;
        input.write_all(text.as_bytes()).await?;
        Ok(input.flush().await?)
    }

    /// Its process id.
    ///
    /// # Errors
    /// When it has ended.
    pub fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("it has ended")
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

    /// Asks it to end (SIGTERM).
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        self.signal("TERM").await
    }

    /// Sends a signal, by the system's own tool.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn signal(&mut self, name: &str) -> anyhow::Result<()> {
        let id = self.id()?.to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().await?;
        if !sent.success() {
            bail!("cannot signal {}", self.name);
        }
        Ok(())
    }

    /// Shows it the end of its input, and waits for its own.
    ///
    /// # Errors
    /// When it goes on.
    pub async fn ended(mut self) -> anyhow::Result<Ended> {
        drop(self.input.take());
        let Ok(status) = timeout(PATIENCE, self.child.wait()).await else {
            bail!("{} goes on; it said:\n{}", self.name, self.said());
        };
        while self.readers.join_next().await.is_some() {}
        Ok(Ended { code: status?.code(), text: self.said(), out: self.said_on(&[Pipe::Out]) })
    }
}

async fn collect(which: Pipe, pipe: impl AsyncRead + Unpin, lines: watch::Sender<Vec<Line>>) {
    let mut read = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = read.next_line().await {
        lines.send_modify(|lines| lines.push((which, line)));
    }
}

/// Where a binary of this test's own build lies.
///
/// # Errors
/// When the test itself lies nowhere.
pub fn binary_path(binary: &str) -> anyhow::Result<PathBuf> {
    // target/release/deps/<test>: two up are the binaries of the same profile.
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|deps| deps.parent());
    Ok(folder.context("a test lies in target")?.join(binary))
}
