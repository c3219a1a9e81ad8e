//! The time to recompute merged discovery. A bridge does that on its control thread, when a server
//! changes; requests read the last result.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use skewbridge_discovery::{Document, Layout, Object as _, merge};
use skewbridge_k8s_api::content_negotiation::Format;

use super::discovery_documents::{RESOURCES_PER_GROUP, groups, own_group};
use crate::ratio::Goal;
use crate::report::{Spread, Table};

pub(super) const SERVERS: u32 = 50;
const GROUPS: u32 = 100;
const GOAL: Goal = Goal::AtMost(20.0);

/// Half of the servers are older: they lack a version of each group.
const VERSIONS: [&[&str]; 2] = [&["v1"], &["v2", "v1"]];

#[derive(Debug, Serialize)]
pub(super) struct MergeResult {
    servers: u32,
    groups: u32,
    merge_milliseconds: Spread,
    write_milliseconds: Spread,
    /// Both.
    milliseconds: Spread,
    goal: Goal,
    met: bool,
}

impl MergeResult {
    pub(super) fn measure(servers: u32, rounds: u32) -> Result<Self> {
        let documents = documents(servers)?;
        let documents: Vec<&Document> = documents.iter().collect();
        // The first one fills the caches of the allocator.
        let _ = recompute(&documents);
        let times: Vec<_> = (0..rounds).map(|_| recompute(&documents)).collect();
        Self::new(servers, &times).context("no rounds")
    }

    fn new(servers: u32, times: &[[f64; 2]]) -> Option<Self> {
        let milliseconds = Spread::of(times.iter().map(|[merge, write]| merge + write))?;
        Some(Self {
            servers,
            groups: GROUPS,
            merge_milliseconds: Spread::of(times.iter().map(|[merge, _]| *merge))?,
            write_milliseconds: Spread::of(times.iter().map(|[_, write]| *write))?,
            milliseconds,
            goal: GOAL,
            met: GOAL.is_met_by(milliseconds.median),
        })
    }
}

/// Milliseconds of the merge, and of writing the result as JSON.
fn recompute(documents: &[&Document]) -> [f64; 2] {
    let begun = Instant::now();
    let merged = merge(black_box(documents));
    let merge = begun.elapsed();
    let begun = Instant::now();
    black_box(merged.write(Format::Json, Layout::Compact));
    [merge, begun.elapsed()].map(|it| it.as_secs_f64() * 1e3)
}

/// Every server has 100 groups; one of these is its own.
fn documents(servers: u32) -> Result<Vec<Document>> {
    let shared = (GROUPS - 1) * RESOURCES_PER_GROUP;
    let document = |number: u32| {
        let versions = VERSIONS[usize::from(number % 2 == 1)];
        let text = groups(shared, Some(&own_group(number)), versions).to_string();
        Ok(Document::parse(text.as_bytes())?)
    };
    (0..servers).map(document).collect()
}

impl fmt::Display for MergeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "recompute of merged discovery: {} servers of {} groups, one thread",
            self.servers, self.groups
        )?;
        let mut table = Table::new(["", "ms", "", "goal", ""]);
        let rows = [
            ("merge", self.merge_milliseconds),
            ("write JSON", self.write_milliseconds),
        ];
        for (name, spread) in rows {
            let [median, range] = spread.cells(2);
            table.row([name.to_owned(), median, range]);
        }
        let [median, range] = self.milliseconds.cells(2);
        let [goal, met] = self.goal.cells(0, self.met);
        table.row(["both".to_owned(), median, range, goal, met]);
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_all_servers_are_merged() {
        let documents = documents(3).unwrap();
        for document in &documents {
            // And the group of Leases.
            assert_eq!(document.items.len(), GROUPS as usize + 1);
        }
        let merged = merge(&documents.iter().collect::<Vec<_>>());
        assert_eq!(merged.items.len(), GROUPS as usize + 3);
        assert!(merged.version("group-0.scale.bench", "v2").is_some());
    }

    #[test]
    fn the_goal_is_for_both_parts() {
        let result = MergeResult::new(50, &[[12.0, 5.0], [12.0, 9.0], [13.0, 9.0]]).unwrap();
        assert!(!result.met);
        let text = result.to_string();
        assert!(text.contains("17.00..22.00  at most 20  missed"), "{text}");
    }
}
