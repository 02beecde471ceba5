//! `oasiskv chat`: a dialogue with the model, through the same API as every client's.
//!
//! The model's text goes to standard output and all else to standard error, so that a chat through
//! a pipe gives the answers and nothing more. What it deliberately does not do: keep anything on
//! disk that was not asked for with `/save`.

mod command;
mod dialogue;
mod lines;
mod settings;

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use daemon::Daemon;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::answer::{Answer, printable};
use crate::client::{Gateway, Refused, Served};
use command::{Command, HELP};
use dialogue::{Dialogue, Turn};
use lines::{Input, Lines, Prompt};

/// Longest file of `/read` and `/load`: the gateway takes no longer request (`limits.body_max`).
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Where neither a flag nor a file sets another: a chat that repeats itself is of little use.
const TEMPERATURE: f64 = 0.7;

/// Where a dialogue's questions go.
const PATH: &str = "/v1/chat/completions";

/// What begins and ends a text of several lines.
const FENCE: &str = "\"\"\"";

/// How the dialogue begins.
#[derive(Debug, clap::Args)]
pub(crate) struct DialogueArgs {
    /// The system message: how the model is to answer.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// 0 to 2; 0 always takes the most probable token [default: 0.7]
    #[arg(
        long,
        value_name = "T",
        allow_negative_numbers = true,
        value_parser = crate::temperature
    )]
    temperature: Option<f64>,
    /// Draw from the most probable tokens that together have this probability.
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Seed of the draws; without it every answer draws its own, which /stats shows.
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Go on with a dialogue that /save wrote.
    #[arg(long, value_name = "FILE")]
    load: Option<PathBuf>,
    /// Show after every answer what it took.
    #[arg(long)]
    verbose: bool,
}

/// A chat at work.
pub(crate) struct Chat {
    gateway: Gateway,
    served: Served,
    daemon: Daemon,
    dialogue: Dialogue,
    /// The newest question, if it got no answer; `/retry` asks it.
    unanswered: Option<String>,
    /// Text of files that goes in front of the next question; mostly empty.
    pending: String,
    /// The newest answer, or the part of it that came; `None` before the first.
    newest: Option<Answer>,
    /// Whether every answer is followed by what it took.
    verbose: bool,
    /// The file that was last saved or loaded, and so may be written over.
    file: Option<PathBuf>,
    asked: u64,
    /// Of those, questions that got an error.
    failed: u64,
}

/// Whether the chat goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    Leave,
}

impl DialogueArgs {
    /// What can be told before anything is started.
    pub(crate) fn dialogue(&self) -> Result<Dialogue, String> {
        let mut dialogue = Dialogue::default();
        // What a file or a flag says comes after it.
        dialogue.settings.set_value("temperature", json!(TEMPERATURE))?;
        if let Some(file) = &self.load {
            let read = read_text(file).and_then(|text| dialogue_of(&text));
            dialogue = read.map_err(|error| format!("--load: {error:#}"))?;
        }
        if self.system.is_some() {
            dialogue.system.clone_from(&self.system);
        }
        for (name, value) in [
            ("temperature", json!(self.temperature)),
            ("top_p", json!(self.top_p)),
            ("seed", json!(self.seed)),
            ("max_tokens", json!(self.max_tokens)),
        ] {
            dialogue.settings.set_value(name, value)?;
        }
        Ok(dialogue)
    }
}

impl Chat {
    /// Asks the gateway for its model.
    pub(crate) async fn open(
        gateway: Gateway,
        dialogue: Dialogue,
        args: &DialogueArgs,
        daemon: Daemon,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            served: gateway.served().await?,
            gateway,
            daemon,
            dialogue,
            unanswered: None,
            pending: String::new(),
            newest: None,
            verbose: args.verbose,
            file: args.load.clone(),
            asked: 0,
            failed: 0,
        })
    }

    /// Until the user leaves or the input ends. Through a pipe, questions without an answer make
    /// it an error.
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        let mut lines = Lines::start()?;
        if lines.is_edited() {
            note(&format!("{}; /help lists the commands, ctrl-d leaves", self.title()));
        }
        let mut warned = false;
        loop {
            let line = match lines.next(Prompt::First).await? {
                Input::Line(line) => line,
                Input::End => break,
                Input::Interrupted if warned => break,
                Input::Interrupted => {
                    // An answer may have ended just before it was to be stopped.
                    note("ctrl-c again leaves; so do ctrl-d and /bye");
                    warned = true;
                    continue;
                }
            };
            warned = false;
            match self.whole(&mut lines, line).await? {
                Ok(command) => {
                    if self.obey(command).await? == Then::Leave {
                        break;
                    }
                }
                Err(problem) => note(&problem),
            }
        }
        match (lines.is_edited(), self.failed) {
            (true, _) | (_, 0) => Ok(()),
            (false, failed) => {
                anyhow::bail!("{failed} of {} questions got no answer", self.asked)
            }
        }
    }

    /// A command from its first line, with the lines that belong to it.
    async fn whole(
        &self,
        lines: &mut Lines,
        first: String,
    ) -> anyhow::Result<Result<Command, String>> {
        let Some((before, rest)) = first.split_once(FENCE) else {
            return Ok(Command::parse(&first));
        };
        let is_system = ["/system", "/set system"].contains(&before.trim_end());
        if !before.trim().is_empty() && !is_system {
            return Ok(Command::parse(&first));
        }
        let mut text = rest.to_owned();
        while !text.trim_end().ends_with(FENCE) {
            match lines.next(Prompt::More).await? {
                Input::Line(line) => {
                    text.push('\n');
                    text.push_str(&line);
                }
                Input::Interrupted => return Ok(Err("the text was dropped".to_owned())),
                Input::End => return Ok(Err(format!("the text has no {FENCE} at its end"))),
            }
        }
        let text = text.trim_end().strip_suffix(FENCE).unwrap_or(&text).trim();
        Ok(match (is_system, text.is_empty()) {
            (true, _) => Ok(Command::System(Some(text.to_owned()))),
            (false, true) => Ok(Command::Nothing),
            (false, false) => Ok(Command::Ask(text.to_owned())),
        })
    }

    async fn obey(&mut self, command: Command) -> anyhow::Result<Then> {
        match command {
            Command::Nothing => {}
            Command::Ask(text) => {
                let question = match std::mem::take(&mut self.pending) {
                    read if read.is_empty() => text,
                    read => format!("{read}\n{text}"),
                };
                self.ask(question).await?;
            }
            Command::Help => note(HELP.trim_end()),
            Command::Clear => {
                self.dialogue.turns.clear();
                (self.unanswered, self.newest, self.file) = (None, None, None);
                self.pending.clear();
                note("a new dialogue");
            }
            Command::System(None) => note(self.dialogue.system.as_deref().unwrap_or("none")),
            Command::System(Some(text)) => {
                self.dialogue.system = Some(text).filter(|text| !text.is_empty());
            }
            Command::Retry => self.retry().await?,
            Command::Set(name, value) => {
                if let Err(problem) = self.dialogue.settings.set(&name, &value) {
                    note(&problem);
                }
            }
            Command::Show => note(&self.show()),
            Command::Stats => note(&self.stats()),
            Command::Verbose(verbose) => self.verbose = verbose,
            Command::Read(name) => self.files(read(&name).await, |chat, text| {
                let bytes = ids::ByteCount(text.len() as u64);
                note(&format!("{bytes} go in front of the next question"));
                chat.pending.push_str(&text);
                Ok(())
            }),
            Command::Load(name) => self.files(read(&name).await, |chat, text| {
                chat.dialogue = dialogue_of(&text)?;
                chat.file = Some(name.into());
                (chat.unanswered, chat.newest) = (None, None);
                note(&format!("a dialogue of {} answers", chat.dialogue.turns.len()));
                Ok(())
            }),
            Command::Save(name) => {
                let saved = self.save(Path::new(&name)).await;
                self.files(saved, |chat, ()| {
                    chat.file = Some(name.into());
                    Ok(())
                });
            }
            Command::Leave => return Ok(Then::Leave),
        }
        Ok(Then::GoOn)
    }

    /// Goes on with what a file gave, or says what is wrong with it.
    fn files<T>(
        &mut self,
        outcome: anyhow::Result<T>,
        then: impl FnOnce(&mut Self, T) -> anyhow::Result<()>,
    ) {
        if let Err(error) = outcome.and_then(|value| then(self, value)) {
            note(&format!("{error:#}"));
        }
    }

    /// Asks, shows the answer as it comes, and remembers both if there was one. Only a standard
    /// output that is gone is an error.
    async fn ask(&mut self, question: String) -> anyhow::Result<()> {
        let body = self.dialogue.request(&self.served.model, &question);
        let mut answer = Answer::begin();
        let mut out = std::io::stdout();
        let terminal = out.is_terminal();
        let waiting = waiting(terminal);
        let interrupt = self.daemon.catch_interrupt();
        let show = |piece: &str| {
            waiting.finish_and_clear();
            match terminal {
                true => out.write_all(printable(piece).as_bytes())?,
                false => out.write_all(piece.as_bytes())?,
            }
            out.flush()
        };
        let ended = tokio::select! {
            ended = answer.follow(&self.gateway, PATH, &body, show) => Some(ended),
            // Dropping the answer closes its connection, which frees it on every node (P6).
            () = interrupt.caught() => None,
        };
        drop(interrupt);
        waiting.finish_and_clear();
        if !answer.text.is_empty() {
            writeln!(std::io::stdout())?;
        }
        self.asked += 1;
        match ended {
            Some(Ok(())) => self.answered(question, answer),
            None => {
                note("stopped");
                self.answered(question, answer);
            }
            Some(Err(error)) => {
                self.failed += 1;
                note(&format!("error: {error:#}"));
                note(self.remedy(&error));
                self.unanswered = Some(question);
            }
        }
        Ok(())
    }

    fn answered(&mut self, question: String, answer: Answer) {
        if answer.text.trim().is_empty() {
            note("there is no answer; the dialogue is as it was");
            self.unanswered = Some(question);
        } else {
            self.dialogue.turns.push(Turn { question, answer: answer.text.clone() });
            self.unanswered = None;
        }
        if answer.is_cut() {
            let used = answer.prompt_tokens() + answer.completion_tokens();
            match self.served.context.filter(|context| used >= *context) {
                Some(context) => note(&format!(
                    "cut off: the context of {context} tokens is full; /clear begins a new dialogue"
                )),
                None => note(&format!(
                    "cut off after {} tokens; /set max_tokens allows more",
                    answer.completion_tokens()
                )),
            }
        }
        if self.verbose {
            note(answer.ledger().trim_end());
        }
        self.newest = Some(answer);
    }

    fn remedy(&self, error: &anyhow::Error) -> &'static str {
        let code = error.downcast_ref::<Refused>().and_then(|refused| refused.code.as_deref());
        match code {
            Some("context_length_exceeded") => {
                "the dialogue is as it was; /clear begins a new one, /save keeps this one"
            }
            _ => "the dialogue is as it was; /retry asks again",
        }
    }

    /// Asks the newest question again. An answer that it has is replaced only by another one.
    async fn retry(&mut self) -> anyhow::Result<()> {
        if let Some(question) = self.unanswered.take() {
            return self.ask(question).await;
        }
        let Some(turn) = self.dialogue.turns.pop() else {
            note("there is no question to ask again");
            return Ok(());
        };
        if self.dialogue.settings.repeats() {
            note(
                "with temperature 0 or a seed that is set the answer is the same again: \
                 /set temperature 0.7, /set seed default",
            );
        }
        let before = self.dialogue.turns.len();
        self.ask(turn.question.clone()).await?;
        if self.dialogue.turns.len() == before {
            self.dialogue.turns.push(turn);
            self.unanswered = None;
        }
        Ok(())
    }

    fn title(&self) -> String {
        match self.served.context {
            Some(context) => format!("{}, {context} tokens of context", self.served.model),
            None => self.served.model.clone(),
        }
    }

    fn show(&self) -> String {
        format!("{}\n{}\n{}", self.title(), self.fill(), self.dialogue.summary().trim_end())
    }

    /// How full the context was with the newest answer.
    fn fill(&self) -> String {
        let used = self.newest.as_ref();
        let used = used.map_or(0, |answer| answer.prompt_tokens() + answer.completion_tokens());
        match self.served.context {
            Some(context) => format!("context used: {used} of {context} tokens"),
            None => format!("context used: {used} tokens"),
        }
    }

    fn stats(&self) -> String {
        let Some(answer) = &self.newest else {
            return "there is no answer yet".to_owned();
        };
        let seed = answer.seed().map_or(String::new(), |seed| format!("\nseed {seed}"));
        format!("{}{}{seed}", answer.ledger(), self.fill())
    }

    async fn save(&self, path: &Path) -> anyhow::Result<()> {
        let document = self.dialogue.document(&self.served.model);
        let text = serde_json::to_string_pretty(&document)? + "\n";
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true);
        // Nothing of the user's is written over unasked.
        match self.file.as_deref() == Some(path) {
            true => options.create(true).truncate(true),
            false => options.create_new(true),
        };
        let written = async {
            let mut file = options.open(path).await?;
            tokio::io::AsyncWriteExt::write_all(&mut file, text.as_bytes()).await?;
            tokio::io::AsyncWriteExt::flush(&mut file).await
        };
        written.await.with_context(|| format!("cannot save to {}", path.display()))
    }
}

/// Off the runtime: a file may lie on a disk that sleeps.
async fn read(name: &str) -> anyhow::Result<String> {
    let path = PathBuf::from(name);
    tokio::task::spawn_blocking(move || read_text(&path)).await?
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let fits = text.len() as u64 <= FILE_BYTES_MAX;
    anyhow::ensure!(fits, "{} is over {FILE_BYTES_MAX} bytes", path.display());
    Ok(text)
}

fn dialogue_of(text: &str) -> anyhow::Result<Dialogue> {
    let document: Value = serde_json::from_str(text).context("not JSON")?;
    Dialogue::read(&document).map_err(anyhow::Error::msg).context("not a dialogue that was saved")
}

/// Shows on a terminal that something is being done until the first text is there.
fn waiting(terminal: bool) -> ProgressBar {
    if !terminal {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A line for people, on standard error; if that is gone nobody reads it.
fn note(text: &str) {
    drop(std::io::stderr().write_fmt(format_args!("{text}\n")));
}
