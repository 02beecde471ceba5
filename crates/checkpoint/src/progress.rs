//! What a long fetch tells its user, and how the user stops it.
//!
//! Deliberately knows no model and no source: a title, a size, bytes.

use indicatif::{ProgressBar, ProgressStyle};

/// Receives the phases of a fetch; called from the thread that fetches.
pub trait Progress {
    /// A phase begins; `total_bytes` is `None` when its size is not known.
    fn started(&mut self, what: &str, total_bytes: Option<u64>);
    /// So many bytes more of the current phase are done.
    fn advanced(&mut self, bytes: u64);
    /// The current phase ended, well or not.
    fn finished(&mut self);
    /// Asked between chunks and while waiting: `true` ends the fetch and removes what it wrote.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Tells nobody.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn started(&mut self, _what: &str, _total_bytes: Option<u64>) {}
    fn advanced(&mut self, _bytes: u64) {}
    fn finished(&mut self) {}
}

/// A bar on standard error where that is a terminal, a log line per phase where it is not.
#[derive(Debug, Default)]
pub struct Bar {
    /// `None` between phases.
    bar: Option<ProgressBar>,
}

impl Progress for Bar {
    fn started(&mut self, what: &str, total_bytes: Option<u64>) {
        self.finished();
        let bar = match total_bytes {
            Some(total) => ProgressBar::new(total).with_style(
                ProgressStyle::with_template(
                    "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
                )
                .expect("the template is a literal that a test renders"),
            ),
            None => ProgressBar::new_spinner(),
        };
        if bar.is_hidden() {
            tracing::info!(what, total_bytes, "started");
        }
        self.bar = Some(bar.with_message(what.to_owned()));
    }

    fn advanced(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finished(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finished();
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Progress};

    #[test]
    fn bar_accepts_every_order_of_calls() {
        let mut bar = Bar::default();
        bar.advanced(1);
        bar.finished();
        bar.started("known size", Some(10));
        bar.advanced(20);
        bar.started("unknown size", None);
        bar.advanced(1);
    }
}
