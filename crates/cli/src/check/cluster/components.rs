//! Whether the components of this node use bridges, by their kubeconfigs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use skewbridge_client::{Kubeconfig, Target};

use super::server::{self, ServerReachability};
use super::{INSTALL_COMMAND, Layout};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::handshake::ConnectProblem;
use crate::check::parallel;
use crate::flag_values;

const SECTION: Section = Section::Clients;

/// kubeadm's kubeconfig files, and the component that uses each.
const COMPONENTS: [(&str, &str); 5] = [
    ("controller-manager.conf", "kube-controller-manager"),
    ("scheduler.conf", "kube-scheduler"),
    ("kubelet.conf", "kubelet"),
    ("admin.conf", "the administrator"),
    ("super-admin.conf", "the break-glass administrator"),
];

/// How often the server of a component is connected to: a load balancer may have backends of which
/// only some are bridges.
const CONNECTIONS: usize = 10;

/// What answers at the server of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckedServer {
    Bridge,
    /// A kube-apiserver, or nothing.
    NotBridge,
}

/// What the clients of a cluster are judged by.
pub(super) struct Expected<'a> {
    pub(super) target: &'a Target,
    pub(super) checked_server: CheckedServer,
    pub(super) layout: Layout,
    /// The addresses of the Service `kubernetes`.
    pub(super) published: &'a BTreeSet<SocketAddr>,
    /// The addresses of this machine.
    pub(super) local: BTreeSet<IpAddr>,
}

/// Checks the kubeconfigs of components on this machine.
pub(super) async fn check(expected: &Expected<'_>, directory: &Path) -> Vec<Finding> {
    let files = COMPONENTS.map(|(file, component)| (directory.join(file), component));
    let files = files.into_iter().filter(|(path, _)| path.exists());
    let probes = files.map(|(path, component)| -> parallel::Probe<'_, Finding> {
        Box::pin(async move {
            let configured = Kubeconfig::load(Some(&path)).and_then(|it| it.target(None));
            match configured {
                Err(error) => {
                    let name = format!("{component} ({}) uses a bridge", path.display());
                    Finding::not_known(SECTION, name, error.to_string())
                }
                Ok(configured) => {
                    let reached = reached(expected.target, &configured).await;
                    of_component(&path, component, &configured, &reached, expected)
                }
            }
        })
    });
    parallel::all(probes.collect()).await
}

/// What answered at the server of a kubeconfig.
struct Reached {
    /// How many connections led to a bridge.
    bridges: usize,
    /// The answer on the last connection, which is a bridge only if all are.
    last: ServerReachability,
    /// Whether nothing listens there.
    is_refused: bool,
}

/// Connects to the server of a kubeconfig until something else than a bridge answers. The
/// credentials in it may not be readable, or may not be permitted to read discovery: then as the
/// user of the check.
async fn reached(target: &Target, configured: &Target) -> Reached {
    let mut user = configured.clone();
    let mut last = server::connect(&user).await;
    if matches!(
        last,
        ServerReachability::Unreachable(_) | ServerReachability::Refused(_)
    ) {
        user.user = target.user.clone();
        user.cluster.certificate_authority = target.cluster.certificate_authority.clone();
        last = server::connect(&user).await;
    }
    let mut bridges = 0;
    while matches!(last, ServerReachability::Bridge(_)) {
        bridges += 1;
        if bridges == CONNECTIONS {
            break;
        }
        last = server::connect(&user).await;
    }
    let is_refused = match last {
        ServerReachability::Unreachable(_) => {
            server::problem(&user).await == Some(ConnectProblem::Refused)
        }
        _ => false,
    };
    Reached {
        bridges,
        last,
        is_refused,
    }
}

fn of_component(
    path: &Path,
    component: &str,
    configured: &Target,
    reached: &Reached,
    expected: &Expected<'_>,
) -> Finding {
    let server = &configured.cluster.server;
    let name = format!("{component} ({}) uses a bridge", path.display());
    match (&reached.last, reached.bridges) {
        (ServerReachability::Bridge(_), count) => {
            Finding::ok(SECTION, name).message(format!("{server}, {count} connections"))
        }
        (ServerReachability::Server, 0) => {
            let remedy = server_remedy(path, component, configured, expected);
            if expected.is_kube_apiserver(server) {
                let why = format!(
                    "at {server} a kube-apiserver answers: with this layout its requests go past \
                     the bridge"
                );
                return Finding::warning(SECTION, name, why, remedy);
            }
            let why =
                format!("at {server} a kube-apiserver answers: its requests go past the bridge");
            Finding::failure(SECTION, name, why, remedy)
        }
        (ServerReachability::Server, count) => Finding::failure(
            SECTION,
            name,
            format!(
                "at {server} a kube-apiserver answered after {count} connections to bridges: a \
                 load balancer there has a backend without a bridge"
            ),
            Remedy::command(
                INSTALL_COMMAND,
                "install a bridge on the nodes that have none, or remove them from the load \
                 balancer; run on such a node, the command prints what to install",
            ),
        ),
        // The component has no server while nothing listens there.
        (ServerReachability::Unreachable(why), 0)
            if reached.is_refused && expected.is_local(server) =>
        {
            let why = format!("{server}: {why}");
            Finding::failure(SECTION, name, why, expected.start_remedy(server))
        }
        (ServerReachability::Unreachable(why) | ServerReachability::Refused(why), 0) => {
            Finding::not_known(SECTION, name, format!("{server}: {why}"))
        }
        (ServerReachability::Unreachable(why) | ServerReachability::Refused(why), count) => {
            Finding::not_known(
                SECTION,
                name,
                format!("{server}: after {count} connections to bridges: {why}"),
            )
        }
    }
}

/// A node without a bridge gets one; its kubeconfigs stay as kubeadm writes them. Other servers are
/// replaced by the bridge of this node, if one is known: that of another node would make this node
/// depend on the other one.
fn server_remedy(
    path: &Path,
    component: &str,
    configured: &Target,
    expected: &Expected<'_>,
) -> Remedy {
    let server = &configured.cluster.server;
    if expected.layout == Layout::SamePort && expected.is_published(server) {
        return Remedy::command(
            INSTALL_COMMAND,
            format!(
                "install a bridge on the node of {server}, and leave the file as it is; run \
                 on that node, the command prints what to install"
            ),
        );
    }
    match expected.bridge_of_this_node() {
        Some(bridge) => Remedy {
            file: Some(path.to_owned()),
            ..Remedy::command(
                format!(
                    "kubectl --kubeconfig={} config set-cluster {} --server={bridge}",
                    path.display(),
                    configured.cluster_name,
                ),
                format!("set the address of the bridge, and restart {component}"),
            )
        },
        None => Remedy::file(
            path,
            format!(
                "set `server` to the address of the bridge of this node, and restart {component}"
            ),
        ),
    }
}

impl Expected<'_> {
    /// Whether the layout leaves this server of a component to kube-apiserver.
    fn is_kube_apiserver(&self, server: &str) -> bool {
        self.layout != Layout::SamePort && self.is_published(server)
    }

    fn is_published(&self, server: &str) -> bool {
        address(server).is_some_and(|it| self.published.contains(&it))
    }

    /// Whether a server is on this machine.
    fn is_local(&self, server: &str) -> bool {
        address(server).is_some_and(|it| it.ip().is_loopback() || self.local.contains(&it.ip()))
    }

    /// What has to listen at an address of this machine.
    fn start_remedy(&self, server: &str) -> Remedy {
        let is_loopback = address(server).is_some_and(|it| it.ip().is_loopback());
        if is_loopback || self.is_kube_apiserver(server) {
            Remedy::command(
                "journalctl -u kubelet",
                format!(
                    "let a kube-apiserver listen at {server}; the log of kubelet shows why it does \
                     not run"
                ),
            )
        } else {
            Remedy::command(
                "systemctl restart skewbridge",
                format!(
                    "start the bridge at {server}; its log (journalctl -u skewbridge) shows why it \
                     has ended"
                ),
            )
        }
    }

    /// The URL of the bridge of this node, or of the balancer.
    fn bridge_of_this_node(&self) -> Option<String> {
        if self.checked_server != CheckedServer::Bridge {
            return None;
        }
        let checked = &self.target.cluster.server;
        let is_own = match self.layout {
            Layout::Balancer => true,
            Layout::SamePort => self.is_local(checked) && self.is_published(checked),
            Layout::OtherPort => self.is_local(checked),
        };
        if is_own {
            return Some(checked.clone());
        }
        let is_same_port = self.layout == Layout::SamePort;
        let mut own = self
            .published
            .iter()
            .filter(|it| self.local.contains(&it.ip()));
        let own = own.next().filter(|_| is_same_port);
        own.map(|address| format!("https://{address}"))
    }
}

/// The address in a URL without a name.
fn address(server: &str) -> Option<SocketAddr> {
    let endpoint = flag_values::endpoint(server).ok()?;
    let ip = endpoint.host.parse().ok()?;
    Some(SocketAddr::new(ip, endpoint.port.unwrap_or(443)))
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::ServerDiscoveryList;

    use super::super::server::BridgeReport;
    use super::*;
    use crate::check::finding::Outcome;

    fn target(server: &str) -> Target {
        let text = format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: kubernetes, user: u}}}}], \
             clusters: [{{name: kubernetes, cluster: {{server: '{server}'}}}}], \
             users: [{{name: u, user: {{}}}}]}}"
        );
        Kubeconfig::parse(&text, Path::new("a.conf"))
            .unwrap()
            .target(None)
            .unwrap()
    }

    fn bridge() -> ServerReachability {
        ServerReachability::Bridge(Box::new(BridgeReport {
            list: ServerDiscoveryList::default(),
            not_after: None,
            clock: None,
        }))
    }

    /// The finding of `scheduler.conf`, which names this server.
    fn scheduler(
        server: &str,
        reached: &Reached,
        checked_server: CheckedServer,
        layout: Layout,
    ) -> Finding {
        let published = ["10.0.0.11:6443", "10.0.0.12:6443"].map(|it| it.parse().unwrap());
        let published = BTreeSet::from(published);
        // The bridge of another node.
        let checked = target("https://10.0.0.12:6443");
        let expected = Expected {
            target: &checked,
            checked_server,
            layout,
            published: &published,
            local: BTreeSet::from([[10, 0, 0, 11], [127, 0, 0, 1]].map(IpAddr::from)),
        };
        let path = Path::new("/etc/kubernetes/scheduler.conf");
        of_component(path, "kube-scheduler", &target(server), reached, &expected)
    }

    #[test]
    fn a_component_past_the_bridge_has_a_remedy() {
        let server = || Reached {
            bridges: 0,
            last: ServerReachability::Server,
            is_refused: false,
        };
        let at = "https://127.0.0.1:6443";
        let found = scheduler(at, &server(), CheckedServer::Bridge, Layout::SamePort);
        assert_eq!(found.outcome, Outcome::Failure);
        assert_eq!(
            found.remedy.unwrap().command.unwrap(),
            "kubectl --kubeconfig=/etc/kubernetes/scheduler.conf config set-cluster kubernetes \
             --server=https://10.0.0.11:6443"
        );
        // The server of the check is no bridge either.
        let found = scheduler(at, &server(), CheckedServer::NotBridge, Layout::SamePort);
        assert_eq!(found.outcome, Outcome::Failure);
        let remedy = found.remedy.unwrap();
        assert_eq!(remedy.command, None);
        assert!(remedy.file.unwrap().ends_with("scheduler.conf"));
    }

    /// A node depends on its own bridge, and kubeadm's kubeconfigs stay as they are.
    #[test]
    fn a_remedy_keeps_a_node_independent_of_other_nodes() {
        use Layout::{Balancer, OtherPort, SamePort};
        let command =
            "kubectl --kubeconfig=/etc/kubernetes/scheduler.conf config set-cluster kubernetes";
        let own = format!("{command} --server=https://10.0.0.11:6443");
        let checked = format!("{command} --server=https://10.0.0.12:6443");
        let [first, second] = ["https://10.0.0.11:6443", "https://10.0.0.12:6443"];
        let rows = [
            (SamePort, first, Some(INSTALL_COMMAND)),
            (SamePort, second, Some(INSTALL_COMMAND)),
            (SamePort, "https://127.0.0.1:6443", Some(&*own)),
            (SamePort, "https://api.example.com:6443", Some(&own)),
            (Balancer, first, Some(&checked)),
            // The bridge of this node is not known.
            (OtherPort, first, None),
        ];
        for (layout, server, expected) in rows {
            let reached = Reached {
                bridges: 0,
                last: ServerReachability::Server,
                is_refused: false,
            };
            let found = scheduler(server, &reached, CheckedServer::Bridge, layout);
            let remedy = found.remedy.unwrap();
            assert_eq!(remedy.command.as_deref(), expected, "{layout:?} {server}");
            let names_file = remedy.file.is_some();
            assert_eq!(
                names_file,
                expected != Some(INSTALL_COMMAND),
                "{layout:?} {server}"
            );
        }
    }

    #[test]
    fn a_layout_leaves_published_addresses_to_kube_apiserver() {
        use Layout::{Balancer, OtherPort, SamePort};
        let [published, other] = ["https://10.0.0.11:6443", "https://api.example.com:6443"];
        let rows = [
            (SamePort, published, Outcome::Failure),
            (OtherPort, published, Outcome::Warning),
            (Balancer, published, Outcome::Warning),
            (OtherPort, other, Outcome::Failure),
            (Balancer, other, Outcome::Failure),
        ];
        for (layout, server, expected) in rows {
            let reached = Reached {
                bridges: 0,
                last: ServerReachability::Server,
                is_refused: false,
            };
            let found = scheduler(server, &reached, CheckedServer::Bridge, layout);
            assert_eq!(found.outcome, expected, "{layout:?} {server}");
        }
    }

    #[test]
    fn every_backend_of_a_load_balancer_has_to_be_a_bridge() {
        let rows = [
            (CONNECTIONS, bridge(), Outcome::Ok),
            (2, ServerReachability::Server, Outcome::Failure),
            (
                2,
                ServerReachability::Unreachable("x".to_owned()),
                Outcome::NotKnown,
            ),
            (
                0,
                ServerReachability::Refused("x".to_owned()),
                Outcome::NotKnown,
            ),
        ];
        for (bridges, last, expected) in rows {
            let reached = Reached {
                bridges,
                last,
                is_refused: false,
            };
            let at = "https://api.example.com:6443";
            let found = scheduler(at, &reached, CheckedServer::Bridge, Layout::SamePort);
            assert_eq!(found.outcome, expected, "{found:?}");
        }
    }

    /// A component whose own server is down is not one that cannot be checked from here.
    #[test]
    fn a_server_of_this_node_that_is_down_is_a_failure() {
        use Layout::{OtherPort, SamePort};
        let [bridge, server] = ["systemctl restart skewbridge", "journalctl -u kubelet"];
        let rows = [
            ("https://10.0.0.11:6443", SamePort, true, Some(bridge)),
            ("https://127.0.0.1:6443", SamePort, true, Some(server)),
            ("https://10.0.0.11:6443", OtherPort, true, Some(server)),
            ("https://10.0.0.11:7443", OtherPort, true, Some(bridge)),
            // A firewall, another node, and a load balancer.
            ("https://10.0.0.11:6443", SamePort, false, None),
            ("https://10.0.0.12:6443", SamePort, true, None),
            ("https://api.example.com:6443", SamePort, true, None),
        ];
        for (at, layout, is_refused, expected) in rows {
            let reached = Reached {
                bridges: 0,
                last: ServerReachability::Unreachable("x".to_owned()),
                is_refused,
            };
            let found = scheduler(at, &reached, CheckedServer::Bridge, layout);
            let command = found.remedy.and_then(|it| it.command);
            assert_eq!(command.as_deref(), expected, "{at} {layout:?}");
            let is_failure = found.outcome == Outcome::Failure;
            assert_eq!(is_failure, expected.is_some(), "{at} {layout:?}");
        }
    }
}
