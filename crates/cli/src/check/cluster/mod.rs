//! Checks of a cluster with bridges: each bridge, requests through them, and the clients that use
//! them.

mod bridges;
mod clients;
mod components;
mod node;
mod requests;
mod server;
mod versions;

use std::net::SocketAddr;
use std::path::PathBuf;

use skewbridge_client::{Error, Kubeconfig, Target};

use super::finding::{Finding, Remedy, Section};
use server::ServerReachability;

pub(super) use clients::addresses as published_addresses;
pub(super) use server::{expiry as certificate_expiry, with_address};

/// Prints what to install on a node for it to have a bridge.
const INSTALL_COMMAND: &str = "skewbridge manifest kubeadm";

/// What to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterOptions {
    pub(crate) server: Option<String>,
    pub(crate) tls_server_name: Option<String>,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
    pub(crate) exec: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) kubernetes_dir: PathBuf,
    pub(crate) layout: Layout,
    pub(crate) admin: AdminAddress,
}

/// Where the bridges of the cluster are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// At the addresses that kube-apiservers publish: all clients use bridges.
    SamePort,
    /// At another port of each node. Clients of the published addresses use kube-apiservers.
    OtherPort,
    /// In front of all kube-apiservers, in the place of a load balancer.
    Balancer,
}

/// The admin port of the bridge on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminAddress {
    /// At the default address, if a bridge answers there.
    Default,
    /// At this address.
    At(SocketAddr),
}

/// Checks everything.
pub(super) async fn check(options: &ClusterOptions) -> Vec<Finding> {
    // Boxed: it is large.
    let cluster = Box::pin(of_cluster(options));
    let (mut findings, cluster) = tokio::join!(node::check(options.admin), cluster);
    findings.extend(cluster);
    findings
}

async fn of_cluster(options: &ClusterOptions) -> Vec<Finding> {
    let target = match target(options) {
        Ok(target) => target,
        Err(error) => {
            let remedy = Remedy {
                command: Some(
                    "skewbridge check --kubeconfig=/etc/kubernetes/admin.conf".to_owned(),
                ),
                text: "name a kubeconfig".to_owned(),
                ..Remedy::default()
            };
            let name = "the kubeconfig names a cluster";
            let why = error.to_string();
            return vec![Finding::failure(Section::Bridges, name, why, remedy)];
        }
    };
    let first = server::contact(&target).await;
    let problem = match &first {
        ServerReachability::Unreachable(_) => server::problem(&target).await,
        _ => None,
    };
    let mut findings = vec![bridges::first(&target, &first, problem.as_ref())];
    let ServerReachability::Bridge(answer) = &first else {
        findings
            .extend(clients::check(options, &target, components::CheckedServer::NotBridge).await);
        return findings;
    };
    let others = bridges::others(&target, answer, options.admin).await;
    findings.extend(bridges::judge(&target, answer, &others, options.layout));
    findings.extend(versions::judge(&target.server(), answer, &others));
    let (requests, clients) = tokio::join!(
        requests::check(options, &target, answer, &others),
        clients::check(options, &target, components::CheckedServer::Bridge),
    );
    findings.extend(requests);
    findings.extend(clients);
    findings
}

fn target(options: &ClusterOptions) -> Result<Target, Error> {
    let config = match Kubeconfig::load(options.kubeconfig.as_deref()) {
        Err(error @ Error::NoConfiguration { .. }) if options.kubeconfig.is_none() => {
            // As on a control-plane node without other configuration.
            let admin = options.kubernetes_dir.join("admin.conf");
            if admin.exists() {
                Kubeconfig::load(Some(&admin))?
            } else {
                return Err(error);
            }
        }
        loaded => loaded?,
    };
    let target = config.target(options.context.as_deref())?;
    Ok(match &options.server {
        Some(server) => target.with_server(server, options.tls_server_name.as_deref()),
        None => target,
    })
}
