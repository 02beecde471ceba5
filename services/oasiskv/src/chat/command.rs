//! What a user typed, as something to do. A line that begins with a slash is a command; anything
//! else is for the model, also a line that begins with a blank.
//! What it deliberately does not do: carry anything out.

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Text for the model.
    Ask(String),
    /// Nothing was typed.
    Nothing,
    /// The list of commands.
    Help,
    /// Begin a new dialogue; the system message stays.
    Clear,
    /// Set the system message; `None` shows it.
    System(Option<String>),
    /// Ask the last question again.
    Retry,
    /// Set a field to a text.
    Set(String, String),
    /// Show the model, the settings and the dialogue's size.
    Show,
    /// What the last answer took.
    Stats,
    /// Whether every answer is followed by what it took.
    Verbose(bool),
    /// Put a file's text in front of the next question.
    Read(String),
    /// Write the dialogue to a file.
    Save(String),
    /// Go on with the dialogue of a file.
    Load(String),
    /// Leave.
    Leave,
}

/// The list that `/help` shows.
pub(crate) const HELP: &str = r#"  /clear              a new dialogue; the system message stays
  /system [TEXT]      set the system message, or show it; "" removes it
  /retry              ask the last question again
  /set NAME VALUE     set temperature, top_p, top_k, min_p, seed or max_tokens;
                      "default" as value takes it back
  /show               show the model, the settings and how full the context is
  /stats              what the last answer took: tokens, times, bytes moved between tiers
  /set verbose|quiet  show that after every answer, or only when asked
  /read FILE          put the text of a file in front of the next question
  /save FILE          write the dialogue as the body of a request to the API
  /load FILE          go on with a dialogue that was saved
  /help, /?           this list
  /bye, /exit, /quit  leave; ctrl-d does, too

  """ begins a text of several lines and ends it. ctrl-c stops an answer; what came of it stays.
  A line for the model that begins with a slash is typed with a blank in front.
"#;

impl Command {
    /// Reads one line, or one text of several lines.
    ///
    /// The error says what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::Nothing);
        }
        let Some(line) = text.strip_prefix('/') else {
            return Ok(Self::Ask(text.trim().to_owned()));
        };
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "help" | "?" => Ok(Self::Help),
            "clear" | "new" => Ok(Self::Clear),
            "system" => Ok(Self::system(rest)),
            "retry" | "regenerate" | "regen" => Ok(Self::Retry),
            "set" => Self::set(rest),
            "show" => Ok(Self::Show),
            "stats" => Ok(Self::Stats),
            "read" => file(rest, "read").map(Self::Read),
            "save" => file(rest, "save").map(Self::Save),
            "load" => file(rest, "load").map(Self::Load),
            "bye" | "exit" | "quit" => Ok(Self::Leave),
            _ => Err(format!(
                "there is no command /{word}: /help lists them; a line for the model that begins \
                 with a slash is typed with a blank in front"
            )),
        }
    }

    fn system(text: &str) -> Self {
        match text {
            "" => Self::System(None),
            "\"\"" => Self::System(Some(String::new())),
            text => Self::System(Some(unquoted(text).to_owned())),
        }
    }

    fn set(rest: &str) -> Result<Self, String> {
        let mut words = rest.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => Ok(Self::Show),
            (Some("verbose"), None, _) => Ok(Self::Verbose(true)),
            (Some("quiet"), None, _) => Ok(Self::Verbose(false)),
            // As users of ollama type them.
            (Some("system"), ..) => {
                Ok(Self::system(rest.split_once(char::is_whitespace).map_or("", |(_, text)| text)))
            }
            (Some("parameter"), Some(name), Some(value)) => {
                Ok(Self::Set(name.to_owned(), value.to_owned()))
            }
            (Some(name), Some(value), None) => Ok(Self::Set(name.to_owned(), value.to_owned())),
            _ => Err("write /set NAME VALUE, as in /set temperature 0.7".to_owned()),
        }
    }
}

fn file(rest: &str, command: &str) -> Result<String, String> {
    match unquoted(rest) {
        "" => Err(format!("write /{command} FILE")),
        name => Ok(name.to_owned()),
    }
}

/// Without the quotes around it, if there are.
fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn lines_become_questions_or_commands() {
        let set = |name: &str, value: &str| Command::Set(name.into(), value.into());
        for (line, wanted) in [
            ("", Command::Nothing),
            ("  \t", Command::Nothing),
            ("What is it? ", Command::Ask("What is it?".into())),
            (" /etc/hosts says?", Command::Ask("/etc/hosts says?".into())),
            ("/?", Command::Help),
            ("/clear", Command::Clear),
            ("/system Be brief.", Command::System(Some("Be brief.".into()))),
            ("/set system \"Be brief.\"", Command::System(Some("Be brief.".into()))),
            ("/system \"\"", Command::System(Some(String::new()))),
            ("/system", Command::System(None)),
            ("/set temperature 0.7", set("temperature", "0.7")),
            ("/set parameter seed 3", set("seed", "3")),
            ("/set verbose", Command::Verbose(true)),
            ("/set", Command::Show),
            ("/save a b.json", Command::Save("a b.json".into())),
            ("/regenerate", Command::Retry),
            ("/quit", Command::Leave),
        ] {
            assert_eq!(Command::parse(line).as_ref(), Ok(&wanted), "{line:?}");
        }
    }

    #[test]
    fn what_is_no_command_says_what_would_be() {
        for (line, says) in [
            ("/celar", "/help"),
            ("/etc/hosts", "a blank in front"),
            ("/set temperature", "/set NAME VALUE"),
            ("/set a b c", "/set NAME VALUE"),
            ("/save", "/save FILE"),
        ] {
            let refused = Command::parse(line).unwrap_err();
            assert!(refused.contains(says), "{line}: {refused}");
        }
    }
}
