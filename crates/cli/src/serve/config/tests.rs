//! Valid command lines and their meaning; invalid ones are in `tests/serve_flags.rs`.

mod peers;
mod upstream;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use skewbridge_gateway::config::{
    ApiServerIdentity, Features, Limits, RegistryKind, TlsVersion, TranslateStreams,
    UpstreamStreams,
};

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
    let separate = ["--bind-address=127.0.0.2".into(), flags[0].clone()];
    assert!(files.parse(&separate).is_ok());

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
fn the_secure_admin_port_needs_a_front_proxy_certificate_for_reviews() {
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

fn messages(diagnostics: &[Warning]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
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
