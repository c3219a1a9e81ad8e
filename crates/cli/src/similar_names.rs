//! Similar names, for suggestions.

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 5;

/// The names that are most similar to an unknown one: those that start with it, or differ in few
/// letters.
pub(crate) fn similar_names<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Vec<&'a str> {
    // A third of the letters may differ; in a short name, one.
    let most = (name.chars().count() / 3).max(1);
    let mut found: Vec<_> = known
        .into_iter()
        .filter_map(|other| {
            if other.starts_with(name) || (!other.is_empty() && name.starts_with(other)) {
                return Some((0, other));
            }
            let distance = distance(name, other);
            (distance <= most).then_some((distance, other))
        })
        .collect();
    found.sort_unstable();
    found.truncate(MAX_SUGGESTIONS);
    found.into_iter().map(|(_, name)| name).collect()
}

/// The edit distance (Levenshtein), where a transposition counts as one.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.iter().enumerate() {
        let mut next = vec![line + 1];
        for (column, it) in other.iter().enumerate() {
            let changed = row[column] + usize::from(letter != it);
            let mut least = changed.min(row[column + 1] + 1).min(next[column] + 1);
            let was_swapped =
                line > 0 && column > 0 && *letter == other[column - 1] && one[line - 1] == *it;
            if was_swapped {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        let known = ["web-5d8c7-abcde", "web-5d8c7-fghij", "db-0", "webhook", "x"];
        assert_eq!(
            similar_names("web", known),
            ["web-5d8c7-abcde", "web-5d8c7-fghij", "webhook"]
        );
        assert_eq!(
            similar_names("web-5d8c7-abcdf", known),
            ["web-5d8c7-abcde", "web-5d8c7-fghij"]
        );
        assert_eq!(similar_names("bd-0", ["db-0", "db-1"]), ["db-0"], "swapped");
        assert_eq!(similar_names("wbe", ["web", "x"]), ["web"]);
        assert_eq!(similar_names("ebw", ["web"]), Vec::<&str>::new());
        assert_eq!(similar_names("db-o", ["db-0", "db-1"]), ["db-0", "db-1"]);
        assert_eq!(similar_names("cache", known), Vec::<&str>::new());
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
