//! The bridge on this machine, by its admin port.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;

use super::AdminAddress;
use crate::check::admin_port;
use crate::check::finding::{Finding, Remedy, Section};

const SECTION: Section = Section::Node;

pub(super) async fn check(admin: AdminAddress) -> Vec<Finding> {
    let address = socket_address(admin);
    let (ready, peers) = tokio::join!(
        admin_port::page(address, "/readyz?verbose"),
        admin_port::peers(address)
    );
    let documents = match (peers, admin) {
        (Ok(documents), _) => documents,
        // Without --admin-address a bridge is optional here.
        (Err(_), AdminAddress::Default) => return Vec::new(),
        (Err(why), AdminAddress::At(_)) => {
            let remedy = Remedy::command(
                "systemctl start skewbridge",
                "start the bridge, or correct --admin-address",
            )
            .of_flag("--admin-address");
            let name = format!("a bridge answers at {address}");
            return vec![Finding::failure(SECTION, name, why, remedy)];
        }
    };
    let ready = ready.map(|it| {
        let text = String::from_utf8_lossy(&it.body).into_owned();
        (it.status.as_u16(), text)
    });
    let mut findings = vec![of_readyz(address, &ready)];
    findings.extend(documents.iter().flat_map(of_document));
    findings
}

fn socket_address(admin: AdminAddress) -> SocketAddr {
    match admin {
        AdminAddress::Default => admin_port::DEFAULT_ADDRESS,
        AdminAddress::At(address) => address,
    }
}

/// The addresses of all bridges that the bridge on this machine knows; none if there is no bridge.
pub(super) async fn addresses(admin: AdminAddress) -> BTreeSet<SocketAddr> {
    let documents = admin_port::peers(socket_address(admin)).await;
    let documents = documents.unwrap_or_default();
    documents.iter().flat_map(addresses_of_document).collect()
}

fn addresses_of_document(document: &Value) -> Vec<SocketAddr> {
    let peers = document["peers"].as_array().into_iter().flatten();
    let servers = peers.chain([&document["local"]]);
    let addresses = servers.filter_map(|it| it["address"].as_str());
    addresses.filter_map(|it| it.parse().ok()).collect()
}

fn of_readyz(address: SocketAddr, ready: &Result<(u16, String), String>) -> Finding {
    let name = "the bridge is ready";
    let remedy = || {
        Remedy::command(
            format!("curl -s 'http://{address}/readyz?verbose'"),
            "correct what its failing checks name; the command shows them",
        )
    };
    match ready {
        Ok((200, _)) => Finding::ok(SECTION, name).message(format!("at {address}")),
        Ok((_, text)) => {
            let failing: Vec<_> = text.lines().filter(|it| it.starts_with("[-]")).collect();
            let failing = failing.join("; ");
            Finding::failure(SECTION, name, failing, remedy())
        }
        Err(why) => Finding::failure(SECTION, name, why, remedy()),
    }
}

/// The findings of one backend.
fn of_document(document: &Value) -> Vec<Finding> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let prefix = match document["upstream"].as_str() {
        Some(upstream) => format!("{upstream}: "),
        None => String::new(),
    };
    if let Some(why) = document["localOnly"].as_str() {
        let name = format!("{prefix}the bridge has peers");
        let remedy = Remedy::command(
            "skewbridge check --config=/etc/skewbridge/config.yaml",
            "set the flags that are missing; the command names them",
        );
        let why = format!("it runs local-only: {why}");
        return vec![Finding::warning(SECTION, name, why, remedy)];
    }
    let mut findings = Vec::new();
    let waiting = document["waitingFor"].as_str();
    let name = format!("{prefix}the bridge has read the servers of the cluster");
    findings.push(match waiting {
        None => Finding::ok(SECTION, name),
        Some(input) => Finding::failure(
            SECTION,
            name,
            format!("it waits for {input}"),
            Remedy::command(
                "journalctl -u skewbridge",
                "the log of the bridge names what it cannot read",
            ),
        ),
    });
    let registry = &document["registry"];
    if registry.is_object() {
        let name = format!("{prefix}the registry ({}) works", text(&registry["kind"]));
        findings.push(if registry["up"] == true {
            Finding::ok(SECTION, name)
        } else {
            Finding::failure(
                SECTION,
                name,
                text(&registry["lastError"]),
                Remedy::flag("--peer-registry", "correct what the message names"),
            )
        });
    }
    if let Some(problem) = document["local"]["problem"].as_str() {
        let name = format!("{prefix}the identity of the local server is plausible");
        let remedy = Remedy::flag("--apiserver-identity", "set it to the name of its Lease");
        findings.push(Finding::warning(SECTION, name, problem, remedy));
    }
    let peers = document["peers"].as_array();
    findings.extend(
        peers
            .into_iter()
            .flatten()
            .map(|peer| of_peer(&prefix, peer)),
    );
    findings
}

fn of_peer(prefix: &str, peer: &Value) -> Finding {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let identity = text(&peer["identity"]).unwrap_or_default();
    let host = text(&peer["host"]).unwrap_or_else(|| identity.clone());
    let address = text(&peer["address"]);
    let name = format!("{prefix}the bridge reaches {host}");
    let at = address
        .clone()
        .unwrap_or_else(|| "an unknown address".to_owned());
    if peer["reachable"] == true {
        let version = text(&peer["version"]).unwrap_or_default();
        let kind = if peer["bridge"] == true {
            "bridge"
        } else {
            "kube-apiserver"
        };
        return Finding::ok(SECTION, name).message(format!("{kind} at {at}, {version}"));
    }
    let problem = text(&peer["problem"]).unwrap_or_else(|| "it is not reachable".to_owned());
    let problem = format!("{at}: {problem}");
    if peer["alive"] != true {
        let remedy = Remedy::command(
            format!("kubectl -n kube-system delete lease {identity}"),
            "start the server, or, if it is gone for good, delete its Lease",
        );
        return Finding::warning(SECTION, name, problem, remedy);
    }
    let remedy = Remedy::command(
        "skewbridge check",
        format!("start the bridge of {host}; run on its machine, the command shows what it lacks"),
    );
    Finding::failure(SECTION, name, problem, remedy)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn peers_are_judged_by_their_state() {
        let peer = |alive: bool, reachable: bool| {
            json!({"identity": "apiserver-a", "host": "cp-2", "address": "10.0.0.12:6443",
                "version": "v1.36.4", "alive": alive, "reachable": reachable, "bridge": true})
        };
        let rows = [
            (peer(true, true), Outcome::Ok),
            (peer(true, false), Outcome::Failure),
            (peer(false, false), Outcome::Warning),
        ];
        for (peer, expected) in rows {
            assert_eq!(of_peer("", &peer).outcome, expected, "{peer}");
        }
    }

    #[test]
    fn a_document_distinguishes_a_failed_registry_waiting_and_local_only() {
        use Outcome::{Failure, Ok, Warning};
        let outcomes = |document: Value| -> Vec<_> {
            of_document(&document).iter().map(|it| it.outcome).collect()
        };
        assert_eq!(outcomes(json!({"localOnly": "x", "peers": []})), [Warning]);
        let registry = json!({"kind": "etcd", "up": true});
        assert_eq!(
            outcomes(json!({"registry": registry, "peers": []})),
            [Ok, Ok]
        );
        let registry = json!({"kind": "etcd", "up": false, "lastError": "x"});
        let waiting = json!({"registry": registry, "waitingFor": "leases", "peers": []});
        assert_eq!(outcomes(waiting), [Failure, Failure]);
    }

    #[test]
    fn a_document_has_the_addresses_of_its_bridge_and_of_peers() {
        let document = json!({
            "local": {"identity": "a", "address": "10.0.0.11:7443"},
            "peers": [{"identity": "b", "address": "10.0.0.12:7443"}, {"identity": "c"}],
        });
        let mut found = addresses_of_document(&document);
        found.sort_unstable();
        let found: Vec<_> = found.iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.11:7443", "10.0.0.12:7443"]);
        assert!(addresses_of_document(&json!({"localOnly": "x", "peers": []})).is_empty());
    }

    #[test]
    fn failing_checks_of_readiness_are_named() {
        let address = admin_port::DEFAULT_ADDRESS;
        let text = "[+]ping ok\n[-]upstream failed: refused\nreadyz check failed\n";
        let found = of_readyz(address, &Ok((503, text.to_owned())));
        assert_eq!(found.outcome, Outcome::Failure);
        assert_eq!(found.message, "[-]upstream failed: refused");
    }
}
