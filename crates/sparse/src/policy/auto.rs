//! What `auto`, `dense` and `sparse` mean for one request.
//!
//! The table is the only place that decides it and gives the same answer on every node: it reads
//! the request, never a link, a load or a device. A changed row raises [`AUTO_TABLE`].

use super::{Accept, Attention, Drafts, InvalidPolicy, Policy, Source, Sparse};

/// Version of the table behind `auto`, for ledgers and documents.
pub const AUTO_TABLE: u32 = 1;

/// What the table may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to be generated at most, after the server's default and limits.
    pub tokens_max: u32,
}

impl Policy {
    /// The policy that a request's `kv_policy` and `kv_budget` (tokens) ask for. A name is `auto`,
    /// `dense`, `sparse` or a whole text form.
    ///
    /// Table 1 of `auto`: dense where prompt and answer fit into budget and slack, because then
    /// everything would be attended; else the defaults of [`Sparse`] with one draft a step.
    ///
    /// # Errors
    /// [`InvalidPolicy`] with the field and the remedy.
    pub fn resolve(name: &str, budget: Option<u32>, facts: Facts) -> Result<Self, InvalidPolicy> {
        match name {
            "auto" => {
                let policy = sparse(budget)?;
                let fits = policy.sparse().is_some_and(|sparse| fits(sparse, facts));
                Ok(if fits { Self::dense() } else { policy })
            }
            "sparse" => sparse(budget),
            "dense" => no_budget(budget, "dense attends to everything").map(|()| Self::dense()),
            text => {
                no_budget(budget, "the text of kv_policy has its own")?;
                text.parse()
            }
        }
    }
}

fn sparse(budget: Option<u32>) -> Result<Policy, InvalidPolicy> {
    let mut sparse = Sparse::default();
    if let Some(tokens) = budget {
        sparse.budget_tokens = tokens;
        sparse.budget_tokens_max = tokens;
    }
    let drafts = Drafts::From { source: Source::Both, k: 1, accept: Accept::Covered };
    Policy::try_new(Attention::Sparse(sparse), drafts)
}

fn fits(sparse: &Sparse, facts: Facts) -> bool {
    let context = facts.prompt_tokens.saturating_add(facts.tokens_max);
    context <= sparse.budget_tokens.saturating_add(sparse.slack_tokens)
}

fn no_budget(budget: Option<u32>, problem: &str) -> Result<(), InvalidPolicy> {
    if budget.is_none() {
        return Ok(());
    }
    Err(InvalidPolicy::new("kv_budget", problem.to_owned(), "leave kv_budget out"))
}
