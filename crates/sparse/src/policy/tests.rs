//! Text forms round trip, errors name the field and the remedy, digests are the same everywhere.

use proptest::prelude::*;

use super::{
    Accept, Attention, Budgets, Drafts, Facts, Guarding, Late, Policy, Predictor, Ratio, Source,
    Sparse, Summary,
};

fn parse(text: &str) -> Policy {
    text.parse().unwrap()
}

#[test]
fn the_canonical_text_names_every_field() {
    let text = "sparse:v1,predictor=lookahead,summary=int4,budget=2048,budget_max=2048,\
                prefetch=4,repair=4,sinks=1,recent=64,slack=512,hysteresis=3/2,budgets=equal,\
                late=wait,guard=200/100,drafts=both,k=1,accept=covered";
    assert_eq!(parse("sparse:v1").to_string(), text);
    assert_eq!(parse(text), parse("sparse:v1"));
    assert_eq!(parse("dense:v1"), Policy::dense());
    assert_eq!(Policy::dense().to_string(), "dense:v1,drafts=none");
    let drafting = parse("dense:v1,drafts=ngram,k=4,accept=always");
    assert_eq!(drafting.to_string(), "dense:v1,drafts=ngram,k=4,accept=always");
    assert_eq!(drafting.drafted_rows_max(), 4);
}

#[test]
fn fields_come_in_any_order_and_the_rest_are_defaults() {
    let policy = parse("sparse:v1,late=drop,budget=512,drafts=none,hysteresis=1/1,guard=off");
    let sparse = policy.sparse().unwrap();
    assert_eq!((sparse.late, sparse.budget_blocks()), (Late::Drop, 32));
    assert_eq!(sparse.budget_tokens_max, 512, "no more is reserved than is asked for");
    assert_eq!(sparse.guard, Guarding::Off);
    assert_eq!(policy.drafts(), Drafts::None);
}

#[test]
fn errors_name_the_field_and_the_remedy() {
    for (text, field, part) in [
        ("", "kv_policy", "begin with dense:v1 or sparse:v1"),
        ("sparse:v2", "kv_policy", "\"sparse:v2\" is unknown"),
        ("sparse:v1,budget", "kv_policy", "\"budget\" has no value"),
        ("sparse:v1,,", "kv_policy", "\"\" has no value"),
        ("sparse:v1,x=1", "x", "sparse:v1 has predictor, summary"),
        ("dense:v1,budget=512", "budget", "dense:v1 has drafts, k, accept"),
        ("sparse:v1,k=1,k=1", "k", "given twice"),
        ("sparse:v1,predictor=magic", "predictor", "lookahead, previous, history, ondemand"),
        ("sparse:v1,budget=100", "budget", "give a multiple of 16"),
        ("sparse:v1,budget=96", "budget", "give at least 112"),
        ("sparse:v1,budget=0512", "budget", "is no number"),
        ("sparse:v1,budget=+512", "budget", "is no number"),
        ("sparse:v1,budget=99999999999", "budget", "is no number"),
        ("sparse:v1,budget=4194304", "budget", "between 16 and 2097152"),
        ("sparse:v1,budget=512,budget_max=256", "budget_max", "give at least 512"),
        ("sparse:v1,budget=512,prefetch=33", "prefetch", "33 is not between 0 and 32"),
        ("sparse:v1,hysteresis=6/4", "hysteresis", "write 3/2"),
        ("sparse:v1,hysteresis=1/2", "hysteresis", "give 1/1 or more"),
        ("sparse:v1,hysteresis=1/0", "hysteresis", "0 is not between 1 and 1000"),
        ("sparse:v1,hysteresis=1.5", "hysteresis", "with / between"),
        ("sparse:v1,guard=100/200", "guard", "lower below raise"),
        ("sparse:v1,k=5", "k", "5 is not between 1 and 4"),
        ("sparse:v1,drafts=none,k=1", "k", "drafts=ngram, self or both"),
        ("dense:v1,accept=never", "accept", "drafts=ngram, self or both"),
    ] {
        let error = text.parse::<Policy>().unwrap_err();
        assert_eq!(error.field, field, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    let long = format!("sparse:v1,{}", "é".repeat(300));
    assert!(long.parse::<Policy>().unwrap_err().to_string().contains("more than 512"));
}

/// Golden values: every node must print and digest a policy alike.
#[test]
fn p1_digests_are_the_same_in_every_process() {
    assert_eq!(Policy::dense().digest().to_string(), "3c6f414f96a964144ccf3344f0e20674");
    assert_eq!(parse("sparse:v1").digest().to_string(), "56171a14a06492e01c68515c9d17c704");
}

#[test]
fn auto_is_dense_where_everything_would_be_attended() {
    let facts = |prompt_tokens, tokens_max| Facts { prompt_tokens, tokens_max };
    let resolve = |name: &str, budget, facts| Policy::resolve(name, budget, facts);
    let defaults = parse("sparse:v1");
    assert_eq!(resolve("auto", None, facts(2_000, 560)), Ok(Policy::dense()));
    assert_eq!(resolve("auto", None, facts(2_000, 561)), Ok(defaults.clone()));
    let small = parse("sparse:v1,budget=512");
    assert_eq!(resolve("auto", Some(512), facts(1_000, 24)), Ok(Policy::dense()));
    assert_eq!(resolve("auto", Some(512), facts(1_000, 25)), Ok(small.clone()));
    assert_eq!(resolve("auto", None, facts(u32::MAX, u32::MAX)), Ok(defaults));
    assert_eq!(resolve("sparse", Some(512), facts(1, 1)), Ok(small.clone()));
    assert_eq!(resolve("dense", None, facts(u32::MAX, 1)), Ok(Policy::dense()));
    assert_eq!(resolve(&small.to_string(), None, facts(1, 1)), Ok(small));
    for (name, budget, field) in
        [("dense", 512, "kv_budget"), ("sparse:v1", 512, "kv_budget"), ("auto", 5, "budget")]
    {
        assert_eq!(resolve(name, Some(budget), facts(1, 1)).unwrap_err().field, field);
    }
}

fn drafts() -> impl Strategy<Value = Drafts> {
    let some = (0..Source::ALL.len(), 1u8..=4, 0..Accept::ALL.len())
        .prop_map(|(s, k, a)| Drafts::From { source: Source::ALL[s], k, accept: Accept::ALL[a] });
    prop_oneof![Just(Drafts::None), some]
}

fn sparse() -> impl Strategy<Value = Sparse> {
    let names = (0..Predictor::ALL.len(), 0..Summary::ALL.len(), any::<[bool; 3]>());
    let blocks = (0u32..64, 0u32..200, 1u32..500, 0u32..500, any::<[prop::sample::Index; 2]>());
    let rest =
        (0u32..5_000, (1u32..=1_000, 1u32..=1_000), 1u16..=1_000, any::<prop::sample::Index>());
    (names, blocks, rest).prop_map(|(names, blocks, rest)| {
        let (predictor, summary, [pooled, drop, guarded]) = names;
        let (sinks, recent, more, most, [prefetch, repair]) = blocks;
        let (slack_tokens, (a, b), raise, lower) = rest;
        let common = super::common_divisor(a, b);
        let k = sinks + recent.div_ceil(16) + 1 + more;
        Sparse {
            predictor: Predictor::ALL[predictor],
            summary: Summary::ALL[summary],
            budget_tokens: k * 16,
            budget_tokens_max: (k + most) * 16,
            prefetch_blocks: prefetch.index(k as usize + 1) as u32,
            repair_blocks: repair.index(k as usize + 1) as u32,
            sink_blocks: sinks,
            recent_tokens: recent,
            slack_tokens,
            hysteresis: Ratio { num: a.max(b) / common, den: a.min(b) / common },
            budgets: if pooled { Budgets::Pooled } else { Budgets::Equal },
            late: if drop { Late::Drop } else { Late::Wait },
            guard: if guarded {
                let lower_permille = lower.index(usize::from(raise)) as u16;
                Guarding::On { raise_permille: raise, lower_permille }
            } else {
                Guarding::Off
            },
        }
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(sparse in sparse(), drafts in drafts(), dense in any::<bool>()) {
        let attention = if dense { Attention::Dense } else { Attention::Sparse(sparse) };
        let policy = Policy::try_new(attention, drafts).unwrap();
        let text = policy.to_string();
        prop_assert_eq!(text.parse::<Policy>(), Ok(policy.clone()));
        prop_assert!(text.len() <= 512);
        let other = Policy::dense();
        prop_assert_eq!(policy.digest() == other.digest(), policy == other);
    }

    #[test]
    fn no_text_panics(text in "(sparse|dense):v1(,(budget|k|guard|x)=?[0-9/é]{0,4}){0,4}") {
        if let Ok(policy) = text.parse::<Policy>() {
            prop_assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
        }
    }
}
