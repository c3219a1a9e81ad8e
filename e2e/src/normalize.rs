//! What a client printed, without what is another each time: to compare it with what
//! another server had it print.

/// Without moments, ages, ids and the widths of columns that come of them, and without
/// what `kubectl explain` says in prose.
pub fn normalize(text: &str) -> String {
    let is_explanation = text.contains("\nDESCRIPTION:\n");
    let lines: Vec<String> = if is_explanation {
        told(text).into_iter().map(str::to_owned).collect()
    } else {
        text.lines().map(str::to_owned).collect()
    };
    let lines: Vec<String> = lines.iter().map(|line| normalize_line(line)).collect();
    lines.join("\n")
}

/// The lines of an explanation that are facts: which fields there are, of which types.
fn told(text: &str) -> Vec<&str> {
    let is_heading = |line: &str| line.starts_with(|first: char| first.is_ascii_uppercase());
    let is_field = |line: &str| line.contains("\t<");
    let lines = text.lines();
    lines
        .filter(|line| is_heading(line) || is_field(line))
        .collect()
}

/// What is said of these is another each time.
const VARIES: [&str; 5] = [
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
    if let Some(name) = VARIES.iter().find(|it| word.starts_with(**it)) {
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
        out.push_str(name_of(word).unwrap_or(word));
        let next = after.find(part_of_word).unwrap_or(after.len());
        let (between, following) = after.split_at(next);
        out.push_str(between);
        rest = following;
    }
    out
}

/// What a word is that is never the same.
fn name_of(word: &str) -> Option<&'static str> {
    // As they are, but for digits.
    const MOMENT: &str = "0000-00-00T00:00:00Z";
    const ID: &str = "00000000-0000-0000-0000-000000000000";
    let is_digit = |it: u8| it.is_ascii_digit();
    if has_shape(word, MOMENT, is_digit) {
        Some("MOMENT")
    } else if has_shape(word, ID, |it: u8| it.is_ascii_hexdigit()) {
        Some("ID")
    } else if word.len() == 64 && word.bytes().all(|it| it.is_ascii_hexdigit()) {
        Some("DIGEST")
    } else {
        None
    }
}

fn has_shape(word: &str, shape: &str, is_digit: impl Fn(u8) -> bool) -> bool {
    let fits = |(got, wanted): (u8, u8)| match wanted {
        b'0' => is_digit(got),
        wanted => got == wanted,
    };
    word.len() == shape.len() && word.bytes().zip(shape.bytes()).all(fits)
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
    fn what_varies_is_left_out_and_nothing_else() {
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
    fn of_an_explanation_the_facts_are_left() {
        let text = "KIND:       ConfigMap\nVERSION:    v1\n\nDESCRIPTION:\n    Holds data.\n    \n\
                    FIELDS:\n  data\t<map[string]string>\n    In pairs.\n\n  kind\t<string>\n";
        assert_eq!(
            normalize(text),
            "KIND:  ConfigMap\nVERSION:  v1\nDESCRIPTION:\nFIELDS:\n  data\t<map[string]string>\n  \
             kind\t<string>"
        );
    }
}
