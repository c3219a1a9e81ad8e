//! The command line of `skewbridge serve`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{CertificateParams, KeyPair};

const USAGE: Option<i32> = Some(64);

#[test]
#[allow(clippy::too_many_lines)] // a table of all flags
fn every_wrong_value_is_reported_at_once() {
    let output = serve(&[
        "--bind-address=everywhere",
        "--secure-port=65536",
        "--advertise-address=0.0.0.0",
        "--tls-cert-file=/nonexistent/tls.crt",
        "--tls-private-key-file=/nonexistent/tls.key",
        "--tls-min-version=VersionTLS10",
        "--client-ca-file=/nonexistent/ca.crt",
        "--requestheader-client-ca-file=/nonexistent/front-proxy-ca.crt",
        "--requestheader-username-headers=a b",
        "--requestheader-extra-headers-prefix=X-",
        "--upstream=http://10.0.0.1",
        "--goaway-chance=0.03",
        "--proxy-protocol-cidrs=10.0.0.9",
        "--upstream-ca-file=/nonexistent/upstream.crt",
        "--upstream-server-name=a b",
        "--peer-ca-file=/",
        "--peer-advertise-ip=::",
        "--peer-advertise-port=0",
        "--peer-registry=consul",
        "--peer-cidrs=10.0.0.1",
        "--apiserver-identity=Not_A_Name",
        "--egress-selector-config-file=/nonexistent/egress.yaml",
        "--etcd-servers=https://etcd:2379,https://etcd,etcd:2379",
        "--etcd-certfile=/nonexistent/etcd.crt",
        "--etcd-prefix=registry",
        "--translate-streams=sometimes",
        "--upstream-streams=quic",
        "--stream-ping-interval=5",
        "--streaming-connection-idle-timeout=long",
        "--feature-gates=Nonsense=true",
        "--max-connections=0",
        "--reserved-connections=-1",
        "--max-unauthenticated-connections-per-source=0",
        "--max-authentication-failures-per-source=few",
        "--http2-max-streams-per-connection=many",
        "--max-buffered-bytes=1M",
        "--tls-handshake-timeout=0s",
        "--read-header-timeout=-1s",
        "--idle-timeout=1 minute",
        "--request-timeout=soon",
        "--admin-address=0.0.0.0:10270",
        "--admin-secure-address=:10271",
        "--v=11",
        "--log-format=xml",
        "--worker-threads=0",
        "--shutdown-delay-duration=1d",
        "--shutdown-drain-timeout=x",
    ]);
    assert_eq!(output.status.code(), USAGE);
    assert_eq!(text(&output.stdout), "");
    let expected = [
        "--bind-address: \"everywhere\" is not an IP address",
        "--secure-port: \"65536\" is not a whole number from 0 to 65535",
        "--advertise-address: clients cannot connect to 0.0.0.0",
        "--tls-cert-file /nonexistent/tls.crt: no such file",
        "--tls-private-key-file /nonexistent/tls.key: no such file",
        "--tls-min-version: VersionTLS10 is insecure",
        "--client-ca-file /nonexistent/ca.crt: no such file",
        "--requestheader-client-ca-file /nonexistent/front-proxy-ca.crt: no such file",
        "--requestheader-username-headers: \"a b\" is not a header name",
        "--requestheader-extra-headers-prefix: \"X-\" is too short",
        "--upstream: \"http://10.0.0.1\" is not https; identities must not be sent unencrypted: \
         use https://",
        "--upstream-ca-file /nonexistent/upstream.crt: no such file",
        "--upstream-server-name: \"a b\" is neither",
        "--proxy-client-cert-file: required with --client-ca-file",
        "--peer-ca-file /: is a directory",
        "--peer-advertise-ip: clients cannot connect to ::",
        "--peer-advertise-port: \"0\" is not a whole number from 1",
        "--peer-registry: \"consul\" is not one of etcd, leases, file:PATH, endpoints",
        "--peer-cidrs: \"10.0.0.1\" has no prefix length",
        "--apiserver-identity: \"Not_A_Name\" is not a name of a Lease",
        "--egress-selector-config-file /nonexistent/egress.yaml: no such file",
        "--etcd-servers: \"https://etcd\" has no port",
        "--etcd-servers: \"etcd:2379\" has no scheme",
        "--etcd-cafile: required with https in --etcd-servers",
        "--etcd-keyfile: required with --etcd-certfile",
        "--etcd-prefix: \"registry\" must be a path",
        "--translate-streams: \"sometimes\" is not one of auto, always, never",
        "--upstream-streams: \"quic\" is not one of any, websocket",
        "--stream-ping-interval: \"5\" is not a duration",
        "--streaming-connection-idle-timeout: \"long\" is not a duration",
        "--feature-gates: unknown gate \"Nonsense\"; known are ",
        "--max-connections: \"0\" is not a whole number from 1",
        "--reserved-connections: \"-1\" is not a whole number from 0",
        "--max-unauthenticated-connections-per-source: \"0\" is not a whole number from 1",
        "--max-authentication-failures-per-source: \"few\" is not a whole number from 0",
        "--http2-max-streams-per-connection: \"many\" is not a whole number",
        "--goaway-chance: \"0.03\" is not a number from 0 to 0.02",
        "--proxy-protocol-cidrs: \"10.0.0.9\" has no prefix length",
        "--max-buffered-bytes: \"1M\" is not a number of bytes (such as 256Mi)",
        "--tls-handshake-timeout: must be more than 0",
        "--read-header-timeout: \"-1s\" must not be negative",
        "--idle-timeout: \"1 minute\" is not a duration",
        "--request-timeout: \"soon\" is not a duration",
        "--admin-address: 0.0.0.0:10270 is not on loopback",
        "--admin-secure-address: \":10271\" is not IP:PORT; write it like 10.0.0.11:10271",
        "--admin-secure-address: needs --proxy-client-cert-file",
        "--v: \"11\" is not a whole number from 0 to 10",
        "--log-format: \"xml\" is not one of text, json",
        "--worker-threads: \"0\" is not a whole number from 1",
        "--shutdown-delay-duration: \"1d\" is not a duration",
        "--shutdown-drain-timeout: \"x\" is not a duration",
    ];
    let stderr = text(&output.stderr);
    let mut lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.pop(), Some("see skewbridge serve --help"));
    for expected in expected {
        let line = format!("skewbridge: {expected}");
        let found = lines.iter().position(|found| found.starts_with(&line));
        let found = found.unwrap_or_else(|| panic!("no line {line:?} in:\n{stderr}"));
        lines.remove(found);
    }
    assert_eq!(lines, Vec::<&str>::new(), "nothing else is printed");
}

#[test]
fn missing_flags_are_listed() {
    let output = serve(&[] as &[&str]);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    for flag in [
        "--tls-cert-file: required: the serving certificate",
        "--tls-private-key-file: required: the private key of --tls-cert-file",
        "--upstream: required: https://HOST",
        "--upstream-ca-file: required: the CA",
    ] {
        assert!(stderr.contains(&format!("skewbridge: {flag}")), "{stderr}");
    }
    assert_eq!(stderr.lines().count(), 5, "{stderr}");
}

#[test]
fn a_key_of_another_certificate_is_reported_with_flag_and_both_files() {
    let files = Files::new();
    let other = KeyPair::generate().unwrap();
    files.write("other.key", &other.serialize_pem());
    let output = serve(&[
        &files.flag("--tls-cert-file", "tls.crt"),
        &files.flag("--tls-private-key-file", "other.key"),
        &files.flag("--upstream-ca-file", "tls.crt"),
        "--upstream=https://10.0.0.1:6443",
    ]);
    assert_eq!(output.status.code(), USAGE);
    let expected = format!(
        "skewbridge: --tls-private-key-file {}: the private key does not match the certificate \
         in {};",
        files.path("other.key").display(),
        files.path("tls.crt").display()
    );
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with(&expected), "{stderr}");
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
}

#[test]
fn swapped_files_are_reported_for_both_flags() {
    let files = Files::new();
    let output = serve(&[
        &files.flag("--tls-cert-file", "tls.key"),
        &files.flag("--tls-private-key-file", "tls.crt"),
        &files.flag("--upstream-ca-file", "tls.crt"),
        "--upstream=https://10.0.0.1:6443",
    ]);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert_eq!(
        stderr.matches("two files may be swapped").count(),
        2,
        "{stderr}"
    );
}

#[test]
fn one_file_for_both_flags_is_reported_for_the_right_flag() {
    let files = Files::new();
    files.write("empty", "");
    let cert = "--tls-cert-file";
    let key = "--tls-private-key-file";
    for (name, expected) in [
        (
            "missing",
            vec![(cert, "no such file"), (key, "no such file")],
        ),
        (
            "empty",
            vec![
                (cert, "is empty; it must hold PEM certificates"),
                (key, "is empty; it must hold PEM certificates"),
            ],
        ),
        ("tls.crt", vec![(key, "holds no PEM private key")]),
        ("tls.key", vec![(cert, "holds no PEM certificate")]),
    ] {
        let output = serve(&[
            &files.flag(cert, name),
            &files.flag(key, name),
            &files.flag("--upstream-ca-file", "tls.crt"),
            "--upstream=https://10.0.0.1:6443",
        ]);
        assert_eq!(output.status.code(), USAGE);
        let stderr = text(&output.stderr);
        let path = files.path(name);
        let path = path.display();
        for (line, (flag, what)) in stderr.lines().zip(&expected) {
            let expected = format!("skewbridge: {flag} {path}: {what}");
            assert!(line.starts_with(&expected), "{stderr}");
        }
        assert_eq!(stderr.lines().count(), expected.len() + 1, "{stderr}");
    }
}

#[test]
fn a_key_in_place_of_a_ca_is_reported_with_advice() {
    let files = Files::new();
    let mut flags = files.required_flags();
    flags.push(files.flag("--upstream-ca-file", "tls.key"));
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let expected = format!(
        "skewbridge: --upstream-ca-file {}: holds no PEM certificate, but a private key; give \
         the certificate, often the .crt beside it\n",
        files.path("tls.key").display()
    );
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with(&expected), "{stderr}");
}

#[test]
fn invalid_flags_are_reported_before_a_port_is_opened() {
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = occupied.local_addr().unwrap().port();
    let files = Files::new();
    let mut flags = files.required_flags();
    flags.push("--bind-address=127.0.0.1".into());
    flags.push(format!("--secure-port={port}"));
    flags.push("--v=loud".into());
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("skewbridge: --v: \"loud\""), "{stderr}");
    assert!(!stderr.contains(&port.to_string()), "{stderr}");
}

#[test]
fn the_bridge_is_not_its_own_upstream() {
    let files = Files::new();
    let mut flags = files.required_flags();
    flags.push("--upstream=https://localhost".into());
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("skewbridge: --upstream: localhost:6443 is where this bridge listens"),
        "{stderr}"
    );
}

#[test]
fn leases_need_networks() {
    let files = Files::new();
    let mut flags = files.required_flags();
    flags.push("--peer-registry=leases".into());
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("skewbridge: --peer-cidrs: required with"),
        "{stderr}"
    );
}

#[test]
fn the_bridge_user_must_be_valid() {
    let files = Files::new();
    for (flag, cause) in [
        ("--bridge-user=", "--bridge-user: is empty"),
        ("--bridge-user= a", "--bridge-user: \" a\" cannot be sent"),
        (
            "--bridge-user=\u{fc}",
            "--bridge-user: \"\u{fc}\" cannot be sent",
        ),
        (
            "--bridge-user=system:anonymous",
            "--bridge-user: system:anonymous has no rights",
        ),
        (
            "--bridge-groups=a,system:unauthenticated",
            "--bridge-groups: system:unauthenticated is",
        ),
    ] {
        let mut flags = files.required_flags();
        flags.push(flag.into());
        let output = serve(&flags);
        assert_eq!(output.status.code(), USAGE);
        let stderr = text(&output.stderr);
        let expected = format!("skewbridge: {cause}");
        assert!(stderr.starts_with(&expected), "{flag}: {stderr}");
    }
}

#[test]
fn an_invalid_document_is_reported_with_its_paths() {
    let files = Files::new();
    files.write("peers.yaml", "peers:\n- {identity: A, address: here}\n");
    files.write("egress.yaml", "apiVersion: v1\nkind: Pod\n");
    let mut flags = files.required_flags();
    flags.push(format!(
        "--peer-registry=file:{}",
        files.path("peers.yaml").display()
    ));
    flags.push(files.flag("--egress-selector-config-file", "egress.yaml"));
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    for expected in [
        "peers.yaml: peers[0].identity: ",
        "peers.yaml: peers[0].address: ",
        "egress.yaml: apiVersion: ",
        "egress.yaml: kind: ",
    ] {
        assert!(stderr.contains(expected), "{stderr}");
    }
    assert_eq!(stderr.lines().count(), 5, "{stderr}");
}

#[test]
fn a_misspelt_flag_is_misuse_with_a_suggestion() {
    let output = serve(&["--tls-cert-flie=x"]);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("'--tls-cert-file'"), "{stderr}");
    let output = serve(&["--upstream"]);
    assert_eq!(output.status.code(), USAGE);
}

#[test]
fn values_are_written_as_kube_apiserver_takes_them() {
    // The last value of a repeated flag counts; -v is --v; a value may be the next argument.
    let files = Files::new();
    let mut flags = files.required_flags();
    flags.extend(["--secure-port=x", "--secure-port", "0", "-v", "3"].map(Into::into));
    flags.extend(["--requestheader-allowed-names=a,b"; 2].map(Into::into));
    flags.push("--idle-timeout=wrong".into());
    let output = serve(&flags);
    assert_eq!(output.status.code(), USAGE);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("skewbridge: --idle-timeout: "),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
}

#[test]
fn help_groups_its_flags_and_fits_a_terminal() {
    let output = serve(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let stdout = text(&output.stdout);
    let headings: Vec<_> = stdout
        .lines()
        .filter(|line| !line.starts_with(' ') && line.contains(" flags") && line.ends_with(':'))
        .collect();
    assert_eq!(
        headings,
        [
            "Secure serving flags:",
            "Authentication flags:",
            "Upstream flags:",
            "Peer flags:",
            "Etcd flags:",
            "Streams flags:",
            "Features flags:",
            "Limits flags:",
            "Admin flags:",
            "Logs flags:",
            "Generic flags:",
        ]
    );
    assert!(!stdout.contains("Options:"), "every flag has a group");
    assert!(stdout.contains("[default: 6443]"), "{stdout}");
    assert!(stdout.contains("[default: etcd]"), "{stdout}");
    for line in [
        "  skewbridge serve \\\n    --secure-port=7443 \\\n",
        "    --upstream=https://127.0.0.1:6443 \\\n    --upstream-server-name=kubernetes \\\n",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    let widest = stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns");
}

#[test]
fn the_version_is_printed_by_flag_and_by_command() {
    let expected = format!("skewbridge {}\n", env!("CARGO_PKG_VERSION"));
    for argument in ["version", "--version"] {
        let output = skewbridge(&[argument]);
        assert_eq!(output.status.code(), Some(0), "{argument}");
        assert_eq!(text(&output.stdout), expected, "{argument}");
    }
    assert_eq!(skewbridge(&[] as &[&str]).status.code(), USAGE);
}

#[test]
fn the_version_says_how_the_program_was_built() {
    let output = skewbridge(&["version", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let build: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(build["version"], env!("CARGO_PKG_VERSION"));
    // Only `cargo xtask dist` names the commit.
    let commit = option_env!("SKEWBRIDGE_COMMIT").unwrap_or("unknown");
    assert_eq!(build["commit"], commit);
    let features = build["features"].as_array().unwrap();
    let playground = serde_json::Value::from("playground");
    assert_eq!(
        features.contains(&playground),
        cfg!(feature = "playground"),
        "{features:?}"
    );
    let target = build["target"].as_str().unwrap();
    assert!(target.starts_with(std::env::consts::ARCH), "{target}");
    let lock = include_str!("../../../Cargo.lock");
    for (package, version) in [
        (&build["tls"]["library"], &build["tls"]["version"]),
        (
            &build["tls"]["cryptoProvider"],
            &build["tls"]["cryptoProviderVersion"],
        ),
    ] {
        let locked = format!("name = {package}\nversion = {version}\n");
        assert!(lock.contains(&locked), "{locked}");
    }
    assert_eq!(build["tls"]["fips"], false);
    assert_eq!(build["linkage"], "dynamic");
    assert!(
        build["rustc"].as_str().unwrap().starts_with("1."),
        "{build}"
    );
    let wrong = skewbridge(&["version", "-o", "yaml"]);
    assert_eq!(wrong.status.code(), USAGE);
}

#[test]
fn help_is_printed_by_flag_and_by_command() {
    let flag = skewbridge(&["--help"]);
    let command = skewbridge(&["help"]);
    for output in [&flag, &command] {
        assert_eq!(output.status.code(), Some(0));
        assert!(
            text(&output.stdout)
                .contains("Run the bridge, in front of one kube-apiserver or of several")
        );
    }
    assert_eq!(flag.stdout, command.stdout);
}

fn serve(flags: &[impl AsRef<str>]) -> Output {
    let flags = flags.iter().map(AsRef::as_ref);
    let arguments: Vec<_> = ["serve"].into_iter().chain(flags).collect();
    skewbridge(&arguments)
}

fn skewbridge(arguments: &[impl AsRef<str>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skewbridge"))
        .args(arguments.iter().map(AsRef::as_ref))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A directory with `tls.crt` and `tls.key`, removed after the test.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("skewbridge-flags-{}-{count}", std::process::id());
        let files = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&files.0).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        files.write("tls.crt", &params.self_signed(&key).unwrap().pem());
        files.write("tls.key", &key.serialize_pem());
        files
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.path(name).display())
    }

    /// The required flags of `serve`.
    fn required_flags(&self) -> Vec<String> {
        vec![
            self.flag("--tls-cert-file", "tls.crt"),
            self.flag("--tls-private-key-file", "tls.key"),
            self.flag("--upstream-ca-file", "tls.crt"),
            "--upstream=https://127.0.0.1:6444".into(),
        ]
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
