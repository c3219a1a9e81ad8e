//! Measures the same client and the same node with either translator between them.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use skewbridge_e2e::{ControlPlane, ServerSpec};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::client::Target;
use super::node::DIRECT_PATH;
use super::node_command::exec_path;
use crate::args::Translate;
use crate::h2_client::wait_until_serving;
use crate::pki::{self, Pki};
use crate::process::OwnedProcess;
use crate::process_usage;
use crate::proxies::{Proxy, bridge, free_ports, loopback};
use crate::ratio::rotated;
use crate::report;
use crate::scratch_dir::ScratchDir;

/// How long the CPU use of an idle translator is measured.
const IDLE_DURATION: Duration = Duration::from_secs(2);
/// A load that takes longer hangs.
const LOAD_TIMEOUT: Duration = Duration::from_mins(10);
/// A screenful of small messages.
const BATCH_MESSAGES: u32 = 64;
const WARM_UP_MIB: u32 = 64;
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) const NODE_ALONE: &str = "node alone";
pub(crate) const KUBE_APISERVER: &str = "kube-apiserver";
pub(crate) const BRIDGE: &str = "bridge";

pub(super) async fn measure(
    args: &Translate,
    program: Option<&Path>,
    version: &str,
) -> Result<Vec<Measured>> {
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let plane = ControlPlane::start(&[ServerSpec::of(version).without_bridge()]).await;
    let pki = Pki::issued_by(plane.ca(), &scratch)?;
    let [node_port, front, admin] = free_ports()?;
    let node = start_node(&scratch, &pki, node_port).await?;
    plane.register_node(loopback(node_port)).await;
    let bridge = match program {
        Some(program) => {
            Some(start_bridge(program, &scratch, &pki, front, admin, node_port).await?)
        }
        None => None,
    };

    let admin = plane.ca().client("admin", &["system:masters"]);
    let tls = pki::stream_client(plane.ca(), &admin)?;
    let target = |address, path: String| Target {
        address,
        path,
        tls: tls.clone(),
    };
    let server = &plane.servers[0];
    let process = server.process.as_ref().context("no kube-apiserver")?;
    let mut routes = vec![
        Route {
            name: NODE_ALONE,
            process: None,
            target: target(loopback(node_port), DIRECT_PATH.to_owned()),
        },
        Route {
            name: KUBE_APISERVER,
            process: Some(process.id()),
            target: target(server.address, exec_path()),
        },
    ];
    routes.extend(bridge.as_ref().map(|bridge| Route {
        name: BRIDGE,
        process: Some(bridge.process().pid()),
        target: target(bridge.address(), exec_path()),
    }));
    rounds(args, &routes).await.with_context(|| {
        let words = bridge.as_ref().map(|bridge| bridge.process().log_tail());
        let words = words.unwrap_or_default();
        format!("the node{}, the bridge{words}", node.log_tail())
    })
}

async fn start_node(scratch: &ScratchDir, pki: &Pki, port: u16) -> Result<OwnedProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("node").arg(format!("--port={port}"));
    command.arg("--certificate").arg(&pki.certificate);
    command.arg("--key").arg(&pki.key);
    let node = OwnedProcess::server("node", command, scratch)?;
    node.until_listening(loopback(port)).await?;
    Ok(node)
}

async fn start_bridge(
    program: &Path,
    scratch: &ScratchDir,
    pki: &Pki,
    front: u16,
    admin: u16,
    upstream: u16,
) -> Result<Proxy> {
    let always = ["--translate-streams=always"];
    let ports = bridge::Ports {
        front,
        admin,
        upstream,
    };
    let bridge = bridge::start(bridge::NAME, program, scratch, pki, ports, &always)?;
    wait_until_serving(bridge.process(), bridge.address(), &pki.ca, "/readyz").await?;
    Ok(bridge)
}

/// A route from the client to the node.
struct Route {
    name: &'static str,
    /// The translator, if there is one.
    process: Option<u32>,
    target: Target,
}

/// The load on a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Load {
    /// To the node, in large messages.
    Stdin,
    /// From the node.
    Stdout,
    /// To the node and back in small messages: in this many sessions, with this many messages at
    /// once.
    Talk { sessions: u32, at_once: u32 },
}

impl Load {
    /// The units: per second, and per CPU.
    pub(crate) fn units(self) -> [&'static str; 2] {
        match self {
            Self::Stdin | Self::Stdout => ["MiB/s", "CPU s/GiB"],
            Self::Talk { .. } => ["messages/s", "CPU µs/message"],
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdin => f.write_str("stdin"),
            Self::Stdout => f.write_str("stdout"),
            Self::Talk {
                sessions: 1,
                at_once: 1,
            } => f.write_str("messages, one at a time"),
            Self::Talk {
                sessions: 1,
                at_once,
            } => write!(f, "messages, {at_once} at once"),
            Self::Talk { sessions, .. } => write!(f, "messages, {sessions} sessions"),
        }
    }
}

/// One load on one route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// MiB or messages.
    pub(crate) amount: f64,
    pub(crate) seconds: f64,
    /// CPU seconds of the translator in total.
    pub(crate) cpu: Option<f64>,
}

/// All rounds of one route.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    /// By load, round by round.
    pub(crate) samples: Vec<(Load, Vec<Sample>)>,
    /// CPU seconds per second of the translator without load.
    pub(crate) idle: Vec<f64>,
}

async fn rounds(args: &Translate, routes: &[Route]) -> Result<Vec<Measured>> {
    let loads = [
        Load::Stdin,
        Load::Stdout,
        Load::Talk {
            sessions: 1,
            at_once: 1,
        },
        Load::Talk {
            sessions: args.sessions,
            at_once: 1,
        },
        Load::Talk {
            sessions: 1,
            at_once: BATCH_MESSAGES,
        },
    ];
    for route in routes {
        for load in loads {
            route
                .run_load(load, WARM_UP_MIB, WARM_UP)
                .await
                .context("warm-up")?;
        }
    }
    let mut measured: Vec<Measured> = routes
        .iter()
        .map(|route| Measured {
            name: route.name,
            samples: loads.map(|load| (load, Vec::new())).into(),
            idle: Vec::new(),
        })
        .collect();
    for round in 0..args.rounds {
        idle(routes, &mut measured).await?;
        for (number, load) in loads.into_iter().enumerate() {
            for index in rotated(routes.len(), round as usize + number) {
                let time = Duration::from_secs(args.seconds.into());
                let sample = routes[index].run_load(load, args.mib, time).await?;
                report::progress(format_args!(
                    "round {}/{}: {load}: {:<14} {:>8.0} {}",
                    round + 1,
                    args.rounds,
                    routes[index].name,
                    sample.amount / sample.seconds,
                    load.units()[0],
                ));
                measured[index].samples[number].1.push(sample);
            }
        }
    }
    Ok(measured)
}

impl Route {
    async fn run_load(&self, load: Load, mib: u32, time: Duration) -> Result<Sample> {
        let before = self.cpu()?;
        let bytes = u64::from(mib) << 20;
        let running = async {
            Ok(match load {
                Load::Stdin => (f64::from(mib), self.target.send(bytes).await?),
                Load::Stdout => (f64::from(mib), self.target.receive(bytes).await?),
                Load::Talk { sessions, at_once } => {
                    let exchange_messages = self
                        .target
                        .exchange_messages(sessions, at_once, time)
                        .await?;
                    (
                        f64::from(exchange_messages.messages),
                        exchange_messages.elapsed,
                    )
                }
            })
        };
        let outcome = timeout(LOAD_TIMEOUT, running).await.context("it hangs");
        let (amount, took) = outcome
            .flatten()
            .with_context(|| format!("{load}, {}", self.name))?;
        let cpu = match (before, self.cpu()?) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before).as_secs_f64()),
            _ => None,
        };
        Ok(Sample {
            amount,
            seconds: took.as_secs_f64(),
            cpu,
        })
    }

    fn cpu(&self) -> Result<Option<Duration>> {
        self.process.map(process_usage::cpu).transpose()
    }
}

/// The CPU use of all translators without load.
async fn idle(routes: &[Route], measured: &mut [Measured]) -> Result<()> {
    let all = || routes.iter().map(Route::cpu).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), all()?);
    sleep(IDLE_DURATION).await;
    let (after, seconds) = (all()?, start.elapsed().as_secs_f64());
    for (measured, (before, after)) in measured.iter_mut().zip(before.into_iter().zip(after)) {
        if let (Some(before), Some(after)) = (before, after) {
            measured
                .idle
                .push(after.saturating_sub(before).as_secs_f64() / seconds);
        }
    }
    Ok(())
}
