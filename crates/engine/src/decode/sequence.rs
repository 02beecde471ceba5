//! One sequence in the batch: what it has, what it draws next, and how its items leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ids::{BLOCK_TOKENS, TokenId};
use kernels::{SampleKey, Sampled, Sampling};
use kv::{BlockTable, SlotReservation};
use session::{Finish, Generation};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Admission, DecodeItem};
use crate::device::Chain;
use crate::digest::LogitsDigest;

/// Where the next logits come from.
pub(super) enum Next {
    /// The prompt's last hidden state: the first token needs no pass.
    Hidden(Arc<[f32]>),
    /// A pass over this token.
    Token(TokenId),
}

pub(super) struct Sequence {
    pub(super) table: BlockTable,
    pub(super) next: Next,
    reservation: SlotReservation,
    generation: Generation,
    chain: Chain,
    sampled: u32,
    items: mpsc::Sender<DecodeItem>,
    cancelled: Arc<AtomicBool>,
    digest: Option<LogitsDigest>,
    /// When it was handed to the loop.
    admitted: Instant,
}

/// Whether a sequence stays in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Goes,
    Ends,
}

impl Sequence {
    pub(super) fn new(
        admission: Admission,
        items: mpsc::Sender<DecodeItem>,
        cancelled: Arc<AtomicBool>,
    ) -> Self {
        let digest = admission.generation.digest_logits.then(LogitsDigest::default);
        Self {
            table: admission.table,
            next: Next::Hidden(admission.last_hidden),
            reservation: admission.reservation,
            generation: admission.generation,
            chain: Chain { parent: admission.parent },
            sampled: 0,
            items,
            cancelled,
            digest,
            admitted: Instant::now(),
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.items.is_closed()
    }

    /// Whether its reader has room for what a step may yield: a token and the end.
    pub(super) fn can_step(&self) -> bool {
        self.items.capacity() >= 2
    }

    /// Whether its digest needs the logits on the host.
    pub(super) fn wants_logits(&self) -> bool {
        self.digest.is_some()
    }

    /// Takes the place of the next token's K and V. Returns its position.
    pub(super) fn append(&mut self, token: TokenId) -> u32 {
        let position = self.length();
        self.table
            .append(&[token], &mut self.reservation)
            .expect("slots for the final length were reserved at admission");
        position
    }

    /// How its next token is to be drawn.
    pub(super) fn request(&self) -> (Sampling, SampleKey) {
        let how = self.generation.sampling;
        let sampling = Sampling {
            temperature: how.temperature,
            top_k: how.top_k,
            top_p: how.top_p,
            min_p: how.min_p,
        };
        (sampling, SampleKey { seed: how.seed, choice: how.choice, position: self.length() })
    }

    /// Takes what was drawn, sends what came out of it, and says whether there is more to do.
    pub(super) fn take(&mut self, sampled: Sampled, logits: Option<&[f32]>) -> After {
        self.seal();
        if let (Some(digest), Some(logits)) = (&mut self.digest, logits) {
            digest.update(logits);
        }
        if sampled.logprob.is_nan() {
            self.fail("the logits hold a value that is not a number".to_owned());
            return After::Ends;
        }
        self.sampled += 1;
        let token = TokenId(sampled.token);
        let stops = self.generation.stop_tokens.contains(&token);
        if !stops {
            self.send(DecodeItem::Token { token, logprob: sampled.logprob });
        }
        let finish = match (stops, self.sampled >= self.generation.max_tokens) {
            (true, _) => Finish::Stop,
            (false, true) => Finish::Length,
            (false, false) => {
                self.next = Next::Token(token);
                return After::Goes;
            }
        };
        let logits_digest = self.digest.as_ref().map(LogitsDigest::finish);
        let (sampled, elapsed) = (self.sampled, self.admitted.elapsed().into());
        self.free();
        self.send(DecodeItem::Finished { finish, sampled, elapsed, logits_digest });
        After::Ends
    }

    /// Ends it without a result.
    pub(super) fn fail(&mut self, detail: String) {
        self.free();
        self.send(DecodeItem::Failed { detail });
    }

    /// Gives its slots back, before the end is told: who hears of it may count on the memory.
    fn free(&mut self) {
        self.table = BlockTable::new(self.table.shape());
        drop(self.reservation.split(self.reservation.left()));
    }

    fn length(&self) -> u32 {
        u32::try_from(self.table.token_count()).expect("contexts are below 2^32 tokens")
    }

    /// A full block becomes immutable as soon as its last KV is written.
    fn seal(&mut self) {
        while self.table.full_count() > 0 {
            let oldest = self.table.filling().next().expect("a full block is a filling one");
            let tokens: [TokenId; BLOCK_TOKENS] =
                oldest.tokens().try_into().expect("a full block has 16 tokens");
            let key = self.chain.next(&tokens);
            self.table.seal_oldest(key).expect("it is full");
        }
    }

    fn send(&self, item: DecodeItem) {
        // Room was checked before the step; a reader that left is noticed by the next one.
        let _delivered = self.items.try_send(item);
    }
}
