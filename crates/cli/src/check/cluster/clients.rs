//! Whether the Service `kubernetes` and the components of this node use bridges.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use skewbridge_client::Target;
use skewbridge_peer_directory::{EndpointSlice, List, endpoint_slice};

use super::components::{self, CheckedServer, Expected};
use super::server::{self, ServerReachability};
use super::{ClusterOptions, INSTALL_COMMAND, Layout};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::{http, parallel};
use crate::local_addresses;

const SECTION: Section = Section::Clients;

pub(super) async fn check(
    options: &ClusterOptions,
    target: &Target,
    checked_server: CheckedServer,
) -> Vec<Finding> {
    let addresses = addresses(target).await;
    let none = BTreeSet::new();
    let expected = Expected {
        target,
        checked_server,
        layout: options.layout,
        published: addresses.as_ref().unwrap_or(&none),
        local: local_addresses::all(),
    };
    let (mut findings, components, nodes) = tokio::join!(
        service(target, options.layout, &addresses),
        components::check(&expected, &options.kubernetes_dir),
        nodes(target),
    );
    let on_node = !components.is_empty();
    findings.extend(components);
    findings.extend(other_nodes(nodes, on_node));
    findings
}

/// The addresses to which the Service `kubernetes` sends clients in pods.
async fn service(
    target: &Target,
    layout: Layout,
    addresses: &Result<BTreeSet<SocketAddr>, String>,
) -> Vec<Finding> {
    let name = "the Service default/kubernetes leads to bridges";
    let addresses = match addresses {
        Ok(addresses) if addresses.is_empty() => {
            return vec![Finding::not_known(
                SECTION,
                name,
                "its EndpointSlices have no address",
            )];
        }
        Ok(addresses) => addresses,
        Err(why) => return vec![Finding::not_known(SECTION, name, why.clone())],
    };
    let probes = addresses.iter().map(|&address| -> parallel::Probe<'_, _> {
        Box::pin(async move {
            let contact =
                server::connect(&server::with_address(target, &address.to_string())).await;
            of_endpoint(address, &contact, layout)
        })
    });
    parallel::all(probes.collect()).await
}

pub(in crate::check) async fn addresses(target: &Target) -> Result<BTreeSet<SocketAddr>, String> {
    let path = format!(
        "{}?limit=500{}",
        endpoint_slice::ENDPOINT_SLICES_PATH,
        endpoint_slice::SELECTOR
    );
    let endpoint = http::prepared(target).await?;
    let answer = http::send(&endpoint, http::get(&path), None).await?;
    answer.json(&path)?;
    let list = List::<EndpointSlice>::parse(&answer.response.body);
    let list = list.map_err(|error| error.to_string())?;
    Ok(list
        .items
        .iter()
        .flat_map(|it| it.addresses().clone())
        .collect())
}

fn of_endpoint(address: SocketAddr, contact: &ServerReachability, layout: Layout) -> Finding {
    let name = format!("the Service default/kubernetes leads to a bridge at {address}");
    match contact {
        ServerReachability::Bridge(_) => Finding::ok(SECTION, name),
        ServerReachability::Server if layout == Layout::SamePort => Finding::failure(
            SECTION,
            name,
            "a kube-apiserver answers: requests of pods go past the bridges",
            Remedy::command(
                INSTALL_COMMAND,
                format!(
                    "let the bridge listen at {address}, and kube-apiserver at --bind-address=\
                     127.0.0.1; the command prints both. If the bridges have another port or are \
                     balancers by intention, give --layout"
                ),
            ),
        ),
        ServerReachability::Server => Finding::warning(
            SECTION,
            name,
            "a kube-apiserver answers: with this layout requests of pods go past the bridges",
            Remedy::command(
                INSTALL_COMMAND,
                "to protect pods, too, use the layout with the same port, which the command prints",
            ),
        ),
        ServerReachability::Unreachable(why) | ServerReachability::Refused(why) => {
            Finding::not_known(SECTION, name, format!("from here: {why}"))
        }
    }
}

/// The names of all nodes.
async fn nodes(target: &Target) -> Result<usize, String> {
    let path = "/api/v1/nodes?limit=500";
    let endpoint = http::prepared(target).await?;
    let answer = http::send(&endpoint, http::get(path), None).await?;
    let nodes = answer.json(path)?;
    Ok(nodes["items"].as_array().map_or(0, Vec::len))
}

/// Kubelets of other nodes, whose kubeconfigs are not on this machine.
fn other_nodes(nodes: Result<usize, String>, on_node: bool) -> Option<Finding> {
    let name = "kubelets of other nodes use bridges";
    let others = match nodes {
        Ok(count) => count.saturating_sub(usize::from(on_node)),
        Err(why) => return Some(Finding::not_known(SECTION, name, why)),
    };
    (others > 0).then(|| {
        let why = format!(
            "{others} nodes: their kubeconfigs are not readable from here; run `skewbridge check` \
             there"
        );
        Finding::not_known(SECTION, name, why)
    })
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::ServerDiscoveryList;

    use super::super::server::BridgeReport;
    use super::*;
    use crate::check::finding::Outcome;

    fn bridge() -> ServerReachability {
        ServerReachability::Bridge(Box::new(BridgeReport {
            list: ServerDiscoveryList::default(),
            not_after: None,
            clock: None,
        }))
    }

    #[test]
    fn what_is_not_reached_is_not_known() {
        use Layout::{Balancer, OtherPort, SamePort};
        let address = "10.0.0.11:6443".parse().unwrap();
        let unreachable = ServerReachability::Unreachable("x".to_owned());
        let rows = [
            (bridge(), SamePort, Outcome::Ok),
            (ServerReachability::Server, SamePort, Outcome::Failure),
            (ServerReachability::Server, OtherPort, Outcome::Warning),
            (ServerReachability::Server, Balancer, Outcome::Warning),
            (unreachable, SamePort, Outcome::NotKnown),
            (
                ServerReachability::Refused("x".to_owned()),
                Balancer,
                Outcome::NotKnown,
            ),
        ];
        for (contact, layout, expected) in rows {
            assert_eq!(of_endpoint(address, &contact, layout).outcome, expected);
        }
        assert_eq!(other_nodes(Ok(1), true), None);
        assert_eq!(other_nodes(Ok(0), false), None);
        let unknown = other_nodes(Ok(3), true).unwrap();
        assert_eq!(unknown.outcome, Outcome::NotKnown);
        assert!(
            unknown.message.starts_with("2 nodes"),
            "{}",
            unknown.message
        );
    }
}
