//! The servers of a run, each on loopback and with one worker thread.

pub(crate) mod backend;
pub(crate) mod bridge;
pub(crate) mod haproxy;
pub(crate) mod nginx;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::h2load::{Load, Protocol, Summary};
use crate::process::OwnedProcess;
use crate::process_usage;

/// A running server that can be put under load.
#[derive(Debug)]
pub(crate) struct Proxy {
    process: OwnedProcess,
    port: u16,
}

/// The clients of `HAProxy` and nginx.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients<'a> {
    pub(crate) max_connections: u32,
    /// Certificates of clients are requested, and verified with this CA.
    pub(crate) ca: Option<&'a Path>,
}

/// Connections that wait to be accepted, as many as the bridge allows.
const BACKLOG: u32 = 4096;

/// One round of load on one server.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) summary: Summary,
    pub(crate) cpu: Duration,
}

impl Proxy {
    pub(crate) fn new(process: OwnedProcess, port: u16) -> Self {
        Self { process, port }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.process.name()
    }

    pub(crate) fn process(&self) -> &OwnedProcess {
        &self.process
    }

    pub(crate) fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    pub(crate) async fn round(
        &self,
        load: &Load,
        protocol: Protocol,
        seconds: u32,
    ) -> Result<Round> {
        let before = process_usage::cpu_of_group(self.process.pid())?;
        let summary = load
            .run(protocol, self.port, seconds)
            .await
            .map_err(|error| {
                let words = self.process.log_tail();
                anyhow!("{} failed: {error:#}{words}", self.name())
            })?;
        self.process.ensure_running()?;
        let cpu = process_usage::cpu_of_group(self.process.pid())?.saturating_sub(before);
        Ok(Round { summary, cpu })
    }
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Ports that were free a moment ago, all different: none is released before the last is bound.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind(loopback(0)).context("no free port")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn free_ports_are_different() {
        let ports: [u16; 16] = free_ports().unwrap();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 16);
    }
}
