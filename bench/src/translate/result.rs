//! The results of `translate`.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::copy::CopyResult;
use super::node_command::SMALL_MESSAGE_BYTES;
use super::streams::{BRIDGE, KUBE_APISERVER, Load, Measured, Sample};
use crate::args::Translate;
use crate::pattern::MESSAGE_BYTES;
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

const RATE_GOAL: Goal = Goal::AtLeast(1.5);
const MESSAGE_RATE_GOAL: Goal = Goal::AtLeast(2.0);
const CPU_GOAL: Goal = Goal::AtMost(0.5);

const MIB_PER_GIB: f64 = 1024.0;

#[derive(Debug, Serialize)]
pub(super) struct TranslateResult {
    pub(super) kube_apiserver: String,
    pub(super) streams: Option<StreamsResult>,
    pub(super) copy: Option<CopyResult>,
}

#[derive(Debug, Serialize)]
pub(super) struct StreamsResult {
    mib: u32,
    message_bytes: usize,
    small_message_bytes: usize,
    rounds: u32,
    seconds: u32,
    loads: Vec<LoadResult>,
    idle: Vec<Idle>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct LoadResult {
    load: Load,
    ways: Vec<RouteResult>,
}

#[derive(Debug, Serialize)]
struct RouteResult {
    name: &'static str,
    /// MiB or messages a second.
    speed: Spread,
    /// CPU seconds per GiB, or microseconds per message, beyond those of an idle translator.
    cpu: Option<Spread>,
}

/// CPU seconds per second without load.
#[derive(Debug, Serialize)]
struct Idle {
    name: &'static str,
    cpu: Spread,
}

impl StreamsResult {
    pub(super) fn new(args: &Translate, measured: &[Measured]) -> Result<Self> {
        let loads = measured.first().context("nothing was measured")?;
        let loads: Vec<Load> = loads.samples.iter().map(|(load, _)| *load).collect();
        let results = loads.iter().enumerate().map(|(number, &load)| {
            let ways = measured.iter().map(|way| way.result(number));
            Some(LoadResult {
                load,
                ways: ways.collect::<Option<_>>()?,
            })
        });
        let idle = measured.iter().filter_map(|way| {
            let cpu = Spread::of(way.idle.iter().copied())?;
            Some(Idle {
                name: way.name,
                cpu,
            })
        });
        let way = |name| measured.iter().find(|way| way.name == name);
        let ratios = match (way(BRIDGE), way(KUBE_APISERVER)) {
            (Some(bridge), Some(other)) => ratios(&loads, bridge, other),
            _ => Vec::new(),
        };
        Ok(Self {
            mib: args.mib,
            message_bytes: MESSAGE_BYTES,
            small_message_bytes: SMALL_MESSAGE_BYTES,
            rounds: args.rounds,
            seconds: args.seconds,
            loads: results.collect::<Option<_>>().context("no rounds")?,
            idle: idle.collect(),
            ratios,
        })
    }
}

fn ratios(loads: &[Load], bridge: &Measured, other: &Measured) -> Vec<Ratio> {
    let mut speeds = Vec::new();
    let mut costs = Vec::new();
    for (number, load) in loads.iter().enumerate() {
        let pairs = |of: fn(&Measured, usize) -> Vec<f64>| {
            of(bridge, number).into_iter().zip(of(other, number))
        };
        let goal = match load {
            Load::Stdin | Load::Stdout => RATE_GOAL,
            Load::Talk { at_once: 1, .. } => MESSAGE_RATE_GOAL,
            // Not the same work: the bridge joins small messages that are queued, so that
            // the node and the return path handle fewer.
            Load::Talk { .. } => continue,
        };
        speeds.extend(Ratio::new(load.to_string(), goal, pairs(Measured::speeds)));
        // The CPU of a small message has no goal of its own.
        if matches!(load, Load::Stdin | Load::Stdout) {
            let of = format!("{load}, CPU per GiB");
            costs.extend(Ratio::new(of, CPU_GOAL, pairs(Measured::costs)));
        }
    }
    speeds.extend(costs);
    speeds
}

impl Measured {
    fn result(&self, load: usize) -> Option<RouteResult> {
        Some(RouteResult {
            name: self.name,
            speed: Spread::of(self.speeds(load))?,
            cpu: Spread::of(self.costs(load)),
        })
    }

    fn speeds(&self, load: usize) -> Vec<f64> {
        let (_, samples) = &self.samples[load];
        let speeds = samples.iter().map(|it| it.amount / it.seconds);
        speeds.collect()
    }

    /// Empty without a translator.
    fn costs(&self, load: usize) -> Vec<f64> {
        let idle = Spread::of(self.idle.iter().copied()).map_or(0.0, |idle| idle.median);
        let (load, samples) = &self.samples[load];
        let unit = match load {
            Load::Stdin | Load::Stdout => MIB_PER_GIB,
            Load::Talk { .. } => 1e6,
        };
        let cost = |sample: &Sample| {
            let beyond = (sample.cpu? - idle * sample.seconds).max(0.0);
            Some(beyond * unit / sample.amount)
        };
        samples.iter().filter_map(cost).collect()
    }
}

impl fmt::Display for TranslateResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kube-apiserver {}, median (min..max of rounds)",
            self.kube_apiserver
        )?;
        let (mut streams, mut copy): (&[Ratio], &[Ratio]) = (&[], &[]);
        if let Some(result) = &self.streams {
            write!(f, "\n{result}")?;
            streams = &result.ratios;
        }
        if let Some(result) = &self.copy {
            write!(f, "\n{result}")?;
            copy = &result.ratios;
        }
        if streams.is_empty() && copy.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(["", "ratio", "", "goal", ""]);
        for ratio in streams.iter().chain(copy) {
            table.row(ratio.cells());
        }
        write!(f, "\nwith the bridge / without\n{table}")
    }
}

impl fmt::Display for StreamsResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "WebSocket to SPDY, {} rounds: {} MiB in messages of {} bytes each way,\n\
             {} s of messages of {} bytes",
            self.rounds, self.mib, self.message_bytes, self.seconds, self.small_message_bytes
        )?;
        for LoadResult { load, ways } in &self.loads {
            let [speed, cpu] = load.units();
            let mut table = Table::new(["", speed, "", cpu, ""]);
            for way in ways {
                let [speed, speeds] = way.speed.cells(0);
                let [cpu, cpus] = way.cpu.map_or_else(Default::default, |cpu| cpu.cells(2));
                table.row([way.name.to_owned(), speed, speeds, cpu, cpus]);
            }
            write!(f, "\n{load}\n{table}")?;
        }
        let mut table = Table::new(["", "CPU ms/s", ""]);
        for Idle { name, cpu } in &self.idle {
            let milliseconds = [cpu.median, cpu.min, cpu.max].map(|it| it * 1e3);
            let [median, min, max] = milliseconds;
            let [median, spread] = Spread { median, min, max }.cells(0);
            table.row([(*name).to_owned(), median, spread]);
        }
        write!(f, "\nidle CPU, subtracted above\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::streams::NODE_ALONE;
    use super::*;

    fn measured(name: &'static str, factor: f64) -> Measured {
        let sample = Sample {
            amount: 65_536.0 * factor,
            seconds: 10.0,
            cpu: (name != NODE_ALONE).then_some(11.0),
        };
        let loads = [
            Load::Stdin,
            Load::Stdout,
            Load::Talk {
                sessions: 1,
                at_once: 1,
            },
            Load::Talk {
                sessions: 1000,
                at_once: 1,
            },
        ];
        Measured {
            name,
            samples: loads.map(|load| (load, vec![sample; 3])).into(),
            idle: if name == KUBE_APISERVER {
                vec![0.1; 3]
            } else {
                Vec::new()
            },
        }
    }

    fn result() -> TranslateResult {
        let args = Translate {
            rounds: 1000,
            mib: 65_536,
            seconds: 600,
            sessions: 1000,
            copies: 1000,
            copy_mb: 65_536,
            only: None,
            bridge: crate::args::BridgeChoice::Skip,
            output: crate::args::Output::Table,
        };
        let measured = [
            measured(NODE_ALONE, 10.0),
            measured(KUBE_APISERVER, 1.0),
            measured(BRIDGE, 1.75),
        ];
        let slow = [(700.0, 601.0), (700.0, 600.0)].into_iter();
        TranslateResult {
            kube_apiserver: "1.36.4".to_owned(),
            streams: Some(StreamsResult::new(&args, &measured).unwrap()),
            copy: Some(CopyResult::sample(&args, slow)),
        }
    }

    #[test]
    fn the_table_fits_80_columns() {
        let text = result().to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn ratios_have_goals_and_idle_cpu_is_subtracted() {
        let streams = result().streams.unwrap();
        let found: Vec<_> = streams
            .ratios
            .iter()
            .map(|it| (it.of.as_str(), it.spread.cells(2)[0].clone(), it.met))
            .collect();
        // 11 s for 1.75 times as much, and 11 s of which one is idle.
        let cost = (11.0_f64 / 1.75 / 10.0 * 100.0).round() / 100.0;
        let cost = format!("{cost:.2}");
        let expected = [
            ("stdin", "1.75".to_owned(), true),
            ("stdout", "1.75".to_owned(), true),
            ("messages, one at a time", "1.75".to_owned(), false),
            ("messages, 1000 sessions", "1.75".to_owned(), false),
            ("stdin, CPU per GiB", cost.clone(), false),
            ("stdout, CPU per GiB", cost, false),
        ];
        assert_eq!(found, expected);
    }
}
