//! `skewbridge check` before a bridge starts, and of the versions of a cluster, run as its users run
//! it, against fake servers. Remedies are applied, and the check passes then.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

#[path = "../support/check_fixture.rs"]
mod check_fixture;
mod versions;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skewbridge_testkit::{Ca, ScriptedConn, ScriptedServer, TEST_TIMEOUT, Validity, eventually};
use tokio::process::Command;

use check_fixture::{CheckFixture, FAILURE, OK, Report, USAGE, run};

fn used_port() -> (TcpListener, SocketAddr) {
    used_port_of(Ipv4Addr::LOCALHOST)
}

/// A loopback address of this test: a port that is free there stays free. `test` differs for each
/// test, and the process for each run.
fn own_address(test: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, test, high, low)
}

fn used_port_of(ip: Ipv4Addr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_good_configuration_has_no_failure() {
    let fixture = CheckFixture::new().await;
    let report = fixture.report(OK).await;
    assert_eq!(report.0["success"], true);
    // The address for peers is a loopback address, and the fake servers send no date.
    let warnings = report.with("warning");
    assert!(warnings.len() <= 2, "{warnings:#?}");
    let unknown = report.with("notKnown");
    assert!(unknown.is_empty(), "{unknown:#?}");
    let text = fixture.output(&[]).await;
    assert_eq!(text.status.code(), OK);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("✓ flags and files are valid"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(
        text.lines()
            .all(|it| it.chars().count() <= 100 || it.contains('/')),
        "{text}"
    );
}

#[tokio::test]
async fn flags_may_be_in_a_file() {
    let fixture = CheckFixture::new().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let printed = run(command
        .arg("serve")
        .args(&fixture.arguments()[1..])
        .arg("--dry-run"))
    .await;
    assert!(printed.status.success());
    let file = fixture.dir.write("config.yaml", printed.stdout);
    let file = format!("--config={}", file.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let output = run(command.args(["check", &file, "-ojson"])).await;
    Report::of(&output, OK);
}

#[tokio::test]
async fn the_key_of_another_certificate() {
    let mut fixture = CheckFixture::new().await;
    let other = fixture
        .serving
        .server(&["kubernetes.default.svc", "127.0.0.1"]);
    fixture.file("tls-private-key-file", "serving.key", &other.key_pem);
    fixture
        .is_found_and_corrected("--tls-private-key-file", |fixture, remedy| {
            assert!(remedy["file"].as_str().unwrap().ends_with("serving.key"));
            fixture.file("tls-cert-file", "serving.crt", &other.cert_pem);
        })
        .await;
}

#[tokio::test]
async fn an_expired_certificate() {
    let mut fixture = CheckFixture::new().await;
    let names = ["kubernetes.default.svc", "127.0.0.1"];
    let expired = fixture.serving.server_valid(&names, Validity::Expired);
    fixture.file("tls-cert-file", "serving.crt", &expired.cert_pem);
    fixture.file("tls-private-key-file", "serving.key", &expired.key_pem);
    fixture
        .is_found_and_corrected("--tls-cert-file", |fixture, remedy| {
            let file = remedy["file"].as_str().unwrap();
            let renewed = fixture.serving.server(&names);
            std::fs::write(file, renewed.cert_pem).unwrap();
            fixture.file("tls-private-key-file", "serving.key", &renewed.key_pem);
        })
        .await;
}

#[tokio::test]
async fn a_certificate_without_the_name_that_peers_verify() {
    let mut fixture = CheckFixture::new().await;
    let other = fixture.serving.server(&["localhost", "127.0.0.1"]);
    fixture.file("tls-cert-file", "serving.crt", &other.cert_pem);
    fixture.file("tls-private-key-file", "serving.key", &other.key_pem);
    fixture
        .is_found_and_corrected("kubernetes.default.svc", |fixture, remedy| {
            let file = remedy["file"].as_str().unwrap();
            let issued = fixture
                .serving
                .server(&["kubernetes.default.svc", "127.0.0.1"]);
            std::fs::write(file, issued.cert_pem).unwrap();
            fixture.file("tls-private-key-file", "serving.key", &issued.key_pem);
        })
        .await;
}

#[tokio::test]
async fn the_wrong_ca_and_the_wrong_name_of_upstream() {
    let mut fixture = CheckFixture::new().await;
    let other = Ca::new("another").pem();
    fixture.file("upstream-ca-file", "other.crt", &other);
    fixture
        .is_found_and_corrected("its certificate is trusted", CheckFixture::set_flag)
        .await;
    fixture.set("upstream-server-name", "example.com");
    fixture
        .is_found_and_corrected("its certificate is trusted", CheckFixture::set_flag)
        .await;
    assert_eq!(
        fixture.flags["upstream-server-name"],
        "kubernetes.default.svc"
    );
}

#[tokio::test]
async fn a_closed_port_of_upstream_with_wait() {
    let mut fixture = CheckFixture::new().await;
    let right = fixture.flags["upstream"].clone();
    let (listener, address) = used_port();
    drop(listener);
    fixture.set("upstream", &format!("https://{address}"));
    fixture
        .is_found_and_corrected("is reached", |fixture, remedy| {
            assert_eq!(remedy["flag"], "--upstream");
            fixture.set("upstream", &right);
        })
        .await;
    fixture.set("upstream", &format!("https://{address}"));
    let output = fixture.output(&["-ojson", "--wait=10s"]).await;
    Report::of(&output, FAILURE);
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.starts_with("waiting "), "{progress}");
    assert!(progress.contains(&address.to_string()), "{progress}");
}

#[tokio::test]
async fn a_ca_that_authenticates_users_and_front_proxies() {
    let mut fixture = CheckFixture::new().await;
    let front_proxies = fixture.front_proxies.pem();
    fixture.file("client-ca-file", "users.crt", &front_proxies);
    let report = fixture.report(FAILURE).await;
    let failures = report.with("failure");
    let remedies = failures.iter().map(|it| &it["remedy"]);
    let allowed = remedies
        .clone()
        .find(|it| it["flag"] == "--requestheader-allowed-names");
    assert_eq!(
        allowed.unwrap()["value"],
        "front-proxy-client",
        "{failures:#?}"
    );
}

#[tokio::test]
async fn a_missing_and_a_wrong_peer_ca() {
    let mut fixture = CheckFixture::new().await;
    let missing = fixture.dir.path().join("missing.crt");
    fixture.set("peer-ca-file", &missing.display().to_string());
    fixture
        .is_found_and_corrected("--peer-ca-file", CheckFixture::set_flag)
        .await;
    let upstream_ca = fixture.flags["upstream-ca-file"].clone();
    assert_eq!(fixture.flags["peer-ca-file"], upstream_ca);
    fixture.file("peer-ca-file", "other.crt", &Ca::new("another").pem());
    let report = fixture.report(FAILURE).await;
    let failures = report.with("failure");
    let remedy = &failures[0]["remedy"];
    assert_eq!(remedy["flag"], "--peer-ca-file", "{failures:#?}");
    assert_eq!(remedy["value"], upstream_ca);
}

#[tokio::test]
async fn ports_of_other_programs() {
    let mut fixture = CheckFixture::new().await;
    let own = own_address(53);
    fixture.set("bind-address", &own.to_string());
    for flag in ["secure-port", "admin-address", "admin-secure-address"] {
        let (_listener, address) = used_port_of(own);
        let value = match flag {
            "secure-port" => address.port().to_string(),
            _ => address.to_string(),
        };
        fixture.set(flag, &value);
        let name = format!("(--{flag}) can be opened");
        fixture
            .is_found_and_corrected(&name, CheckFixture::set_flag)
            .await;
    }
}

/// A bridge runs, and is to move to a port that another program has.
#[tokio::test]
async fn a_port_that_the_running_bridge_does_not_have() {
    let mut fixture = CheckFixture::new().await;
    let own = own_address(54);
    fixture.set("bind-address", &own.to_string());
    fixture.set("secure-port", "7443");
    fixture.set("admin-address", &format!("{own}:10270"));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let serve = serve.arg("serve").args(&fixture.arguments()[1..]);
    let _bridge = serve
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("the bridge listens", TEST_TIMEOUT, async || {
        tokio::net::TcpStream::connect((own, 7443)).await.is_ok()
            && tokio::net::TcpStream::connect((own, 10270)).await.is_ok()
    })
    .await;
    let report = fixture.report(OK).await;
    let ports = report.section("ports");
    assert_eq!(ports.len(), 2, "{ports:#?}");
    for port in ports {
        assert_eq!(port["message"], "the running bridge listens there");
    }
    let _other = TcpListener::bind((own, 6443)).unwrap();
    fixture.set("secure-port", "6443");
    fixture
        .is_found_and_corrected("(--secure-port) can be opened", CheckFixture::set_flag)
        .await;
}

/// The same port on two addresses, before kube-apiserver has moved to its loopback address.
#[tokio::test]
async fn a_port_that_kube_apiserver_has_until_it_moves() {
    let mut fixture = CheckFixture::new().await;
    let everywhere = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = everywhere.local_addr().unwrap().port();
    let server = fixture.upstream.addr();
    let forward = tokio::spawn(async move {
        loop {
            let (mut client, _) = everywhere.accept().await.unwrap();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    fixture.set("upstream", &format!("https://127.0.0.1:{port}"));
    fixture.set("bind-address", &own_address(55).to_string());
    fixture.set("secure-port", &port.to_string());
    let report = fixture.report(OK).await;
    let ports = report.section("ports");
    assert_eq!(ports[0]["outcome"], "warning", "{ports:#?}");
    let remedy = &ports[0]["remedy"];
    assert_eq!(
        remedy["command"],
        "skewbridge manifest kubeadm --output-dir=/etc/skewbridge"
    );
    // As the installation page shows it.
    let page = include_str!("../../../../docs/install-kubeadm.md");
    let (_, documented) = page.split_once("\nports\n").unwrap();
    let (documented, _) = documented.split_once("\n\n").unwrap();
    let documented = documented
        .replace("10.0.0.11:6443", &format!("{}:{port}", own_address(55)))
        .replace("127.0.0.1:10270", &fixture.flags["admin-address"]);
    let text = String::from_utf8(fixture.output(&[]).await.stdout).unwrap();
    let printed = format!("\nports\n{documented}\n\n");
    assert!(text.contains(&printed), "{printed}{text}");
    forward.abort();
}

/// With TLS 1.3 etcd refuses a client certificate after the handshake of the client, and a reset can
/// discard its alert.
#[tokio::test]
async fn an_etcd_that_resets_connections_after_the_handshake() {
    let mut fixture = CheckFixture::new().await;
    let tls = fixture.serving.server(&["127.0.0.1"]);
    let reset = |connection: ScriptedConn| async move { connection.reset() };
    let etcd = ScriptedServer::start(&tls, None, &["h2"], reset).await;
    let client = Ca::new("another").client("skewbridge", &[]);
    fixture.set("peer-registry", "etcd");
    fixture.set("etcd-servers", &format!("https://{}", etcd.addr()));
    let ca = fixture.serving.pem();
    fixture.file("etcd-cafile", "etcd-ca.crt", &ca);
    fixture.file("etcd-certfile", "etcd.crt", &client.cert_pem);
    fixture.file("etcd-keyfile", "etcd.key", &client.key_pem);
    let report = fixture.report(FAILURE).await;
    let failure = report.only_failure();
    assert_eq!(failure["section"], "registry");
    assert_eq!(failure["remedy"]["flag"], "--etcd-certfile", "{failure:#}");
    assert_eq!(failure["remedy"]["file"], fixture.flags["etcd-certfile"]);
}

#[tokio::test]
async fn a_dead_peer_in_the_file() {
    let mut fixture = CheckFixture::new().await;
    let (listener, address) = used_port();
    drop(listener);
    let path = fixture.flags["peer-registry"]
        .strip_prefix("file:")
        .unwrap()
        .to_owned();
    let good = std::fs::read_to_string(&path).unwrap();
    let dead = format!("{good}- identity: apiserver-dead\n  address: {address}\n");
    std::fs::write(&path, dead).unwrap();
    fixture
        .is_found_and_corrected("apiserver-dead", |_, remedy| {
            assert_eq!(remedy["file"], path);
            std::fs::write(&path, &good).unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_wrong_clock_of_upstream() {
    let mut fixture = CheckFixture::new().await;
    fixture.clock_is_wrong.store(true, Ordering::Relaxed);
    let report = fixture.report(FAILURE).await;
    let failures = report.with("failure");
    // Of upstream, and of the peer.
    assert_eq!(failures.len(), 2, "{failures:#?}");
    assert_eq!(failures[0]["section"], "clocks");
    assert_eq!(failures[0]["remedy"]["command"], "timedatectl set-ntp true");
    fixture.clock_is_wrong.store(false, Ordering::Relaxed);
    fixture.report(OK).await;
    fixture.set("v", "1");
}

#[tokio::test]
async fn too_few_open_files() {
    let mut fixture = CheckFixture::new().await;
    let limited = async |fixture: &CheckFixture| {
        let mut command = Command::new("sh");
        let script = "ulimit -n 2000; exec \"$@\"";
        let program = env!("CARGO_BIN_EXE_skewbridge");
        command
            .args(["-c", script, "sh", program])
            .args(fixture.arguments())
            .arg("-ojson");
        run(&mut command).await
    };
    let report = Report::of(&limited(&fixture).await, FAILURE);
    let remedy = report.only_failure()["remedy"].clone();
    assert_eq!(remedy["flag"], "--max-connections");
    fixture.set_flag(&remedy);
    Report::of(&limited(&fixture).await, OK);
}

#[tokio::test]
async fn a_front_proxy_certificate_of_another_ca() {
    let mut fixture = CheckFixture::new().await;
    let other = Ca::new("another");
    let foreign = other.client("front-proxy-client", &[]);
    fixture.file("proxy-client-cert-file", "proxy.crt", &foreign.cert_pem);
    fixture.file("proxy-client-key-file", "proxy.key", &foreign.key_pem);
    let report = fixture.report(FAILURE).await;
    let failures = report.with("failure");
    let remedy = &failures[0]["remedy"];
    assert_eq!(remedy["flag"], "--proxy-client-cert-file", "{failures:#?}");
    let issued = fixture.front_proxies.client("front-proxy-client", &[]);
    std::fs::write(remedy["file"].as_str().unwrap(), issued.cert_pem).unwrap();
    fixture.file("proxy-client-key-file", "proxy.key", &issued.key_pem);
    fixture.report(OK).await;
}

/// The file that `skewbridge manifest balancer` prints, for the files and servers of this test.
#[tokio::test]
async fn the_configuration_of_a_balancer() {
    let mut fixture = CheckFixture::new().await;
    let pki = [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "users.crt"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("upstream-ca-file", "ca.crt"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
    ];
    for (flag, name) in pki {
        let text = std::fs::read_to_string(&fixture.flags[flag]).unwrap();
        fixture.file(flag, name, &text);
    }
    let directory = fixture.dir.path().display().to_string();
    let upstreams = [fixture.upstream.addr(), fixture.peer.addr()];
    let upstreams = upstreams.map(|it| format!("--upstream=https://{it}"));
    let mut generate = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let generate = generate
        .args(["manifest", "balancer"])
        .args(upstreams)
        .args([
            format!("--cert-dir={directory}"),
            format!("--output-dir={directory}"),
        ]);
    assert!(run(generate).await.status.success());
    // What the test's own servers and machine do not have.
    let config = std::fs::read_to_string(format!("{directory}/config.yaml")).unwrap();
    let state = format!("stateDir: {directory}");
    let config = config.replace("stateDir: /var/lib/skewbridge", &state);
    let file = fixture.dir.write("balancer.yaml", config);
    let users = fixture.flags["client-ca-file"].clone();
    let check = async |more: &[&str], code| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        let flags = [
            "check".to_owned(),
            "-ojson".to_owned(),
            format!("--config={}", file.display()),
            format!("--client-ca-file={users}"),
            "--upstream-server-name=kubernetes.default.svc".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
        ];
        Report::of(&run(command.args(flags).args(more)).await, code)
    };
    let report = check(&[], OK).await;
    let names: Vec<_> = (report.with("ok").iter())
        .filter_map(|it| it["name"].as_str())
        .collect();
    for name in [
        "has issued --proxy-client-cert-file",
        "--requestheader-allowed-names allows front-proxy-client",
    ] {
        assert!(
            names.iter().any(|it| it.contains(name)),
            "{name}: {names:#?}"
        );
    }
    let rights = |name: &&&str| name.contains(" has its rights at https://127.0.0.1:");
    assert_eq!(names.iter().filter(rights).count(), 2, "{names:#?}");

    let report = check(&["--bridge-user=without-rights"], FAILURE).await;
    let failures = report.with("failure");
    assert_eq!(failures.len(), 2, "{failures:#?}");
    for failure in failures {
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains("watch apiservices"), "{message}");
        // Its peers are its values of --upstream.
        assert!(!message.contains("leases"), "{message}");
        assert_eq!(failure["remedy"]["flag"], "--bridge-user");
    }

    let report = check(&["--requestheader-allowed-names=other"], FAILURE).await;
    let failure = report.only_failure();
    assert_eq!(failure["section"], "certificates", "{failure:#}");
    assert_eq!(failure["remedy"]["flag"], "--requestheader-allowed-names");
}

#[tokio::test]
async fn a_wrong_command_line_is_a_usage_error() {
    let rows: [&[&str]; 4] = [
        &["-o", "xml"],
        &["--wait=soon"],
        &["--unknown"],
        &["--tls-server-name=a"],
    ];
    for words in rows {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        let output = command.arg("check").args(words).output().await.unwrap();
        assert_eq!(output.status.code(), USAGE, "{words:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let help = command.args(["check", "--help"]).output().await.unwrap();
    assert_eq!(help.status.code(), OK);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.contains("Examples:"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
}

/// Each probe ends in time, also if a server accepts connections and answers nothing.
#[tokio::test]
async fn a_server_that_does_not_answer_ends_the_check_in_time() {
    let mut fixture = CheckFixture::new().await;
    let (_silent, address) = used_port();
    fixture.set("upstream", &format!("https://{address}"));
    let started = std::time::Instant::now();
    let report = fixture.report(FAILURE).await;
    assert!(started.elapsed() < Duration::from_mins(1));
    let message = report.only_failure()["message"].as_str().unwrap();
    assert!(message.contains("does not answer"), "{message}");
}
