//! `oasiskv up`: starts the cluster and says what is where, what to try, and how to stop.

use std::io::Write;

use crate::cluster::Cluster;

/// The table and the next step, on standard output.
pub(crate) fn announce(cluster: &Cluster, source: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "model {} from {source}\n", cluster.model)?;
    writeln!(out, "{:<12} {:<22} {:<22} memory", "role", "address", "probes and metrics")?;
    for line in &cluster.lines {
        let sizes = line.memory.iter().map(|(tier, size)| format!("{tier} {size}"));
        let sizes: Vec<String> = sizes.collect();
        let admin = line.admin.to_string();
        writeln!(out, "{:<12} {:<22} {admin:<22} {}", line.role, line.address, sizes.join(", "))?;
    }
    writeln!(
        out,
        "\nTry it:\n  curl -N http://{}/v1/chat/completions -H 'Content-Type: application/json' \
         \\\n    -d '{{\"model\": \"{}\", \"stream\": true, \"messages\": \
         [{{\"role\": \"user\", \"content\": \"What is a KV cache?\"}}]}}'\n\nStop it: ctrl-c",
        cluster.gateway, cluster.model
    )?;
    out.flush()
}
