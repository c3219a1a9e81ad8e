//! The same client and the same node, with one translator or the other between.

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
use super::result::StreamsResult;
use super::work::exec_path;
use crate::args::Translate;
use crate::client::wait_until_serving;
use crate::pki::{self, Pki};
use crate::process::OwnedProcess;
use crate::proxies::{Proxy, bridge, free_ports, loopback};
use crate::ratio::rotated;
use crate::report;
use crate::scratch::Scratch;
use crate::usage;

/// What a translator does when nobody asks anything of it is looked at so long.
const IDLE: Duration = Duration::from_secs(2);
/// A load that takes longer has stopped.
const LOAD_LIMIT: Duration = Duration::from_mins(10);
/// A screenful of small pieces.
const AT_ONCE: u32 = 64;
const WARM_UP_MIB: u32 = 64;
const WARM_UP: Duration = Duration::from_millis(500);

pub(crate) const ALONE: &str = "node alone";
pub(crate) const KUBE_APISERVER: &str = "kube-apiserver";
pub(crate) const BRIDGE: &str = "bridge";

pub(super) async fn measure(
    args: &Translate,
    program: Option<&Path>,
    version: &str,
) -> Result<StreamsResult> {
    // Declared before the children, so dropped after them.
    let scratch = Scratch::create()?;
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
    let mut ways = vec![
        Way {
            name: ALONE,
            process: None,
            target: target(loopback(node_port), DIRECT_PATH.to_owned()),
        },
        Way {
            name: KUBE_APISERVER,
            process: Some(process.id()),
            target: target(server.address, exec_path()),
        },
    ];
    ways.extend(bridge.as_ref().map(|bridge| Way {
        name: BRIDGE,
        process: Some(bridge.process().pid()),
        target: target(bridge.address(), exec_path()),
    }));
    let rounds = rounds(args, &ways).await.with_context(|| {
        let words = bridge.as_ref().map(|bridge| bridge.process().log_tail());
        let words = words.unwrap_or_default();
        format!("the node{}, the bridge{words}", node.log_tail())
    })?;
    StreamsResult::new(args, &rounds)
}

async fn start_node(scratch: &Scratch, pki: &Pki, port: u16) -> Result<OwnedProcess> {
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
    scratch: &Scratch,
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

/// A way from the client to the node.
struct Way {
    name: &'static str,
    /// The translator, if there is one.
    process: Option<u32>,
    target: Target,
}

/// What is asked of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Load {
    /// To the node, in large messages.
    Stdin,
    /// From the node.
    Stdout,
    /// To and fro in small messages: in so many sessions, so many at once.
    Talk { sessions: u32, at_once: u32 },
}

impl Load {
    /// What is counted, in words: per second, and per CPU.
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
            } => f.write_str("messages, one by one"),
            Self::Talk {
                sessions: 1,
                at_once,
            } => write!(f, "messages, {at_once} at once"),
            Self::Talk { sessions, .. } => write!(f, "messages, {sessions} sessions"),
        }
    }
}

/// One load on one way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// MiB or messages.
    pub(crate) amount: f64,
    pub(crate) seconds: f64,
    /// CPU seconds of the translator, all in all.
    pub(crate) cpu: Option<f64>,
}

/// All rounds of one way.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    /// By load, round by round.
    pub(crate) samples: Vec<(Load, Vec<Sample>)>,
    /// CPU seconds a second of the translator when nobody asks for anything.
    pub(crate) idle: Vec<f64>,
}

async fn rounds(args: &Translate, ways: &[Way]) -> Result<Vec<Measured>> {
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
            at_once: AT_ONCE,
        },
    ];
    for way in ways {
        for load in loads {
            way.run_load(load, WARM_UP_MIB, WARM_UP)
                .await
                .context("warm-up")?;
        }
    }
    let mut measured: Vec<Measured> = ways
        .iter()
        .map(|way| Measured {
            name: way.name,
            samples: loads.map(|load| (load, Vec::new())).into(),
            idle: Vec::new(),
        })
        .collect();
    for round in 0..args.rounds {
        idle(ways, &mut measured).await?;
        for (number, load) in loads.into_iter().enumerate() {
            for index in rotated(ways.len(), round as usize + number) {
                let time = Duration::from_secs(args.seconds.into());
                let sample = ways[index].run_load(load, args.mib, time).await?;
                report::progress(format_args!(
                    "round {}/{}: {load}: {:<14} {:>8.0} {}",
                    round + 1,
                    args.rounds,
                    ways[index].name,
                    sample.amount / sample.seconds,
                    load.units()[0],
                ));
                measured[index].samples[number].1.push(sample);
            }
        }
    }
    Ok(measured)
}

impl Way {
    async fn run_load(&self, load: Load, mib: u32, time: Duration) -> Result<Sample> {
        let before = self.cpu()?;
        let bytes = u64::from(mib) << 20;
        let bearing = async {
            Ok(match load {
                Load::Stdin => (f64::from(mib), self.target.send(bytes).await?),
                Load::Stdout => (f64::from(mib), self.target.receive(bytes).await?),
                Load::Talk { sessions, at_once } => {
                    let talk = self.target.talk(sessions, at_once, time).await?;
                    (f64::from(talk.messages), talk.took)
                }
            })
        };
        let borne = timeout(LOAD_LIMIT, bearing).await.context("it hangs");
        let (amount, took) = borne
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
        self.process.map(usage::cpu).transpose()
    }
}

/// What everybody does when nobody asks for anything.
async fn idle(ways: &[Way], measured: &mut [Measured]) -> Result<()> {
    let all = || ways.iter().map(Way::cpu).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), all()?);
    sleep(IDLE).await;
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
