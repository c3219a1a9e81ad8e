//! Flags about peers.

use skewbridge_gateway::config::{Egress, ProxyTransport};
use skewbridge_gateway::tls::files::KeyPairFiles;

use super::*;

#[test]
fn incomplete_peer_flags_are_reported() {
    let files = Files::new();
    let ca = format!("--peer-ca-file={}", files.path("other.crt"));
    let etcd = "--etcd-servers=http://127.0.0.1:2379".to_owned();
    let registry = "--peer-registry=etcd".to_owned();
    let off = "--feature-gates=UnknownVersionInteroperabilityProxy=false".to_owned();
    let fronts = "--proxy-client-cert-file, --requestheader-client-ca-file";
    let no_peers = |given: &str, missing: &str| {
        vec![format!(
            "{given}: has no effect without {missing}: peering is off; set {missing}"
        )]
    };
    for (flags, expected) in [
        (
            vec![ca.clone(), etcd.clone()],
            no_peers("--peer-ca-file, --etcd-servers", fronts),
        ),
        (
            vec![registry],
            no_peers(
                "--peer-registry",
                &format!("--peer-ca-file, {fronts}, --etcd-servers"),
            ),
        ),
        (
            vec![ca.clone()],
            no_peers("--peer-ca-file", &format!("{fronts}, --etcd-servers")),
        ),
        (vec![ca, etcd, off], vec![]),
        (vec![], vec![]),
    ] {
        let (_, warnings) = files.parse(&flags).unwrap();
        assert_eq!(messages(&warnings), expected);
    }
}

#[test]
fn the_controlplane_egress_is_used_and_other_proxies_cause_warnings() {
    let files = Files::new();
    let egress = files.path("egress.yaml");
    let flags = [format!("--egress-selector-config-file={egress}")];
    let (ca, crt, key) = (
        files.path("other.crt"),
        files.path("tls.crt"),
        files.path("tls.key"),
    );
    let tls = format!(
        "{{proxyProtocol: HTTPConnect, transport: {{tcp: {{url: 'https://k:8131', tlsConfig: \
         {{caBundle: {ca}, clientCert: {crt}, clientKey: {key}}}}}}}}}"
    );
    let uds = "{proxyProtocol: HTTPConnect, transport: {uds: {udsName: /run/k.sock}}}";
    let through_uds = Egress::HttpConnect(ProxyTransport::Uds("/run/k.sock".into()));
    let through_tls = Egress::HttpConnect(ProxyTransport::Tls {
        host: "k".into(),
        port: 8131,
        server_name: flag_values::server_name("k").unwrap(),
        ca: ca.into(),
        key_pair: KeyPairFiles {
            cert: crt.into(),
            key: key.into(),
        },
    });
    let cluster =
        "the entry cluster is not used: skewbridge itself connects to no node, pod or service";
    let etcd = "the entry etcd is not used: skewbridge connects to etcd directly";
    // A common setup of konnectivity, with files that only kube-apiserver has.
    let grpc = "{proxyProtocol: GRPC, transport: {uds: {udsName: /run/k.sock}}}";
    let missing = "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://k:8131', \
                   tlsConfig: {caBundle: /missing, clientCert: /missing, clientKey: /missing}}}}";
    let direct = "{proxyProtocol: Direct}";
    let table = [
        (
            "v1",
            vec![("controlplane", uds)],
            through_uds.clone(),
            vec![],
        ),
        (
            "v1beta1",
            vec![("ControlPlane", &*tls)],
            through_tls,
            vec![],
        ),
        (
            "v1alpha1",
            vec![("master", uds), ("cluster", uds), ("etcd", direct)],
            through_uds.clone(),
            vec![cluster],
        ),
        (
            "v1",
            vec![("etcd", uds), ("cluster", uds)],
            Egress::Direct,
            vec![cluster, etcd],
        ),
        (
            "v1",
            vec![("cluster", grpc), ("etcd", grpc), ("controlplane", uds)],
            through_uds.clone(),
            vec![cluster, etcd],
        ),
        (
            "v1beta1",
            vec![("cluster", missing), ("etcd", missing)],
            Egress::Direct,
            vec![cluster, etcd],
        ),
        ("v1", vec![("controlplane", direct)], Egress::Direct, vec![]),
    ];
    for (version, selections, expected, warned) in table {
        let selections: Vec<_> = (selections.iter())
            .map(|(name, connection)| format!("- {{name: {name}, connection: {connection}}}\n"))
            .collect();
        let text = format!(
            "apiVersion: apiserver.k8s.io/{version}\nkind: EgressSelectorConfiguration\n\
             egressSelections:\n{}",
            selections.concat()
        );
        files.write("egress.yaml", &text);
        let (config, warnings) = files.parse(&flags).unwrap();
        assert_eq!(config.peers.egress, expected, "{text}");
        let warnings = messages(&warnings);
        assert_eq!(warnings.len(), warned.len(), "{warnings:?}");
        for (warning, beginning) in warnings.iter().zip(warned) {
            let beginning = format!("--egress-selector-config-file {egress}: {beginning}");
            assert!(warning.starts_with(&beginning), "{warning}");
        }
    }
}
