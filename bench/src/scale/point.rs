//! A bridge, the stand-ins around it, and what is open at it.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skewbridge_testkit::Ca;
use tokio::time::sleep;

use super::holders::OpenHolders;
use super::responses::{ANSWER, ANSWER_BYTES, TOKEN, identity, object_of_peer};
use super::stand_in::StandIns;
use crate::args::{Held, ScaleAxis};
use crate::h1_client::{H1Connection, get_request};
use crate::h2load::Load;
use crate::pki::{self, Pki};
use crate::process_usage;
use crate::proxies::{Proxy, bridge, free_ports, loopback};
use crate::scratch_dir::ScratchDir;

/// Resources where their number is not what is measured.
const RESOURCES: u32 = 100;

/// For a bridge to discover what all its peers serve.
const DISCOVERY_TIMEOUT: Duration = Duration::from_mins(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Connections that the bridge allows beyond those that are held open. Those of clients with tokens
/// may take nine tenths.
const FURTHER_CONNECTIONS: u32 = 1000;

/// Only the request under load counts, so the held connections stay open without requests.
const IDLE_TIMEOUT: &str = "--idle-timeout=1h";

/// One size of an axis. The processes are stopped in this order.
pub(super) struct Point {
    pub(super) size: u32,
    _holders: Option<OpenHolders>,
    bridge: Proxy,
    _stand_ins: StandIns,
    _scratch: ScratchDir,
}

impl Point {
    /// Returns when the bridge knows all peers, and everything is open.
    pub(super) async fn start(program: &Path, axis: ScaleAxis, size: u32) -> Result<Self> {
        let scratch = ScratchDir::create()?;
        let ca = Ca::new("cluster");
        let pki = Pki::issued_by(&ca, &scratch)?;
        let (peers, resources) = match axis {
            ScaleAxis::Peers => (size, RESOURCES),
            // With a peer, so that the bridge needs an index of what both serve.
            ScaleAxis::Resources => (1, size),
            _ => (0, RESOURCES),
        };
        let stand_ins = StandIns::start(&scratch, &pki, peers, resources).await?;
        let mut flags = vec![bridge::ONE_WORKER.to_owned(), IDLE_TIMEOUT.to_owned()];
        if peers > 0 {
            flags.extend(peer_flags(&scratch, &ca, &pki, &stand_ins.ports)?);
        }
        if axis == ScaleAxis::Connections {
            let most = size + size / 5 + FURTHER_CONNECTIONS;
            flags.push(format!("--max-connections={most}"));
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let [front, admin] = free_ports()?;
        let ports = bridge::Ports {
            front,
            admin,
            upstream: stand_ins.ports[0],
        };
        let bridge = bridge::start(bridge::NAME, program, &scratch, &pki, ports, &flags)?;
        let bridge_log = || bridge.process().log_tail();
        let served = wait_until_served(&bridge, &pki, peers).await;
        served.with_context(|| format!("the bridge{}", bridge_log()))?;
        let held = match axis {
            ScaleAxis::Connections => Some(Held::Connections),
            ScaleAxis::Streams => Some(Held::Streams),
            _ => None,
        };
        let holders = match held {
            Some(held) => {
                let opened = OpenHolders::start(&scratch, &pki.ca, bridge.address(), held, size);
                Some(
                    opened
                        .await
                        .with_context(|| format!("the bridge{}", bridge_log()))?,
                )
            }
            None => None,
        };
        Ok(Self {
            size,
            _holders: holders,
            bridge,
            _stand_ins: stand_ins,
            _scratch: scratch,
        })
    }

    pub(super) fn bridge(&self) -> &Proxy {
        &self.bridge
    }

    pub(super) fn cpu(&self) -> Result<Duration> {
        process_usage::cpu_of_group(self.bridge.process().pid())
    }
}

/// The request under load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RequestKind {
    /// The server behind the bridge serves it.
    Local,
    /// A peer serves it.
    Rerouted,
}

impl RequestKind {
    pub(super) fn of(axis: ScaleAxis) -> &'static [Self] {
        match axis {
            ScaleAxis::Peers => &[Self::Local, Self::Rerouted],
            _ => &[Self::Local],
        }
    }

    pub(super) fn load(self) -> Result<Load> {
        let path = match self {
            Self::Local => ANSWER.to_owned(),
            Self::Rerouted => object_of_peer(1),
        };
        Ok(Load::new(&path, ANSWER_BYTES)?.with_token(TOKEN))
    }
}

fn peer_flags(scratch: &ScratchDir, ca: &Ca, pki: &Pki, ports: &[u16]) -> Result<Vec<String>> {
    let front_proxies = Ca::new("front-proxies");
    let front_proxy = front_proxies.client("front-proxy-client", &[]);
    let certificate = scratch.write("front-proxy.crt", &front_proxy.cert_pem)?;
    let key = scratch.write("front-proxy.key", &front_proxy.key_pem)?;
    let front_proxies = scratch.write("front-proxy-ca.crt", front_proxies.pem())?;
    let users = scratch.write("users-ca.crt", ca.pem())?;
    let mut registry = "peers:\n".to_owned();
    for (server, port) in (0..).zip(ports).skip(1) {
        let (identity, address) = (identity(server)?, loopback(*port));
        writeln!(registry, "- identity: {identity}\n  address: {address}")?;
    }
    let registry = scratch.write("peers.yaml", registry)?;
    let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
    Ok(vec![
        flag("client-ca-file", &users),
        flag("peer-ca-file", &pki.ca),
        flag("requestheader-client-ca-file", &front_proxies),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        flag("proxy-client-cert-file", &certificate),
        flag("proxy-client-key-file", &key),
        format!("--peer-registry=file:{}", registry.display()),
        format!("--apiserver-identity={}", identity(0)?),
    ])
}

async fn wait_until_served(bridge: &Proxy, pki: &Pki, peers: u32) -> Result<()> {
    bridge.process().until_listening(bridge.address()).await?;
    let paths = (1..=peers).map(object_of_peer);
    let deadline = Instant::now() + DISCOVERY_TIMEOUT;
    for path in std::iter::once(ANSWER.to_owned()).chain(paths) {
        loop {
            let wrong = match status(bridge, pki, &path).await {
                Ok(200) => break,
                Ok(status) => format!("answered {status}"),
                Err(error) => format!("{error:#}"),
            };
            bridge.process().ensure_running()?;
            anyhow::ensure!(Instant::now() < deadline, "{path}: {wrong}");
            sleep(RETRY_INTERVAL).await;
        }
    }
    Ok(())
}

async fn status(bridge: &Proxy, pki: &Pki, path: &str) -> Result<u16> {
    let config = pki::h1_client(&pki.ca)?;
    let mut connection = H1Connection::open(config, bridge.address()).await?;
    let status = connection.send(&get_request(path, Some(TOKEN))).await?;
    Ok(status.as_u16())
}
