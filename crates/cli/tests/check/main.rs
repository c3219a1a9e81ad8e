//! `skewbridge check` before a bridge starts, and of the versions of a cluster, run as its users run
//! it, against fake servers. Remedies are applied, and the check passes then.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

mod versions;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, RecordedRequest, Reply, ScratchDir, ScriptedConn,
    ScriptedServer, TEST_TIMEOUT, Validity, eventually,
};

/// Exit codes.
const OK: Option<i32> = Some(0);
const FAILURE: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(64);

/// A user that the fake servers permit nothing.
const WITHOUT_RIGHTS: &str = "without-rights";

/// Valid files and flags, with a working upstream and a working peer.
struct Setup {
    dir: ScratchDir,
    flags: BTreeMap<String, String>,
    serving: Ca,
    front_proxies: Ca,
    upstream: ApiServer,
    peer: ApiServer,
    /// Whether the clock of upstream is wrong.
    clock_is_wrong: Arc<AtomicBool>,
}

impl Setup {
    async fn new() -> Self {
        let dir = ScratchDir::new();
        let [serving, users, front_proxies] = ["serving", "users", "front-proxies"].map(Ca::new);
        let clock_is_wrong = Arc::new(AtomicBool::new(false));
        let published = [users.pem(), front_proxies.pem()];
        let server = |names: &[&str]| {
            let options = Options::new(serving.server(names));
            let (published, wrong) = (published.clone(), clock_is_wrong.clone());
            let options = options.clients(ClientAuth::Accept(&front_proxies));
            ApiServer::start(options, move |request| answer(&request, &published, &wrong))
        };
        let upstream = server(&["kubernetes.default.svc", "127.0.0.1"]).await;
        let peer = server(&["kubernetes.default.svc"]).await;
        let own = serving.server(&["kubernetes.default.svc", "127.0.0.1"]);
        let front_proxy = front_proxies.client("front-proxy-client", &[]);
        let mut setup = Self {
            flags: BTreeMap::new(),
            dir,
            serving,
            front_proxies,
            clock_is_wrong,
            upstream,
            peer,
        };
        let upstream = setup.upstream.addr();
        let peers = format!(
            "peers:\n- identity: apiserver-other\n  address: {}\n",
            setup.peer.addr()
        );
        let ca = setup.serving.pem();
        let front_proxies = setup.front_proxies.pem();
        setup.file("tls-cert-file", "serving.crt", &own.cert_pem);
        setup.file("tls-private-key-file", "serving.key", &own.key_pem);
        setup.file("proxy-client-cert-file", "proxy.crt", &front_proxy.cert_pem);
        setup.file("proxy-client-key-file", "proxy.key", &front_proxy.key_pem);
        setup.file("client-ca-file", "users.crt", &users.pem());
        setup.file(
            "requestheader-client-ca-file",
            "proxies.crt",
            &front_proxies,
        );
        setup.file("upstream-ca-file", "upstream.crt", &ca);
        setup.file("peer-ca-file", "peers.crt", &ca);
        let path = setup.dir.write("peers.yaml", peers);
        setup.set("peer-registry", &format!("file:{}", path.display()));
        setup.set("upstream", &format!("https://{upstream}"));
        setup.set("apiserver-identity", "apiserver-own");
        setup.set("bind-address", "127.0.0.1");
        setup.set("secure-port", "0");
        setup.set("admin-address", "127.0.0.1:0");
        setup
    }

    fn set(&mut self, flag: &str, value: &str) {
        self.flags.insert(flag.to_owned(), value.to_owned());
    }

    fn file(&mut self, flag: &str, name: &str, text: &str) {
        let path = self.dir.write(name, text);
        self.set(flag, &path.display().to_string());
    }

    fn arguments(&self) -> Vec<String> {
        let flags = self
            .flags
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}"));
        ["check".to_owned()].into_iter().chain(flags).collect()
    }

    async fn output(&self, more: &[&str]) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_skewbridge"))
            .args(self.arguments())
            .args(more))
        .await
    }

    /// The report, after a check of the exit code.
    async fn report(&self, code: Option<i32>) -> Report {
        Report::of(&self.output(&["-ojson"]).await, code)
    }

    /// The only failure. Its remedy is applied by `apply`; then the check passes.
    async fn is_found_and_corrected(&mut self, name: &str, apply: impl FnOnce(&mut Self, &Value)) {
        let report = self.report(FAILURE).await;
        let failure = report.only_failure();
        let found = failure["name"].as_str().unwrap();
        assert!(found.contains(name), "{failure:#}");
        apply(self, &failure["remedy"]);
        self.report(OK).await;
    }

    /// Sets the flag of a remedy to its value.
    fn set_flag(&mut self, remedy: &Value) {
        let text = |key: &str| remedy[key].as_str().unwrap_or_else(|| panic!("{remedy:#}"));
        let flag = text("flag").strip_prefix("--").unwrap().to_owned();
        self.set(&flag, text("value"));
    }
}

/// The fake servers run in the runtime of the test.
async fn run(command: &mut Command) -> Output {
    command.env_remove("KUBECONFIG").env("HOME", "/none");
    command.stdin(Stdio::null());
    command.kill_on_drop(true).output().await.unwrap()
}

/// The JSON document.
struct Report(Value);

impl Report {
    fn of(output: &Output, code: Option<i32>) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), code, "{text}{output:?}");
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn with(&self, outcome: &str) -> Vec<&Value> {
        let all = self.0["findings"].as_array().unwrap().iter();
        all.filter(|it| it["outcome"] == outcome).collect()
    }

    fn section(&self, section: &str) -> Vec<&Value> {
        let all = self.0["findings"].as_array().unwrap().iter();
        all.filter(|it| it["section"] == section).collect()
    }

    fn only_failure(&self) -> &Value {
        let failures = self.with("failure");
        assert_eq!(failures.len(), 1, "{failures:#?}");
        failures[0]
    }
}

/// A kube-apiserver that believes front proxies.
fn answer(request: &RecordedRequest, published: &[String; 2], wrong_clock: &AtomicBool) -> Reply {
    let reply = match request.path() {
        "/version" => Reply::json(r#"{"gitVersion":"v1.36.4"}"#),
        "/readyz" => Reply::new(200).body("ok"),
        path if path.ends_with("/selfsubjectreviews") => {
            let user = request
                .header("x-remote-user")
                .unwrap_or("system:anonymous");
            let groups = request.all("x-remote-group");
            let review = json!({"status": {"userInfo": {"username": user, "groups": groups}}});
            Reply::json(review.to_string()).status(201)
        }
        path if path.ends_with("/selfsubjectaccessreviews") => {
            let user = request.header("x-remote-user").unwrap_or_default();
            let allowed = user != WITHOUT_RIGHTS;
            let review = json!({"status": {"allowed": allowed}});
            Reply::json(review.to_string()).status(201)
        }
        path if path.ends_with("/extension-apiserver-authentication") => {
            let map = json!({"kind": "ConfigMap", "data": {"client-ca-file": published[0],
                "requestheader-client-ca-file": published[1]}});
            Reply::json(map.to_string())
        }
        _ => Reply::new(404).body("404 page not found"),
    };
    if wrong_clock.load(Ordering::Relaxed) {
        reply.header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
    } else {
        reply
    }
}

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
    let setup = Setup::new().await;
    let report = setup.report(OK).await;
    assert_eq!(report.0["success"], true);
    // The address for peers is a loopback address, and the fake servers send no date.
    let warnings = report.with("warning");
    assert!(warnings.len() <= 2, "{warnings:#?}");
    let unknown = report.with("notKnown");
    assert!(unknown.is_empty(), "{unknown:#?}");
    let text = setup.output(&[]).await;
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
    let setup = Setup::new().await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let printed = run(command
        .arg("serve")
        .args(&setup.arguments()[1..])
        .arg("--dry-run"))
    .await;
    assert!(printed.status.success());
    let file = setup.dir.write("config.yaml", printed.stdout);
    let file = format!("--config={}", file.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let output = run(command.args(["check", &file, "-ojson"])).await;
    Report::of(&output, OK);
}

#[tokio::test]
async fn the_key_of_another_certificate() {
    let mut setup = Setup::new().await;
    let other = setup
        .serving
        .server(&["kubernetes.default.svc", "127.0.0.1"]);
    setup.file("tls-private-key-file", "serving.key", &other.key_pem);
    setup
        .is_found_and_corrected("--tls-private-key-file", |setup, remedy| {
            assert!(remedy["file"].as_str().unwrap().ends_with("serving.key"));
            setup.file("tls-cert-file", "serving.crt", &other.cert_pem);
        })
        .await;
}

#[tokio::test]
async fn an_expired_certificate() {
    let mut setup = Setup::new().await;
    let names = ["kubernetes.default.svc", "127.0.0.1"];
    let expired = setup.serving.server_valid(&names, Validity::Expired);
    setup.file("tls-cert-file", "serving.crt", &expired.cert_pem);
    setup.file("tls-private-key-file", "serving.key", &expired.key_pem);
    setup
        .is_found_and_corrected("--tls-cert-file", |setup, remedy| {
            let file = remedy["file"].as_str().unwrap();
            let renewed = setup.serving.server(&names);
            std::fs::write(file, renewed.cert_pem).unwrap();
            setup.file("tls-private-key-file", "serving.key", &renewed.key_pem);
        })
        .await;
}

#[tokio::test]
async fn a_certificate_without_the_name_that_peers_verify() {
    let mut setup = Setup::new().await;
    let other = setup.serving.server(&["localhost", "127.0.0.1"]);
    setup.file("tls-cert-file", "serving.crt", &other.cert_pem);
    setup.file("tls-private-key-file", "serving.key", &other.key_pem);
    setup
        .is_found_and_corrected("kubernetes.default.svc", |setup, remedy| {
            let file = remedy["file"].as_str().unwrap();
            let issued = setup
                .serving
                .server(&["kubernetes.default.svc", "127.0.0.1"]);
            std::fs::write(file, issued.cert_pem).unwrap();
            setup.file("tls-private-key-file", "serving.key", &issued.key_pem);
        })
        .await;
}

#[tokio::test]
async fn the_wrong_ca_and_the_wrong_name_ofupstream() {
    let mut setup = Setup::new().await;
    let other = Ca::new("another").pem();
    setup.file("upstream-ca-file", "other.crt", &other);
    setup
        .is_found_and_corrected("its certificate is trusted", Setup::set_flag)
        .await;
    setup.set("upstream-server-name", "example.com");
    setup
        .is_found_and_corrected("its certificate is trusted", Setup::set_flag)
        .await;
    assert_eq!(
        setup.flags["upstream-server-name"],
        "kubernetes.default.svc"
    );
}

#[tokio::test]
async fn a_closed_port_ofupstream_with_wait() {
    let mut setup = Setup::new().await;
    let right = setup.flags["upstream"].clone();
    let (listener, address) = used_port();
    drop(listener);
    setup.set("upstream", &format!("https://{address}"));
    setup
        .is_found_and_corrected("is reached", |setup, remedy| {
            assert_eq!(remedy["flag"], "--upstream");
            setup.set("upstream", &right);
        })
        .await;
    setup.set("upstream", &format!("https://{address}"));
    let output = setup.output(&["-ojson", "--wait=3s"]).await;
    Report::of(&output, FAILURE);
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(progress.starts_with("waiting "), "{progress}");
    assert!(progress.contains(&address.to_string()), "{progress}");
}

#[tokio::test]
async fn a_ca_that_authenticates_users_and_front_proxies() {
    let mut setup = Setup::new().await;
    let front_proxies = setup.front_proxies.pem();
    setup.file("client-ca-file", "users.crt", &front_proxies);
    let report = setup.report(FAILURE).await;
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
    let mut setup = Setup::new().await;
    let missing = setup.dir.path().join("missing.crt");
    setup.set("peer-ca-file", &missing.display().to_string());
    setup
        .is_found_and_corrected("--peer-ca-file", Setup::set_flag)
        .await;
    let upstream_ca = setup.flags["upstream-ca-file"].clone();
    assert_eq!(setup.flags["peer-ca-file"], upstream_ca);
    setup.file("peer-ca-file", "other.crt", &Ca::new("another").pem());
    let report = setup.report(FAILURE).await;
    let failures = report.with("failure");
    let remedy = &failures[0]["remedy"];
    assert_eq!(remedy["flag"], "--peer-ca-file", "{failures:#?}");
    assert_eq!(remedy["value"], upstream_ca);
}

#[tokio::test]
async fn ports_of_other_programs() {
    let mut setup = Setup::new().await;
    let own = own_address(53);
    setup.set("bind-address", &own.to_string());
    for flag in ["secure-port", "admin-address", "admin-secure-address"] {
        let (_listener, address) = used_port_of(own);
        let value = match flag {
            "secure-port" => address.port().to_string(),
            _ => address.to_string(),
        };
        setup.set(flag, &value);
        let name = format!("(--{flag}) can be opened");
        setup.is_found_and_corrected(&name, Setup::set_flag).await;
    }
}

/// A bridge runs, and is to move to a port that another program has.
#[tokio::test]
async fn a_port_that_the_running_bridge_does_not_have() {
    let mut setup = Setup::new().await;
    let own = own_address(54);
    setup.set("bind-address", &own.to_string());
    setup.set("secure-port", "7443");
    setup.set("admin-address", &format!("{own}:10270"));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
    let serve = serve.arg("serve").args(&setup.arguments()[1..]);
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
    let report = setup.report(OK).await;
    let ports = report.section("ports");
    assert_eq!(ports.len(), 2, "{ports:#?}");
    for port in ports {
        assert_eq!(port["message"], "the running bridge listens there");
    }
    let _other = TcpListener::bind((own, 6443)).unwrap();
    setup.set("secure-port", "6443");
    setup
        .is_found_and_corrected("(--secure-port) can be opened", Setup::set_flag)
        .await;
}

/// The same port on two addresses, before kube-apiserver has moved to its loopback address.
#[tokio::test]
async fn a_port_that_kube_apiserver_has_until_it_moves() {
    let mut setup = Setup::new().await;
    let everywhere = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = everywhere.local_addr().unwrap().port();
    let server = setup.upstream.addr();
    let forward = tokio::spawn(async move {
        loop {
            let (mut client, _) = everywhere.accept().await.unwrap();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    setup.set("upstream", &format!("https://127.0.0.1:{port}"));
    setup.set("bind-address", &own_address(55).to_string());
    setup.set("secure-port", &port.to_string());
    let report = setup.report(OK).await;
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
        .replace("127.0.0.1:10270", &setup.flags["admin-address"]);
    let text = String::from_utf8(setup.output(&[]).await.stdout).unwrap();
    let printed = format!("\nports\n{documented}\n\n");
    assert!(text.contains(&printed), "{printed}{text}");
    forward.abort();
}

/// With TLS 1.3 etcd refuses a client certificate after the handshake of the client, and a reset can
/// discard its alert.
#[tokio::test]
async fn an_etcd_that_resets_connections_after_the_handshake() {
    let mut setup = Setup::new().await;
    let tls = setup.serving.server(&["127.0.0.1"]);
    let reset = |connection: ScriptedConn| async move { connection.reset() };
    let etcd = ScriptedServer::start(&tls, None, &["h2"], reset).await;
    let client = Ca::new("another").client("skewbridge", &[]);
    setup.set("peer-registry", "etcd");
    setup.set("etcd-servers", &format!("https://{}", etcd.addr()));
    let ca = setup.serving.pem();
    setup.file("etcd-cafile", "etcd-ca.crt", &ca);
    setup.file("etcd-certfile", "etcd.crt", &client.cert_pem);
    setup.file("etcd-keyfile", "etcd.key", &client.key_pem);
    let report = setup.report(FAILURE).await;
    let failure = report.only_failure();
    assert_eq!(failure["section"], "registry");
    assert_eq!(failure["remedy"]["flag"], "--etcd-certfile", "{failure:#}");
    assert_eq!(failure["remedy"]["file"], setup.flags["etcd-certfile"]);
}

#[tokio::test]
async fn a_dead_peer_in_the_file() {
    let mut setup = Setup::new().await;
    let (listener, address) = used_port();
    drop(listener);
    let path = setup.flags["peer-registry"]
        .strip_prefix("file:")
        .unwrap()
        .to_owned();
    let good = std::fs::read_to_string(&path).unwrap();
    let dead = format!("{good}- identity: apiserver-dead\n  address: {address}\n");
    std::fs::write(&path, dead).unwrap();
    setup
        .is_found_and_corrected("apiserver-dead", |_, remedy| {
            assert_eq!(remedy["file"], path);
            std::fs::write(&path, &good).unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_wrong_clock_ofupstream() {
    let mut setup = Setup::new().await;
    setup.clock_is_wrong.store(true, Ordering::Relaxed);
    let report = setup.report(FAILURE).await;
    let failures = report.with("failure");
    // Of upstream, and of the peer.
    assert_eq!(failures.len(), 2, "{failures:#?}");
    assert_eq!(failures[0]["section"], "clocks");
    assert_eq!(failures[0]["remedy"]["command"], "timedatectl set-ntp true");
    setup.clock_is_wrong.store(false, Ordering::Relaxed);
    setup.report(OK).await;
    setup.set("v", "1");
}

#[tokio::test]
async fn too_few_open_files() {
    let mut setup = Setup::new().await;
    let limited = async |setup: &Setup| {
        let mut command = Command::new("sh");
        let script = "ulimit -n 2000; exec \"$@\"";
        let program = env!("CARGO_BIN_EXE_skewbridge");
        command
            .args(["-c", script, "sh", program])
            .args(setup.arguments())
            .arg("-ojson");
        run(&mut command).await
    };
    let report = Report::of(&limited(&setup).await, FAILURE);
    let remedy = report.only_failure()["remedy"].clone();
    assert_eq!(remedy["flag"], "--max-connections");
    setup.set_flag(&remedy);
    Report::of(&limited(&setup).await, OK);
}

#[tokio::test]
async fn a_front_proxy_certificate_of_another_ca() {
    let mut setup = Setup::new().await;
    let other = Ca::new("another");
    let foreign = other.client("front-proxy-client", &[]);
    setup.file("proxy-client-cert-file", "proxy.crt", &foreign.cert_pem);
    setup.file("proxy-client-key-file", "proxy.key", &foreign.key_pem);
    let report = setup.report(FAILURE).await;
    let failures = report.with("failure");
    let remedy = &failures[0]["remedy"];
    assert_eq!(remedy["flag"], "--proxy-client-cert-file", "{failures:#?}");
    let issued = setup.front_proxies.client("front-proxy-client", &[]);
    std::fs::write(remedy["file"].as_str().unwrap(), issued.cert_pem).unwrap();
    setup.file("proxy-client-key-file", "proxy.key", &issued.key_pem);
    setup.report(OK).await;
}

/// The file that `skewbridge manifest balancer` prints, for the files and servers of this test.
#[tokio::test]
async fn the_configuration_of_a_balancer() {
    let mut setup = Setup::new().await;
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
        let text = std::fs::read_to_string(&setup.flags[flag]).unwrap();
        setup.file(flag, name, &text);
    }
    let directory = setup.dir.path().display().to_string();
    let upstreams = [setup.upstream.addr(), setup.peer.addr()];
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
    let file = setup.dir.write("balancer.yaml", config);
    let users = setup.flags["client-ca-file"].clone();
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
    let mut setup = Setup::new().await;
    let (_silent, address) = used_port();
    setup.set("upstream", &format!("https://{address}"));
    let started = std::time::Instant::now();
    let report = setup.report(FAILURE).await;
    assert!(started.elapsed() < Duration::from_mins(1));
    let message = report.only_failure()["message"].as_str().unwrap();
    assert!(message.contains("does not answer"), "{message}");
}
