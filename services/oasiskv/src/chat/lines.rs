//! Where a chat's input comes from: a line editor where standard input and output are terminals,
//! plain lines otherwise, so that a chat can be driven through a pipe.
//! What it deliberately does not do: know what the lines mean, or write the history to disk.
//!
//! Reading blocks, so it has a thread of its own, which reads one line when asked for one. When
//! the process is told to end while the editor waits, the thread cannot be called back: what the
//! editor changed on the terminal is put back here.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use tokio::sync::mpsc;

/// Longest line; the gateway takes no longer request (`limits.body_max`).
const LINE_BYTES_MAX: u64 = 2 << 20;

/// Lines that the editor remembers.
const HISTORY_MAX: usize = 1_000;

/// What came.
#[derive(Debug)]
pub(crate) enum Input {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C in the line editor.
    Interrupted,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// What a line is read for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prompt {
    /// A question or a command.
    First,
    /// One more line of a longer text.
    More,
}

/// Lines, one at a time.
pub(crate) struct Lines {
    /// Takes the next prompt; of one, because only one line is ever asked for.
    asks: SyncSender<Prompt>,
    lines: mpsc::Receiver<anyhow::Result<Input>>,
    /// The terminal as it was; `None` without the editor.
    original: Option<Termios>,
    /// A line was asked for and has not come.
    reading: bool,
}

impl Prompt {
    fn text(self) -> &'static str {
        match self {
            Self::First => ">>> ",
            Self::More => "... ",
        }
    }
}

impl Lines {
    /// Starts the reading thread.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (asks, prompts) = sync_channel(1);
        let (sender, lines) = mpsc::channel(1);
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let original = match terminal {
            true => Some(tcgetattr(std::io::stdin()).context("asking the terminal")?),
            false => None,
        };
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(
                move || if terminal { edited(&prompts, &sender) } else { plain(&prompts, &sender) },
            )
            .context("starting the thread that reads lines")?;
        Ok(Self { asks, lines, original, reading: false })
    }

    /// Whether a person is at the other end.
    pub(crate) fn is_edited(&self) -> bool {
        self.original.is_some()
    }

    /// The next line.
    pub(crate) async fn next(&mut self, prompt: Prompt) -> anyhow::Result<Input> {
        if !self.reading {
            self.asks.try_send(prompt).context("the thread that reads lines has ended")?;
            self.reading = true;
        }
        let line = self.lines.recv().await;
        self.reading = false;
        line.context("the thread that reads lines has ended")?
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let Some(original) = self.original.as_ref().filter(|_| self.reading) else {
            return;
        };
        // Nothing can be done about a terminal that is gone.
        let _gone = tcsetattr(std::io::stdin(), OptionalActions::Now, original);
        // Bracketed paste off, and off the line that was begun.
        drop(std::io::stdout().write_all(b"\x1b[?2004l\n"));
    }
}

/// Until nobody asks any more.
fn edited(prompts: &Receiver<Prompt>, lines: &mpsc::Sender<anyhow::Result<Input>>) {
    let config = rustyline::Config::builder()
        .max_history_size(HISTORY_MAX)
        .and_then(|builder| builder.history_ignore_dups(true))
        .map(|builder| builder.auto_add_history(true).build());
    let editor = config.and_then(|config| {
        let history = MemHistory::with_config(&config);
        rustyline::Editor::<(), MemHistory>::with_history(config, history)
    });
    let mut editor = match editor {
        Ok(editor) => editor,
        Err(error) => {
            let failed = anyhow::Error::new(error).context("starting the line editor");
            drop(lines.blocking_send(Err(failed)));
            return;
        }
    };
    while let Ok(prompt) = prompts.recv() {
        let line = match editor.readline(prompt.text()) {
            Ok(line) => Ok(Input::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(anyhow::Error::new(error).context("reading a line")),
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Until nobody asks any more.
fn plain(prompts: &Receiver<Prompt>, lines: &mpsc::Sender<anyhow::Result<Input>>) {
    let mut input = std::io::stdin().lock();
    let person = input_is_typed();
    while let Ok(prompt) = prompts.recv() {
        if person {
            // The answers go to a file or a pipe; whoever types still wants to see when to.
            drop(std::io::stderr().write_all(prompt.text().as_bytes()));
        }
        if lines.blocking_send(read_line(&mut input)).is_err() {
            return;
        }
    }
}

fn input_is_typed() -> bool {
    std::io::stdin().is_terminal()
}

fn read_line(input: &mut impl BufRead) -> anyhow::Result<Input> {
    let mut line = Vec::new();
    let bytes = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    if bytes.context("reading standard input")? == 0 {
        return Ok(Input::End);
    }
    if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
        anyhow::bail!("a line of over {LINE_BYTES_MAX} bytes on standard input: shorten it");
    }
    let text = String::from_utf8(line).context("standard input is not UTF-8")?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Input::Line(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Input, LINE_BYTES_MAX, read_line};

    #[test]
    fn lines_lose_their_ends_and_the_last_may_have_none() {
        let mut input = b"one\r\n\ntwo".as_slice();
        let mut next = || match read_line(&mut input) {
            Ok(Input::Line(line)) => line,
            other => format!("{other:?}"),
        };
        assert_eq!([next(), next(), next(), next()], ["one", "", "two", "Ok(End)"]);
    }

    #[test]
    fn a_line_beyond_the_bound_and_bytes_that_are_no_text_are_errors() {
        let long = vec![b'x'; usize::try_from(LINE_BYTES_MAX).unwrap() + 1];
        assert!(read_line(&mut long.as_slice()).unwrap_err().to_string().contains("shorten"));
        assert!(read_line(&mut b"\xff\n".as_slice()).unwrap_err().to_string().contains("UTF-8"));
    }
}
