//! Text that a sequence is led through: each token that it draws is replaced by the one that the
//! text has there, and whoever asked sees the logits. How perplexity and the distance between two
//! policies are measured.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use ids::TokenId;

/// The logits in front of one position.
#[derive(Clone, Debug)]
pub struct Probed {
    /// The position whose token they choose.
    pub position: u32,
    /// `[vocab]`.
    pub logits: Vec<f32>,
}

/// Where a sequence is led, and who looks.
pub struct Probe {
    /// What stands behind the prompt; at least as many tokens as are to be drawn.
    pub text: Arc<[TokenId]>,
    /// Takes the logits in front of every token. The loop waits while it is full.
    pub sink: SyncSender<Probed>,
}

impl Probe {
    /// The token that stands at `index` behind the prompt.
    pub(super) fn take(&self, position: u32, index: usize, logits: &[f32]) -> TokenId {
        // Whoever asked may have left: the sequence is cancelled then.
        let _seen = self.sink.send(Probed { position, logits: logits.to_vec() });
        self.text[index]
    }
}
