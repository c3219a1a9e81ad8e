//! Checks before a bridge starts: its configuration, and all that it names.

mod certificates;
mod clocks;
mod configuration;
mod kernel;
mod listening_sockets;
mod peers;
mod permissions;
mod ports;
mod registry;
mod upstream;
mod upstream_request;

use std::time::SystemTime;

use skewbridge_gateway::config::Config;
use skewbridge_gateway::peer_config::disabled_by_flags;

use super::finding::{Finding, Section};
use crate::serve;

pub(super) use clocks::{ServerClock, judge as judge_clocks};

/// Checks everything.
pub(super) async fn check(command_line: &serve::CommandLine) -> Vec<Finding> {
    match serve::configuration(command_line) {
        Err(problems) => {
            let mut findings = configuration::problems(command_line, &problems.0);
            findings.push(Finding::not_known(
                Section::Upstream,
                "kube-apiserver, registry, peers, ports and limits",
                "they are checked when the configuration has no ✗",
            ));
            findings
        }
        Ok(configuration) => {
            let mut findings = configuration::warnings(&configuration.warnings);
            findings.extend(of_config(&configuration.config).await);
            findings
        }
    }
}

async fn of_config(config: &Config) -> Vec<Finding> {
    let loaded = certificates::Loaded::of(config);
    let mut findings = certificates::judge(config, &loaded, SystemTime::now());
    let peering = disabled_by_flags(config);
    let (ports, upstream, registry) = tokio::join!(
        ports::check(config),
        upstream::check(config, &loaded),
        async {
            match &peering {
                None if !config.upstream.is_balanced() => registry::check(config).await,
                _ => registry::RegistryChecks::default(),
            }
        },
    );
    let peers = match (&peering, config.upstream.is_balanced()) {
        (_, true) => peers::PeerChecks::default(),
        (Some(disabled), _) => peers::local_only(disabled),
        (None, _) => peers::check(config, &registry.addresses).await,
    };
    findings.extend(ports);
    findings.extend(upstream.findings);
    findings.extend(registry.findings);
    findings.extend(peers.findings);
    let clocks = [upstream.clocks, peers.clocks].concat();
    findings.extend(clocks::judge(&clocks));
    findings.extend(kernel::check(config));
    findings
}
