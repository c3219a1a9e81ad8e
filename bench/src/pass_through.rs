//! `pass-through`: the bridge, `HAProxy` and nginx in front of one backend.

mod result;

use anyhow::{Context, Result};

use self::result::{Comparison, PassThroughResult};
use crate::args::PassThrough;
use crate::h2_client;
use crate::h2load::{Load, Protocol};
use crate::pki::Pki;
use crate::proxies::{Clients, Proxy, Round, backend, bridge, free_ports, haproxy, nginx};
use crate::ratio::rotated;
use crate::report;
use crate::scratch_dir::ScratchDir;

const WARM_UP_SECONDS: u32 = 1;

/// More than either protocol opens.
const MAX_CONNECTIONS: u32 = 400;

pub(crate) async fn run(args: PassThrough) -> Result<()> {
    let load = Load::new(backend::ANSWER, args.size)?;
    let program = bridge::program(args.bridge).await?;
    // Declared before the proxies, so dropped after them.
    let scratch = ScratchDir::create()?;
    let load = load.with_times(&scratch);
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
    let clients = Clients {
        max_connections: MAX_CONNECTIONS,
        ca: None,
    };
    proxies.push(haproxy::start(&scratch, &pki, haproxy, origin, clients)?);
    proxies.push(nginx::start(&scratch, &pki, nginx, origin, clients)?);
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
