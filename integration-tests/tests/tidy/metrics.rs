//! Every metric in the source is documented, every documented one is in the source.

use std::collections::BTreeSet;

/// Metric names among the string literals of a source text.
pub(crate) fn in_source<'a>(literals: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    literals.filter(|literal| is_metric(literal)).map(str::to_owned).collect()
}

/// Metric names in the first column of the tables of docs/METRICS.md.
pub(crate) fn in_document(document: &str) -> BTreeSet<String> {
    document
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| is_metric(name))
        .map(str::to_owned)
        .collect()
}

fn is_metric(text: &str) -> bool {
    let rest = text.strip_prefix("vllm:").or_else(|| text.strip_prefix("oasiskv_"));
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(legal))
}

/// Where the two differ.
pub(crate) fn differences(source: &BTreeSet<String>, document: &BTreeSet<String>) -> Vec<String> {
    let undocumented = source.difference(document);
    let invented = document.difference(source);
    undocumented
        .map(|name| format!("{name} is in the source but not in docs/METRICS.md"))
        .chain(invented.map(|name| format!("{name} is in docs/METRICS.md but not in the source")))
        .collect()
}

mod tests {
    use super::{differences, in_document, in_source};

    #[test]
    fn names_are_told_from_other_literals() {
        let literals = ["vllm:a_total", "oasiskv_b", "oasiskv_", "oasiskv-gateway", "x oasiskv_c"];
        let found = in_source(literals.into_iter());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["oasiskv_b", "vllm:a_total"]);
    }

    #[test]
    fn both_differences_are_found() {
        let document = in_document("text `oasiskv_x`\n| `vllm:a` | b |\n| `oasiskv_c` | d |\n");
        let source = in_source(["vllm:a", "oasiskv_b"].into_iter());
        let found = differences(&source, &document);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("oasiskv_b is in the source but not"));
        assert!(found[1].starts_with("oasiskv_c is in docs/METRICS.md but not"));
    }
}
