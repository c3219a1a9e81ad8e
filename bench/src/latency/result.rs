//! Latencies, and the latency that the bridge adds.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::LatencySizes;
use crate::percentile::percentile;
use crate::ratio::Goal;
use crate::report::{Spread, Table};

/// What is reported of the requests of a round, and how much of it a bridge may add, in µs.
const PERCENTILES: [(u32, f64); 2] = [(50, 120.0), (99, 800.0)];

#[derive(Debug, Serialize)]
pub(super) struct LatencyResult {
    server: String,
    sizes: LatencySizes,
    rows: Vec<Row>,
}

/// One percentile.
#[derive(Debug, Serialize)]
struct Row {
    percentile: u32,
    direct_microseconds: Spread,
    bridge_microseconds: Spread,
    /// Of the bridge, less that of the direct requests of the same round.
    added_microseconds: Spread,
    goal: Goal,
    met: bool,
}

/// The latencies of one round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) direct: Vec<Duration>,
    pub(super) bridge: Vec<Duration>,
}

impl LatencyResult {
    pub(super) fn new(server: String, sizes: LatencySizes, rounds: &[Round]) -> Result<Self> {
        let rows = PERCENTILES.map(|(percent, most)| Row::new(percent, most, rounds));
        let rows = rows.into_iter().collect::<Option<_>>();
        Ok(Self {
            server,
            sizes,
            rows: rows.context("no rounds")?,
        })
    }
}

impl Row {
    fn new(percent: u32, most: f64, rounds: &[Round]) -> Option<Self> {
        let microseconds =
            |samples: &[Duration]| Some(percentile(samples, percent)?.as_secs_f64() * 1e6);
        let of = |side: fn(&Round) -> &[Duration]| {
            let values = rounds.iter().map(|round| microseconds(side(round)));
            values.collect::<Option<Vec<f64>>>()
        };
        let direct = of(|round| &round.direct)?;
        let bridge = of(|round| &round.bridge)?;
        let added = Spread::of(bridge.iter().zip(&direct).map(|(one, other)| one - other))?;
        let goal = Goal::AtMost(most);
        Some(Self {
            percentile: percent,
            direct_microseconds: Spread::of(direct)?,
            bridge_microseconds: Spread::of(bridge)?,
            added_microseconds: added,
            goal,
            met: goal.is_met_by(added.median),
        })
    }
}

impl fmt::Display for LatencyResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LatencySizes {
            rounds,
            seconds,
            rate,
        } = self.sizes;
        writeln!(
            f,
            "{}, {rate} requests a second on one connection each,\n\
             {rounds} rounds of {seconds} s; µs, median (min..max of rounds)",
            self.server
        )?;
        let mut table = Table::new(["", "direct", "", "bridge", ""]);
        for row in &self.rows {
            let [direct, directs] = row.direct_microseconds.cells(0);
            let [bridge, bridges] = row.bridge_microseconds.cells(0);
            let name = format!("p{}", row.percentile);
            table.row([name, direct, directs, bridge, bridges]);
        }
        write!(f, "\n{table}")?;
        let mut table = Table::new(["", "added", "", "goal", ""]);
        for row in &self.rows {
            let [added, range] = row.added_microseconds.cells(0);
            let [goal, met] = row.goal.cells(0, row.met);
            let name = format!("p{}", row.percentile);
            table.row([name, added, range, goal, met]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_latency_is_taken_round_by_round() {
        let micros = |it: u64| vec![Duration::from_micros(it); 100];
        // The second round ran on a busy machine.
        let rounds = [(200, 300), (900, 1010), (210, 305)].map(|(direct, bridge)| Round {
            direct: micros(direct),
            bridge: micros(bridge),
        });
        let sizes = LatencySizes {
            rounds: 3,
            seconds: 600,
            rate: 1000,
        };
        let result = LatencyResult::new("kube-apiserver 1.36.4".into(), sizes, &rounds).unwrap();
        let added = result.rows[0].added_microseconds.cells(0);
        assert_eq!(added, ["100", "95..110"]);
        assert!(result.rows.iter().all(|row| row.met));
        let text = result.to_string();
        assert!(
            text.contains("p99    100  95..110  at most 800  met"),
            "{text}"
        );
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(LatencyResult::new(String::new(), sizes, &[]).is_err());
    }
}
