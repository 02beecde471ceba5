//! One sequence in the batch: what it has, what it draws next, and how its items leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ids::{Position, TokenId};
use kernels::{Device, SampleKey, Sampled, Sampling};
use session::{Finish, Generation};
use sparse::{Accept, Drafts, Policy};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::draft::Drafter;
use super::held::{Held, Place};
use super::probe::Probe;
use super::{Admission, DecodeItem, KvUsage};
use crate::device::DeviceKv;
use crate::digest::LogitsDigest;
use crate::sparse::Waker;

/// Where the next logits come from.
pub(super) enum Next {
    /// The prompt's last hidden state: the first token needs no pass.
    Hidden(Arc<[f32]>),
    /// A pass over this token.
    Token(TokenId),
}

pub(super) struct Sequence<D: Device> {
    pub(super) held: Held<D>,
    pub(super) next: Next,
    pub(super) policy: Policy,
    generation: Generation,
    drafter: Drafter,
    /// The prompt and what was drawn, the newest token included.
    history: Vec<TokenId>,
    /// The newest token of this step and the drafted ones behind it.
    rows: Vec<TokenId>,
    sampled: u32,
    usage: KvUsage,
    /// Why what this step gives is worth nothing.
    doomed: Option<String>,
    items: mpsc::Sender<DecodeItem>,
    cancelled: Arc<AtomicBool>,
    digest: Option<LogitsDigest>,
    probe: Option<Probe>,
    /// When it was handed to the loop.
    admitted: Instant,
}

/// Whether a sequence stays in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Goes,
    Ends,
}

/// What a step drew for the rows of a sequence: a choice and, where somebody reads them, logits.
pub(super) struct Drawn<'a> {
    pub(super) chosen: &'a [Sampled],
    /// `[rows][vocab]`, or nothing.
    pub(super) logits: &'a [f32],
}

impl<D: Device> Sequence<D> {
    pub(super) fn new(
        admission: Admission,
        (memory, waker): (&DeviceKv<D>, &Waker),
        items: mpsc::Sender<DecodeItem>,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Self, crate::LoadError> {
        let Admission { kv, tokens, policy, last_hidden, parent, generation, probe } = admission;
        let digest = generation.digest_logits.then(LogitsDigest::default);
        Ok(Self {
            held: Held::new(kv, (&policy, tokens.len()), parent, (memory, waker))?,
            next: Next::Hidden(last_hidden),
            drafter: Drafter::new(policy.drafts()),
            policy,
            generation,
            history: tokens.to_vec(),
            rows: Vec::new(),
            sampled: 0,
            usage: KvUsage::default(),
            doomed: None,
            items,
            cancelled,
            digest,
            probe,
            admitted: Instant::now(),
        })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.items.is_closed()
    }

    /// Whether its reader has room for what a step may yield, and what it attends to is there.
    pub(super) fn can_step(&self) -> bool {
        // A token for each row, and the end.
        self.items.capacity() > self.policy.drafted_rows_max() + 1 && self.is_ready()
    }

    /// Whether its slices have arrived. One that failed is ready to be told so.
    fn is_ready(&self) -> bool {
        match &self.held {
            Held::Dense(_) => true,
            Held::Sparse(sparse) => sparse.resident.is_ready().unwrap_or(true),
        }
    }

    /// Why it cannot go on.
    pub(super) fn failure(&self) -> Option<String> {
        match &self.held {
            Held::Dense(_) => None,
            Held::Sparse(sparse) => Some(sparse.resident.is_ready().err()?.to_string()),
        }
    }

    /// What the step at hand draws is not to be heard of (P2): it did not attend to what it should.
    pub(super) fn doom(&mut self, detail: String) {
        self.doomed = Some(detail);
    }

    /// Whether somebody reads its logits.
    pub(super) fn wants_logits(&self) -> bool {
        self.digest.is_some() || self.probe.is_some()
    }

    /// Takes the place of the newest token's K and V and of the drafted rows behind it. Returns
    /// the rows' tokens and the position of the first.
    pub(super) fn begin(&mut self, token: TokenId) -> (&[TokenId], u32) {
        self.held.push(token);
        // Drafts behind the last token that may be drawn would be for nobody.
        let left = (self.generation.max_tokens - self.sampled).saturating_sub(1) as usize;
        let room = self.held.make_room(self.policy.drafted_rows_max().min(left));
        self.rows.clear();
        self.rows.push(token);
        self.rows.extend(self.drafter.propose(&self.history, room));
        self.usage.steps += 1;
        self.usage.drafted += self.rows.len() as u64 - 1;
        (&self.rows, self.held.length() - 1)
    }

    /// Rows of this step; of a fresh sequence the one that prefill ran.
    pub(super) fn row_count(&self) -> usize {
        self.rows.len().max(1)
    }

    /// How the token behind each row of this step is to be drawn; of a fresh sequence the first.
    pub(super) fn requests(&self) -> impl Iterator<Item = (Sampling, SampleKey)> {
        let how = self.generation.sampling;
        let sampling = Sampling {
            temperature: how.temperature,
            top_k: how.top_k,
            top_p: how.top_p,
            min_p: how.min_p,
        };
        let length = self.held.length();
        let rows = u32::try_from(self.row_count()).expect("a few rows");
        (0..rows).map(move |row| {
            let key = SampleKey { seed: how.seed, choice: how.choice, position: length + row };
            (sampling, key)
        })
    }

    /// Takes what was drawn behind its rows: sends what came out of it, commits drafts that were
    /// right, and says whether there is more to do.
    pub(super) fn take(&mut self, drawn: &Drawn<'_>, place: &mut Place<'_, D>) -> After {
        if let Some(detail) = self.doomed.take() {
            return self.fail(detail);
        }
        let vocab = drawn.logits.len() / drawn.chosen.len();
        let whole = self.held.is_whole();
        let mut committed = 0;
        let next = loop {
            let logits = &drawn.logits[committed * vocab..][..vocab];
            let token = match self.draw(drawn.chosen[committed], logits) {
                Ok(token) => token,
                Err(after) => return after,
            };
            let is_right = self.rows.get(committed + 1) == Some(&token);
            if !is_right || !self.may_commit(token, whole) {
                break token;
            }
            committed += 1;
            self.usage.committed += 1;
            self.held.push(token);
        };
        self.next = Next::Token(next);
        self.end_step(drawn.chosen, committed, next);
        match self.held.seal(place) {
            Ok(()) => After::Goes,
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Whether a right draft may become part of the sequence as the token at the next position
    /// (P1): where something is absent, only if its query helped to choose this set.
    fn may_commit(&self, draft: TokenId, whole: bool) -> bool {
        let accept = match self.policy.drafts() {
            Drafts::None => Accept::Never,
            Drafts::From { accept, .. } => accept,
        };
        match (accept, &self.held) {
            (Accept::Never, _) => false,
            (Accept::Always, _) | (Accept::Covered, Held::Dense(_)) => true,
            (Accept::Covered, Held::Sparse(sparse)) => {
                let position = Position(self.held.length());
                whole || sparse.resident.lock().is_covered(position, draft)
            }
        }
    }

    /// What the next step is to know of this one, which committed so many drafted rows and goes on
    /// with `next`.
    fn end_step(&mut self, chosen: &[Sampled], committed: usize, next: TokenId) {
        // A fresh sequence drew its first token without a pass.
        if self.rows.is_empty() {
            return;
        }
        let behind: Vec<TokenId> = chosen[1..].iter().map(|one| TokenId(one.token)).collect();
        self.drafter.stepped(&behind, committed);
        let length = self.held.length();
        if let Held::Sparse(sparse) = &mut self.held {
            let committed = committed + 1;
            let first = Position(length - u32::try_from(committed).expect("a few rows"));
            let blocks = kv::blocks_for(length as usize);
            let blocks = u32::try_from(blocks).expect("contexts are below 2^32 tokens");
            let rows = (first, self.rows.as_slice());
            sparse.resident.lock().end_step(rows, committed, next, blocks);
        }
        self.rows.clear();
    }

    /// Takes one token; `Err` when it was the last.
    fn draw(&mut self, sampled: Sampled, logits: &[f32]) -> Result<TokenId, After> {
        if let Some(digest) = &mut self.digest {
            digest.update(logits);
        }
        if sampled.logprob.is_nan() {
            return Err(self.fail("the logits hold a value that is not a number".to_owned()));
        }
        let token = match &self.probe {
            None => TokenId(sampled.token),
            Some(probe) => probe.take(self.held.length(), self.sampled as usize, logits),
        };
        self.sampled += 1;
        let stops = self.generation.stop_tokens.contains(&token);
        if !stops {
            self.send(DecodeItem::Token { token, logprob: sampled.logprob });
        }
        let finish = match (stops, self.sampled >= self.generation.max_tokens) {
            (true, _) => Finish::Stop,
            (false, true) => Finish::Length,
            (false, false) => {
                self.history.push(token);
                return Ok(token);
            }
        };
        let logits_digest = self.digest.as_ref().map(LogitsDigest::finish);
        let (sampled, elapsed) = (self.sampled, self.admitted.elapsed().into());
        let mut usage = Box::new(self.usage.clone());
        self.held.complete(&mut usage);
        self.held.free();
        self.send(DecodeItem::Finished { finish, sampled, elapsed, logits_digest, usage });
        Err(After::Ends)
    }

    /// Ends it without a result.
    pub(super) fn fail(&mut self, detail: String) -> After {
        self.held.free();
        self.send(DecodeItem::Failed { detail });
        After::Ends
    }

    fn send(&self, item: DecodeItem) {
        // Room was checked before the step; a reader that left is noticed by the next one.
        let _delivered = self.items.try_send(item);
    }
}
