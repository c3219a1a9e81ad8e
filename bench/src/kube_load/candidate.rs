//! One server under load.

use std::time::Duration;

use anyhow::{Context, Result};
use skewbridge_e2e::{ControlPlane, Via};

use crate::h2load::{Load, Protocol};
use crate::process_usage;

/// A server, and the request that it gets.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// The processes whose CPU time is counted.
    pub(super) processes: Vec<u32>,
    pub(super) load: Load,
}

/// One round of load on one candidate.
pub(super) struct Round {
    pub(super) per_second: f64,
    pub(super) cpu_microseconds: f64,
}

impl Candidate {
    /// A server of a control plane, or its bridge.
    pub(super) fn of(
        name: &'static str,
        plane: &ControlPlane,
        server: usize,
        via: Via,
        load: Load,
    ) -> Self {
        let instance = &plane.servers[server];
        let (address, process) = match via {
            Via::Server => (instance.address, &instance.process),
            Via::Bridge => (instance.bridge, &instance.bridge_process),
        };
        Self {
            name,
            port: address.port(),
            processes: process.iter().map(skewbridge_e2e::Process::id).collect(),
            load,
        }
    }

    /// Also counts the CPU time of this process.
    pub(super) fn passing(mut self, process: Option<u32>) -> Self {
        self.processes.extend(process);
        self
    }

    pub(super) async fn round(&self, protocol: Protocol, seconds: u32) -> Result<Round> {
        let before = self.cpu()?;
        let summary = self.load.run(protocol, self.port, seconds).await;
        let summary = summary.with_context(|| format!("{}, {protocol}", self.name))?;
        let cpu = self.cpu()?.saturating_sub(before);
        Ok(Round {
            per_second: summary.per_second,
            cpu_microseconds: cpu.as_secs_f64() * 1e6 / f64::from(summary.succeeded),
        })
    }

    fn cpu(&self) -> Result<Duration> {
        self.processes
            .iter()
            .map(|pid| process_usage::cpu_of_group(*pid))
            .sum()
    }
}
