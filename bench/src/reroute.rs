//! `reroute`: requests for an API that only another server has, through the bridges of both
//! servers, next to requests that go there directly.

mod cluster;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::sleep;

use self::cluster::{ANSWER, Cluster};
use crate::args::Reroute;
use crate::h2load::{Load, Protocol, Summary};
use crate::process_usage;
use crate::proxies::{Proxy, bridge};
use crate::ratio::rotated;
use crate::report::{self, Spread, Table};
use crate::scratch_dir::ScratchDir;

const WARM_UP_SECONDS: u32 = 1;

/// For the bridges to discover what the servers serve.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(40);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn run(args: Reroute) -> Result<()> {
    let load = Load::new(ANSWER, args.size)?;
    let program = bridge::client_program(args.bridge).await?;
    // Declared before the processes, so dropped after them.
    let scratch = ScratchDir::create()?;
    let cluster = Cluster::start(&program, &scratch, args.size).await?;
    let load = load.with_token(&cluster.token);
    let routes = [
        Route {
            name: "direct",
            entry: &cluster.server,
            passes: vec![&cluster.server],
        },
        Route {
            name: "one bridge",
            entry: &cluster.peer,
            passes: vec![&cluster.peer],
        },
        Route {
            name: "rerouted",
            entry: &cluster.entry,
            passes: vec![&cluster.entry, &cluster.peer],
        },
    ];
    for route in &routes {
        route.wait_until_serving(&load).await?;
    }
    let mut result = RerouteResult {
        size: args.size,
        rounds: args.rounds,
        seconds: args.seconds,
        protocols: Vec::new(),
    };
    for &protocol in args.proto.selected() {
        let measured = measure(&routes, &load, protocol, args.rounds, args.seconds).await?;
        result.protocols.push(Comparison::new(protocol, &measured)?);
    }
    // The children are stopped first: a reader may close the output early.
    drop(cluster);
    report::print(&result, args.output)
}

/// A route to the response.
struct Route<'a> {
    name: &'static str,
    /// The address for clients.
    entry: &'a Proxy,
    /// The processes whose CPU time is counted: the bridges, or the server if there are none.
    passes: Vec<&'a Proxy>,
}

/// One round of one route.
struct Round {
    summary: Summary,
    cpu: Duration,
}

impl Route<'_> {
    /// The first responses are errors: a bridge has to discover what its peer serves.
    async fn wait_until_serving(&self, load: &Load) -> Result<()> {
        let process = self.entry.process();
        process.until_listening(self.entry.address()).await?;
        let deadline = Instant::now() + DISCOVERY_TIMEOUT;
        loop {
            let tried = self.entry.round(load, Protocol::Http2, 1).await;
            match tried {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("{} does not respond", self.name));
                }
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    async fn round(&self, load: &Load, protocol: Protocol, seconds: u32) -> Result<Round> {
        let before = self.cpu()?;
        let done = self.entry.round(load, protocol, seconds).await;
        let done = done.with_context(|| format!("{}, {protocol}", self.name))?;
        Ok(Round {
            summary: done.summary,
            cpu: self.cpu()?.saturating_sub(before),
        })
    }

    fn cpu(&self) -> Result<Duration> {
        let processes = self.passes.iter().map(|it| it.process().pid());
        processes.map(process_usage::cpu_of_group).sum()
    }
}

/// All rounds of one route, in order.
struct Measured {
    name: &'static str,
    rounds: Vec<Round>,
}

async fn measure(
    routes: &[Route<'_>],
    load: &Load,
    protocol: Protocol,
    rounds: u32,
    seconds: u32,
) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for route in routes {
        route
            .round(load, protocol, WARM_UP_SECONDS)
            .await
            .context("warm-up")?;
        measured.push(Measured {
            name: route.name,
            rounds: Vec::new(),
        });
    }
    for round in 0..rounds {
        for index in rotated(routes.len(), round as usize) {
            let done = routes[index].round(load, protocol, seconds).await?;
            report::progress(format_args!(
                "{protocol}: round {}/{rounds}: {:<10} {:>8.0} req/s",
                round + 1,
                routes[index].name,
                done.summary.per_second,
            ));
            measured[index].rounds.push(done);
        }
    }
    Ok(measured)
}

#[derive(Debug, Serialize)]
struct RerouteResult {
    size: u32,
    rounds: u32,
    seconds: u32,
    protocols: Vec<Comparison>,
}

#[derive(Debug, Serialize)]
struct Comparison {
    protocol: Protocol,
    #[serde(rename = "ways")]
    routes: Vec<Speed>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
struct Speed {
    name: &'static str,
    requests_per_second: Spread,
    cpu_microseconds_per_request: Spread,
}

/// The requests per second of one route over those of another, round by round.
#[derive(Debug, Serialize)]
struct Ratio {
    of: &'static str,
    to: &'static str,
    speed: Spread,
}

impl Comparison {
    fn new(protocol: Protocol, measured: &[Measured]) -> Result<Self> {
        let ratios = measured.iter().enumerate().flat_map(|(index, of)| {
            let others = measured[..index].iter();
            others.map(move |to| Ratio::new(of, to))
        });
        let routes = measured.iter().map(Speed::new).collect::<Option<_>>();
        Ok(Self {
            protocol,
            routes: routes.context("no rounds")?,
            ratios: ratios.collect::<Option<_>>().context("no rounds")?,
        })
    }
}

impl Speed {
    fn new(measured: &Measured) -> Option<Self> {
        let rounds = &measured.rounds;
        let cpu =
            |round: &Round| round.cpu.as_secs_f64() * 1e6 / f64::from(round.summary.succeeded);
        Some(Self {
            name: measured.name,
            requests_per_second: Spread::of(rounds.iter().map(|it| it.summary.per_second))?,
            cpu_microseconds_per_request: Spread::of(rounds.iter().map(cpu))?,
        })
    }
}

impl Ratio {
    fn new(of: &Measured, to: &Measured) -> Option<Self> {
        let pairs = of.rounds.iter().zip(&to.rounds);
        Some(Self {
            of: of.name,
            to: to.name,
            speed: Spread::of(pairs.map(|(of, to)| of.summary.per_second / to.summary.per_second))?,
        })
    }
}

impl fmt::Display for RerouteResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} bytes an answer, {} rounds of {} s, one worker thread each\n\
             median (min..max of rounds); CPU of all bridges on the way",
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
        let mut table = Table::new(["", "req/s", "", "CPU µs/req", ""]);
        for speed in &self.routes {
            let [rate, rates] = speed.requests_per_second.cells(0);
            let [cpu, cpus] = speed.cpu_microseconds_per_request.cells(1);
            table.row([speed.name.to_owned(), rate, rates, cpu, cpus]);
        }
        write!(f, "{table}")?;
        let mut table = Table::new(["", "ratio", ""]);
        for Ratio { of, to, speed } in &self.ratios {
            let [median, spread] = speed.cells(3);
            table.row([format!("{of} / {to}"), median, spread]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns() {
        let spread = |value: f64| Spread::of([value * 0.9, value, value * 1.1]).unwrap();
        let speed = |name| Speed {
            name,
            requests_per_second: spread(1_234_567.0),
            cpu_microseconds_per_request: spread(12_345.6),
        };
        let result = RerouteResult {
            size: 67_108_864,
            rounds: 1000,
            seconds: 600,
            protocols: vec![Comparison {
                protocol: Protocol::Http2,
                routes: ["direct", "one bridge", "rerouted"].map(speed).into(),
                ratios: vec![Ratio {
                    of: "rerouted",
                    to: "one bridge",
                    speed: spread(1.0),
                }],
            }],
        };
        let text = result.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(
            text.contains("rerouted / one bridge  1.000  0.900..1.100"),
            "{text}"
        );
    }
}
