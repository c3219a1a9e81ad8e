//! Valid command lines and their meaning; invalid ones are in `tests/serve_flags.rs`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use skewbridge_gateway::config::{Features, ProxyTransport};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

#[test]
fn required_flags_alone_leave_the_defaults() {
    let files = Files::new();
    let (config, warnings) = files.parse(&[]).unwrap();
    assert_eq!(config.listen.bind_address.to_string(), "0.0.0.0");
    assert_eq!(config.listen.secure_port, 6443);
    assert_eq!(config.serving.min_version, TlsVersion::Tls12);
    assert_eq!(config.callers.client_ca, None);
    assert_eq!(config.callers.headers.username, ["x-remote-user"]);
    assert_eq!(config.callers.headers.uid, ["x-remote-uid"]);
    assert_eq!(config.callers.headers.group, ["x-remote-group"]);
    assert_eq!(config.callers.headers.extra_prefix, ["x-remote-extra-"]);
    assert_eq!(config.upstream.host, "kube.example");
    assert_eq!(config.upstream.port, 6443);
    assert_eq!(config.upstream.server_name.to_str(), "kube.example");
    assert_eq!(config.upstream.front_proxy, None);
    assert_eq!(config.peers.identity, ApiServerIdentity::Auto);
    assert_eq!(config.peers.registry, RegistryKind::Etcd);
    assert_eq!(config.peers.etcd.prefix, "/registry");
    assert_eq!(config.streams.translate, TranslateStreams::Auto);
    assert_eq!(config.streams.upstream, UpstreamStreams::Any);
    assert_eq!(config.streams.ping_interval, Duration::from_secs(10));
    assert_eq!(config.streams.idle_timeout, Duration::from_hours(4));
    assert_eq!(config.features, Features::default());
    assert_eq!(
        format!("{:?}", config.limits),
        format!("{:?}", Limits::default())
    );
    assert_eq!(config.admin.address.to_string(), "127.0.0.1:10270");
    assert_eq!(config.shutdown.delay, Duration::ZERO);
    assert_eq!(config.shutdown.drain, Duration::from_mins(1));
    assert_eq!(config.logs.verbosity, 0);
    assert_eq!(config.logs.format, LogFormat::Text);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn another_bridge_user_has_only_the_given_groups() {
    let files = Files::new();
    let rows: [(&[&str], &str, &[&str]); 5] = [
        (&[], "system:apiserver", &["system:masters"]),
        (&["--bridge-user=skewbridge"], "skewbridge", &[]),
        (
            &["--bridge-user=skewbridge", "--bridge-groups=a,b"],
            "skewbridge",
            &["a", "b"],
        ),
        (&["--bridge-groups=a"], "system:apiserver", &["a"]),
        (&["--bridge-groups="], "system:apiserver", &[]),
    ];
    for (flags, name, groups) in rows {
        let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let user = files.parse(&flags).unwrap().0.upstream.bridge_user;
        assert_eq!(user.name, name, "{flags:?}");
        assert_eq!(user.groups, groups, "{flags:?}");
    }
}

#[test]
fn every_flag_reaches_the_config() {
    let files = Files::new();
    let ca = files.path("other.crt");
    let (crt, key) = (files.path("tls.crt"), files.path("tls.key"));
    let flags = [
        "--bind-address=::1".to_owned(),
        "--secure-port=0".into(),
        "--advertise-address=10.0.0.1".into(),
        "--tls-min-version=VersionTLS13".into(),
        format!("--client-ca-file={ca}"),
        format!("--requestheader-client-ca-file={ca}"),
        "--requestheader-allowed-names=front-proxy-client,\"a,b\"".into(),
        "--requestheader-allowed-names=c".into(),
        "--requestheader-username-headers=X-User,X-Remote-User".into(),
        "--upstream=https://[fd00::1]:6444/".into(),
        "--upstream-server-name=kubernetes".into(),
        format!("--proxy-client-cert-file={crt}"),
        format!("--proxy-client-key-file={key}"),
        format!("--peer-ca-file={ca}"),
        "--peer-advertise-ip=10.0.0.2".into(),
        "--peer-advertise-port=7443".into(),
        "--peer-registry=leases".into(),
        "--peer-cidrs=10.0.0.0/24,fd00::/64".into(),
        "--apiserver-identity=apiserver-0".into(),
        "--etcd-servers=https://10.0.0.1:2379,http://127.0.0.1:2379".into(),
        format!("--etcd-cafile={ca}"),
        format!("--etcd-certfile={crt}"),
        format!("--etcd-keyfile={key}"),
        "--etcd-prefix=/kube/".into(),
        "--translate-streams=never".into(),
        "--upstream-streams=websocket".into(),
        "--stream-ping-interval=0".into(),
        "--streaming-connection-idle-timeout=30m".into(),
        "--max-connections=400".into(),
        "--reserved-connections=399".into(),
        "--max-unauthenticated-connections-per-source=50".into(),
        "--max-authentication-failures-per-source=0".into(),
        "--http2-max-streams-per-connection=0".into(),
        "--idle-timeout=1.5h".into(),
        "--admin-address=[::1]:0".into(),
        "--admin-secure-address=[fd00::2]:10271".into(),
        "-v=4".into(),
        "--log-format=json".into(),
        "--worker-threads=3".into(),
        "--shutdown-delay-duration=100ms".into(),
    ];
    let (config, warnings) = files.parse(&flags).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.listen.bind_address.to_string(), "::1");
    assert_eq!(config.serving.min_version, TlsVersion::Tls13);
    let request_header = config.callers.request_header.unwrap();
    assert_eq!(
        request_header.allowed_names,
        ["front-proxy-client", "a,b", "c"]
    );
    assert_eq!(config.callers.headers.username, ["x-user", "x-remote-user"]);
    assert_eq!(config.upstream.host, "fd00::1");
    assert_eq!(config.upstream.port, 6444);
    assert_eq!(config.upstream.server_name.to_str(), "kubernetes");
    assert!(config.upstream.front_proxy.is_some());
    assert_eq!(config.peers.registry, RegistryKind::Leases);
    assert_eq!(config.peers.cidrs.len(), 2);
    assert_eq!(config.peers.advertise_port, Some(7443));
    assert_eq!(
        config.peers.identity,
        ApiServerIdentity::Named("apiserver-0".into())
    );
    assert_eq!(config.peers.etcd.servers.len(), 2);
    assert_eq!(config.peers.etcd.prefix, "/kube");
    assert!(config.peers.etcd.key_pair.is_some());
    assert_eq!(config.streams.upstream, UpstreamStreams::WebSocket);
    assert_eq!(config.streams.ping_interval, Duration::ZERO);
    assert_eq!(config.streams.idle_timeout, Duration::from_mins(30));
    assert_eq!(config.limits.max_connections, 400);
    assert_eq!(config.limits.reserved_connections, Some(399));
    let per_source = config.limits.max_unauthenticated_connections_per_source;
    assert_eq!(per_source, Some(50));
    assert_eq!(config.limits.max_authentication_failures_per_source, 0);
    assert_eq!(config.limits.max_streams_per_connection, 100);
    assert_eq!(config.limits.idle_timeout, Duration::from_mins(90));
    assert_eq!(config.logs.verbosity, 4);
    assert_eq!(config.workers.get(), 3);
    assert_eq!(config.shutdown.delay, Duration::from_millis(100));
}

#[test]
fn an_empty_value_is_no_value() {
    let files = Files::new();
    let flags = ["--client-ca-file=", "--etcd-servers=", "--peer-ca-file="];
    let (config, warnings) = files.parse(&flags.map(Into::into)).unwrap();
    assert_eq!(config.callers.client_ca, None);
    assert!(config.peers.etcd.servers.is_empty());
    assert!(warnings.is_empty(), "{warnings:?}");
}

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

#[test]
fn a_certificate_that_is_not_a_ca_causes_a_warning() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "alice");
    files.write("alice.crt", &params.self_signed(&key).unwrap().pem());
    let alice = files.path("alice.crt");
    let (_, warnings) = files
        .parse(&[format!("--upstream-ca-file={alice}")])
        .unwrap();
    assert_eq!(
        messages(&warnings),
        [format!(
            "--upstream-ca-file {alice}: is not a CA certificate (CN=alice)"
        )]
    );
}

#[test]
fn one_ca_for_users_and_front_proxies_needs_allowed_names() {
    let files = Files::new();
    let ca = files.path("other.crt");
    let (crt, key) = (files.path("tls.crt"), files.path("tls.key"));
    let mut flags = vec![
        format!("--client-ca-file={ca}"),
        format!("--requestheader-client-ca-file={ca}"),
        format!("--proxy-client-cert-file={crt}"),
        format!("--proxy-client-key-file={key}"),
    ];
    let problems = files.parse(&flags).unwrap_err().0;
    let [problem] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    assert_eq!(problem.flag, "--requestheader-client-ca-file");
    assert!(problem.message.contains("--requestheader-allowed-names"));
    flags.push("--requestheader-allowed-names=front-proxy-client".into());
    let (_, warnings) = files.parse(&flags).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn an_expired_certificate_is_a_warning() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    files.write("tls.crt", &params.self_signed(&key).unwrap().pem());
    files.write("tls.key", &key.serialize_pem());
    let (_, warnings) = files.parse(&[]).unwrap();
    let text = warnings[0].to_string();
    assert!(text.starts_with("--tls-cert-file /"), "{text}");
    assert!(text.contains("the certificate expired"), "{text}");
}

#[test]
fn two_listeners_do_not_share_a_port() {
    let files = Files::new();
    let flags = ["--admin-address=127.0.0.1:6443".into()];
    let problems = files.parse(&flags).unwrap_err();
    assert_eq!(problems.0.len(), 1, "{problems}");
    let apart = ["--bind-address=127.0.0.2".into(), flags[0].clone()];
    assert!(files.parse(&apart).is_ok());

    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    for (secure, users) in [
        ("10.0.0.11:6443", &["--secure-port"][..]),
        ("0.0.0.0:10270", &["--admin-address"]),
        ("10.0.0.11:10270", &[]),
        ("[::]:10271", &[]),
    ] {
        let mut flags = front_proxy.to_vec();
        flags.push(format!("--admin-secure-address={secure}"));
        let expected: Vec<_> = (users.iter())
            .map(|it| {
                format!("--admin-secure-address: {secure} is used by {it}; choose another port")
            })
            .collect();
        let problems = files.parse(&flags).err().map(|it| messages(&it.0));
        assert_eq!(problems.unwrap_or_default(), expected);
    }
}

#[test]
fn the_secure_admin_port_needs_a_certificate_to_ask_kube_apiserver_with() {
    let files = Files::new();
    let flags = ["--admin-secure-address=0.0.0.0:10271".into()];
    let problems = files.parse(&flags).unwrap_err();
    let [problem] = messages(&problems.0).try_into().unwrap();
    assert!(
        problem.starts_with("--admin-secure-address: needs --proxy-client-cert-file"),
        "{problem}"
    );
}

#[test]
fn requests_are_spread_over_all_values_of_upstream() {
    let files = Files::new();
    let flags = [
        "--upstream=https://a.example".into(),
        "--upstream=https://b.example:7443,https://[fd00::1]".into(),
    ];
    let (config, warnings) = files.parse(&flags).unwrap();
    let servers = config.upstream.servers();
    let servers: Vec<_> = (servers.iter())
        .map(|it| (it.authority(), it.server_name.to_str().into_owned()))
        .collect();
    let expected = [
        ("a.example:6443", "a.example"),
        ("b.example:7443", "b.example"),
        ("[fd00::1]:6443", "fd00::1"),
    ];
    assert_eq!(servers, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(
        messages(&warnings),
        [
            "--upstream: has several values without --proxy-client-cert-file, \
          --requestheader-client-ca-file: requests are spread without regard to what each \
          kube-apiserver serves; set --proxy-client-cert-file, --requestheader-client-ca-file"
        ]
    );
    let named = [&flags[..], &["--upstream-server-name=kubernetes".into()]].concat();
    let servers = files.parse(&named).unwrap().0.upstream.servers();
    assert!(
        servers
            .iter()
            .all(|it| it.server_name.to_str() == "kubernetes")
    );
}

#[test]
fn several_upstreams_need_no_registry_and_differ() {
    let files = Files::new();
    let many = |last: &str, flag: &str| {
        let flags = ["--upstream=https://a", last, flag].map(str::to_owned);
        messages(&files.parse(&flags).unwrap_err().0)
    };
    for flag in [
        "--peer-registry=endpoints-unknown",
        "--peer-registry=etcd",
        "--peer-cidrs=10.0.0.0/8",
        "--peer-advertise-ip=10.0.0.1",
        "--peer-advertise-port=7443",
        "--apiserver-identity=apiserver-a",
        "--etcd-servers=http://127.0.0.1:2379",
    ] {
        let name = flag.split('=').next().unwrap();
        let problems = many("--upstream=https://b", flag);
        assert!(
            problems.iter().all(|it| it.starts_with(name)),
            "{problems:?}"
        );
        assert!(!problems.is_empty(), "{flag}");
    }
    let twice = many("--upstream=https://a:6443", "--v=0");
    assert_eq!(twice, ["--upstream: a:6443 is given twice"]);
    let insecure = many("--upstream=http://b", "--v=0");
    assert!(
        insecure[0].starts_with("--upstream: \"http://b\" is not https"),
        "{insecure:?}"
    );
    let all: Vec<_> = (0..40)
        .map(|it| format!("--upstream=https://h{it}"))
        .collect();
    let problems = files.parse(&all).unwrap_err();
    assert_eq!(
        messages(&problems.0),
        ["--upstream: has 40 values; 32 are supported"]
    );
}

#[test]
fn upstream_endpoints_alone_begins_with_the_service_in_a_pod() {
    let files = Files::new();
    let flag = |text: &str| text.to_owned();
    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    let in_pod = |host, port| {
        [
            ("KUBERNETES_SERVICE_HOST", host),
            ("KUBERNETES_SERVICE_PORT", port),
        ]
    };
    for (variables, expected) in [
        (in_pod("10.96.0.1", "443"), Some(("10.96.0.1", 443))),
        (in_pod("fd00::1", "6443"), Some(("fd00::1", 6443))),
        (in_pod("", "443"), None),
        (in_pod("10.96.0.1", ""), None),
        (in_pod("10.96.0.1", "none"), None),
    ] {
        let flags = [&[flag("--upstream=endpoints")], &front_proxy[..]].concat();
        match (files.parse_in(&variables, &flags), expected) {
            (Ok((config, _)), Some((host, port))) => {
                let upstream = config.upstream;
                assert_eq!((&*upstream.host, upstream.port), (host, port));
                assert!(upstream.others.is_empty());
                assert_eq!(upstream.server_name.to_str(), "kubernetes.default.svc");
                assert!(upstream.endpoints.is_some());
            }
            (Err(problems), None) => {
                let all = messages(&problems.0);
                assert!(all[0].contains("also needs the URL"), "{all:?}");
            }
            (parsed, _) => panic!("{variables:?} {parsed:?}"),
        }
    }
    // The environment does not change what a URL means.
    let variables = in_pod("10.96.0.1", "443");
    for value in ["https://a", "https://a,endpoints"] {
        let flags = [&[format!("--upstream={value}")], &front_proxy[..]].concat();
        let upstream = files.parse_in(&variables, &flags).unwrap().0.upstream;
        assert_eq!(upstream.host, "a");
        assert!(upstream.others.is_empty());
    }
    assert!(files.parse_in(&variables, &[flag("--upstream=")]).is_err());
}

#[test]
fn upstream_endpoints_needs_a_url_to_begin_with() {
    let files = Files::new();
    let parse = |flags: &[String]| files.parse(flags);
    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    for (flag, count) in [
        ("--upstream=https://a,endpoints", 1),
        ("--upstream=endpoints,https://a,https://b", 2),
    ] {
        let flags = [&[flag.to_owned()], &front_proxy[..]].concat();
        let upstream = parse(&flags).unwrap().0.upstream;
        assert_eq!(upstream.servers().len(), count);
        assert!(upstream.is_balanced());
        let name = upstream.endpoints.unwrap();
        assert_eq!(name.to_str(), "kubernetes.default.svc");
        let named = [&flags[..], &["--upstream-server-name=k".to_owned()]].concat();
        let upstream = parse(&named).unwrap().0.upstream;
        assert_eq!(upstream.endpoints.unwrap().to_str(), "k");
    }
    let rows = [
        (
            "--upstream=endpoints",
            "--upstream: endpoints also needs the URL of a kube-apiserver through which the \
             EndpointSlices are read first: --upstream=https://HOST[:PORT],endpoints; in a pod \
             the Service of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT is used, which are \
             not set",
        ),
        (
            "--upstream=https://a,endpoints",
            "--upstream: endpoints needs --proxy-client-cert-file and --proxy-client-key-file: the \
             bridge reads the EndpointSlices as --bridge-user",
        ),
    ];
    for (flag, expected) in rows {
        let problems = parse(&[flag.to_owned()]).unwrap_err();
        assert_eq!(messages(&problems.0), [expected]);
    }
}

#[test]
fn the_admin_address_is_not_the_upstream() {
    let files = Files::new();
    for host in ["127.0.0.1", "localhost"] {
        let flags = [format!("--upstream=https://{host}:10270")];
        let problems = files.parse(&flags).unwrap_err();
        assert_eq!(
            messages(&problems.0),
            [format!(
                "--upstream: {host}:10270 is this bridge's --admin-address; set the address of \
                 kube-apiserver"
            )]
        );
        let apart = [flags[0].clone(), "--admin-address=127.0.0.1:10271".into()];
        assert!(files.parse(&apart).is_ok());
    }
}

fn messages(diagnostics: &[Warning]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn signed_requests_need_keys_and_authorities() {
    let files = Files::new();
    let path = files.path("keys.yaml");
    files.write(
        "keys.yaml",
        "keys:\n  k:\n    algorithm: hmac-sha256\n    user: alice\n    \
         secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n",
    );
    let front_proxy = [
        format!("--proxy-client-cert-file={}", files.path("tls.crt")),
        format!("--proxy-client-key-file={}", files.path("tls.key")),
    ];
    let keys = format!("--http-signature-keys={path}");
    let authorities = "--http-signature-authorities=Kube.example:443,10.0.0.1:6443".to_owned();
    let with = |flags: &[&String]| {
        let flags: Vec<_> = flags.iter().map(|it| (*it).clone()).collect();
        files.parse(&[&front_proxy[..], &flags].concat())
    };
    let (config, _) = with(&[&keys, &authorities]).unwrap();
    let signatures = config.callers.signatures.unwrap();
    assert_eq!(signatures.authorities, ["kube.example", "10.0.0.1:6443"]);
    assert_eq!(signatures.max_age, Duration::from_mins(5));
    assert_eq!(signatures.clock_skew, Duration::from_secs(30));
    assert!(with(&[]).unwrap().0.callers.signatures.is_none());

    let long = "--http-signature-max-age=2h".to_owned();
    let askew = "--http-signature-clock-skew=1.5s".to_owned();
    let absent = "--http-signature-keys=/nonexistent/keys.yaml".to_owned();
    let rows: [(&[&String], &str); 5] = [
        (&[&keys], "--http-signature-authorities: required with"),
        (
            &[&authorities],
            "--http-signature-authorities: has no effect",
        ),
        (
            &[&absent, &authorities],
            "/nonexistent/keys.yaml: no such file",
        ),
        (
            &[&keys, &authorities, &long],
            "--http-signature-max-age: must not",
        ),
        (
            &[&keys, &authorities, &askew],
            "--http-signature-clock-skew: must be whole",
        ),
    ];
    for (flags, expected) in rows {
        let problems = with(flags).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }
    let problems = files.parse(&[keys, authorities]).unwrap_err();
    let expected = "--proxy-client-cert-file: required with --http-signature-keys";
    assert!(problems.to_string().contains(expected), "{problems}");
}

/// A directory with a certificate, a CA and their keys, removed after the test.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("skewbridge-config-{}-{count}", std::process::id());
        let files = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&files.0).unwrap();
        let ca = IsCa::Ca(BasicConstraints::Unconstrained);
        for (name, is_ca) in [("tls", IsCa::NoCa), ("other", ca)] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::default();
            params.is_ca = is_ca;
            let certificate = params.self_signed(&key).unwrap();
            files.write(&format!("{name}.crt"), &certificate.pem());
            files.write(&format!("{name}.key"), &key.serialize_pem());
        }
        files
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.0.join(name), content).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Parses the required flags, followed by these.
    fn parse(&self, flags: &[String]) -> Result<(Config, Vec<Warning>), Problems> {
        self.parse_in(&[], flags)
    }

    /// The same with these variables of the environment.
    fn parse_in(
        &self,
        variables: &[(&str, &str)],
        flags: &[String],
    ) -> Result<(Config, Vec<Warning>), Problems> {
        let has_upstream = flags.iter().any(|it| it.starts_with("--upstream="));
        let upstream = (!has_upstream).then(|| "--upstream=https://kube.example".to_owned());
        let required = [
            "serve".to_owned(),
            format!("--upstream-ca-file={}", self.path("other.crt")),
            format!("--tls-cert-file={}", self.path("tls.crt")),
            format!("--tls-private-key-file={}", self.path("tls.key")),
        ];
        let line = required.iter().chain(&upstream).chain(flags);
        let line = Line::try_parse_from(line).unwrap();
        let service = kubernetes_service(|name| {
            let variable = variables.iter().find(|(it, _)| *it == name);
            variable.map(|(_, value)| (*value).to_owned())
        });
        config(&line.flags, service)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn address_sources_are_one_registry_and_endpoints() {
    let file = |path: &str| RegistryKind::File(path.into());
    let table = [
        ("etcd", Ok((RegistryKind::Etcd, false))),
        ("leases", Ok((RegistryKind::Leases, false))),
        ("file:/a", Ok((file("/a"), false))),
        ("file:/a,b.yaml", Ok((file("/a,b.yaml"), false))),
        ("endpoints", Ok((RegistryKind::None, true))),
        ("etcd,endpoints", Ok((RegistryKind::Etcd, true))),
        ("endpoints, leases", Ok((RegistryKind::Leases, true))),
        ("file:/a,endpoints", Ok((file("/a"), true))),
        (
            "",
            Err("\"\" is not one of etcd, leases, file:PATH, endpoints"),
        ),
        ("etcd,", Err("\"\" is not one of")),
        ("file:", Err("\"file:\" is not one of")),
        ("etcd,consul", Err("\"consul\" is not one of")),
        ("etcd,etcd", Err("\"etcd,etcd\" has etcd twice")),
        (
            "endpoints,endpoints",
            Err("\"endpoints,endpoints\" has endpoints twice"),
        ),
        (
            "etcd,leases",
            Err("\"etcd,leases\" has etcd and leases: a bridge publishes"),
        ),
        (
            "file:/a,leases",
            Err("\"file:/a,leases\" has file:/a and leases"),
        ),
        (
            "file:/a,file:/a",
            Err("\"file:/a,file:/a\" has file:/a twice"),
        ),
    ];
    for (text, expected) in table {
        match (super::address_sources(text), expected) {
            (Ok(sources), Ok((registry, endpoints))) => {
                assert_eq!(
                    (sources.registry, sources.endpoints),
                    (registry, endpoints),
                    "{text}"
                );
            }
            (Err(error), Err(start)) => assert!(error.starts_with(start), "{text}: {error}"),
            (found, _) => panic!("{text}: {found:?}"),
        }
    }
}

#[test]
fn the_watched_release_is_one_whose_apis_are_known() {
    let files = Files::new();
    let parse = |flags: &[String]| files.parse(flags);
    let (config, _) = parse(&[]).unwrap();
    assert_eq!(config.admin.watch_target, None);
    let (config, _) = parse(&["--watch-target=v1.36.4".into()]).unwrap();
    assert_eq!(config.admin.watch_target.unwrap().to_string(), "1.36");
    for (value, expected) in [
        ("1.5", "--watch-target: the APIs of 1.5 are not known"),
        ("new", "--watch-target: \"new\" is not a minor version"),
    ] {
        let problems = parse(&[format!("--watch-target={value}")]).unwrap_err();
        let [problem] = messages(&problems.0).try_into().unwrap();
        assert!(problem.starts_with(expected), "{problem}");
    }
}
