//! Admission: data in, plan or refusal out; clusters are written as text.

use std::collections::BTreeMap;

use ids::{
    BlockHash, ByteCount, Incarnation, ModelDigest, Moment, NodeId, PolicyDigest, Role, SessionId,
    Span, Tenant, Term, Tier,
};
use proptest::prelude::*;

use crate::{
    AdmitRequest, NodeRecord, NodeReport, Plan, RefuseReason, TierCapacity, View, ViewConfig,
};

const MODEL: ModelDigest = ModelDigest([7; 32]);
const BLOCK_BYTES: u64 = 1_000;
const NOW: Moment = Moment(1_000_000_000_000);

fn role_and_tier(name: &str) -> (Role, Tier) {
    match name {
        "prefill" => (Role::Prefill, Tier::PrefillHost),
        "decode" => (Role::Decode, Tier::Device),
        _ => (Role::Memory, Tier::Remote),
    }
}

fn record(name: &str, host: &str, class: &str) -> NodeRecord {
    let (role, _) = role_and_tier(name.split('-').next().unwrap());
    NodeRecord {
        id: name.parse().unwrap(),
        role,
        incarnation: Incarnation(1),
        control: format!("{name}:1"),
        bulk: format!("{name}:2"),
        numerics_class: if role == Role::Memory { String::new() } else { class.into() },
        model: (role != Role::Memory).then_some(MODEL),
        host: host.parse().unwrap(),
        zone: "zone".parse().unwrap(),
        shards: 1,
        block_bytes: ByteCount(if role == Role::Memory { 0 } else { BLOCK_BYTES }),
    }
}

fn report(name: &str, free_blocks: u64, total_blocks: u64) -> NodeReport {
    let (_, tier) = role_and_tier(name.split('-').next().unwrap());
    NodeReport {
        tiers: vec![TierCapacity {
            tier,
            total: ByteCount(total_blocks * BLOCK_BYTES),
            free: ByteCount(free_blocks * BLOCK_BYTES),
        }],
        accepting: true,
        ..NodeReport::default()
    }
}

/// One node per line: `name host class free/total`, free and total in blocks.
fn cluster(text: &str) -> View {
    let mut view = View::new(ViewConfig::default(), Term(3));
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (free, total) = words[3].split_once('/').unwrap();
        let record = record(words[0], words[1], words[2]);
        let report = report(words[0], free.parse().unwrap(), total.parse().unwrap());
        let (id, incarnation) = (record.id.clone(), record.incarnation);
        view.joined(record);
        view.reported(&id, incarnation, report, NOW);
    }
    view
}

fn request(session: u128, prompt_tokens: u32, max_tokens: u32) -> AdmitRequest {
    let hash = |index: u32| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&index.to_le_bytes());
        BlockHash(bytes)
    };
    AdmitRequest {
        session: SessionId(session),
        tenant: Tenant::default(),
        model: MODEL,
        prompt_tokens,
        max_tokens,
        hashes: (0..prompt_tokens / 16).map(hash).collect(),
        policy: PolicyDigest([0; 16]),
    }
}

const ONE_OF_EACH: &str = "
    prefill-0 host-a c1 100/100
    decode-0  host-b c1 100/100
    memory-0  host-c -  100/100
";

fn counts(plans: &[Plan], of: impl Fn(&Plan) -> NodeId) -> BTreeMap<NodeId, usize> {
    let mut counts = BTreeMap::new();
    for plan in plans {
        *counts.entry(of(plan)).or_insert(0) += 1;
    }
    counts
}

#[test]
fn p4_a_prompt_that_no_prefill_device_can_hold_never_fits() {
    let mut view = cluster(ONE_OF_EACH);
    let mut told = report("prefill-0", 100, 100);
    told.tiers.push(TierCapacity {
        tier: Tier::Device,
        total: ByteCount(4 * BLOCK_BYTES),
        free: ByteCount(0),
    });
    let id: NodeId = "prefill-0".parse().unwrap();
    view.reported(&id, Incarnation(1), told, NOW);
    assert!(view.admit(&request(1, 64, 16), NOW).is_ok(), "a busy device is waited for");
    let refused = view.admit(&request(2, 65, 16), NOW).unwrap_err();
    assert_eq!((refused.reason, refused.tier), (RefuseReason::NeverFits, Some(Tier::Device)));
}

#[test]
fn a_plan_names_its_nodes_its_term_and_its_final_length() {
    let mut view = cluster(ONE_OF_EACH);
    let plan = view.admit(&request(9, 40, 24), NOW).unwrap();
    assert_eq!((plan.term, plan.sequence, plan.epoch.0), (Term(3), 1, 1));
    assert_eq!(plan.final_tokens, 64);
    assert_eq!(plan.numerics_class, "c1");
    assert_eq!(plan.prefill.control, "prefill-0:1");
    assert_eq!(plan.decode.bulk, "decode-0:2");
    assert_eq!(plan.homes.len(), 1);
    let home = &plan.homes[0];
    assert_eq!((home.first.0, home.count), (0, 2), "two sealed blocks, the tail stays open");
    assert_eq!(home.nodes[0].node.as_str(), "memory-0");
    assert_eq!(view.admit(&request(10, 40, 24), NOW).unwrap().sequence, 2);
}

#[test]
fn a_prompt_without_a_full_block_needs_no_memory_node() {
    let mut view = cluster("prefill-0 a c1 100/100\n decode-0 b c1 100/100");
    assert!(view.admit(&request(1, 15, 100), NOW).unwrap().homes.is_empty());
    let refused = view.admit(&request(1, 16, 100), NOW).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::NoNode);
    assert!(refused.detail.contains("memory"), "{}", refused.detail);
}

/// Case 33 and P4: what is short, in which tier, and whether waiting helps.
#[test]
fn case_33_every_tier_is_checked_for_the_final_length_p4() {
    use RefuseReason::{Capacity, NeverFits, NoNode};
    let check = |cluster_text: &str, prompt, max, reason, tier| {
        let refused = cluster(cluster_text).admit(&request(1, prompt, max), NOW).unwrap_err();
        assert_eq!((refused.reason, refused.tier), (reason, tier), "{}", refused.detail);
        let again = !matches!(reason, NeverFits | RefuseReason::UnknownModel);
        assert_eq!(refused.retry_after.is_some(), again, "{}", refused.detail);
    };
    let big = 1_600;
    check(ONE_OF_EACH, 160, big, NeverFits, Some(Tier::Device));
    let decode_busy = ONE_OF_EACH.replace("b c1 100/100", "b c1 5/200");
    check(&decode_busy, 160, big, Capacity, Some(Tier::Device));
    let prefill_busy = ONE_OF_EACH.replace("a c1 100/100", "a c1 9/100");
    check(&prefill_busy, 160, 16, Capacity, Some(Tier::PrefillHost));
    let prefill_small = ONE_OF_EACH.replace("a c1 100/100", "a c1 9/9");
    check(&prefill_small, 160, 16, NeverFits, Some(Tier::PrefillHost));
    let memory_busy = ONE_OF_EACH.replace("c -  100/100", "c -  9/100");
    check(&memory_busy, 160, 16, Capacity, Some(Tier::Remote));
    let memory_small = ONE_OF_EACH.replace("c -  100/100", "c -  9/9");
    check(&memory_small, 160, 16, NeverFits, Some(Tier::Remote));
    check("", 160, 16, NoNode, None);
    check("prefill-0 a c1 9/9\n decode-0 b c2 9/9", 16, 16, NoNode, None);
}

#[test]
fn an_unknown_model_is_told_apart_from_a_missing_node() {
    let mut other = request(1, 16, 16);
    other.model = ModelDigest([1; 32]);
    let refused = cluster(ONE_OF_EACH).admit(&other, NOW).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::UnknownModel);
    assert_eq!(refused.retry_after, None);
    let refused = cluster("memory-0 a - 9/9").admit(&other, NOW).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::NoNode);
}

/// P1: every computing node of a plan is of one class, also when a mix would fit better.
#[test]
fn a_plan_stays_within_one_numerics_class_p1() {
    let mut view = cluster(
        "
        prefill-0 a c1 100/100
        decode-0  b c1 3/100
        decode-1  b c2 100/100
        prefill-1 a c2 1/100
        memory-0  c -  100/100
        ",
    );
    let plan = view.admit(&request(1, 32, 16), NOW).unwrap();
    assert_eq!((plan.prefill.node.as_str(), plan.decode.node.as_str()), ("prefill-0", "decode-0"));
    let refused = view.admit(&request(2, 32, 16), NOW).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::Capacity);
}

/// Case 44: counted at decision time, with no report in between.
#[test]
fn case_44_a_burst_of_equal_requests_spreads() {
    let mut text = String::new();
    for index in 0..8 {
        for role in ["prefill", "decode", "memory"] {
            text += &format!("{role}-{index} host-{role}-{index} c1 10000/10000\n");
        }
    }
    let mut view = cluster(&text);
    let plans: Vec<Plan> = (0..64)
        .map(|session| {
            // Prompts of their own: with a common prefix affinity has a say.
            let mut request = request(session << 64 | 0x5eed, 160, 160);
            for hash in &mut request.hashes {
                hash.0[31] = u8::try_from(session).unwrap();
            }
            view.admit(&request, NOW).unwrap()
        })
        .collect();
    let mean = 8;
    for (what, counts) in [
        ("decode", counts(&plans, |plan| plan.decode.node.clone())),
        ("prefill", counts(&plans, |plan| plan.prefill.node.clone())),
        ("memory", counts(&plans, |plan| plan.homes[0].nodes[0].node.clone())),
    ] {
        assert_eq!(counts.len(), 8, "{what}: {counts:?}");
        assert!(counts.values().all(|count| *count <= 2 * mean), "{what}: {counts:?}");
    }
}

/// Case 11: the node that came back empty does not draw everything.
#[test]
fn case_11_an_empty_memory_node_draws_at_most_twice_its_share() {
    let mut text = "prefill-0 a c1 100000/100000\n decode-0 b c1 100000/100000\n".to_owned();
    for index in 0..8 {
        let free = if index == 3 { 100_000 } else { 10_000 };
        text += &format!("memory-{index} host-{index} - {free}/100000\n");
    }
    let mut view = cluster(&text);
    let plans: Vec<Plan> = (0..400)
        .map(|n| view.admit(&request(n * 0x1234_5678_9abc, 32, 16), NOW).unwrap())
        .collect();
    let counts = counts(&plans, |plan| plan.homes[0].nodes[0].node.clone());
    let most = counts.values().copied().max().unwrap();
    assert!(most <= 400 / 8 * 5 / 2, "{counts:?}");
}

#[test]
fn a_prefix_goes_where_it_was_computed_unless_that_node_is_busy() {
    let text = "
        prefill-0 a c1 1000/1000
        prefill-1 a c1 1000/1000
        prefill-2 a c1 1000/1000
        decode-0 b c1 10000/10000
        memory-0 c - 10000/10000
    ";
    let mut view = cluster(text);
    let long = |session| request(session, 4_000, 16);
    let first = view.admit(&long(1), NOW).unwrap().prefill.node;
    for session in 2..20 {
        // A new report each time: nothing queued.
        let later = NOW + Span::from_secs(session as u64);
        for name in ["prefill-0", "prefill-1", "prefill-2"] {
            view.reported(
                &name.parse().unwrap(),
                Incarnation(1),
                report(name, 1_000, 1_000),
                later,
            );
        }
        for (name, free) in [("decode-0", 10_000), ("memory-0", 10_000)] {
            view.reported(&name.parse().unwrap(), Incarnation(1), report(name, free, free), later);
        }
        assert_eq!(view.admit(&long(session), later).unwrap().prefill.node, first);
    }
    let later = NOW + Span::from_secs(20);
    let busy = NodeReport { queued: 50, ..report(first.as_str(), 1_000, 1_000) };
    view.reported(&first, Incarnation(1), busy, later);
    assert_ne!(view.admit(&long(99), later).unwrap().prefill.node, first);
}

#[test]
fn copies_go_to_another_host_where_there_is_room_and_to_another_node_otherwise_p3() {
    let text = "
        prefill-0 a c1 1000/1000
        decode-0 b c1 1000/1000
        memory-0 a - 1000/1000
        memory-1 a - 1000/1000
    ";
    let mut one_host = cluster(text);
    let plan = one_host.admit(&request(1, 320, 16), NOW).unwrap();
    assert!(plan.homes[0].nodes[0].node.as_str().starts_with("memory-"));
    for session in 0..20 {
        let mut two_hosts = cluster(&format!("{text} memory-2 b - 20/1000"));
        let plan = two_hosts.admit(&request(session << 77, 320, 16), NOW).unwrap();
        assert_eq!(plan.homes[0].nodes[0].node.as_str(), "memory-2", "fits there, 20 blocks");
        let plan = two_hosts.admit(&request(session << 77, 320, 16), NOW).unwrap();
        assert_ne!(plan.homes[0].nodes[0].node.as_str(), "memory-2", "full there");
    }
}

#[test]
fn a_long_prompt_has_homes_for_every_block_once() {
    let mut view = cluster(
        "
        prefill-0 a c1 9000/9000
        decode-0 b c1 9000/9000
        memory-0 c - 700/1000
        memory-1 d - 300/1000
        ",
    );
    let plan = view.admit(&request(1, 16 * 1_000 + 5, 16), NOW).unwrap();
    let mut next = 0;
    for home in &plan.homes {
        assert_eq!(home.first.0, next);
        assert!(home.count <= 256 && home.count > 0);
        next += home.count;
    }
    assert_eq!(next, 1_000);
}

#[test]
fn a_promise_counts_until_a_report_can_show_it() {
    let mut view = cluster(ONE_OF_EACH);
    view.admit(&request(1, 16, 16 * 79), NOW).unwrap();
    assert!(view.admit(&request(2, 16, 16 * 79), NOW).is_err());
    let decode: NodeId = "decode-0".parse().unwrap();
    let soon = NOW + Span::from_millis(10);
    view.reported(&decode, Incarnation(1), report("decode-0", 100, 100), soon);
    let refused = view.admit(&request(2, 16, 16 * 79), soon).unwrap_err();
    assert_eq!(refused.reason, RefuseReason::Capacity, "that report may be older than the plan");
    let later = NOW + Span::from_millis(300);
    view.reported(&decode, Incarnation(1), report("decode-0", 100, 100), later);
    view.admit(&request(2, 16, 16 * 79), later).unwrap();
}

#[test]
fn silent_draining_gone_and_restarted_nodes_get_nothing_p3() {
    let decode: NodeId = "decode-0".parse().unwrap();
    let refusal = |change: &dyn Fn(&mut View) -> Moment| {
        let mut view = cluster(ONE_OF_EACH);
        let now = change(&mut view);
        view.admit(&request(1, 16, 16), now).unwrap_err().reason
    };
    assert_eq!(refusal(&|_| NOW + Span::from_secs(6)), RefuseReason::NoNode);
    let broke = |view: &mut View| {
        view.unheard(&decode, Incarnation(1));
        NOW
    };
    assert_eq!(refusal(&broke), RefuseReason::NoNode);
    let left = |view: &mut View| {
        view.gone(&decode, Incarnation(1));
        NOW
    };
    assert_eq!(refusal(&left), RefuseReason::NoNode);
    let draining = |view: &mut View| {
        let report = NodeReport { accepting: false, ..report("decode-0", 100, 100) };
        view.reported(&decode, Incarnation(1), report, NOW);
        NOW
    };
    assert_eq!(refusal(&draining), RefuseReason::NoNode);
    let restarted = |view: &mut View| {
        let record = NodeRecord { incarnation: Incarnation(2), ..record("decode-0", "b", "c1") };
        view.joined(record);
        view.reported(&decode, Incarnation(1), report("decode-0", 100, 100), NOW);
        view.gone(&decode, Incarnation(1));
        NOW
    };
    assert_eq!(refusal(&restarted), RefuseReason::NoNode, "the new start has not reported yet");
}

fn any_cluster() -> impl Strategy<Value = String> {
    let node = (0..3usize, 0..4u8, 1..3u8, 0..200u64, 0..200u64);
    prop::collection::vec(node, 0..16).prop_map(|nodes| {
        let mut text = String::new();
        for (index, (role, host, class, free, more)) in nodes.into_iter().enumerate() {
            let role = ["prefill", "decode", "memory"][role];
            text += &format!("{role}-{index} host-{host} c{class} {free}/{}\n", free + more);
        }
        text
    })
}

proptest! {
    /// P1, P4: live nodes of one class with room for everything, counted over all plans so far;
    /// and the same questions get the same answers.
    #[test]
    fn plans_fit_and_are_deterministic_p1_p4(
        text in any_cluster(),
        requests in prop::collection::vec((any::<u128>(), 1..600u32, 1..600u32), 1..12),
    ) {
        let (mut view, mut twin) = (cluster(&text), cluster(&text));
        let before = cluster(&text).statuses();
        let mut taken: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (session, prompt, max) in requests {
            let request = request(session, prompt, max);
            let answer = view.admit(&request, NOW);
            prop_assert_eq!(&answer, &twin.admit(&request, NOW));
            let Ok(plan) = answer else { continue };
            let find = |id: &NodeId| before.iter().find(|s| s.record.id == *id).unwrap();
            for target in [&plan.prefill, &plan.decode] {
                prop_assert_eq!(&find(&target.node).record.numerics_class, &plan.numerics_class);
            }
            *taken.entry(plan.decode.node.clone()).or_default() +=
                u64::from((prompt + max).div_ceil(16));
            *taken.entry(plan.prefill.node.clone()).or_default() += u64::from(prompt.div_ceil(16));
            let mut sealed = 0;
            for home in &plan.homes {
                prop_assert_eq!(home.first.0, sealed);
                sealed += home.count;
                *taken.entry(home.nodes[0].node.clone()).or_default() += u64::from(home.count);
            }
            prop_assert_eq!(sealed, prompt / 16);
            for (id, blocks) in &taken {
                let free = find(id).report.as_ref().unwrap().tiers[0].free;
                prop_assert!(blocks * BLOCK_BYTES <= free.0, "{} has too much", id);
            }
        }
    }
}
