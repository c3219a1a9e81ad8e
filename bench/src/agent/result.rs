//! The results of `agent`.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Load, Measured, Route};
use crate::args::AgentSizes;
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

const REQUEST_RATE_GOAL: Goal = Goal::AtLeast(0.7);
const STREAM_RATE_GOAL: Goal = Goal::AtLeast(0.8);

#[derive(Debug, Serialize)]
pub(super) struct AgentResult {
    kube_apiserver: String,
    path: String,
    sizes: AgentSizes,
    loads: Vec<LoadResult>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct LoadResult {
    load: Load,
    ways: Vec<RouteResult>,
}

#[derive(Debug, Serialize)]
struct RouteResult {
    #[serde(rename = "way")]
    route: Route,
    /// Requests or MiB.
    per_second: Spread,
}

impl AgentResult {
    pub(super) fn new(
        kube_apiserver: String,
        path: String,
        sizes: AgentSizes,
        measured: &[Measured],
    ) -> Result<Self> {
        let loads = measured.iter().map(Measured::result).collect();
        Ok(Self {
            kube_apiserver,
            path,
            sizes,
            loads: Option::<Vec<_>>::context(loads, "no rounds")?,
            ratios: measured.iter().filter_map(Measured::ratio).collect(),
        })
    }
}

impl Measured {
    fn result(&self) -> Option<LoadResult> {
        let ways = Route::BOTH.into_iter().zip(&self.rates);
        let ways = ways.map(|(route, rates)| {
            Some(RouteResult {
                route,
                per_second: Spread::of(rates.iter().copied())?,
            })
        });
        Some(LoadResult {
            load: self.load,
            ways: ways.collect::<Option<_>>()?,
        })
    }

    fn ratio(&self) -> Option<Ratio> {
        let goal = match self.load {
            Load::Requests { .. } => REQUEST_RATE_GOAL,
            _ => STREAM_RATE_GOAL,
        };
        let [direct, plugin] = &self.rates;
        let pairs = plugin.iter().copied().zip(direct.iter().copied());
        Ratio::new(self.load.to_string(), goal, pairs)
    }
}

impl fmt::Display for AgentResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AgentSizes {
            rounds,
            seconds,
            mib,
            ..
        } = self.sizes;
        writeln!(
            f,
            "kube-apiserver {}, median (min..max of rounds)\n\
             {rounds} rounds: {seconds} s of requests, streams of {mib} MiB\n\
             GET {}\n",
            self.kube_apiserver, self.path
        )?;
        let mut table = Table::new(["", "direct", "", "plugin", "", ""]);
        for LoadResult { load, ways } in &self.loads {
            let mut row = vec![load.to_string()];
            row.extend(ways.iter().flat_map(|route| route.per_second.cells(0)));
            row.push(load.unit().to_owned());
            table.row(row);
        }
        let mut ratios = Table::new(["", "ratio", "", "goal", ""]);
        for ratio in &self.ratios {
            ratios.row(ratio.cells());
        }
        write!(f, "{table}\nplugin / direct\n{ratios}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> AgentResult {
        let sizes = AgentSizes {
            rounds: 1000,
            seconds: 600,
            connections: 1000,
            mib: 65_536,
        };
        // Three quarters of the rate: enough for requests, but not for streams.
        let measured = Load::all(sizes).map(|load| Measured {
            load,
            rates: [vec![20_000.0, 10_000.0], vec![15_000.0, 7_500.0]],
        });
        let path = "/api/v1/namespaces/streams/pods/pod".to_owned();
        AgentResult::new("1.36.4".to_owned(), path, sizes, &measured).unwrap()
    }

    #[test]
    fn the_table_fits_80_columns() {
        for line in result().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn requests_and_streams_have_separate_goals() {
        let found: Vec<_> = result()
            .ratios
            .iter()
            .map(|it| (it.cells()[1].clone(), it.met))
            .collect();
        let expected = [true, true, false, false, false, false];
        assert_eq!(found, expected.map(|met| ("0.75".to_owned(), met)));
    }

    #[test]
    fn without_measurements_there_is_no_result() {
        let measured = [Measured {
            load: Load::Stdin,
            rates: Default::default(),
        }];
        let sizes = result().sizes;
        assert!(AgentResult::new(String::new(), String::new(), sizes, &measured).is_err());
    }
}
