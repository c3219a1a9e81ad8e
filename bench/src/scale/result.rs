//! The cost of a request by size.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::merge::MergeResult;
use super::point::RequestKind;
use crate::args::{ScaleAxis, ScaleSizes};
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

/// CPU time of a request, over that of the smallest size.
const GOAL: Goal = Goal::AtMost(1.1);

#[derive(Debug, Serialize)]
pub(super) struct ScaleResult {
    pub(super) sizes: ScaleSizes,
    pub(super) axes: Vec<AxisResult>,
    pub(super) merge: Option<MergeResult>,
}

/// One kind of request at all sizes of an axis.
#[derive(Debug, Serialize)]
pub(super) struct AxisResult {
    axis: ScaleAxis,
    request: RequestKind,
    points: Vec<PointResult>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct PointResult {
    size: u32,
    requests_per_second: Spread,
    /// Without the CPU time of an idle bridge.
    cpu_microseconds_per_request: Spread,
    /// CPU milliseconds a second without load.
    idle_milliseconds: Spread,
}

/// One round of load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) requests: f64,
    pub(super) per_second: f64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
}

/// All rounds of one size.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) size: u32,
    pub(super) samples: Vec<Sample>,
    /// CPU seconds a second, without load.
    pub(super) idle: Vec<f64>,
}

impl Measured {
    /// CPU microseconds of a request, round by round.
    fn costs(&self) -> Vec<f64> {
        let idle = Spread::of(self.idle.iter().copied()).map_or(0.0, |idle| idle.median);
        let cost = |it: &Sample| {
            let beyond = (it.cpu_seconds - idle * it.seconds).max(0.0);
            beyond * 1e6 / it.requests
        };
        self.samples.iter().map(cost).collect()
    }

    fn result(&self) -> Option<PointResult> {
        Some(PointResult {
            size: self.size,
            requests_per_second: Spread::of(self.samples.iter().map(|it| it.per_second))?,
            cpu_microseconds_per_request: Spread::of(self.costs())?,
            idle_milliseconds: Spread::of(self.idle.iter().map(|it| it * 1e3))?,
        })
    }
}

impl AxisResult {
    /// The smallest size comes first.
    pub(super) fn new(
        axis: ScaleAxis,
        request: RequestKind,
        measured: &[Measured],
    ) -> Result<Self> {
        let (smallest, others) = measured.split_first().context("no sizes")?;
        let points = measured.iter().map(Measured::result).collect::<Option<_>>();
        let ratios = others.iter().map(|other| {
            let of = format!("CPU, {} / {}", other.size, smallest.size);
            let pairs = other.costs().into_iter().zip(smallest.costs());
            Ratio::new(of, GOAL, pairs)
        });
        Ok(Self {
            axis,
            request,
            points: points.context("no rounds")?,
            ratios: ratios.collect::<Option<_>>().context("no rounds")?,
        })
    }
}

impl fmt::Display for ScaleResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScaleSizes {
            rounds, seconds, ..
        } = self.sizes;
        writeln!(
            f,
            "CPU of the bridge for a request, by size: {rounds} rounds of {seconds} s, HTTP/2,\n\
             one worker thread; median (min..max of rounds)"
        )?;
        for axis in &self.axes {
            write!(f, "\n{axis}")?;
        }
        match &self.merge {
            Some(merge) => write!(f, "\n{merge}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for AxisResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match self.request {
            RequestKind::Local => "",
            RequestKind::Rerouted => "; requests that a peer serves",
        };
        let name = match self.axis {
            ScaleAxis::Peers => "peers",
            ScaleAxis::Resources => "resources",
            ScaleAxis::Connections => "idle client connections",
            ScaleAxis::Streams => "idle exec streams",
            ScaleAxis::Merge => "merge",
        };
        writeln!(f, "{name}{request}")?;
        let mut table = Table::new(["", "req/s", "", "CPU µs/req", "", "idle, ms/s"]);
        for point in &self.points {
            let [rate, rates] = point.requests_per_second.cells(0);
            let [cpu, cpus] = point.cpu_microseconds_per_request.cells(1);
            let [idle, _] = point.idle_milliseconds.cells(1);
            table.row([point.size.to_string(), rate, rates, cpu, cpus, idle]);
        }
        write!(f, "{table}")?;
        let mut table = Table::new(["", "ratio", "", "goal", ""]);
        for ratio in &self.ratios {
            table.row(ratio.cells());
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(size: u32, cpu_seconds: f64, idle: f64) -> Measured {
        let sample = |factor: f64| Sample {
            requests: 20_000.0,
            per_second: 12_345.0 * factor,
            seconds: 2.0,
            cpu_seconds: cpu_seconds * factor,
        };
        Measured {
            size,
            samples: [0.9, 1.0, 1.1].map(sample).into(),
            idle: vec![idle; 3],
        }
    }

    #[test]
    fn idle_cpu_is_subtracted_and_sizes_are_compared_with_the_smallest() {
        let measured = [
            measured(1, 1.0, 0.0),
            measured(10, 1.05, 0.01),
            measured(20_000, 1.3, 0.05),
        ];
        let axis = AxisResult::new(ScaleAxis::Connections, RequestKind::Local, &measured).unwrap();
        let found: Vec<_> = (axis.ratios.iter())
            .map(|it| (it.of.as_str(), it.met))
            .collect();
        let expected = [("CPU, 10 / 1", true), ("CPU, 20000 / 1", false)];
        assert_eq!(found, expected);
        let result = ScaleResult {
            sizes: ScaleSizes {
                rounds: 1000,
                seconds: 600,
                quick: false,
            },
            axes: vec![axis],
            merge: None,
        };
        for line in result.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let nothing = AxisResult::new(ScaleAxis::Peers, RequestKind::Local, &[]);
        assert!(nothing.is_err());
    }
}
