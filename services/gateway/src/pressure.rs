//! How full the cluster is, from the reports that the coordinator passes on: the figure by which
//! balancers in front of several gateways decide (vLLM's `kv_cache_usage_perc`).
//! What it deliberately does not do: decide anything here; admission is the coordinator's.

use std::collections::BTreeMap;

use ids::{ModelDigest, Role, Tier};
use placement::NodeStatus;

/// What the nodes' reports add up to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pressure {
    /// The fullest tier's share in use, from 0 to 1. The maximum, because one full tier refuses a
    /// request whatever the others have free.
    pub(crate) usage: f64,
    /// Blocks of 16 tokens that the decode nodes' devices hold together.
    pub(crate) blocks: u64,
}

/// Sums free and total of all nodes that take work, by role and tier.
pub(crate) fn pressure(nodes: &[NodeStatus], model: ModelDigest) -> Pressure {
    let mut pools: BTreeMap<(Role, Tier), (u64, u64)> = BTreeMap::new();
    let mut blocks = 0_u64;
    for NodeStatus { record, report } in nodes {
        let ours = record.role == Role::Memory || record.model == Some(model);
        let Some(report) = report.as_ref().filter(|report| report.accepting && ours) else {
            continue;
        };
        for pool in &report.tiers {
            let (free, total) = pools.entry((record.role, pool.tier)).or_default();
            *free = free.saturating_add(pool.free.0);
            *total = total.saturating_add(pool.total.0);
            if (record.role, pool.tier) == (Role::Decode, Tier::Device) {
                let fit = pool.total.0.checked_div(record.block_bytes.0).unwrap_or(0);
                blocks = blocks.saturating_add(fit);
            }
        }
    }
    let used = pools.values().filter(|(_, total)| *total > 0).map(|(free, total)| {
        // A report whose free exceeds its total says that nothing is used.
        1.0 - (*free.min(total) as f64 / *total as f64)
    });
    Pressure { usage: used.fold(0.0, f64::max), blocks }
}

#[cfg(test)]
mod tests {
    use ids::{ByteCount, Incarnation, ModelDigest, Role, Tier};
    use placement::{NodeRecord, NodeReport, NodeStatus, TierCapacity};

    use super::{Pressure, pressure};

    const MODEL: ModelDigest = ModelDigest([7; 32]);

    fn node(role: Role, pools: &[(Tier, u64, u64)]) -> NodeStatus {
        let computes = role != Role::Memory;
        let pool = |(tier, free, total): &(Tier, u64, u64)| TierCapacity {
            tier: *tier,
            total: ByteCount(*total),
            free: ByteCount(*free),
        };
        NodeStatus {
            record: NodeRecord {
                id: "n".parse().expect("a name"),
                role,
                incarnation: Incarnation(1),
                control: String::new(),
                bulk: String::new(),
                numerics_class: String::new(),
                model: computes.then_some(MODEL),
                host: "h".parse().expect("a name"),
                zone: "z".parse().expect("a name"),
                shards: 1,
                block_bytes: ByteCount(if computes { 10 } else { 0 }),
            },
            report: Some(NodeReport {
                tiers: pools.iter().map(pool).collect(),
                accepting: true,
                ..NodeReport::default()
            }),
        }
    }

    #[test]
    fn the_fullest_tier_counts_summed_over_its_nodes_p4() {
        assert_eq!(pressure(&[], MODEL), Pressure::default());
        let mut nodes = vec![
            node(Role::Prefill, &[(Tier::Device, 0, 0), (Tier::PrefillHost, 90, 100)]),
            node(Role::Decode, &[(Tier::Device, 0, 100), (Tier::DecodeHost, 50, 50)]),
            node(Role::Decode, &[(Tier::Device, 300, 305)]),
            node(Role::Memory, &[(Tier::Remote, 25, 100)]),
            node(Role::Memory, &[(Tier::Remote, 25, 100)]),
        ];
        // Decode's devices are 300 of 405 free, the memory nodes 50 of 200.
        assert_eq!(pressure(&nodes, MODEL), Pressure { usage: 0.75, blocks: 40 });
        assert_eq!(pressure(&nodes, ModelDigest([8; 32])).blocks, 0);
        for node in &mut nodes[3..] {
            node.report.as_mut().expect("reports").accepting = false;
        }
        let without = pressure(&nodes, MODEL).usage;
        assert!((without - 105.0 / 405.0).abs() < 1e-9, "{without}");
        nodes[1].report.as_mut().expect("reports").tiers[0].free = ByteCount(u64::MAX);
        assert!((0.0..=1.0).contains(&pressure(&nodes, MODEL).usage));
    }
}
