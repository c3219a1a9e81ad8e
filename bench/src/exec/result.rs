//! The results of `exec`.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Client, Load, Measured};
use crate::args::ExecSizes;
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};
use crate::timed_child::Cost;

const TIME_GOAL: Goal = Goal::AtMost(1.0);
const CPU_GOAL: Goal = Goal::AtMost(0.5);
const MEMORY_GOAL: Goal = Goal::AtMost(0.25);

const KIB_PER_MIB: f64 = 1024.0;

#[derive(Debug, Serialize)]
pub(super) struct ExecResult {
    /// The version of both kubectl and kube-apiserver.
    kubernetes: String,
    sizes: ExecSizes,
    loads: Vec<LoadResult>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct LoadResult {
    load: Load,
    clients: Vec<ClientResult>,
}

#[derive(Debug, Serialize)]
struct ClientResult {
    client: Client,
    seconds: Spread,
    cpu_seconds: Spread,
    peak_mib: Spread,
    /// How often the client has failed and was run again.
    failed: u32,
}

impl ExecResult {
    pub(super) fn new(kubernetes: String, sizes: ExecSizes, measured: &[Measured]) -> Result<Self> {
        let loads = measured.iter().map(Measured::result).collect();
        Ok(Self {
            kubernetes,
            sizes,
            loads: Option::<Vec<_>>::context(loads, "no rounds")?,
            ratios: measured.iter().flat_map(Measured::ratios).collect(),
        })
    }
}

impl Measured {
    fn result(&self) -> Option<LoadResult> {
        let clients = Client::BOTH
            .into_iter()
            .zip(self.costs.iter().zip(self.failed));
        let clients = clients.map(|(client, (costs, failed))| {
            Some(ClientResult {
                client,
                seconds: Spread::of(costs.iter().filter_map(|it| self.load.seconds(it)))?,
                cpu_seconds: Spread::of(costs.iter().map(|it| it.cpu))?,
                peak_mib: Spread::of(costs.iter().map(mib))?,
                failed,
            })
        });
        Some(LoadResult {
            load: self.load,
            clients: clients.collect::<Option<_>>()?,
        })
    }

    fn ratios(&self) -> Vec<Ratio> {
        let load = self.load;
        let ratio = |of: &str, goal, value: &dyn Fn(&Cost) -> Option<f64>| {
            let [kubectl, ours] = &self.costs;
            let pairs = ours.iter().zip(kubectl);
            let pairs = pairs.filter_map(|(ours, kubectl)| Some((value(ours)?, value(kubectl)?)));
            Ratio::new(format!("{load}, {of}"), goal, pairs)
        };
        let ratios = [
            ratio("time", TIME_GOAL, &|cost| load.seconds(cost)),
            ratio("CPU", CPU_GOAL, &|cost| Some(cost.cpu)),
            ratio("memory", MEMORY_GOAL, &|cost| Some(mib(cost))),
        ];
        ratios.into_iter().flatten().collect()
    }
}

fn mib(cost: &Cost) -> f64 {
    f64::from(cost.peak_kib) / KIB_PER_MIB
}

impl fmt::Display for ExecResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExecSizes {
            rounds,
            mib,
            files,
            starts,
        } = self.sizes;
        writeln!(
            f,
            "kubectl and kube-apiserver {}, WebSocket, median (min..max)\n\
             {rounds} rounds: {mib} MiB each way, {files} files, {starts} starts\n\
             seconds, CPU seconds and the most memory of the client",
            self.kubernetes
        )?;
        for LoadResult { load, clients } in &self.loads {
            let mut table = Table::new(["", "s", "", "CPU s", "", "MiB", ""]);
            for it in clients {
                let [seconds, all_seconds] = it.seconds.cells(load.decimals());
                let [cpu, all_cpu] = it.cpu_seconds.cells(load.decimals());
                let [peak, all_peaks] = it.peak_mib.cells(0);
                let name = it.client.name().to_owned();
                table.row([name, seconds, all_seconds, cpu, all_cpu, peak, all_peaks]);
            }
            write!(f, "\n{load}\n{table}")?;
            for it in clients.iter().filter(|it| it.failed > 0) {
                let (name, failed) = (it.client.name(), it.failed);
                writeln!(
                    f,
                    "  {name}: {failed} failed, and run again; not counted above"
                )?;
            }
        }
        let mut table = Table::new(["", "ratio", "", "goal", ""]);
        for ratio in &self.ratios {
            table.row(ratio.cells());
        }
        write!(f, "\nskewbridge / kubectl\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(factor: f64, peak_kib: u32) -> Cost {
        Cost {
            seconds: 100.0 * factor,
            first_byte: Some(50.0 * factor),
            cpu: 10.0 * factor,
            peak_kib,
        }
    }

    /// skewbridge takes half as long as kubectl, and a fifth of its memory.
    fn result() -> ExecResult {
        let measured = Load::ALL.map(|load| Measured {
            load,
            costs: [
                vec![cost(1.0, 500_000), cost(1.2, 600_000)],
                vec![cost(0.5, 100_000), cost(0.6, 120_000)],
            ],
            failed: [3, 0],
        });
        let sizes = ExecSizes {
            rounds: 1000,
            mib: 65_536,
            files: 1_000_000,
            starts: 1000,
        };
        ExecResult::new("1.36.4".to_owned(), sizes, &measured).unwrap()
    }

    #[test]
    fn the_table_fits_80_columns() {
        for line in result().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn every_load_has_goals_for_time_cpu_and_memory() {
        let ratios = result().ratios;
        assert_eq!(ratios.len(), 3 * Load::ALL.len());
        assert!(ratios.iter().all(|ratio| ratio.met), "{ratios:?}");
        let found = ratios.iter().map(|it| it.cells().join(" "));
        let found: Vec<_> = found.take(3).collect();
        assert_eq!(
            found,
            [
                "stdout, time 0.50 0.50..0.50 at most 1.00 met",
                "stdout, CPU 0.50 0.50..0.50 at most 0.50 met",
                "stdout, memory 0.20 0.20..0.20 at most 0.25 met",
            ]
        );
    }

    #[test]
    fn the_time_of_a_start_ends_with_its_first_byte() {
        let result = result();
        let first = result.loads.last().unwrap();
        assert_eq!(first.load, Load::FirstByte);
        assert!((first.clients[0].seconds.min - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_client_that_has_failed_is_named() {
        let text = result().to_string();
        assert!(
            text.contains("  kubectl: 3 failed, and run again"),
            "{text}"
        );
        assert!(!text.contains("skewbridge: "), "{text}");
    }

    #[test]
    fn without_measurements_there_is_no_result() {
        let measured = [Measured {
            load: Load::Stdin,
            costs: Default::default(),
            failed: Default::default(),
        }];
        let sizes = result().sizes;
        assert!(ExecResult::new("1.36.4".to_owned(), sizes, &measured).is_err());
    }
}
