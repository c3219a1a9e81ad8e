//! Compares counted with recorded instructions.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;

use super::counts::Counts;

/// How far a count may be from the recorded one, in per cent. A program has the same counts in each
/// run; built in another directory it differs by about 1 %.
const MAX_CHANGE_PERCENT: u128 = 5;

/// What is wrong with the count of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Finding {
    /// The part has become slower.
    Rise { recorded: u64, counted: u64 },
    /// The part has become faster. If the new count is not recorded, nobody notices when it rises
    /// again.
    Fall { recorded: u64, counted: u64 },
    /// The part is recorded and has not been counted.
    Missing,
    /// The part has been counted and is not recorded.
    New { counted: u64 },
}

impl Finding {
    fn of(recorded: Option<u64>, counted: Option<u64>) -> Option<Self> {
        let (recorded, counted) = match (recorded, counted) {
            (Some(recorded), Some(counted)) => (recorded, counted),
            (Some(_), None) => return Some(Self::Missing),
            (None, Some(counted)) => return Some(Self::New { counted }),
            (None, None) => return None,
        };
        let counted_percent = u128::from(counted) * 100;
        if counted_percent > u128::from(recorded) * (100 + MAX_CHANGE_PERCENT) {
            return Some(Self::Rise { recorded, counted });
        }
        (counted_percent < u128::from(recorded) * (100 - MAX_CHANGE_PERCENT))
            .then_some(Self::Fall { recorded, counted })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rise { recorded, counted } => write!(
                out,
                "{recorded} instructions are recorded, {counted} were counted ({}): find the \
                 cause with callgrind_annotate and mend it, or record the new count with `cargo \
                 xtask instructions --record` and explain it in the commit message",
                change(recorded, counted)
            ),
            Self::Fall { recorded, counted } => write!(
                out,
                "{recorded} instructions are recorded, {counted} were counted ({}): keep the gain \
                 with `cargo xtask instructions --record`",
                change(recorded, counted)
            ),
            Self::Missing => write!(
                out,
                "recorded, but not counted: remove it with `cargo xtask instructions --record` if \
                 it is no hot part any more"
            ),
            Self::New { counted } => write!(
                out,
                "not recorded, {counted} instructions were counted: record them with `cargo xtask \
                 instructions --record`"
            ),
        }
    }
}

/// Fails if a count differs from the recorded one.
pub(crate) fn check(recorded: &Counts, counted: &Counts) -> Result<(), String> {
    let findings: Vec<_> = findings(recorded, counted)
        .into_iter()
        .map(|(name, finding)| format!("\n  {name}: {finding}"))
        .collect();
    if findings.is_empty() {
        return Ok(());
    }
    Err(format!(
        "instruction counts that differ from the recorded ones:{}",
        findings.concat()
    ))
}

fn findings<'a>(recorded: &'a Counts, counted: &'a Counts) -> Vec<(&'a str, Finding)> {
    let names = names(recorded, counted).into_iter();
    let findings = names.filter_map(|name| {
        let [recorded, counted] = [recorded, counted].map(|it| it.0.get(name).copied());
        Some((name, Finding::of(recorded, counted)?))
    });
    findings.collect()
}

fn names<'a>(recorded: &'a Counts, counted: &'a Counts) -> BTreeSet<&'a str> {
    let names = recorded.0.keys().chain(counted.0.keys());
    names.map(String::as_str).collect()
}

/// Both counts of every part.
pub(crate) fn table(recorded: &Counts, counted: &Counts) -> String {
    let mut text = format!("{:>12} {:>12} {:>9}\n", "recorded", "counted", "change");
    for name in names(recorded, counted) {
        let [before, now] = [recorded, counted].map(|it| it.0.get(name).copied());
        let change = before.zip(now).map(|(before, now)| change(before, now));
        let [before, now] = [before, now].map(|it| it.map(|it| it.to_string()));
        let cells = [before, now, change].map(Option::unwrap_or_default);
        let [before, now, change] = cells;
        let _ = writeln!(text, "{before:>12} {now:>12} {change:>9}  {name}");
    }
    text
}

/// `+5.1 %`, rounded down.
fn change(recorded: u64, counted: u64) -> String {
    let sign = if counted < recorded { '-' } else { '+' };
    let difference = u128::from(counted.abs_diff(recorded));
    let Some(permille) = (difference * 1000).checked_div(recorded.into()) else {
        return String::from("new");
    };
    format!("{sign}{}.{} %", permille / 10, permille % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_differ_by_five_percent() {
        let rise = |recorded, counted| Some(Finding::Rise { recorded, counted });
        let fall = |recorded, counted| Some(Finding::Fall { recorded, counted });
        let rows = [
            (Some(1000), Some(1000), None),
            (Some(1000), Some(1050), None),
            (Some(1000), Some(1051), rise(1000, 1051)),
            (Some(1000), Some(950), None),
            (Some(1000), Some(949), fall(1000, 949)),
            (Some(0), Some(1), rise(0, 1)),
            (Some(u64::MAX), Some(u64::MAX), None),
            (Some(1000), None, Some(Finding::Missing)),
            (None, Some(1000), Some(Finding::New { counted: 1000 })),
        ];
        for (recorded, counted, expected) in rows {
            let finding = Finding::of(recorded, counted);
            assert_eq!(finding, expected, "{recorded:?} {counted:?}");
        }
    }

    fn counts(counts: &[(&str, u64)]) -> Counts {
        let counts = counts.iter();
        Counts(
            counts
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        )
    }

    #[test]
    fn a_failure_names_each_part_with_both_counts() {
        let recorded = counts(&[("gone", 7), ("merge", 2000), ("parse", 1000), ("same", 10)]);
        let counted = counts(&[("fresh", 8), ("merge", 1000), ("parse", 1101), ("same", 10)]);
        let why = check(&recorded, &counted).unwrap_err();
        let lines: Vec<_> = why.lines().collect();
        let expected = [
            "instruction counts that differ",
            "fresh: not recorded, 8 instructions",
            "gone: recorded, but not counted",
            "merge: 2000 instructions are recorded, 1000 were counted (-50.0 %)",
            "parse: 1000 instructions are recorded, 1101 were counted (+10.1 %)",
        ];
        assert_eq!(lines.len(), expected.len(), "{why}");
        for (line, expected) in lines.into_iter().zip(expected) {
            assert!(line.trim_start().starts_with(expected), "{line}");
        }
        assert_eq!(check(&recorded, &recorded), Ok(()));
    }

    #[test]
    fn the_table_has_every_part() {
        let table = table(
            &counts(&[("a", 100), ("b", 1)]),
            &counts(&[("a", 103), ("c", 2)]),
        );
        let lines: Vec<_> = table.lines().skip(1).map(str::trim_start).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = lines.into_iter().map(words).collect();
        assert_eq!(lines, ["100 103 +3.0 % a", "1 b", "2 c"]);
    }
}
