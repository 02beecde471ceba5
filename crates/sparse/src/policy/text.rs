//! The text form of a policy: what plans, headers and the wire carry.
//!
//! `dense:v1,drafts=none` or `sparse:v1,predictor=lookahead,summary=int4,..`. Printing names every
//! field in one order; reading takes any order and fills what is left out from the defaults, so
//! that `sparse:v1,budget=512` is a policy too.

use std::fmt;
use std::str::FromStr;

use super::{
    Accept, Attention, Budgets, Drafts, Guarding, Late, Policy, Predictor, Ratio, Source, Sparse,
    Summary,
};

/// Longest text that is read, in bytes; the canonical one has about 250.
const TEXT_BYTES_MAX: usize = 512;

/// A policy that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}: {remedy}")]
pub struct InvalidPolicy {
    /// The field of the text form, or `kv_policy` for the text as a whole.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What would be right.
    pub remedy: String,
}

impl InvalidPolicy {
    pub(crate) fn new(field: &str, problem: String, remedy: &str) -> Self {
        Self { field: field.to_owned(), problem, remedy: remedy.to_owned() }
    }
}

/// Foreign text for an error message, cut to 40 characters.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.num, self.den)
    }
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("drafts=none"),
            Self::From { source, k, accept } => {
                write!(f, "drafts={source},k={k},accept={accept}")
            }
        }
    }
}

impl fmt::Display for Guarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On { raise_permille, lower_permille } => {
                write!(f, "{raise_permille}/{lower_permille}")
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sparse = match &self.attention {
            Attention::Dense => return write!(f, "dense:v1,{}", self.drafts),
            Attention::Sparse(sparse) => sparse,
        };
        let s = sparse;
        write!(f, "sparse:v1,predictor={},summary={}", s.predictor, s.summary)?;
        write!(f, ",budget={},budget_max={}", s.budget_tokens, s.budget_tokens_max)?;
        write!(f, ",prefetch={},repair={}", s.prefetch_blocks, s.repair_blocks)?;
        write!(f, ",sinks={},recent={}", s.sink_blocks, s.recent_tokens)?;
        write!(f, ",slack={},hysteresis={}", s.slack_tokens, s.hysteresis)?;
        write!(f, ",budgets={},late={},guard={}", s.budgets, s.late, s.guard)?;
        write!(f, ",{}", self.drafts)
    }
}

impl FromStr for Policy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let whole = |problem: String, remedy| InvalidPolicy::new("kv_policy", problem, remedy);
        if text.len() > TEXT_BYTES_MAX {
            let problem = format!("{} bytes are more than {TEXT_BYTES_MAX}", text.len());
            return Err(whole(problem, "name each field once"));
        }
        let (head, rest) = text.split_once(',').unwrap_or((text, ""));
        let (attention, drafts) = match head {
            "dense:v1" => (Attention::Dense, Drafts::None),
            "sparse:v1" => {
                let drafts = Drafts::From { source: Source::Both, k: 1, accept: Accept::Covered };
                (Attention::Sparse(Sparse::default()), drafts)
            }
            other => {
                let problem = format!("{} is unknown", quoted(other));
                return Err(whole(problem, "begin with dense:v1 or sparse:v1"));
            }
        };
        let mut fields = Fields::default();
        let mut attention = attention;
        for pair in rest.split(',').filter(|_| !rest.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                let problem = format!("{} has no value", quoted(pair));
                return Err(whole(problem, "write field=value, separated by commas"));
            };
            fields.first_time(key)?;
            if !fields.draft(key, value)? {
                match &mut attention {
                    Attention::Dense => return Err(unknown(key, "dense:v1 has drafts, k, accept")),
                    Attention::Sparse(sparse) => set(sparse, key, value)?,
                }
            }
        }
        if let Attention::Sparse(sparse) = &mut attention
            && !fields.seen.iter().any(|key| key == "budget_max")
        {
            sparse.budget_tokens_max = sparse.budget_tokens;
        }
        let drafts = fields.drafts(drafts)?;
        Self::try_new(attention, drafts)
    }
}

/// What was read besides the settings of [`Sparse`].
#[derive(Default)]
struct Fields {
    /// Every key so far.
    seen: Vec<String>,
    /// Some(None) for `drafts=none`.
    source: Option<Option<Source>>,
    k: Option<u8>,
    accept: Option<Accept>,
}

impl Fields {
    fn first_time(&mut self, key: &str) -> Result<(), InvalidPolicy> {
        if self.seen.iter().any(|seen| seen == key) {
            let problem = "it is given twice".to_owned();
            return Err(InvalidPolicy::new(&short(key), problem, "leave one out"));
        }
        self.seen.push(key.to_owned());
        Ok(())
    }

    /// Takes the fields about drafts; false for any other.
    fn draft(&mut self, key: &str, value: &str) -> Result<bool, InvalidPolicy> {
        match key {
            "drafts" if value == "none" => self.source = Some(None),
            "drafts" => self.source = Some(Some(one_of(key, value, Source::ALL, Source::name)?)),
            "k" => {
                let k = number(key, value)?;
                self.k = Some(u8::try_from(k).unwrap_or(u8::MAX));
            }
            "accept" => self.accept = Some(one_of(key, value, Accept::ALL, Accept::name)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The drafts, with `unless` where nothing was said.
    fn drafts(&self, unless: Drafts) -> Result<Drafts, InvalidPolicy> {
        let (source, k, accept) = match unless {
            Drafts::None => (None, 1, Accept::Covered),
            Drafts::From { source, k, accept } => (Some(source), k, accept),
        };
        if let Some(source) = self.source.unwrap_or(source) {
            let accept = self.accept.unwrap_or(accept);
            return Ok(Drafts::From { source, k: self.k.unwrap_or(k), accept });
        }
        for (given, field) in [(self.k.is_some(), "k"), (self.accept.is_some(), "accept")] {
            if given {
                let problem = "nothing is drafted".to_owned();
                let remedy = "leave it out or give drafts=ngram, self or both";
                return Err(InvalidPolicy::new(field, problem, remedy));
            }
        }
        Ok(Drafts::None)
    }
}

fn set(sparse: &mut Sparse, key: &str, value: &str) -> Result<(), InvalidPolicy> {
    match key {
        "predictor" => sparse.predictor = one_of(key, value, Predictor::ALL, Predictor::name)?,
        "summary" => sparse.summary = one_of(key, value, Summary::ALL, Summary::name)?,
        "budget" => sparse.budget_tokens = number(key, value)?,
        "budget_max" => sparse.budget_tokens_max = number(key, value)?,
        "prefetch" => sparse.prefetch_blocks = number(key, value)?,
        "repair" => sparse.repair_blocks = number(key, value)?,
        "sinks" => sparse.sink_blocks = number(key, value)?,
        "recent" => sparse.recent_tokens = number(key, value)?,
        "slack" => sparse.slack_tokens = number(key, value)?,
        "hysteresis" => {
            let (num, den) = fraction(key, value)?;
            sparse.hysteresis = Ratio { num, den };
        }
        "budgets" => sparse.budgets = one_of(key, value, Budgets::ALL, Budgets::name)?,
        "late" => sparse.late = one_of(key, value, Late::ALL, Late::name)?,
        "guard" if value == "off" => sparse.guard = Guarding::Off,
        "guard" => {
            let (raise, lower) = fraction(key, value)?;
            let [raise_permille, lower_permille] =
                [raise, lower].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
            sparse.guard = Guarding::On { raise_permille, lower_permille };
        }
        other => return Err(unknown(other, FIELDS)),
    }
    Ok(())
}

const FIELDS: &str = "sparse:v1 has predictor, summary, budget, budget_max, prefetch, repair, \
     sinks, recent, slack, hysteresis, budgets, late, guard, drafts, k, accept";

fn unknown(key: &str, remedy: &str) -> InvalidPolicy {
    InvalidPolicy::new(&short(key), "it is no field of this policy".to_owned(), remedy)
}

fn short(key: &str) -> String {
    key.chars().take(40).collect()
}

fn one_of<T: Copy>(
    field: &str,
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, InvalidPolicy> {
    all.iter().copied().find(|item| name(*item) == text).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|item| name(*item)).collect();
        let problem = format!("{} is unknown", quoted(text));
        InvalidPolicy::new(field, problem, &format!("give one of {}", names.join(", ")))
    })
}

/// A whole number in its one spelling: no sign and no leading zero.
fn number(field: &str, text: &str) -> Result<u32, InvalidPolicy> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain).ok_or_else(|| {
        let problem = format!("{} is no number", quoted(text));
        InvalidPolicy::new(field, problem, "give a whole number, in tokens or blocks")
    })
}

fn fraction(field: &str, text: &str) -> Result<(u32, u32), InvalidPolicy> {
    let Some((left, right)) = text.split_once('/') else {
        let problem = format!("{} is no pair of numbers", quoted(text));
        return Err(InvalidPolicy::new(field, problem, "write two whole numbers with / between"));
    };
    Ok((number(field, left)?, number(field, right)?))
}
