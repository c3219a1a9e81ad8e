//! One server under load.

use std::time::Duration;

use anyhow::{Context, Result};
use skewbridge_e2e::{ControlPlane, Process, Via};

use crate::h2load::{Load, Protocol};
use crate::process_usage;

/// A server, and the request that it gets.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) port: u16,
    pub(super) processes: Vec<CountedProcess>,
    pub(super) load: Load,
}

/// A process whose CPU time is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum CountedProcess {
    /// A server or a bridge of a control plane. Its process group is that of this program.
    Single(u32),
    /// The leader of a process group, with its workers.
    Group(u32),
}

impl CountedProcess {
    fn cpu(self) -> Result<Duration> {
        match self {
            Self::Single(pid) => process_usage::cpu(pid),
            Self::Group(leader) => process_usage::cpu_of_group(leader),
        }
    }
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
            processes: process.iter().map(counted).collect(),
            load,
        }
    }

    /// Also counts the CPU time of this process.
    pub(super) fn passing(mut self, process: Option<&Process>) -> Self {
        self.processes.extend(process.map(counted));
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
        self.processes.iter().map(|process| process.cpu()).sum()
    }
}

fn counted(process: &Process) -> CountedProcess {
    CountedProcess::Single(process.id())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_in_another_group_is_counted() {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let single = CountedProcess::Single(std::process::id());
        assert!(single.cpu().unwrap() > Duration::ZERO);
        // No group has this number.
        let group = CountedProcess::Group(u32::MAX);
        assert_eq!(group.cpu().unwrap(), Duration::ZERO);
    }
}
