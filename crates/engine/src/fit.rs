//! What a model and its device memory can carry out: work is checked at the door, so that a wrong
//! message from another node is an error of one session and never the end of the process.

use ids::{BLOCK_TOKENS, TokenId};
use kernels::{Device, SummaryKind};
use kv::{Shape, blocks_for};
use model::Model;

use crate::SubmitError;
use crate::decode::{Admission, PromptKv, SparsePrompt};
use crate::prefill::{PrefillEngine, PrefillJob};
use crate::sparse::SummaryKv;

/// The limits of one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    shape: Shape,
    width: usize,
    vocab: u32,
    /// Positions that can be run.
    context: usize,
    /// Drafted rows of a sequence and step.
    drafts_max: usize,
    /// What summaries the device memory holds, if any.
    summaries: Option<SummaryKind>,
}

fn unfit(field: &'static str, problem: String) -> SubmitError {
    SubmitError::Unfit { field, problem }
}

fn at_least(field: &'static str, has: usize, needs: usize) -> Result<(), SubmitError> {
    if has >= needs {
        return Ok(());
    }
    Err(unfit(field, format!("has {has} slots, needs {needs}")))
}

impl Fit {
    pub(crate) fn of<D: Device>(model: &Model<D>) -> Self {
        let spec = model.spec();
        Self {
            shape: spec.shape(),
            width: usize::try_from(spec.width).expect("weights of it are in memory"),
            vocab: spec.vocab,
            context: usize::try_from(model.context()).unwrap_or(usize::MAX),
            drafts_max: 0,
            summaries: None,
        }
    }

    /// Of a decode loop.
    pub(crate) fn with_drafts<D: Device>(
        self,
        drafts_max: usize,
        summaries: Option<&SummaryKv<D>>,
    ) -> Self {
        Self { drafts_max, summaries: summaries.map(SummaryKv::kind), ..self }
    }

    /// Layers and KV heads of a block.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    fn slots(&self, blocks: usize) -> usize {
        blocks * self.shape.slices()
    }

    fn length(&self, field: &'static str, tokens: usize) -> Result<(), SubmitError> {
        if (1..=self.context).contains(&tokens) {
            return Ok(());
        }
        let problem =
            format!("{tokens} tokens are to be run, the model takes 1..={}", self.context);
        Err(unfit(field, problem))
    }

    pub(crate) fn prompt(&self, job: &PrefillJob) -> Result<(), SubmitError> {
        let length = job.tokens.len();
        self.length("tokens", length)?;
        if let Some(TokenId(token)) = job.tokens.iter().find(|token| token.0 >= self.vocab) {
            let problem = format!("{token} is not in the vocabulary of {}", self.vocab);
            return Err(unfit("tokens", problem));
        }
        let cached = job.cached.len();
        let usable = PrefillEngine::usable_prefix(length, cached);
        if cached > usable {
            let problem = format!("{cached} blocks, of which only {usable} may be skipped");
            return Err(unfit("cached", problem));
        }
        let slices = self.shape.slices();
        if let Some(block) = job.cached.iter().find(|block| block.slices.len() != slices) {
            let problem = format!("a block has {} slices, not {slices}", block.slices.len());
            return Err(unfit("cached", problem));
        }
        if job.score && self.summaries.is_none() {
            return Err(unfit("score", "this node makes no summaries".to_owned()));
        }
        let blocks = blocks_for(length);
        at_least("reservation", job.reservation.left() as usize, self.slots(blocks))?;
        at_least("host", job.host.len(), self.slots(blocks - cached))
    }

    pub(crate) fn sequence(&self, admission: &Admission) -> Result<(), SubmitError> {
        let given = admission.last_hidden.len();
        if given != self.width {
            let problem = format!("{given} values, the model is {} wide", self.width);
            return Err(unfit("last_hidden", problem));
        }
        let prompt = admission.tokens.len();
        self.length("tokens", prompt)?;
        // The last token drawn is never run.
        let drawn = usize::try_from(admission.generation.max_tokens).unwrap_or(usize::MAX);
        let Some(run) = drawn.checked_sub(1) else {
            return Err(unfit("max_tokens", "0; the least is 1".to_owned()));
        };
        let all = prompt.saturating_add(run);
        self.length("max_tokens", all)?;
        let drafts = admission.policy.drafted_rows_max();
        if drafts > self.drafts_max {
            let problem = format!("{drafts} drafts a step, this node takes {}", self.drafts_max);
            return Err(unfit("policy", problem));
        }
        if admission.probe.as_ref().is_some_and(|probe| probe.text.len() < drawn) {
            let problem = format!("shorter than the {drawn} tokens that are to be drawn");
            return Err(unfit("probe", problem));
        }
        match &admission.kv {
            PromptKv::Dense { table, reservation } => {
                if table.shape() != self.shape {
                    let problem =
                        format!("{:?} is not the model's {:?}", table.shape(), self.shape);
                    return Err(unfit("table", problem));
                }
                let held = table.token_count();
                if held != prompt {
                    return Err(unfit("table", format!("holds {held} of {prompt} tokens")));
                }
                let more = blocks_for(all) - table.block_count();
                at_least("reservation", reservation.left() as usize, self.slots(more))
            }
            PromptKv::Sparse(sparse) => self.sparse(sparse, admission, (prompt, all)),
        }
    }

    fn sparse(
        &self,
        kv: &SparsePrompt,
        admission: &Admission,
        (prompt, all): (usize, usize),
    ) -> Result<(), SubmitError> {
        let Some(policy) = admission.policy.sparse() else {
            return Err(unfit("policy", "is dense; the KV is in tiers below".to_owned()));
        };
        let kind = self.summaries.map_or("none", |kind| kind.name());
        if policy.summary.name() != kind {
            let problem = format!("asks for {} summaries, this node makes {kind}", policy.summary);
            return Err(unfit("policy", problem));
        }
        let (sealed, blocks) = (prompt / BLOCK_TOKENS, blocks_for(prompt));
        let (slices, tail) = (self.shape.slices(), kv.tail.len());
        if tail != (blocks - sealed) * slices {
            return Err(unfit("tail", format!("{tail} slices of {}", (blocks - sealed) * slices)));
        }
        if kv.summaries.len() != sealed {
            let problem = format!("of {} blocks, the prompt has {sealed}", kv.summaries.len());
            return Err(unfit("summaries", problem));
        }
        if kv.first.len() != blocks * slices {
            let problem = format!("{} masses, {} are wanted", kv.first.len(), blocks * slices);
            return Err(unfit("first", problem));
        }
        let more = all / BLOCK_TOKENS - sealed;
        at_least("more_summaries", kv.more_summaries.left() as usize, more)?;
        let final_tokens = u32::try_from(all).unwrap_or(u32::MAX);
        let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        let each = Admission::slots_per_column(policy, prompt, final_tokens) as usize;
        at_least("slots", kv.slots.left() as usize, each * slices)
    }
}
