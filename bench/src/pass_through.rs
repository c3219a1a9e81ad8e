//! `pass-through`: the bridge, `HAProxy` and nginx in front of one backend.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::args::PassThrough;
use crate::h2_client;
use crate::h2load::{Load, Protocol};
use crate::pki::Pki;
use crate::proxies::{Proxy, Round, backend, bridge, free_ports, haproxy, nginx};
use crate::ratio::rotated;
use crate::report::{self, Spread, Table};
use crate::scratch_dir::ScratchDir;

const WARM_UP_SECONDS: u32 = 1;

pub(crate) async fn run(args: PassThrough) -> Result<()> {
    let load = Load::new(backend::ANSWER, args.size)?;
    let program = bridge::program(args.bridge).await?;
    // Declared before the proxies, so dropped after them.
    let scratch = ScratchDir::create()?;
    let pki = Pki::generate(&scratch)?;

    let [origin, front, admin, haproxy, nginx] = free_ports()?;
    let mut proxies = vec![backend::start(&scratch, &pki, origin, args.size)?];
    if let Some(program) = program {
        let started = bridge::start(
            bridge::NAME,
            &program,
            &scratch,
            &pki,
            bridge::Ports {
                front,
                admin,
                upstream: origin,
            },
            &[bridge::ONE_WORKER],
        )?;
        proxies.push(started);
    }
    proxies.push(haproxy::start(&scratch, &pki, haproxy, origin)?);
    proxies.push(nginx::start(&scratch, &pki, nginx, origin)?);
    for proxy in &proxies {
        let (process, address) = (proxy.process(), proxy.address());
        h2_client::wait_until_serving(process, address, &pki.ca, backend::ANSWER).await?;
    }

    let mut result = PassThroughResult {
        size: args.size,
        rounds: args.rounds,
        seconds: args.seconds,
        protocols: Vec::new(),
    };
    for &protocol in args.proto.selected() {
        let rounds = Plan {
            proxies: &proxies,
            load: &load,
            protocol,
            rounds: args.rounds,
            seconds: args.seconds,
        };
        let measured = rounds.measure().await?;
        result.protocols.push(Comparison::new(protocol, &measured)?);
    }
    // The children are stopped first: a reader may close the output early.
    drop(proxies);
    report::print(&result, args.output)
}

/// Interleaved rounds of one protocol.
struct Plan<'a> {
    proxies: &'a [Proxy],
    load: &'a Load,
    protocol: Protocol,
    rounds: u32,
    seconds: u32,
}

/// All rounds of one proxy, in order.
struct Measured {
    name: &'static str,
    rounds: Vec<Round>,
}

impl Plan<'_> {
    async fn measure(&self) -> Result<Vec<Measured>> {
        for proxy in self.proxies {
            proxy
                .round(self.load, self.protocol, WARM_UP_SECONDS)
                .await
                .context("warm-up")?;
        }
        let mut measured: Vec<Measured> = self
            .proxies
            .iter()
            .map(|proxy| Measured {
                name: proxy.name(),
                rounds: Vec::new(),
            })
            .collect();
        for round in 0..self.rounds {
            for index in rotated(self.proxies.len(), round as usize) {
                let done = self.proxies[index]
                    .round(self.load, self.protocol, self.seconds)
                    .await
                    .with_context(|| format!("round {}, {}", round + 1, self.protocol))?;
                report::progress(format_args!(
                    "{}: round {}/{}: {:<8} {:>8.0} req/s",
                    self.protocol,
                    round + 1,
                    self.rounds,
                    measured[index].name,
                    done.summary.per_second,
                ));
                measured[index].rounds.push(done);
            }
        }
        Ok(measured)
    }
}

#[derive(Debug, Serialize)]
struct PassThroughResult {
    size: u32,
    rounds: u32,
    seconds: u32,
    protocols: Vec<Comparison>,
}

#[derive(Debug, Serialize)]
struct Comparison {
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
}

/// The requests per second of the bridge over those of another proxy, round by round.
#[derive(Debug, Serialize)]
struct Ratio {
    of: &'static str,
    to: &'static str,
    speed: Spread,
}

impl Comparison {
    fn new(protocol: Protocol, measured: &[Measured]) -> Result<Self> {
        let bridge = measured.iter().find(|one| one.name == "bridge");
        let others = measured
            .iter()
            .filter(|one| matches!(one.name, "haproxy" | "nginx"));
        let ratios = bridge
            .into_iter()
            .flat_map(|bridge| others.clone().map(move |other| Ratio::new(bridge, other)))
            .collect::<Option<_>>();
        let proxies = measured.iter().map(Speed::new).collect::<Option<_>>();
        Ok(Self {
            protocol,
            proxies: proxies.context("no rounds")?,
            ratios: ratios.context("no rounds")?,
        })
    }
}

impl Speed {
    fn new(measured: &Measured) -> Option<Self> {
        let rounds = &measured.rounds;
        Some(Self {
            name: measured.name,
            cipher: rounds.last()?.summary.cipher.clone(),
            requests_per_second: Spread::of(rounds.iter().map(|round| round.summary.per_second))?,
            cpu_microseconds_per_request: Spread::of(
                rounds.iter().map(|round| {
                    round.cpu.as_secs_f64() * 1e6 / f64::from(round.summary.succeeded)
                }),
            )?,
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
        let mut table = Table::new(["", "req/s", "", "CPU µs/req", ""]);
        for speed in &self.proxies {
            let name = match speed.name {
                "backend" => "backend alone",
                name => name,
            };
            let [rate, rates] = speed.requests_per_second.cells(0);
            let [cpu, cpus] = speed.cpu_microseconds_per_request.cells(1);
            table.row([name.to_owned(), rate, rates, cpu, cpus]);
        }
        write!(f, "{table}")?;
        if !self.ratios.is_empty() {
            let mut table = Table::new(["", "ratio", ""]);
            for Ratio { of, to, speed } in &self.ratios {
                let [median, spread] = speed.cells(2);
                table.row([format!("{of} / {to}"), median, spread]);
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
            requests_per_second: spread(1_234_567.0),
            cpu_microseconds_per_request: spread(12_345.6),
        }
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
                    ratios: vec![Ratio {
                        of: "bridge",
                        to: "haproxy",
                        speed: spread(1.0),
                    }],
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
            text.contains("bridge / haproxy   1.00  0.90..1.10"),
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
