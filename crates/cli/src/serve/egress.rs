//! `--egress-selector-config-file`: how connections leave this machine.
//!
//! The file is kube-apiserver's `EgressSelectorConfiguration`, which administrators copy. The
//! entry `controlplane` is checked by kube-apiserver's rules, except for protocols that the
//! bridge does not support. Entries that the bridge does not use cause warnings, whatever their
//! content.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use skewbridge_gateway::config::{Egress, ProxyTransport};
use skewbridge_gateway::tls::files::KeyPairFiles;

use super::diagnostics::Diagnostics;
use super::files;
use crate::flag_values::{self, Parsed};

/// The parsed file.
#[derive(Debug, Default, PartialEq, Eq)]
struct EgressSelector {
    /// How peers are reached; directly if the file has no entry for them.
    to_peers: Egress,
    /// Entries of the file that the bridge does not use.
    unused: BTreeSet<Destination>,
}

/// The destination of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    /// Nodes, pods and services.
    Cluster,
    /// Other servers of the control plane.
    ControlPlane,
    Etcd,
}

impl Destination {
    /// Why its entry is not used.
    fn not_used(self) -> Option<&'static str> {
        match self {
            Self::ControlPlane => None,
            Self::Cluster => Some(
                "the entry cluster is not used: skewbridge itself connects to no node, pod or \
                 service, only to peers (controlplane)",
            ),
            Self::Etcd => Some(
                "the entry etcd is not used: skewbridge connects to etcd directly, and only to \
                 peers (controlplane) through a proxy",
            ),
        }
    }
}

const FLAG: &str = "--egress-selector-config-file";
const VERSIONS: [&str; 3] = [
    "apiserver.k8s.io/v1alpha1",
    "apiserver.k8s.io/v1beta1",
    "apiserver.k8s.io/v1",
];

/// Reads the file and the files it names, and returns its settings for peers.
pub(crate) fn read(path: &Path, diagnostics: &mut Diagnostics) -> Option<Egress> {
    let parsed = files::yaml(path)
        .map_err(|wrong| vec![wrong])
        .and_then(parse);
    match parsed {
        Ok(EgressSelector { to_peers, unused }) => {
            for why in unused.into_iter().filter_map(Destination::not_used) {
                diagnostics.warning(FLAG, Some(path), why);
            }
            if let Egress::HttpConnect(ProxyTransport::Tls { ca, key_pair, .. }) = &to_peers {
                diagnostics.ca((FLAG, ca.to_str()));
                diagnostics.key_pair(
                    (FLAG, key_pair.cert.to_str()),
                    (FLAG, key_pair.key.to_str()),
                );
            }
            Some(to_peers)
        }
        Err(problems) => {
            for wrong in problems {
                diagnostics.problem(FLAG, Some(path), wrong);
            }
            None
        }
    }
}

// The aliases are Go's field names: its decoder ignores case, and configurations in use have
// them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    egress_selections: Vec<Selection>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Selection {
    name: String,
    /// Parsed only if the entry is used: the entries of a newer kube-apiserver may have unknown
    /// fields.
    connection: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConnection {
    #[serde(default)]
    proxy_protocol: String,
    transport: Option<RawTransport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawTransport {
    #[serde(alias = "TCP")]
    tcp: Option<RawTcp>,
    #[serde(alias = "UDS")]
    uds: Option<RawUds>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawTcp {
    #[serde(default, alias = "URL")]
    url: String,
    #[serde(alias = "TLSConfig")]
    tls_config: Option<RawTls>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawTls {
    #[serde(default, alias = "CABundle")]
    ca_bundle: String,
    #[serde(default, alias = "ClientKey")]
    client_key: String,
    #[serde(default, alias = "ClientCert")]
    client_cert: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawUds {
    #[serde(default, alias = "UDSName")]
    uds_name: String,
}

fn parse(document: Document) -> Result<EgressSelector, Vec<String>> {
    let mut wrong = Vec::new();
    if !VERSIONS.contains(&document.api_version.as_str()) {
        let known = VERSIONS.join(", ");
        wrong.push(format!(
            "apiVersion: {:?} is not one of {known}",
            document.api_version
        ));
    }
    if document.kind != "EgressSelectorConfiguration" {
        let kind = &document.kind;
        wrong.push(format!("kind: {kind:?} is not EgressSelectorConfiguration"));
    }
    let mut selector = EgressSelector::default();
    let mut seen = BTreeSet::new();
    for (index, selection) in document.egress_selections.into_iter().enumerate() {
        let at = |message| format!("egressSelections[{index}].{message}");
        let name = match destination(&selection.name, &document.api_version) {
            Ok(name) => name,
            Err(message) => {
                wrong.push(at(message));
                continue;
            }
        };
        if !seen.insert(name) {
            wrong.push(at(format!("name: {:?} is duplicated", selection.name)));
        }
        if name != Destination::ControlPlane {
            // A direct connection is the default.
            if selection.connection["proxyProtocol"] != "Direct" {
                selector.unused.insert(name);
            }
            continue;
        }
        let connection = serde_json::from_value(selection.connection)
            .map_err(|error| format!("connection: {error}"))
            .and_then(connection);
        match connection {
            Ok(connection) => selector.to_peers = connection,
            Err(message) => wrong.push(at(message)),
        }
    }
    if wrong.is_empty() {
        Ok(selector)
    } else {
        Err(wrong)
    }
}

fn destination(name: &str, version: &str) -> Parsed<Destination> {
    match name.to_ascii_lowercase().as_str() {
        "cluster" => Ok(Destination::Cluster),
        "etcd" => Ok(Destination::Etcd),
        "controlplane" => Ok(Destination::ControlPlane),
        // Its name before v1beta1.
        "master" if version == VERSIONS[0] => Ok(Destination::ControlPlane),
        _ => Err(format!(
            "name: {name:?} is not one of cluster, controlplane, etcd"
        )),
    }
}

fn connection(raw: RawConnection) -> Parsed<Egress> {
    let wrong = |message: &str| Err(format!("connection.{message}"));
    match (raw.proxy_protocol.as_str(), raw.transport) {
        ("Direct", None) => Ok(Egress::Direct),
        ("Direct", Some(_)) => wrong("transport: is not allowed in a Direct connection"),
        ("HTTPConnect", Some(raw)) => transport(raw)
            .map(Egress::HttpConnect)
            .or_else(|message| wrong(&format!("transport.{message}"))),
        ("HTTPConnect", None) => wrong("transport: required with HTTPConnect"),
        ("GRPC", _) => wrong(
            "proxyProtocol: GRPC is not supported by skewbridge; run the proxy server with \
             --mode=http-connect and write HTTPConnect",
        ),
        (other, _) => wrong(&format!(
            "proxyProtocol: {other:?} is not one of Direct, HTTPConnect"
        )),
    }
}

fn transport(raw: RawTransport) -> Parsed<ProxyTransport> {
    match (raw.tcp, raw.uds) {
        (Some(tcp), None) => self::tcp(tcp).map_err(|message| format!("tcp.{message}")),
        (None, Some(uds)) if uds.uds_name.is_empty() => {
            Err("uds.udsName: required: the path of the proxy's socket".into())
        }
        (None, Some(uds)) => Ok(ProxyTransport::Uds(uds.uds_name.into())),
        (Some(_), Some(_)) => Err("uds: cannot be given together with tcp".into()),
        (None, None) => Err("tcp: either tcp or uds is required".into()),
    }
}

fn tcp(raw: RawTcp) -> Parsed<ProxyTransport> {
    let endpoint = flag_values::endpoint(&raw.url).map_err(|wrong| format!("url: {wrong}"))?;
    let tls = match (endpoint.secure, raw.tls_config) {
        (false, None) => {
            return Ok(ProxyTransport::Tcp {
                port: port(&raw.url, endpoint.port)?,
                host: endpoint.host,
            });
        }
        (false, Some(_)) => return Err("tlsConfig: is not allowed with an http URL".into()),
        (true, None) => return Err("tlsConfig: required with an https URL".into()),
        (true, Some(tls)) => tls,
    };
    for (name, path, what) in [
        (
            "clientCert",
            &tls.client_cert,
            "the client certificate for the proxy",
        ),
        (
            "clientKey",
            &tls.client_key,
            "the private key of clientCert",
        ),
    ] {
        if path.is_empty() {
            return Err(format!("tlsConfig.{name}: required: {what}"));
        }
    }
    if tls.ca_bundle.is_empty() {
        return Err("tlsConfig.caBundle: required; the system's CAs are not used".into());
    }
    Ok(ProxyTransport::Tls {
        port: port(&raw.url, endpoint.port)?,
        server_name: flag_values::server_name(&endpoint.host)
            .map_err(|wrong| format!("url: {wrong}"))?,
        host: endpoint.host,
        ca: tls.ca_bundle.into(),
        key_pair: KeyPairFiles {
            cert: tls.client_cert.into(),
            key: tls.client_key.into(),
        },
    })
}

/// kube-apiserver accepts a URL without a port, and then cannot connect.
fn port(url: &str, port: Option<u16>) -> Parsed<u16> {
    port.ok_or_else(|| format!("url: {url:?} has no port; write it like https://HOST:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n";

    fn parsed(text: &str) -> Result<EgressSelector, Vec<String>> {
        let document = files::parse_yaml(text).map_err(|wrong| vec![wrong])?;
        parse(document)
    }

    fn selection(connection: &str) -> Result<EgressSelector, Vec<String>> {
        parsed(&format!(
            "{HEAD}- name: controlplane\n  connection: {connection}\n"
        ))
    }

    #[test]
    fn each_transport_is_parsed() {
        let table = [
            ("{proxyProtocol: Direct}", Egress::Direct),
            (
                "{proxyProtocol: HTTPConnect, transport: {uds: {udsName: /run/konnectivity}}}",
                Egress::HttpConnect(ProxyTransport::Uds("/run/konnectivity".into())),
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://[::1]:8131'}}}",
                Egress::HttpConnect(ProxyTransport::Tcp {
                    host: "::1".into(),
                    port: 8131,
                }),
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {TCP: {URL: 'https://k:8131', TLSConfig: \
                 {CABundle: /ca, ClientKey: /key, ClientCert: /crt}}}}",
                Egress::HttpConnect(ProxyTransport::Tls {
                    host: "k".into(),
                    port: 8131,
                    server_name: flag_values::server_name("k").unwrap(),
                    ca: "/ca".into(),
                    key_pair: KeyPairFiles {
                        cert: "/crt".into(),
                        key: "/key".into(),
                    },
                }),
            ),
        ];
        for (text, expected) in table {
            let selector = selection(text).unwrap();
            assert_eq!(selector.to_peers, expected, "{text}");
            assert_eq!(selector.unused, BTreeSet::new(), "{text}");
        }
    }

    #[test]
    fn each_invalid_connection_is_reported_with_its_path() {
        let table = [
            ("{}", "connection.proxyProtocol: \"\" is not one of"),
            (
                "{proxyProtocol: SOCKS}",
                "connection.proxyProtocol: \"SOCKS\"",
            ),
            (
                "{proxyProtocol: Direct, transport: {}}",
                "connection.transport: is not allowed",
            ),
            (
                "{proxyProtocol: HTTPConnect}",
                "connection.transport: required",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {}}",
                "connection.transport.tcp: either",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {uds: {}}}",
                "connection.transport.uds.udsName: required",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {uds: {udsName: /a}, tcp: {url: 'http://a'}}}",
                "connection.transport.uds: cannot be given together",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'a:1'}}}",
                "connection.transport.tcp.url: \"a:1\" has no scheme",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a'}}}",
                "connection.transport.tcp.tlsConfig: required",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a', tlsConfig: {}}}}",
                "connection.transport.tcp.tlsConfig: is not allowed",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a', tlsConfig: {}}}}",
                "connection.transport.tcp.tlsConfig.clientCert: required",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a'}}}",
                "connection.transport.tcp.url: \"http://a\" has no port",
            ),
            (
                "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a', tlsConfig: \
                 {caBundle: /ca, clientKey: /key, clientCert: /crt}}}}",
                "connection.transport.tcp.url: \"https://a\" has no port",
            ),
            (
                "{proxyProtocol: GRPC, transport: {uds: {udsName: /a}}}",
                "connection.proxyProtocol: GRPC is not supported",
            ),
        ];
        for (text, expected) in table {
            let wrong = selection(text).unwrap_err();
            let expected = format!("egressSelections[0].{expected}");
            assert!(wrong[0].starts_with(&expected), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn an_unused_entry_causes_a_warning_whatever_its_content() {
        let connections = [
            "{proxyProtocol: GRPC, transport: {uds: {udsName: /run/konnectivity}}}",
            "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://k:8131', tlsConfig: \
             {caBundle: /missing, clientKey: /missing, clientCert: /missing}}}}",
            "{proxyProtocol: QUIC, more: 1}",
            "{}",
        ];
        let peers = "- name: controlplane\n  connection: {proxyProtocol: HTTPConnect, transport: \
                     {uds: {udsName: /a}}}\n";
        for connection in connections {
            for (name, destination) in [
                ("cluster", Destination::Cluster),
                ("etcd", Destination::Etcd),
            ] {
                let text = format!("{HEAD}- name: {name}\n  connection: {connection}\n{peers}");
                let selector = parsed(&text).unwrap();
                assert_eq!(selector.unused, BTreeSet::from([destination]), "{text}");
                let uds = ProxyTransport::Uds("/a".into());
                assert_eq!(selector.to_peers, Egress::HttpConnect(uds), "{text}");
            }
        }
        let direct = format!("{HEAD}- name: cluster\n  connection: {{proxyProtocol: Direct}}\n");
        assert_eq!(parsed(&direct).unwrap(), EgressSelector::default());
    }

    #[test]
    fn version_kind_and_names_are_checked() {
        let direct = "connection: {proxyProtocol: Direct}";
        let twice = format!("{HEAD}- {{name: etcd, {direct}}}\n- {{name: Etcd, {direct}}}\n");
        let old = format!("{HEAD}- {{name: master, {direct}}}\n");
        assert!(parsed(&twice).unwrap_err()[0].contains("is duplicated"));
        assert!(parsed(&old).unwrap_err()[0].contains("not one of cluster"));
        assert!(parsed(&old.replace("v1beta1", "v1alpha1")).is_ok());
        let foreign = "apiVersion: v1\nkind: Pod\negressSelections: []\n";
        assert_eq!(parsed(foreign).unwrap_err().len(), 2);
        assert!(parsed(&format!("{HEAD}[]\nmore: 1\n")).is_err());
    }
}
