//! Handshakes per second, their CPU time, and the memory of the bridge.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::handshakes::Handshake;
use super::memory::MemoryAfterLoad;
use crate::args::StormSizes;
use crate::pki::ServerKey;
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

/// Resumed over full handshakes of the bridge.
const RESUMPTION_GOAL: Goal = Goal::AtLeast(3.0);

#[derive(Debug, Serialize)]
pub(super) struct StormResult {
    pub(super) sizes: StormSizes,
    pub(super) keys: Vec<KeyResult>,
}

/// The servers with one kind of key.
#[derive(Debug, Serialize)]
pub(super) struct KeyResult {
    key: ServerKey,
    servers: Vec<ServerResult>,
    ratios: Vec<Ratio>,
    memory: MemoryAfterLoad,
}

#[derive(Debug, Serialize)]
struct ServerResult {
    name: &'static str,
    burst_seconds: f64,
    full: KindResult,
    resumed: KindResult,
}

#[derive(Debug, Serialize)]
struct KindResult {
    per_second: Spread,
    cpu_microseconds: Spread,
}

/// One round of one server and one kind of handshake.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    pub(super) cpu_microseconds: f64,
}

/// All rounds of one server.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) name: &'static str,
    pub(super) burst_seconds: f64,
    /// As [`Handshake::BOTH`].
    pub(super) rounds: [Vec<Sample>; 2],
}

impl Measured {
    fn samples(&self, kind: Handshake) -> &[Sample] {
        &self.rounds[kind as usize]
    }

    fn kind(&self, kind: Handshake) -> Option<KindResult> {
        let samples = self.samples(kind).iter();
        Some(KindResult {
            per_second: Spread::of(samples.clone().map(|it| it.per_second))?,
            cpu_microseconds: Spread::of(samples.map(|it| it.cpu_microseconds))?,
        })
    }

    fn result(&self) -> Option<ServerResult> {
        Some(ServerResult {
            name: self.name,
            burst_seconds: self.burst_seconds,
            full: self.kind(Handshake::Full)?,
            resumed: self.kind(Handshake::Resumed)?,
        })
    }
}

impl KeyResult {
    /// The bridge comes first.
    pub(super) fn new(
        key: ServerKey,
        measured: &[Measured],
        memory: MemoryAfterLoad,
    ) -> Result<Self> {
        let servers = measured.iter().map(Measured::result).collect::<Option<_>>();
        Ok(Self {
            key,
            servers: servers.context("no rounds")?,
            ratios: ratios(measured).context("no rounds")?,
            memory,
        })
    }
}

fn ratios(measured: &[Measured]) -> Option<Vec<Ratio>> {
    let (bridge, others) = measured.split_first()?;
    let [full, resumed] = Handshake::BOTH.map(|kind| bridge.samples(kind));
    let pairs = |of: &[Sample], to: &[Sample], value: fn(&Sample) -> f64| {
        let pairs: Vec<_> = of.iter().map(value).zip(to.iter().map(value)).collect();
        pairs.into_iter()
    };
    let rate = |sample: &Sample| sample.per_second;
    let cpu = |sample: &Sample| sample.cpu_microseconds;
    let mut ratios = vec![
        Ratio::new(
            "rate, resumed / full".to_owned(),
            RESUMPTION_GOAL,
            pairs(resumed, full, rate),
        )?,
        Ratio::new(
            "CPU, full / resumed".to_owned(),
            RESUMPTION_GOAL,
            pairs(full, resumed, cpu),
        )?,
    ];
    for other in others {
        for kind in Handshake::BOTH {
            let of = format!("CPU, {}, bridge / {}", kind.name(), other.name);
            let pairs = pairs(bridge.samples(kind), other.samples(kind), cpu);
            ratios.push(Ratio::new(of, Goal::None, pairs)?);
        }
    }
    Some(ratios)
}

impl fmt::Display for StormResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StormSizes {
            rounds,
            seconds,
            handshakes,
            clients,
        } = self.sizes;
        writeln!(
            f,
            "{handshakes} connections at once without an error; then {clients} clients with\n\
             certificates connect again and again, {rounds} rounds of {seconds} s, one worker\n\
             thread each; median (min..max of rounds)"
        )?;
        for key in &self.keys {
            write!(f, "\nserver certificate {}\n{key}", key.key)?;
        }
        Ok(())
    }
}

impl fmt::Display for KeyResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["", "burst, s"]);
        for server in &self.servers {
            table.row([
                server.name.to_owned(),
                format!("{:.1}", server.burst_seconds),
            ]);
        }
        write!(f, "{table}")?;
        let mut table = Table::new(["", "per s", "", "CPU µs", ""]);
        for server in &self.servers {
            for (kind, result) in [("full", &server.full), ("resumed", &server.resumed)] {
                let [rate, rates] = result.per_second.cells(0);
                let [cpu, cpus] = result.cpu_microseconds.cells(0);
                table.row([format!("{}, {kind}", server.name), rate, rates, cpu, cpus]);
            }
        }
        write!(f, "{table}")?;
        let mut table = Table::new(["", "ratio", "", "goal", ""]);
        for ratio in &self.ratios {
            table.row(ratio.cells());
        }
        write!(f, "{table}{}", self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &'static str, [full, resumed]: [f64; 2]) -> Measured {
        let samples = |cost: f64| {
            let sample = |factor: f64| Sample {
                per_second: 1e6 / cost * factor,
                cpu_microseconds: cost * factor,
            };
            [0.9, 1.0, 1.1].map(sample).to_vec()
        };
        Measured {
            name,
            burst_seconds: 12.3,
            rounds: [samples(full), samples(resumed)],
        }
    }

    #[test]
    fn resumed_handshakes_are_compared_with_full_ones() {
        let measured = [
            measured("bridge", [1_500.0, 300.0]),
            measured("haproxy", [1_600.0, 600.0]),
            measured("nginx", [1_500.0, 800.0]),
        ];
        let memory = MemoryAfterLoad::of(20_000, 900_000, 30_000, 60.0);
        let result = StormResult {
            sizes: StormSizes {
                rounds: 1000,
                seconds: 600,
                handshakes: 20_000,
                clients: 1000,
            },
            keys: vec![KeyResult::new(ServerKey::Rsa, &measured, memory).unwrap()],
        };
        let text = result.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for expected in [
            "rate, resumed / full 5.00 5.00..5.00 at least 3.00 met",
            "CPU, full / resumed 5.00 5.00..5.00 at least 3.00 met",
            "CPU, resumed, bridge / haproxy 0.50 0.50..0.50",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{text}");
        }
    }
}
