//! What a model and its device memory can carry out: work is checked at the door, so that a wrong
//! message from another node is an error of one session and never the end of the process.

use ids::TokenId;
use kernels::Device;
use kv::{Shape, blocks_for};
use model::Model;

use crate::SubmitError;
use crate::decode::Admission;
use crate::prefill::{PrefillEngine, PrefillJob};

/// The limits of one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    shape: Shape,
    width: usize,
    vocab: u32,
    /// Positions that can be run.
    context: usize,
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
        }
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
        let blocks = blocks_for(length);
        at_least("reservation", job.reservation.left() as usize, self.slots(blocks))?;
        at_least("host", job.host.len(), self.slots(blocks - cached))
    }

    pub(crate) fn sequence(&self, admission: &Admission) -> Result<(), SubmitError> {
        let table = &admission.table;
        if table.shape() != self.shape {
            let problem = format!("{:?} is not the model's {:?}", table.shape(), self.shape);
            return Err(unfit("table", problem));
        }
        let given = admission.last_hidden.len();
        if given != self.width {
            let problem = format!("{given} values, the model is {} wide", self.width);
            return Err(unfit("last_hidden", problem));
        }
        let prompt = table.token_count();
        self.length("table", prompt)?;
        // The last token drawn is never run.
        let drawn = usize::try_from(admission.generation.max_tokens).unwrap_or(usize::MAX);
        let Some(run) = drawn.checked_sub(1) else {
            return Err(unfit("max_tokens", "0; the least is 1".to_owned()));
        };
        let all = prompt.saturating_add(run);
        self.length("max_tokens", all)?;
        let more = blocks_for(all) - table.block_count();
        at_least("reservation", admission.reservation.left() as usize, self.slots(more))
    }
}
