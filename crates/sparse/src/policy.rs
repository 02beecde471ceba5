//! The KV policy of a request: everything about sparse decode that can change a token.
//!
//! Fixed at admission, printed into plans, headers and answers, digested into block identities. A
//! value of [`Policy`] was validated; nothing in it depends on a node, a link or load.

mod auto;
mod text;

#[cfg(test)]
mod tests;

use ids::{BLOCK_TOKENS, PolicyDigest};

pub use auto::{AUTO_TABLE, Facts};
pub use text::InvalidPolicy;

/// BLAKE3 context of the digest: globally unique, never reused for something else.
const DIGEST: &str = "oasiskv 2026-12 kv policy digest v1";

/// Tokens that a budget or the slack may have at most: 64 times the longest context served today
/// (32K), so that no arithmetic on blocks comes near its limits.
const TOKENS_MAX: u32 = 1 << 21;
/// Sinks at most; StreamingLLM needs 4 tokens, one block has 16.
const SINKS_MAX: u32 = 64;
/// Largest number in a ratio.
const RATIO_MAX: u32 = 1_000;

/// Defines an enum of names: each variant has one text, used in policies, tables and metrics.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$line:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$line])* $variant,)*
        }

        impl $name {
            /// All of them, in the order of the documents.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The lower-case name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// How the next step's set is chosen. Blueprint section 5 and evidence.md compare them.
    Predictor {
        /// Masses of the actual and of the drafted rows, one step ahead; repair by the own query
        /// when the token was not covered.
        Lookahead = "lookahead",
        /// As `lookahead`, of the actual row only.
        Previous = "previous",
        /// Sums of past actual rows, decayed by 0.8 a step (as H2O).
        History = "history",
        /// The step's own query, before it attends, at most R blocks on every step.
        OnDemand = "ondemand",
        /// Sinks and the newest blocks (StreamingLLM).
        Window = "window",
        /// The step's own query without a bound: what a predictor can reach at best.
        Oracle = "oracle",
    }
}

named! {
    /// What stands for the keys of a block when it is scored; the kernels know how.
    Summary {
        /// Four bits per element, a scale per token.
        Int4 = "int4",
        /// Two bits per element, a scale per channel and block.
        Int2 = "int2",
        /// Minimum and maximum per channel in 8 bits, rounded outward (as Quest).
        MinMax8 = "minmax8",
    }
}

named! {
    /// How a request's blocks are shared by its columns (one per layer and KV head).
    Budgets {
        /// Each column has K.
        Equal = "equal",
        /// One total; a column's share follows its missed mass, between K/2 and 2K.
        Pooled = "pooled",
    }
}

named! {
    /// What a step does when a planned slice has not arrived.
    Late {
        /// The request sits the step out.
        Wait = "wait",
        /// The step goes on without the slice; P1 is not promised.
        Drop = "drop",
    }
}

named! {
    /// Where drafted tokens come from.
    Source {
        /// The continuation of an earlier occurrence of the last tokens.
        NGram = "ngram",
        /// The model's own output of the drafted row one step ago.
        Own = "self",
        /// `ngram` where it finds something, else `self`.
        Both = "both",
    }
}

named! {
    /// When a right draft's row is committed.
    Accept {
        /// Drafts serve prediction only.
        Never = "never",
        /// When the row's query helped to choose the set, or nothing is absent.
        Covered = "covered",
        /// Whenever it is right: cheaper steps, worse sets (the trap of evidence.md).
        Always = "always",
    }
}

/// A ratio of whole numbers in lowest terms: comparable, and the same on every platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio {
    /// Above the line.
    pub num: u32,
    /// Below the line, not 0.
    pub den: u32,
}

/// Drafted tokens and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Drafts {
    /// None: one row a step.
    None,
    /// Some.
    From {
        /// Where from.
        source: Source,
        /// Rows beside the actual one, 1 to 4.
        k: u8,
        /// When they are committed.
        accept: Accept,
    },
}

/// Whether the quality guard acts, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guarding {
    /// Misses are measured and nothing follows.
    Off,
    /// Thresholds on the decayed missed mass, in thousandths of all mass.
    On {
        /// Above it, for a while, the next stage begins.
        raise_permille: u16,
        /// Below it, for a longer while, the stage before returns.
        lower_permille: u16,
    },
}

/// Settings of a sparse policy. Blocks are counted per KV head.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sparse {
    /// How the set is chosen.
    pub predictor: Predictor,
    /// From what it is scored.
    pub summary: Summary,
    /// Tokens attended to per KV head, sinks and recent ones included; a multiple of 16.
    pub budget_tokens: u32,
    /// What the guard may raise the budget to; the reservation is for this much.
    pub budget_tokens_max: u32,
    /// Blocks that may enter ahead of a step (C).
    pub prefetch_blocks: u32,
    /// Blocks that may enter by the step's own query (R).
    pub repair_blocks: u32,
    /// First blocks that are always attended.
    pub sink_blocks: u32,
    /// Newest tokens that are always attended.
    pub recent_tokens: u32,
    /// Everything is attended while the context has at most the budget and this many tokens.
    pub slack_tokens: u32,
    /// How many times the score of the block that leaves a newcomer needs.
    pub hysteresis: Ratio,
    /// How blocks are shared among columns.
    pub budgets: Budgets,
    /// What happens to late slices.
    pub late: Late,
    /// What happens when too much mass is missed.
    pub guard: Guarding,
}

impl Default for Sparse {
    /// The blueprint's first defaults; `docs` has what was measured of each.
    fn default() -> Self {
        Self {
            predictor: Predictor::Lookahead,
            summary: Summary::Int4,
            budget_tokens: 2_048,
            budget_tokens_max: 2_048,
            prefetch_blocks: 4,
            repair_blocks: 4,
            sink_blocks: 1,
            recent_tokens: 64,
            slack_tokens: 512,
            hysteresis: Ratio { num: 3, den: 2 },
            budgets: Budgets::Equal,
            late: Late::Wait,
            guard: Guarding::On { raise_permille: 200, lower_permille: 100 },
        }
    }
}

impl Sparse {
    /// K: blocks of one column under equal budgets.
    #[must_use]
    pub fn budget_blocks(&self) -> u32 {
        self.budget_tokens / BLOCK_TOKENS as u32
    }

    /// What the guard may raise K to.
    #[must_use]
    pub fn budget_blocks_max(&self) -> u32 {
        self.budget_tokens_max / BLOCK_TOKENS as u32
    }

    /// Blocks above K up to which everything is attended.
    #[must_use]
    pub fn slack_blocks(&self) -> u32 {
        self.slack_tokens / BLOCK_TOKENS as u32
    }

    /// Newest blocks that always are in the set: those that the recent tokens can touch, the open
    /// block being the newest. 64 tokens touch 5 blocks unless they end with a block.
    #[must_use]
    pub fn recent_blocks(&self) -> u32 {
        self.recent_tokens.div_ceil(BLOCK_TOKENS as u32) + 1
    }

    /// Blocks that a column holds whatever the masses are; a budget has room for one more.
    #[must_use]
    pub fn pinned_blocks(&self) -> u32 {
        self.sink_blocks + self.recent_blocks()
    }
}

/// Whether attention reads everything or a chosen set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attention {
    /// All blocks: exact.
    Dense,
    /// A set per layer and KV head.
    Sparse(Sparse),
}

/// A validated policy. Its text form is canonical: equal policies print equally and only they do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    attention: Attention,
    drafts: Drafts,
}

impl Policy {
    /// Attends to everything, drafts nothing.
    #[must_use]
    pub fn dense() -> Self {
        Self { attention: Attention::Dense, drafts: Drafts::None }
    }

    /// Of settings.
    ///
    /// # Errors
    /// [`InvalidPolicy`] with the field's name in the text form and the remedy.
    pub fn try_new(attention: Attention, drafts: Drafts) -> Result<Self, InvalidPolicy> {
        match &attention {
            Attention::Dense => {}
            Attention::Sparse(sparse) => check_sparse(sparse)?,
        }
        match drafts {
            Drafts::None => {}
            Drafts::From { k, .. } => in_range("k", u32::from(k), 1, 4)?,
        }
        Ok(Self { attention, drafts })
    }

    /// What attention reads.
    #[must_use]
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The settings of sparse decode; None under dense.
    #[must_use]
    pub fn sparse(&self) -> Option<&Sparse> {
        match &self.attention {
            Attention::Dense => None,
            Attention::Sparse(sparse) => Some(sparse),
        }
    }

    /// The settings that selection and guard run with: under dense, a budget that holds every
    /// context, and no guard.
    pub(crate) fn in_force(&self) -> Sparse {
        match &self.attention {
            Attention::Sparse(sparse) => sparse.clone(),
            Attention::Dense => {
                let all = u32::MAX / BLOCK_TOKENS as u32 * BLOCK_TOKENS as u32;
                Sparse {
                    budget_tokens: all,
                    budget_tokens_max: all,
                    guard: Guarding::Off,
                    ..Sparse::default()
                }
            }
        }
    }

    /// What is drafted.
    #[must_use]
    pub fn drafts(&self) -> Drafts {
        self.drafts
    }

    /// Drafted rows of a step at most.
    #[must_use]
    pub fn drafted_rows_max(&self) -> usize {
        match self.drafts {
            Drafts::None => 0,
            Drafts::From { k, .. } => usize::from(k),
        }
    }

    /// BLAKE3 of the canonical text, the first 16 bytes.
    #[must_use]
    pub fn digest(&self) -> PolicyDigest {
        let whole = blake3::derive_key(DIGEST, self.to_string().as_bytes());
        let mut short = [0; 16];
        short.copy_from_slice(&whole[..16]);
        PolicyDigest(short)
    }
}

fn in_range(field: &str, value: u32, low: u32, high: u32) -> Result<(), InvalidPolicy> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let problem = format!("{value} is not between {low} and {high}");
    Err(InvalidPolicy::new(field, problem, "give a value in that range"))
}

fn check_sparse(sparse: &Sparse) -> Result<(), InvalidPolicy> {
    let block = BLOCK_TOKENS as u32;
    in_range("sinks", sparse.sink_blocks, 0, SINKS_MAX)?;
    in_range("recent", sparse.recent_tokens, 0, TOKENS_MAX)?;
    in_range("slack", sparse.slack_tokens, 0, TOKENS_MAX)?;
    for (field, tokens) in
        [("budget", sparse.budget_tokens), ("budget_max", sparse.budget_tokens_max)]
    {
        in_range(field, tokens, block, TOKENS_MAX)?;
        if !tokens.is_multiple_of(block) {
            let problem = format!("{tokens} tokens are no whole blocks");
            return Err(InvalidPolicy::new(field, problem, "give a multiple of 16"));
        }
    }
    let least = (sparse.pinned_blocks() + 1) * block;
    if sparse.budget_tokens < least {
        let problem = format!(
            "{} tokens have no room for a chosen block beside sinks and recent ones",
            sparse.budget_tokens
        );
        return Err(InvalidPolicy::new("budget", problem, &format!("give at least {least}")));
    }
    if sparse.budget_tokens_max < sparse.budget_tokens {
        let problem = format!("{} is below the budget", sparse.budget_tokens_max);
        let remedy = format!("give at least {} or leave it out", sparse.budget_tokens);
        return Err(InvalidPolicy::new("budget_max", problem, &remedy));
    }
    in_range("prefetch", sparse.prefetch_blocks, 0, sparse.budget_blocks())?;
    in_range("repair", sparse.repair_blocks, 0, sparse.budget_blocks())?;
    check_ratio(sparse.hysteresis)?;
    match sparse.guard {
        Guarding::Off => Ok(()),
        Guarding::On { raise_permille, lower_permille } => {
            in_range("guard", u32::from(raise_permille), 1, 1_000)?;
            if lower_permille < raise_permille {
                return Ok(());
            }
            let problem =
                format!("it would lower at {lower_permille} and raise at {raise_permille}");
            Err(InvalidPolicy::new("guard", problem, "give raise/lower with lower below raise"))
        }
    }
}

fn check_ratio(ratio: Ratio) -> Result<(), InvalidPolicy> {
    let Ratio { num, den } = ratio;
    let field = "hysteresis";
    in_range(field, den, 1, RATIO_MAX)?;
    in_range(field, num, 1, RATIO_MAX)?;
    if num < den {
        let problem = format!("{num}/{den} is below 1: every step would swap back");
        return Err(InvalidPolicy::new(field, problem, "give 1/1 or more"));
    }
    let common = common_divisor(num, den);
    if common == 1 {
        return Ok(());
    }
    let remedy = format!("write {}/{}", num / common, den / common);
    Err(InvalidPolicy::new(field, format!("{num}/{den} is not in lowest terms"), &remedy))
}

/// Euclid's.
fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
