//! Requests per second and CPU per request, and their ratios.

use std::fmt;

use serde::Serialize;

use super::candidate::Round;
use crate::h2load::Protocol;
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

#[derive(Debug, Serialize)]
pub(super) struct KubeLoadResult {
    pub(super) kube_apiserver: String,
    pub(super) rounds: u32,
    pub(super) seconds: u32,
    pub(super) comparisons: Vec<Comparison>,
}

/// The candidates with one request.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    title: String,
    protocol: Protocol,
    candidates: Vec<Speed>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct Speed {
    name: &'static str,
    requests_per_second: Spread,
    cpu_microseconds_per_request: Spread,
}

/// The goal of the ratio of the rates of two candidates.
#[derive(Debug, Clone, Copy)]
pub(super) struct RatioGoal {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) goal: Goal,
}

impl Comparison {
    /// `None` without rounds.
    pub(super) fn new(
        title: &str,
        protocol: Protocol,
        names: &[&'static str],
        rounds: &[Vec<Round>],
        goals: &[RatioGoal],
    ) -> Option<Self> {
        let rates = |name: &str| {
            let index = names.iter().position(|it| *it == name)?;
            Some(rounds[index].iter().map(|round| round.per_second))
        };
        let candidates = names.iter().zip(rounds).map(|(name, rounds)| {
            Some(Speed {
                name,
                requests_per_second: Spread::of(rounds.iter().map(|it| it.per_second))?,
                cpu_microseconds_per_request: Spread::of(
                    rounds.iter().map(|it| it.cpu_microseconds),
                )?,
            })
        });
        let ratios = goals.iter().map(|RatioGoal { of, to, goal }| {
            let pairs = rates(of)?.zip(rates(to)?);
            Ratio::new(format!("{of} / {to}"), *goal, pairs)
        });
        Some(Self {
            title: title.to_owned(),
            protocol,
            candidates: candidates.collect::<Option<_>>()?,
            ratios: ratios.collect::<Option<_>>()?,
        })
    }
}

impl fmt::Display for KubeLoadResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kube-apiserver {}, {} rounds of {} s; median (min..max of rounds)",
            self.kube_apiserver, self.rounds, self.seconds
        )?;
        for comparison in &self.comparisons {
            write!(f, "\n{comparison}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; {}", self.title, self.protocol)?;
        let mut table = Table::new(["", "req/s", "", "CPU µs/req", ""]);
        for speed in &self.candidates {
            let [rate, rates] = speed.requests_per_second.cells(0);
            let [cpu, cpus] = speed.cpu_microseconds_per_request.cells(1);
            table.row([speed.name.to_owned(), rate, rates, cpu, cpus]);
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

    fn rounds(rates: &[f64]) -> Vec<Round> {
        let round = |per_second: &f64| Round {
            per_second: *per_second,
            cpu_microseconds: 10.0,
        };
        rates.iter().map(round).collect()
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let goal = RatioGoal {
            of: "bridge",
            to: "kube-apiserver",
            goal: Goal::AtLeast(4.0),
        };
        let rounds = [
            rounds(&[100.0, 200.0, 100.0]),
            rounds(&[500.0, 600.0, 400.0]),
        ];
        let names = ["kube-apiserver", "bridge"];
        let comparison = Comparison::new("200", Protocol::Http2, &names, &rounds, &[goal]);
        let text = comparison.unwrap().to_string();
        assert!(
            text.contains("bridge / kube-apiserver   4.00  3.00..5.00  at least 4.00  met"),
            "{text}"
        );
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let nothing = [Vec::new(), Vec::new()];
        assert!(Comparison::new("200", Protocol::Http2, &names, &nothing, &[goal]).is_none());
    }
}
