//! Speed, and the ratios to the other proxies.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Measured;
use crate::h2load::Protocol;
use crate::proxies::{Round, bridge};
use crate::ratio::{Goal, Ratio};
use crate::report::{Spread, Table};

const RATE_GOAL: Goal = Goal::AtLeast(1.25);
/// Next to `HAProxy`.
const CPU_GOAL: Goal = Goal::AtMost(0.8);
const P99_GOAL: Goal = Goal::AtMost(1.0);

const HAPROXY: &str = "haproxy";
const NGINX: &str = "nginx";

#[derive(Debug, Serialize)]
pub(super) struct PassThroughResult {
    pub(super) size: u32,
    pub(super) rounds: u32,
    pub(super) seconds: u32,
    pub(super) protocols: Vec<Comparison>,
}

#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    protocol: Protocol,
    proxies: Vec<Speed>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct Speed {
    name: &'static str,
    cipher: String,
    requests_per_second: Spread,
    cpu_microseconds_per_request: Spread,
    p99_milliseconds: Spread,
}

impl Comparison {
    pub(super) fn new(protocol: Protocol, measured: &[Measured]) -> Result<Self> {
        let bridge = measured.iter().find(|one| one.name == bridge::NAME);
        let others = measured
            .iter()
            .filter(|one| matches!(one.name, HAPROXY | NGINX));
        let ratios = bridge
            .into_iter()
            .flat_map(|bridge| others.clone().map(move |other| ratios(bridge, other)))
            .collect::<Option<Vec<_>>>();
        let proxies = measured.iter().map(Speed::new).collect::<Option<_>>();
        Ok(Self {
            protocol,
            proxies: proxies.context("no rounds")?,
            ratios: ratios.context("no rounds")?.concat(),
        })
    }
}

/// Round by round.
fn ratios(bridge: &Measured, other: &Measured) -> Option<Vec<Ratio>> {
    let ratio = |what: &str, goal, value: fn(&Round) -> Option<f64>| {
        let of = format!("{what}, bridge / {}", other.name);
        let values = |of: &Measured| of.rounds.iter().map(value).collect::<Option<Vec<_>>>();
        let pairs = values(bridge)?.into_iter().zip(values(other)?);
        Ratio::new(of, goal, pairs)
    };
    let cpu_goal = match other.name {
        HAPROXY => CPU_GOAL,
        _ => Goal::None,
    };
    Some(vec![
        ratio("rate", RATE_GOAL, |it| Some(it.summary.per_second))?,
        ratio("CPU", cpu_goal, |it| Some(cpu_microseconds(it)))?,
        ratio("p99", P99_GOAL, p99_milliseconds)?,
    ])
}

fn cpu_microseconds(round: &Round) -> f64 {
    round.cpu.as_secs_f64() * 1e6 / f64::from(round.summary.succeeded)
}

fn p99_milliseconds(round: &Round) -> Option<f64> {
    Some(round.summary.p99?.as_secs_f64() * 1e3)
}

impl Speed {
    fn new(measured: &Measured) -> Option<Self> {
        let rounds = &measured.rounds;
        Some(Self {
            name: measured.name,
            cipher: rounds.last()?.summary.cipher.clone(),
            requests_per_second: Spread::of(rounds.iter().map(|round| round.summary.per_second))?,
            cpu_microseconds_per_request: Spread::of(rounds.iter().map(cpu_microseconds))?,
            p99_milliseconds: Spread::of(rounds.iter().filter_map(p99_milliseconds))?,
        })
    }
}

impl fmt::Display for PassThroughResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} bytes an answer, {} rounds of {} s, one worker thread each\n\
             median (min..max of rounds)",
            self.size, self.rounds, self.seconds
        )?;
        for comparison in &self.protocols {
            write!(f, "\n{}\n{comparison}", comparison.protocol)?;
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["", "req/s", "", "CPU µs", "", "p99 ms", ""]);
        for speed in &self.proxies {
            let [rate, rates] = speed.requests_per_second.cells(0);
            let [cpu, cpus] = speed.cpu_microseconds_per_request.cells(1);
            let [p99, p99s] = speed.p99_milliseconds.cells(1);
            table.row([speed.name.to_owned(), rate, rates, cpu, cpus, p99, p99s]);
        }
        write!(f, "{table}")?;
        if !self.ratios.is_empty() {
            let mut table = Table::new(["", "ratio", "", "goal", ""]);
            for ratio in &self.ratios {
                table.row(ratio.cells());
            }
            write!(f, "{table}")?;
        }
        let ciphers: Vec<&str> = self.proxies.iter().map(|one| &*one.cipher).collect();
        if ciphers.windows(2).any(|pair| pair[0] != pair[1]) {
            writeln!(f, "  unequal ciphers:")?;
            for speed in &self.proxies {
                writeln!(f, "    {}: {}", speed.name, speed.cipher)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(value: f64) -> Spread {
        Spread::of([value * 0.9, value, value * 1.1]).unwrap()
    }

    fn speed(name: &'static str) -> Speed {
        Speed {
            name,
            cipher: "TLS_AES_256_GCM_SHA384".into(),
            requests_per_second: spread(234_567.0),
            cpu_microseconds_per_request: spread(123.4),
            p99_milliseconds: spread(123.4),
        }
    }

    fn ratio() -> Option<Ratio> {
        let pairs = [(9.0, 10.0), (10.0, 10.0), (11.0, 10.0)];
        Ratio::new(
            "rate, bridge / haproxy".to_owned(),
            RATE_GOAL,
            pairs.into_iter(),
        )
    }

    fn result() -> PassThroughResult {
        PassThroughResult {
            size: 67_108_864,
            rounds: 1000,
            seconds: 600,
            protocols: [Protocol::Http1, Protocol::Http2]
                .map(|protocol| Comparison {
                    protocol,
                    proxies: ["backend", "bridge", "haproxy", "nginx"].map(speed).into(),
                    ratios: Vec::from_iter(ratio()),
                })
                .into(),
        }
    }

    #[test]
    fn the_table_fits_80_columns() {
        let text = result().to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(
            text.contains("rate, bridge / haproxy   1.00  0.90..1.10  at least 1.25  missed"),
            "{text}"
        );
    }

    #[test]
    fn unequal_ciphers_are_reported() {
        let mut result = result();
        assert!(!result.to_string().contains("unequal"));
        result.protocols[0].proxies[1].cipher = "TLS_AES_128_GCM_SHA256".into();
        let text = result.to_string();
        assert!(text.contains("unequal ciphers"), "{text}");
        assert!(text.contains("bridge: TLS_AES_128_GCM_SHA256"), "{text}");
    }
}
