//! Normalises the output of clients, to compare it across servers.

/// Replaces times, ages, IDs and the column widths that depend on them, and removes the
/// prose of `kubectl explain`.
pub fn normalize(text: &str) -> String {
    let is_explanation = text.contains("\nDESCRIPTION:\n");
    let lines: Vec<String> = if is_explanation {
        explanation_fields(text)
            .into_iter()
            .map(str::to_owned)
            .collect()
    } else {
        text.lines().map(str::to_owned).collect()
    };
    let lines: Vec<String> = lines.iter().map(|line| normalize_line(line)).collect();
    lines.join("\n")
}

/// The lines of an explanation that list fields and their types.
fn explanation_fields(text: &str) -> Vec<&str> {
    let is_heading = |line: &str| line.starts_with(|first: char| first.is_ascii_uppercase());
    let is_field = |line: &str| line.contains("\t<");
    let lines = text.lines();
    lines
        .filter(|line| is_heading(line) || is_field(line))
        .collect()
}

/// Fields whose values vary between runs.
const VARYING_FIELDS: [&str; 5] = [
    "resourceVersion:",
    "Start Time:",
    "Started:",
    "Finished:",
    "CreationTimestamp:",
];

fn normalize_line(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let (indent, rest) = line.split_at(indent);
    let word = rest.trim_start_matches("- ");
    if let Some(name) = VARYING_FIELDS.iter().find(|it| word.starts_with(**it)) {
        return format!("{indent}{name} ...");
    }
    let columns = rest.split("  ").map(str::trim).filter(|it| !it.is_empty());
    let columns: Vec<String> = columns.map(normalize_column).collect();
    format!("{indent}{}", columns.join("  "))
}

fn normalize_column(column: &str) -> String {
    if is_age(column) {
        return "AGE".to_owned();
    }
    let part_of_word = |it: char| it.is_ascii_alphanumeric() || "-:.".contains(it);
    let mut out = String::new();
    let mut rest = column;
    while !rest.is_empty() {
        let end = rest.find(|it| !part_of_word(it)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        out.push_str(placeholder(word).unwrap_or(word));
        let next = after.find(part_of_word).unwrap_or(after.len());
        let (between, following) = after.split_at(next);
        out.push_str(between);
        rest = following;
    }
    out
}

/// The placeholder of a word that varies between runs.
fn placeholder(word: &str) -> Option<&'static str> {
    // Patterns in which 0 matches any digit.
    const TIME_PATTERN: &str = "0000-00-00T00:00:00Z";
    const ID_PATTERN: &str = "00000000-0000-0000-0000-000000000000";
    let is_digit = |it: u8| it.is_ascii_digit();
    if matches_pattern(word, TIME_PATTERN, is_digit) {
        Some("MOMENT")
    } else if matches_pattern(word, ID_PATTERN, |it: u8| it.is_ascii_hexdigit()) {
        Some("ID")
    } else if word.len() == 64 && word.bytes().all(|it| it.is_ascii_hexdigit()) {
        Some("DIGEST")
    } else {
        None
    }
}

fn matches_pattern(word: &str, pattern: &str, is_digit: impl Fn(u8) -> bool) -> bool {
    let matches = |(got, wanted): (u8, u8)| match wanted {
        b'0' => is_digit(got),
        wanted => got == wanted,
    };
    word.len() == pattern.len() && word.bytes().zip(pattern.bytes()).all(matches)
}

/// `5s`, `2m13s`
fn is_age(word: &str) -> bool {
    let is_unit = |it: char| "smhdy".contains(it);
    word.ends_with(is_unit)
        && word.split_inclusive(is_unit).all(|part| {
            part.len() > 1 && part[..part.len() - 1].bytes().all(|it| it.is_ascii_digit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_varying_values_are_replaced() {
        let rows = [
            ("a   0s     Running\n", "a  AGE  Running"),
            (
                "web   1/1     Running   0          2m13s",
                "web  1/1  Running  0  AGE",
            ),
            ("  s: 5s\n", "  s: 5s"),
            ("  uid: 0a1b2c3d-0000-1111-2222-3344556677ff", "  uid: ID"),
            ("  resourceVersion: \"12\"", "  resourceVersion: ..."),
            ("- time: \"2026-11-16T13:15:46Z\"", "- time: \"MOMENT\""),
            (
                "Start Time:   Mon, 16 Nov 2026 13:15:46 +0000",
                "Start Time: ...",
            ),
            ("s  d  5x", "s  d  5x"),
            (
                "x/controller-uid=0a1b2c3d-0000-1111-2222-3344556677ff",
                "x/controller-uid=ID",
            ),
            ("configmap/a created", "configmap/a created"),
        ];
        for (text, expected) in rows {
            assert_eq!(normalize(text), expected, "{text}");
        }
    }

    #[test]
    fn an_explanation_is_reduced_to_its_fields() {
        let text = "KIND:       ConfigMap\nVERSION:    v1\n\nDESCRIPTION:\n    Holds data.\n    \n\
                    FIELDS:\n  data\t<map[string]string>\n    In pairs.\n\n  kind\t<string>\n";
        assert_eq!(
            normalize(text),
            "KIND:  ConfigMap\nVERSION:  v1\nDESCRIPTION:\nFIELDS:\n  data\t<map[string]string>\n  \
             kind\t<string>"
        );
    }
}
