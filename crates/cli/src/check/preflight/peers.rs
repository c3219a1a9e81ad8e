//! Whether the peers in the registry are reachable bridges with valid certificates.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use skewbridge_client::Error;
use skewbridge_gateway::config::{Config, Egress};
use skewbridge_gateway::peer_config::{PeeringDisabled, advertised_address, own_identity};
use skewbridge_gateway::tls::client_config;
use skewbridge_gateway::tls::files::load_ca;
use skewbridge_gateway::tls::own_certificates::PEER_NAME;
use skewbridge_k8s_api::forwarding_headers::PEER_PROXIED;
use skewbridge_k8s_api::identity::User;

use super::clocks::ServerClock;
use super::registry::{PeerAddress, Source};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::handshake::{ConnectProblem, handshake_at};
use crate::check::http::{self, Access};
use crate::check::parallel;

const SECTION: Section = Section::Peers;

/// What was found, and the clocks of the peers.
#[derive(Debug, Default)]
pub(super) struct PeerChecks {
    pub(super) findings: Vec<Finding>,
    pub(super) clocks: Vec<ServerClock>,
}

/// Without peers nothing protects requests for APIs that only other servers serve.
pub(super) fn local_only(why: &PeeringDisabled) -> PeerChecks {
    let name = "the bridge has peers";
    let finding = match why {
        PeeringDisabled::GateOff => {
            Finding::ok(SECTION, "the bridge runs without peers").message("by --feature-gates")
        }
        PeeringDisabled::MissingFlag(flag) => Finding::warning(
            SECTION,
            name,
            format!("{flag} is not set: every request goes to the local server"),
            Remedy::flag(
                flag,
                format!("set {flag}; `skewbridge manifest` prints a configuration"),
            ),
        ),
        PeeringDisabled::Invalid(why) => Finding::warning(
            SECTION,
            name,
            why.clone(),
            Remedy::flag("--peer-registry", "correct the flag"),
        ),
    };
    PeerChecks {
        findings: vec![finding],
        clocks: Vec::new(),
    }
}

pub(super) async fn check(config: &Config, addresses: &[PeerAddress]) -> PeerChecks {
    let mut checked = PeerChecks::default();
    let Some(own) = advertised_address(config) else {
        let remedy = Remedy::flag(
            "--peer-advertise-ip",
            "set it to an address of this machine that peers can reach",
        );
        let why = "this machine has no default interface";
        let name = "the address for peers is known";
        checked
            .findings
            .push(Finding::failure(SECTION, name, why, remedy));
        return checked;
    };
    checked.findings.push(own_address(own));
    let identity = own_identity(config).ok();
    let others = addresses
        .iter()
        .filter(|it| it.address != own && Some(&it.identity) != identity.as_ref());
    let others: Vec<_> = others.collect();
    if others.is_empty() {
        let why = "the registry has no address of another bridge yet";
        let name = "peers are reached";
        checked
            .findings
            .push(Finding::not_known(SECTION, name, why));
        return checked;
    }
    if config.peers.egress != Egress::Direct {
        let why = "they are reached through the proxy of --egress-selector-config-file";
        let name = "peers are reached";
        checked
            .findings
            .push(Finding::not_known(SECTION, name, why));
        return checked;
    }
    let probes = others.iter().map(|peer| -> parallel::Probe<'_, _> {
        Box::pin(async move { (*peer, probe(config, peer.address).await) })
    });
    for (peer, result) in parallel::all(probes.collect()).await {
        if let Ok(PeerResponse {
            clock: Some(clock), ..
        }) = &result
        {
            checked.clocks.push(clock.clone());
        }
        checked.findings.push(judge(peer, &result));
    }
    checked
}

fn own_address(own: SocketAddr) -> Finding {
    let name = format!("peers reach this bridge at {own}");
    if own.ip().is_loopback() {
        let why = "a loopback address: only processes of this machine reach it";
        let text = "set it to an address of this machine that peers can reach";
        Finding::warning(
            SECTION,
            name,
            why,
            Remedy::flag("--peer-advertise-ip", text),
        )
    } else {
        Finding::ok(SECTION, format!("{own} is published for peers"))
    }
}

/// The answer of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PeerResponse {
    status: u16,
    version: Option<String>,
    clock: Option<ServerClock>,
}

async fn probe(config: &Config, address: SocketAddr) -> Result<PeerResponse, ConnectProblem> {
    let other = |error: String| ConnectProblem::Other(error);
    let ca = config
        .peers
        .ca
        .as_ref()
        .ok_or_else(|| other("no --peer-ca-file".to_owned()))?;
    let bundle = load_ca(ca).map_err(|error| other(error.to_string()))?;
    let tls = client_config(&bundle, None).map_err(|error| other(error.to_string()))?;
    let name = ServerName::try_from(PEER_NAME).map_err(|error| other(error.to_string()))?;
    handshake_at(address, &name, Arc::new(tls)).await?;
    let access = Access {
        ca,
        server_name: PEER_NAME,
        client: config.upstream.front_proxy.as_ref(),
    };
    let endpoint = http::endpoint(&address.to_string(), access)
        .await
        .map_err(other)?;
    // As bridges poll each other.
    let user = User {
        name: config.upstream.bridge_user.name.clone(),
        groups: vec!["system:authenticated".to_owned()],
        ..User::default()
    };
    let request = http::get("/version").header(PEER_PROXIED.as_str(), "true");
    let answer = http::try_send(&endpoint, request, Some((&config.callers.headers, &user))).await;
    let answer = answer.map_err(|error| after_handshake(&error))?;
    let version = answer.json("/version").ok();
    Ok(PeerResponse {
        status: answer.response.status.as_u16(),
        version: version.and_then(|it| Some(it["gitVersion"].as_str()?.to_owned())),
        clock: answer.clock.map(|reading| ServerClock {
            server: address.to_string(),
            reading,
        }),
    })
}

/// With TLS 1.3 a server rejects a client certificate after the handshake of the client, by an alert.
fn after_handshake(error: &Error) -> ConnectProblem {
    match error {
        Error::TimedOut { .. } => ConnectProblem::Timeout,
        Error::ConnectionLost { cause, .. } if cause.contains("alert") => {
            ConnectProblem::RejectsClient(cause.clone())
        }
        error => ConnectProblem::NoAnswer(error.to_string()),
    }
}

fn judge(peer: &PeerAddress, result: &Result<PeerResponse, ConnectProblem>) -> Finding {
    let PeerAddress {
        identity, address, ..
    } = peer;
    let name = match peer.source {
        // Its identity is its address.
        Source::Endpoints => format!("{address} is reached, and accepts this bridge"),
        _ => format!("{identity} at {address} is reached, and accepts this bridge"),
    };
    let problem = match result {
        Ok(answer) if (200..300).contains(&answer.status) => {
            let version = answer.version.clone().unwrap_or_default();
            return Finding::ok(SECTION, name).message(version);
        }
        Ok(answer) => ConnectProblem::RejectsClient(format!("it answers {}", answer.status)),
        Err(problem) => problem.clone(),
    };
    // kube-apiservers publish addresses that other hosts may not be able to reach.
    let counts = !peer.is_server;
    let remedy = match &problem {
        ConnectProblem::UnknownIssuer => Remedy::flag(
            "--peer-ca-file",
            format!("add the CA that has issued the serving certificate of {address}"),
        ),
        ConnectProblem::WrongName(_) => Remedy::flag(
            "--tls-cert-file",
            format!("issue the serving certificate at {address} with {PEER_NAME} as a name"),
        ),
        ConnectProblem::Expired => Remedy::flag(
            "--tls-cert-file",
            format!("renew the serving certificate at {address}"),
        ),
        ConnectProblem::RejectsClient(_) => Remedy::flag(
            "--proxy-client-cert-file",
            format!(
                "use a certificate of the CA in --requestheader-client-ca-file at {address}, with \
                 a name that its --requestheader-allowed-names allows"
            ),
        ),
        _ => match &peer.source {
            Source::File(file) => Remedy::file(
                file,
                format!(
                    "start the bridge at {address}, correct its address, or remove the entry of \
                     {identity}"
                ),
            ),
            _ => Remedy::command(
                "systemctl restart skewbridge",
                format!(
                    "run it on the machine of {address}, or permit connections from here; its log \
                     (journalctl -u skewbridge) shows why it does not answer. The record expires \
                     when the bridge is gone for good"
                ),
            ),
        },
    };
    if counts {
        Finding::failure(SECTION, name, problem.to_string(), remedy)
    } else {
        Finding::warning(SECTION, name, problem.to_string(), remedy)
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_peer_directory::Identity;

    use super::*;
    use crate::check::finding::Outcome;

    fn peer(source: Source, is_server: bool) -> PeerAddress {
        PeerAddress {
            identity: Identity::named("apiserver-a").unwrap(),
            address: "10.0.0.12:6443".parse().unwrap(),
            source,
            is_server,
        }
    }

    #[test]
    fn a_dead_peer_is_a_failure_with_the_place_of_its_address() {
        let answered = |status| {
            Ok(PeerResponse {
                status,
                version: Some("v1.36.4".to_owned()),
                clock: None,
            })
        };
        let file = || Source::File("/etc/skewbridge/peers.yaml".into());
        let rows = [
            (file(), false, answered(200), Outcome::Ok, None),
            (
                file(),
                false,
                Err(ConnectProblem::Refused),
                Outcome::Failure,
                Some("/etc/skewbridge/peers.yaml"),
            ),
            (
                Source::Etcd,
                false,
                Err(ConnectProblem::Timeout),
                Outcome::Failure,
                None,
            ),
            (
                Source::Etcd,
                true,
                Err(ConnectProblem::Refused),
                Outcome::Warning,
                None,
            ),
            (Source::Leases, false, answered(401), Outcome::Failure, None),
            (
                Source::Etcd,
                false,
                Err(ConnectProblem::UnknownIssuer),
                Outcome::Failure,
                None,
            ),
        ];
        for (source, is_server, result, outcome, expected_file) in rows {
            let found = judge(&peer(source, is_server), &result);
            assert_eq!(found.outcome, outcome, "{found:?}");
            let file = found.remedy.and_then(|it| it.file);
            assert_eq!(file.as_deref(), expected_file.map(std::path::Path::new));
        }
    }

    #[test]
    fn only_an_alert_means_that_a_client_certificate_is_rejected() {
        let server = || "10.0.0.12:6443".to_owned();
        let lost = |cause: &str| Error::ConnectionLost {
            server: server(),
            cause: cause.to_owned(),
        };
        let timed_out = Error::TimedOut {
            server: server(),
            what: "respond",
            after: std::time::Duration::from_secs(5),
        };
        let certificate = Some("--proxy-client-cert-file");
        let rows = [
            (lost("received fatal alert: UnknownCA"), certificate),
            (lost("connection reset by peer"), None),
            (timed_out, None),
        ];
        for (error, expected) in rows {
            let found = judge(&peer(Source::Etcd, false), &Err(after_handshake(&error)));
            assert_eq!(found.outcome, Outcome::Failure);
            let remedy = found.remedy.unwrap();
            assert_eq!(remedy.flag.as_deref(), expected, "{error}");
            assert_eq!(remedy.command.is_some(), expected.is_none(), "{error}");
        }
    }

    #[test]
    fn a_loopback_address_is_no_address_for_peers() {
        let outcome = |address: &str| own_address(address.parse().unwrap()).outcome;
        assert_eq!(outcome("127.0.0.1:6443"), Outcome::Warning);
        assert_eq!(outcome("10.0.0.11:6443"), Outcome::Ok);
    }
}
