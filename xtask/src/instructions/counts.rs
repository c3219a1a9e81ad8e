//! Counts of instructions: as gungraun writes them, and as they are recorded.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// The instructions of each hot part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) BTreeMap<String, u64>);

impl Counts {
    /// From a recorded file.
    pub(crate) fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self)
    }

    /// As a recorded file: a line for each part, sorted.
    pub(crate) fn to_json(&self) -> String {
        let counts = self.0.iter();
        let counts: Map<_, _> = counts
            .map(|(name, count)| (name.clone(), Value::from(*count)))
            .collect();
        format!("{:#}\n", Value::Object(counts))
    }

    /// From the output of gungraun: one JSON document for each part.
    pub(crate) fn from_summaries(text: &str) -> Result<Self, String> {
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let summary: Value = serde_json::from_str(line)
                .map_err(|error| format!("a summary of gungraun is not JSON: {error}"))?;
            let (name, count) =
                part(&summary).ok_or_else(|| format!("a summary without a count: {line}"))?;
            if counts.insert(name.clone(), count).is_some() {
                return Err(format!("two hot parts have the name {name}"));
            }
        }
        if counts.is_empty() {
            return Err("gungraun has counted nothing".to_owned());
        }
        Ok(Self(counts))
    }
}

/// The name of a part and its instructions, from the summary with version 7 of gungraun's schema.
fn part(summary: &Value) -> Option<(String, u64)> {
    let text = |key: &str| summary.get(key).and_then(Value::as_str);
    let function = text("function_name")?;
    let name = match text("id") {
        Some(id) => format!("{function}/{id}"),
        None => function.to_owned(),
    };
    let count = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new")?;
    Some((name, count.as_u64()?))
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(out, "{count:>12}  {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As gungraun writes it, without what is not read.
    fn summary(function: &str, id: &str, ir: &str) -> String {
        format!(
            r#"{{"function_name":"{function}","id":"{id}","profiles":[{{"data":{{"parts":[],"total":{{"metrics":{{"Ir":{{"values":{{{ir}}}}}}},"regressions":[]}}}},"tool":"Callgrind"}}],"version":"7"}}"#
        )
    }

    #[test]
    fn each_line_of_gungraun_is_the_count_of_a_part() {
        let text = [
            "a line of a program".to_owned(),
            summary("routing_decision", "rules", r#""new":1234,"old":1200"#),
            summary("routing_decision", "local", r#""new":99"#),
        ];
        let counts = Counts::from_summaries(&text.join("\n")).unwrap();
        let json = counts.to_json();
        assert_eq!(
            json,
            "{\n  \"routing_decision/local\": 99,\n  \"routing_decision/rules\": 1234\n}\n"
        );
        assert_eq!(Counts::from_json(&json).unwrap(), counts);
    }

    #[test]
    fn output_without_counts_is_an_error() {
        let part = summary("merge", "servers", r#""new":1"#);
        let rows = [
            (String::new(), "gungraun has counted nothing"),
            ("{".to_owned(), "a summary of gungraun is not JSON"),
            (summary("merge", "servers", ""), "a summary without a count"),
            (format!("{part}\n{part}"), "two hot parts have the name"),
        ];
        for (text, expected) in rows {
            let why = Counts::from_summaries(&text).unwrap_err();
            assert!(why.starts_with(expected), "{why}");
        }
    }
}
