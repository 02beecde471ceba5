//! SIGINT as a user's "stop this" rather than "end the program": for as long as somebody holds the
//! right to it. What it deliberately does not do: catch a second one, or any other signal.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Where the holder stands; clones are the same place.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<Mutex<Option<CancellationToken>>>);

/// The right to one SIGINT. While it is held the first one stops the holder's work, and only the
/// next one ends the process; dropped, it gives the right back.
#[derive(Debug)]
#[must_use = "dropped at once it catches nothing"]
pub struct Interrupt {
    caught: CancellationToken,
    slot: Slot,
}

impl Slot {
    pub(super) fn catch(&self) -> Interrupt {
        let caught = CancellationToken::new();
        *self.0.lock() = Some(caught.clone());
        Interrupt { caught, slot: self.clone() }
    }

    /// Hands a signal to the holder; `false` if there is none that has not got one.
    pub(super) fn take(&self) -> bool {
        match self.0.lock().take() {
            Some(holder) => {
                holder.cancel();
                true
            }
            None => false,
        }
    }
}

impl Interrupt {
    /// Waits for the signal.
    pub async fn caught(&self) {
        self.caught.cancelled().await;
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // Whoever took over has a token that is not cancelled; this one's is of no use any more.
        self.caught.cancel();
        let mut holder = self.slot.0.lock();
        if holder.as_ref().is_some_and(CancellationToken::is_cancelled) {
            *holder = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Slot;

    #[test]
    fn a_holder_gets_one_signal_and_leaves_none_to_the_next() {
        let slot = Slot::default();
        assert!(!slot.take(), "nobody holds it");
        let first = slot.catch();
        assert!(slot.take() && first.caught.is_cancelled());
        assert!(!slot.take(), "the second signal is the process's");
        let second = slot.catch();
        drop(first);
        assert!(!second.caught.is_cancelled());
        assert!(slot.take() && second.caught.is_cancelled());
        drop(slot.catch());
        assert!(!slot.take(), "given back");
    }
}
