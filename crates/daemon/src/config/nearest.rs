//! The known key that a mistyped one was most likely meant to be.

/// What to do about an unknown key, given its known siblings (`parent` is their common path).
pub(super) fn remedy<'a>(
    key: &str,
    parent: &[String],
    known: impl Iterator<Item = &'a str>,
) -> String {
    let written = key.rsplit('.').next().unwrap_or(key);
    let full = |name: &str| {
        let path = parent.iter().map(String::as_str).chain([name]);
        format!("`{}`", path.collect::<Vec<_>>().join("."))
    };
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    let nearest = known.iter().map(|name| (distance(written, name), *name)).min();
    match nearest {
        // Up to half of the letters wrong: beyond that a guess would mislead.
        Some((distance, name)) if distance * 2 <= name.len().max(written.len()) => {
            format!("did you mean {}?", full(name))
        }
        Some(_) => {
            let list: Vec<String> = known.iter().map(|name| full(name)).collect();
            format!("remove it; known here are {}", list.join(", "))
        }
        None => "remove it; no key is known here".to_owned(),
    }
}

/// Letters to insert, delete or change to make `b` of `a` (Levenshtein 1966, one row at a time).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    // Keys come from outside; the cap bounds the work, and no known key is near that long.
    for (i, x) in a.chars().take(128).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, remedy};

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_typo_gets_a_name_and_a_stranger_the_list() {
        let parent = ["log".to_owned()];
        let known = || ["level", "format"].into_iter();
        assert_eq!(remedy("log.levle", &parent, known()), "did you mean `log.level`?");
        let list = remedy("log.verbosity_of_it", &parent, known());
        assert_eq!(list, "remove it; known here are `log.format`, `log.level`");
    }
}
