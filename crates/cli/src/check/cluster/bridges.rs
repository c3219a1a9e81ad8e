//! Whether each server of the cluster has a bridge, and which other servers that bridge reaches.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::SystemTime;

use skewbridge_client::Target;
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList};
use skewbridge_gateway::tls::files::LargestUnit;
use skewbridge_gateway::tls::own_certificates::{EXPIRY_WARNING_PERIOD, PEER_NAME};

use super::server::{self, BridgeReport, ServerReachability};
use super::{AdminAddress, Layout, clients, node};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::handshake::ConnectProblem;
use crate::check::parallel;
use crate::check::preflight::{ServerClock, judge_clocks};

const SECTION: Section = Section::Bridges;

/// Another server of the cluster, and what answers at its address.
pub(super) struct OtherServer {
    pub(super) listed: ServerDiscovery,
    pub(super) contact: Option<ServerReachability>,
    pub(super) target: Option<Target>,
}

/// Whether the server of the kubeconfig is a bridge. The problem is that of a connection.
pub(super) fn first(
    target: &Target,
    contact: &ServerReachability,
    problem: Option<&ConnectProblem>,
) -> Finding {
    let server = target.server();
    let name = format!("{server} is a bridge");
    let other_server = |text: String| Remedy::flag("--server", text);
    match contact {
        ServerReachability::Bridge(answer) => match &answer.list.local_only {
            None => Finding::ok(SECTION, name),
            Some(why) => Finding::warning(
                SECTION,
                format!("{server} is a bridge with peers"),
                format!("it runs local-only: {why}"),
                Remedy::command(
                    "skewbridge check --config=/etc/skewbridge/config.yaml",
                    "set the flags that are missing; run on its machine, the command names them",
                ),
            ),
        },
        ServerReachability::Server => Finding::failure(
            SECTION,
            name,
            "a kube-apiserver answers, without a bridge in front of it",
            Remedy {
                command: Some(format!(
                    "kubectl config set-cluster {} --server=https://BRIDGE:6443",
                    target.cluster_name
                )),
                ..other_server("give --server, or set it in the kubeconfig, to a bridge".to_owned())
            },
        ),
        ServerReachability::Unreachable(why) => Finding::failure(
            SECTION,
            name,
            why.clone(),
            connection_remedy(target, problem),
        ),
        ServerReachability::Refused(why) => Finding::failure(
            SECTION,
            name,
            why.clone(),
            Remedy::command(
                "kubectl auth whoami",
                "use a kubeconfig whose user may read discovery; the command shows the user",
            ),
        ),
    }
}

/// What to do about a server that cannot be connected to.
fn connection_remedy(target: &Target, problem: Option<&ConnectProblem>) -> Remedy {
    let (server, cluster) = (target.server(), &target.cluster_name);
    match problem {
        Some(ConnectProblem::Expired) => Remedy::command(
            "kubeadm certs renew apiserver",
            format!(
                "renew the serving certificate on the machine of {server}; the bridge reads the new \
                 file by itself"
            ),
        ),
        Some(ConnectProblem::NotYetValid) => Remedy::command(
            "timedatectl set-ntp true",
            format!(
                "correct the clock of this machine, or of that which issued {server}'s certificate"
            ),
        ),
        Some(ConnectProblem::UnknownIssuer) => Remedy::command(
            format!(
                "kubectl config set-cluster {cluster} --embed-certs \
                 --certificate-authority=/etc/kubernetes/pki/ca.crt"
            ),
            "let the kubeconfig have the CA that has issued the serving certificate; that of \
             kubeadm is in the command",
        ),
        Some(ConnectProblem::WrongName(_)) => Remedy::flag(
            "--tls-server-name",
            format!(
                "issue the serving certificate with this name, or give --server={server} and \
                 --tls-server-name={PEER_NAME}"
            ),
        ),
        Some(ConnectProblem::Refused) => Remedy {
            command: Some("systemctl start skewbridge".to_owned()),
            ..Remedy::flag(
                "--server",
                "start the bridge on its machine, or correct the address",
            )
        },
        _ => Remedy::flag("--server", "start the bridge, or correct the address"),
    }
}

/// Contacts the other servers that the bridge lists. Where it does not report their addresses,
/// their bridges are looked for at the published addresses, and at those that the admin port of the
/// bridge on this machine shows.
pub(super) async fn others(
    target: &Target,
    answer: &BridgeReport,
    admin: AdminAddress,
) -> Vec<OtherServer> {
    let listed = answer.list.servers.iter().filter(|it| !it.local);
    let listed: Vec<_> = listed.cloned().collect();
    let published = if listed.iter().any(|it| it.address.is_none()) {
        let (published, of_node) = tokio::join!(clients::addresses(target), node::addresses(admin));
        bridges_at(target, &published.unwrap_or_default() | &of_node).await
    } else {
        Vec::new()
    };
    let probes = listed
        .into_iter()
        .map(|listed| -> parallel::Probe<'_, OtherServer> {
            let found = published.iter().find(|it| it.is_in_front_of(&listed));
            Box::pin(async move {
                if let Some(found) = found {
                    return found.of(listed);
                }
                let other_target = listed
                    .address
                    .as_ref()
                    .map(|address| server::with_address(target, address));
                let contact = match &other_target {
                    Some(target) => Some(server::contact(target).await),
                    None => None,
                };
                OtherServer {
                    listed,
                    contact,
                    target: other_target,
                }
            })
        });
    parallel::all(probes.collect()).await
}

/// A bridge at an address that the bridge did not report.
struct PublishedBridge {
    address: String,
    target: Target,
    answer: Box<BridgeReport>,
}

impl PublishedBridge {
    /// Whether a server is the one behind this bridge.
    fn is_in_front_of(&self, server: &ServerDiscovery) -> bool {
        let mut servers = self.answer.list.servers.iter();
        server.address.is_none() && servers.any(|it| it.local && it.identity == server.identity)
    }

    fn of(&self, mut listed: ServerDiscovery) -> OtherServer {
        listed.address = Some(self.address.clone());
        OtherServer {
            listed,
            contact: Some(ServerReachability::Bridge(self.answer.clone())),
            target: Some(self.target.clone()),
        }
    }
}

async fn bridges_at(target: &Target, addresses: BTreeSet<SocketAddr>) -> Vec<PublishedBridge> {
    let probes = addresses
        .into_iter()
        .map(|address| -> parallel::Probe<'_, _> {
            Box::pin(async move {
                let address = address.to_string();
                let target = server::with_address(target, &address);
                match server::contact(&target).await {
                    ServerReachability::Bridge(answer) => Some(PublishedBridge {
                        address,
                        target,
                        answer,
                    }),
                    _ => None,
                }
            })
        });
    let bridges = parallel::all(probes.collect()).await;
    bridges.into_iter().flatten().collect()
}

/// The findings about all bridges.
pub(super) fn judge(
    target: &Target,
    answer: &BridgeReport,
    others: &[OtherServer],
    layout: Layout,
) -> Vec<Finding> {
    let now = SystemTime::now();
    let server = target.server();
    let mut findings = Vec::new();
    let mut clocks = Vec::new();
    let identities = |list: &ServerDiscoveryList| -> BTreeSet<String> {
        list.servers.iter().map(|it| it.identity.clone()).collect()
    };
    let known = identities(&answer.list);
    let local = answer.list.servers.iter().find(|it| it.local);
    if let Some(local) = local {
        let name = format!("the kube-apiserver of {} answers its bridge", host(local));
        findings.push(reachable(name, local));
    }
    let mut of_bridge = |name: &str, answer: &BridgeReport| {
        findings.push(certificate(name, answer.not_after, now));
        if let Some(reading) = answer.clock {
            let server = name.to_owned();
            clocks.push(ServerClock { server, reading });
        }
    };
    of_bridge(&server, answer);
    for other in others {
        if let (Some(ServerReachability::Bridge(answer)), Some(address)) =
            (&other.contact, &other.listed.address)
        {
            of_bridge(address, answer);
        }
    }
    for other in others {
        let listed = &other.listed;
        let name = format!("{server} reaches {}", host(listed));
        findings.push(reachable(name, listed));
        findings.push(contacted(other, &server, layout, &known, &identities));
    }
    findings.extend(judge_clocks(&clocks));
    findings
}

/// The host of a server with its version.
pub(super) fn host(server: &ServerDiscovery) -> String {
    let host = server.host.as_ref().unwrap_or(&server.identity);
    match &server.version {
        Some(version) => format!("{host} ({version})"),
        None => host.clone(),
    }
}

fn reachable(name: String, listed: &ServerDiscovery) -> Finding {
    let problem = match &listed.problem {
        None if listed.reachable || (listed.local && listed.groups.is_some()) => {
            return Finding::ok(SECTION, name);
        }
        None => "it does not answer".to_owned(),
        Some(problem) => problem.clone(),
    };
    let at = listed
        .address
        .as_ref()
        .map_or_else(String::new, |it| format!("{it}: "));
    let remedy = Remedy::command(
        "skewbridge check",
        format!(
            "start the bridge of {}; run on its machine, the command shows what it lacks",
            host(listed)
        ),
    );
    Finding::failure(SECTION, name, format!("{at}{problem}"), remedy)
}

fn contacted(
    other: &OtherServer,
    server: &str,
    layout: Layout,
    known: &BTreeSet<String>,
    identities: &dyn Fn(&ServerDiscoveryList) -> BTreeSet<String>,
) -> Finding {
    let host = host(&other.listed);
    let at = other.listed.address.clone().unwrap_or_default();
    let name = format!("{host} has a bridge at {at}");
    match &other.contact {
        None if layout == Layout::Balancer => {
            Finding::ok(SECTION, format!("{host} is behind {server}"))
        }
        None => {
            let name = format!("{host} has a bridge");
            Finding::not_known(SECTION, name, format!("{server} has no address for it"))
        }
        Some(ServerReachability::Bridge(answer)) => {
            let other_identities = identities(&answer.list);
            let name = format!("{host} has a bridge at {at}, which reaches the same servers");
            let missing: Vec<_> = known.difference(&other_identities).cloned().collect();
            let servers = answer.list.servers.iter();
            let unreachable: Vec<_> = (servers.filter(|it| !it.local && !it.reachable))
                .map(self::host)
                .collect();
            let why = match &answer.list.local_only {
                Some(why) => format!("it runs local-only: {why}"),
                None if !missing.is_empty() => format!("it does not list {}", missing.join(", ")),
                None if !unreachable.is_empty() => {
                    format!("it does not reach {}", unreachable.join(", "))
                }
                None => return Finding::ok(SECTION, name),
            };
            let remedy = Remedy::command(
                "skewbridge check --config=/etc/skewbridge/config.yaml",
                format!(
                    "give the bridge of {host} the same registry and flags; run on its machine, \
                     the command names what is missing"
                ),
            );
            Finding::failure(SECTION, name, why, remedy)
        }
        Some(ServerReachability::Server) if layout == Layout::Balancer => {
            Finding::ok(SECTION, format!("{host} at {at} is behind {server}"))
        }
        Some(ServerReachability::Server) => Finding::warning(
            SECTION,
            name,
            "a kube-apiserver answers: requests of its clients are not rerouted",
            Remedy::command(
                "skewbridge manifest kubeadm",
                "install a bridge on its machine; the command prints what to install",
            ),
        ),
        Some(ServerReachability::Unreachable(why) | ServerReachability::Refused(why)) => {
            Finding::not_known(SECTION, name, format!("from here: {why}"))
        }
    }
}

fn certificate(server: &str, not_after: Option<SystemTime>, now: SystemTime) -> Finding {
    let name = format!("the serving certificate of {server} is valid");
    let Some(not_after) = not_after else {
        return Finding::not_known(SECTION, name, "it could not be read");
    };
    match not_after.duration_since(now) {
        Ok(left) if left >= EXPIRY_WARNING_PERIOD => {
            Finding::ok(SECTION, name).message(format!("for {}", LargestUnit(left)))
        }
        left => {
            let left = LargestUnit(left.unwrap_or_default());
            let remedy = Remedy::command(
                "kubeadm certs renew apiserver",
                "renew it on its machine; the bridge reads the new file by itself",
            );
            Finding::warning(SECTION, name, format!("it expires in {left}"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use skewbridge_client::Kubeconfig;

    use super::*;
    use crate::check::finding::Outcome;

    fn listed(identity: &str) -> ServerDiscovery {
        ServerDiscovery {
            identity: identity.to_owned(),
            host: Some(format!("host-{identity}")),
            address: Some("10.0.0.12:6443".to_owned()),
            reachable: true,
            ..ServerDiscovery::default()
        }
    }

    fn bridge(known: &[&str]) -> ServerReachability {
        ServerReachability::Bridge(Box::new(BridgeReport {
            list: ServerDiscoveryList {
                servers: known.iter().map(|it| listed(it)).collect(),
                ..ServerDiscoveryList::default()
            },
            not_after: None,
            clock: None,
        }))
    }

    #[test]
    fn each_server_has_a_bridge_that_knows_the_same_servers() {
        let known = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let identities = |list: &ServerDiscoveryList| -> BTreeSet<String> {
            list.servers.iter().map(|it| it.identity.clone()).collect()
        };
        let mut unreachable = bridge(&["a", "b"]);
        if let ServerReachability::Bridge(answer) = &mut unreachable {
            answer.list.servers[0].reachable = false;
        }
        let rows = [
            (Some(bridge(&["a", "b"])), Outcome::Ok),
            (Some(bridge(&["a", "b", "c"])), Outcome::Ok),
            (Some(bridge(&["b"])), Outcome::Failure),
            (Some(unreachable), Outcome::Failure),
            (Some(ServerReachability::Server), Outcome::Warning),
            (
                Some(ServerReachability::Unreachable(String::new())),
                Outcome::NotKnown,
            ),
            (None, Outcome::NotKnown),
        ];
        for (contact, expected) in rows {
            let other = OtherServer {
                listed: listed("b"),
                contact,
                target: None,
            };
            let judge = |layout| contacted(&other, "10.0.0.11:6443", layout, &known, &identities);
            let found = judge(Layout::SamePort);
            assert_eq!(found.outcome, expected, "{found:?}");
            let found = judge(Layout::Balancer);
            let is_server = matches!(other.contact, Some(ServerReachability::Server) | None);
            let expected = if is_server { Outcome::Ok } else { expected };
            assert_eq!(found.outcome, expected, "{found:?}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_valid_is_not_an_address_that_is_wrong() {
        let text = "{current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}], \
            clusters: [{name: c, cluster: {server: 'https://10.0.0.10:6443'}}], \
            users: [{name: u, user: {}}]}";
        let config = Kubeconfig::parse(text, Path::new("a.conf")).unwrap();
        let target = config.target(None).unwrap();
        let contact = ServerReachability::Unreachable("x".to_owned());
        let rows = [
            (
                Some(ConnectProblem::Expired),
                None,
                Some("kubeadm certs renew"),
            ),
            (
                Some(ConnectProblem::UnknownIssuer),
                None,
                Some("kubectl config set-cluster c "),
            ),
            (
                Some(ConnectProblem::WrongName(String::new())),
                Some("--tls-server-name"),
                None,
            ),
            (
                Some(ConnectProblem::Refused),
                Some("--server"),
                Some("systemctl start"),
            ),
            (Some(ConnectProblem::Timeout), Some("--server"), None),
            (None, Some("--server"), None),
        ];
        for (problem, flag, command) in rows {
            let found = first(&target, &contact, problem.as_ref());
            assert_eq!(found.outcome, Outcome::Failure);
            let remedy = found.remedy.unwrap();
            assert_eq!(remedy.flag.as_deref(), flag, "{problem:?}");
            let found = remedy.command.unwrap_or_default();
            assert!(
                found.starts_with(command.unwrap_or_default()),
                "{problem:?} {found}"
            );
            assert_eq!(found.is_empty(), command.is_none(), "{problem:?}");
        }
    }

    #[test]
    fn a_server_with_a_problem_is_a_failure() {
        let problem = ServerDiscovery {
            problem: Some("refused".to_owned()),
            ..listed("b")
        };
        let unreachable = ServerDiscovery {
            reachable: false,
            ..listed("b")
        };
        for (server, expected) in [
            (listed("b"), Outcome::Ok),
            (problem, Outcome::Failure),
            (unreachable, Outcome::Failure),
        ] {
            assert_eq!(reachable("a".to_owned(), &server).outcome, expected);
        }
    }

    #[test]
    fn certificates_are_reported_before_they_expire() {
        let now = SystemTime::now();
        let days = |count: u64| Some(now + Duration::from_hours(24 * count));
        assert_eq!(certificate("a", days(31), now).outcome, Outcome::Ok);
        assert_eq!(certificate("a", days(29), now).outcome, Outcome::Warning);
        assert_eq!(certificate("a", None, now).outcome, Outcome::NotKnown);
    }
}
