//! The flags that every program has, and parsing that ends with the house's exit codes.
//! What it deliberately does not do: flags of single programs; they become overrides of keys.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Parser};

use crate::config::{Overrides, Sources};
use crate::exit;
use crate::telemetry::{LogFormat, LogLevel};

/// The flags that every program has. Flatten it: `#[command(flatten)] common: CommonArgs`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct CommonArgs {
    /// Read the configuration from this TOML file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the effective configuration as TOML and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Check the configuration and exit: 0 if it is valid, 64 if not.
    #[arg(long, conflicts_with = "print_config")]
    pub check_config: bool,
    /// Set one key of the configuration, as in --set log.level=debug; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Log from this level on.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// Log in this form.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Allow addresses that other hosts can reach, without encryption: trusted networks only.
    #[arg(long)]
    pub insecure: bool,
}

/// A key path and the text it is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The key path, with dots.
    pub key: String,
    /// The text.
    pub value: String,
}

/// A flag's text is not an assignment.
#[derive(Debug, Clone, thiserror::Error)]
#[error("write KEY=VALUE, as in log.level=debug")]
pub struct NotAnAssignment;

impl FromStr for Assignment {
    type Err = NotAnAssignment;

    fn from_str(text: &str) -> Result<Self, NotAnAssignment> {
        let (key, value) = text.split_once('=').ok_or(NotAnAssignment)?;
        Ok(Self { key: key.trim().to_owned(), value: value.to_owned() })
    }
}

impl CommonArgs {
    /// The sources these flags name. A program's own flags win over the file and the environment,
    /// the common flags over those, and `--set` over all.
    #[must_use]
    pub fn sources(&self, env_prefix: &str, own: Overrides) -> Sources {
        let mut overrides = own;
        overrides.set("--log-level", "log.level", self.log_level);
        overrides.set("--log-format", "log.format", self.log_format);
        overrides.set("--insecure", "insecure", self.insecure.then_some(true));
        for Assignment { key, value } in &self.set {
            overrides.set_text("--set", key, value);
        }
        Sources { file: self.config.clone(), env_prefix: env_prefix.to_owned(), overrides }
    }
}

/// Parses the command line. Help and version go to standard output and end with 0, mistakes to
/// standard error with 64.
///
/// # Errors
/// The exit code to end with.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
        // Nobody is left to tell if the terminal is gone.
        drop(error.print());
        ExitCode::from(code)
    })
}

#[cfg(test)]
mod tests {
    use super::{Assignment, CommonArgs};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        common: CommonArgs,
    }

    #[test]
    fn flags_become_settings() {
        let line = ["p", "--log-level", "debug", "--set", "a.b=c=d", "--insecure"];
        let program = Program::try_parse_from(line).expect("valid");
        assert_eq!(program.common.set, [Assignment { key: "a.b".into(), value: "c=d".into() }]);
        let sources = program.common.sources("P", super::Overrides::default());
        assert_eq!(sources.env_prefix, "P");
        assert!(Program::try_parse_from(["p", "--set", "alone"]).is_err());
        assert!(Program::try_parse_from(["p", "--log-level", "loud"]).is_err());
    }
}
