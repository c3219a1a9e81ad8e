//! Ten mistakes of an administrator, made with the real program: each message names the flag,
//! the given file or address, and the remedy.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Leaf, Options, RecordedRequest, Reply, ScratchDir, TEST_TIMEOUT,
    Validity, eventually,
};

/// Exit codes of an invalid command line, and of a failed start.
const USAGE: Option<i32> = Some(64);
const FAILURE: Option<i32> = Some(1);

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Valid files and flags, with a working upstream.
struct Setup {
    dir: ScratchDir,
    upstream_ca: Ca,
    serving: Ca,
    flags: BTreeMap<&'static str, String>,
    upstream: ApiServer,
}

impl Setup {
    async fn new() -> Self {
        let upstream_ca = Ca::new("upstream");
        let leaf = upstream_ca.server(&["127.0.0.1"]);
        Self::with_upstream(upstream_ca, leaf, |_| None).await
    }

    async fn with_upstream(
        upstream_ca: Ca,
        leaf: Leaf,
        answer: fn(&RecordedRequest) -> Option<Reply>,
    ) -> Self {
        let dir = ScratchDir::new();
        let [serving, users, front_proxies] = ["serving", "users", "front-proxies"].map(Ca::new);
        let options = Options::new(leaf).clients(ClientAuth::Accept(&front_proxies));
        let upstream = ApiServer::start(options, move |seen| {
            answer(&seen).unwrap_or_else(|| match seen.path() {
                "/version" => Reply::json(r#"{"gitVersion":"v1.36.4"}"#),
                "/readyz" => Reply::new(200).body("ok"),
                _ => Reply::new(404).body("404 page not found"),
            })
        })
        .await;
        let setup = Self {
            flags: BTreeMap::from([("upstream", format!("https://{}", upstream.addr()))]),
            dir,
            upstream_ca,
            serving,
            upstream,
        };
        let serving = setup.serving.server(&["kubernetes.default.svc"]);
        let front_proxy = front_proxies.client("front-proxy-client", &[]);
        setup
            .file("tls-cert-file", "serving.crt", &serving.cert_pem)
            .file("tls-private-key-file", "serving.key", &serving.key_pem)
            .file(
                "proxy-client-cert-file",
                "front-proxy.crt",
                &front_proxy.cert_pem,
            )
            .file(
                "proxy-client-key-file",
                "front-proxy.key",
                &front_proxy.key_pem,
            )
            .file("client-ca-file", "users-ca.crt", &users.pem())
            .file(
                "requestheader-client-ca-file",
                "front-proxies-ca.crt",
                &front_proxies.pem(),
            )
            .upstream_ca()
    }

    fn upstream_ca(self) -> Self {
        let pem = self.upstream_ca.pem();
        self.file("upstream-ca-file", "upstream-ca.crt", &pem)
    }

    /// With the flags for peering, and etcd at this address.
    fn peers(self, etcd: &str) -> Self {
        let pem = self.serving.pem();
        self.file("peer-ca-file", "serving-ca.crt", &pem)
            .flag("etcd-servers", etcd)
            .flag("apiserver-identity", "apiserver-own")
    }

    /// Sets a flag to a file with this content.
    fn file(mut self, flag: &'static str, name: &str, text: &str) -> Self {
        let path = self.dir.write(name, text);
        self.flags.insert(flag, path.display().to_string());
        self
    }

    fn flag(mut self, flag: &'static str, value: &str) -> Self {
        self.flags.insert(flag, value.to_owned());
        self
    }

    fn without(mut self, flag: &str) -> Self {
        self.flags.remove(flag);
        self
    }

    /// The value of a flag.
    fn given(&self, flag: &str) -> &str {
        &self.flags[flag]
    }

    fn command(&self) -> Command {
        let mut flags = BTreeMap::from([
            ("bind-address", "127.0.0.1"),
            ("secure-port", "0"),
            ("admin-address", "127.0.0.1:0"),
        ]);
        flags.extend(self.flags.iter().map(|(flag, value)| (*flag, &**value)));
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        let flags = flags
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}"));
        command.arg("serve").args(flags);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command that ends by itself.
    fn fails(&self, code: Option<i32>) -> String {
        let Output { status, stderr, .. } = self.command().output().unwrap();
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), code, "{text}");
        text
    }

    /// Runs the bridge until it serves.
    async fn serves(&self) -> Running {
        let mut child = self.command().spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, stderr) = (log.clone(), BufReader::new(child.stderr.take().unwrap()));
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = lines.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut running = Running {
            child,
            log,
            admin: ([127, 0, 0, 1], 0).into(),
        };
        running.logs("admin_address=").await;
        let log = running.log.lock().unwrap().clone();
        let (_, rest) = log.split_once("admin_address=").unwrap();
        let address = rest.split([' ', '\n']).next().unwrap();
        running.admin = address.trim_matches('"').parse().unwrap();
        running
    }
}

/// A running bridge, killed when the test ends.
struct Running {
    child: Child,
    log: Arc<Mutex<String>>,
    admin: SocketAddr,
}

impl Running {
    /// Waits for a log line with this text.
    async fn logs(&self, text: &str) -> String {
        let find = || {
            let log = self.log.lock().unwrap();
            let line = log.lines().find(|line| line.contains(text));
            line.map(str::to_owned)
        };
        eventually(text, TEST_TIMEOUT, async || find().is_some()).await;
        find().unwrap()
    }

    fn get(&self, path: &str) -> String {
        let mut tcp = TcpStream::connect(self.admin).unwrap();
        write!(
            tcp,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        tcp.read_to_string(&mut text).unwrap();
        text
    }

    /// Waits for a line of `/readyz?verbose` with this prefix.
    async fn readyz(&self, beginning: &str) -> String {
        let find = || {
            let text = self.get("/readyz?verbose");
            let line = text.lines().find(|line| line.starts_with(beginning));
            line.map(str::to_owned)
        };
        eventually(beginning, TEST_TIMEOUT, async || find().is_some()).await;
        find().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test]
async fn the_wrong_ca_of_upstream() {
    let other = Ca::new("another").pem();
    let setup = Setup::new()
        .await
        .file("upstream-ca-file", "other-ca.crt", &other);
    let bridge = setup.serves().await;
    let beginning = format!("--upstream-ca-file {}: ", setup.given("upstream-ca-file"));
    let line = bridge
        .readyz("[-]upstream failed: --upstream-ca-file")
        .await;
    let address = setup.upstream.addr().to_string();
    has(&line, &[&beginning, &address, "set the CA that signed"]);
    has(&bridge.logs("upstream is not ready").await, &[&beginning]);
}

#[tokio::test]
async fn the_wrong_ca_of_etcd() {
    let setup = Setup::new().await;
    // Any server with a certificate of another CA.
    let etcd = setup.upstream.addr().to_string();
    let other = Ca::new("another").pem();
    let setup = setup
        .peers(&format!("https://{etcd}"))
        .file("etcd-cafile", "etcd-ca.crt", &other);
    let bridge = setup.serves().await;
    let file = format!(
        "--etcd-cafile {} must hold the CA",
        setup.given("etcd-cafile")
    );
    let parts = ["--etcd-servers: ", &etcd, &file];
    let line = bridge
        .readyz("[-]registry failed: peer addresses have not been read: --etcd")
        .await;
    has(&line, &parts);
    has(&bridge.logs("peer addresses").await, &parts);
    has(&bridge.get("/debug/peers"), &parts);
}

#[tokio::test]
async fn a_key_file_that_is_missing() {
    let setup = Setup::new().await;
    let missing = setup.dir.path().join("missing.key").display().to_string();
    for flag in ["tls-private-key-file", "proxy-client-key-file"] {
        let text = Setup::new().await.flag(flag, &missing).fails(USAGE);
        let expected = format!("--{flag} {missing}: no such file; correct the path, or create");
        has(&text, &[&expected]);
    }
}

#[tokio::test]
async fn a_key_of_another_certificate() {
    let setup = Setup::new().await;
    let other = setup.serving.server(&["localhost"]);
    let setup = setup.file("tls-private-key-file", "other.key", &other.key_pem);
    let expected = format!(
        "--tls-private-key-file {}: the private key does not match the certificate in {}; use \
         the two that were issued together",
        setup.given("tls-private-key-file"),
        setup.given("tls-cert-file")
    );
    has(&setup.fails(USAGE), &[&expected]);
}

#[tokio::test]
async fn a_certificate_that_has_expired() {
    let setup = Setup::new().await;
    let names = ["kubernetes.default.svc"];
    let expired = setup.serving.server_valid(&names, Validity::Expired);
    let setup = setup
        .file("tls-cert-file", "expired.crt", &expired.cert_pem)
        .file("tls-private-key-file", "expired.key", &expired.key_pem);
    let bridge = setup.serves().await;
    let line = bridge.logs("the certificate expired").await;
    let flag = format!("--tls-cert-file {}: ", setup.given("tls-cert-file"));
    has(&line, &["WARN", &flag, "ago; renew it"]);

    let ca = Ca::new("upstream");
    let leaf = ca.server_valid(&["127.0.0.1"], Validity::Expired);
    let setup = Setup::with_upstream(ca, leaf, |_| None).await;
    let bridge = setup.serves().await;
    let line = bridge.readyz("[-]upstream failed: --upstream ").await;
    let url = setup.given("upstream");
    has(
        &line,
        &[url, "renew the serving certificate of the kube-apiserver"],
    );
}

#[tokio::test]
async fn the_wrong_port_of_upstream() {
    let url = format!("https://{}", closed_port());
    let setup = Setup::new().await.flag("upstream", &url);
    let bridge = setup.serves().await;
    let expected = format!("[-]upstream failed: --upstream {url}: ");
    let line = bridge.readyz(&expected).await;
    has(
        &line,
        &["Connection refused", "correct host and port of --upstream"],
    );
    has(
        &bridge.logs("upstream is not ready").await,
        &["--upstream", &url],
    );

    // An upstream that speaks HTTP without TLS.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", plain.local_addr().unwrap());
    thread::spawn(move || {
        for tcp in plain.incoming().take(100) {
            let _ = tcp.and_then(|mut tcp| tcp.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n"));
        }
    });
    let setup = Setup::new().await.flag("upstream", &url);
    let bridge = setup.serves().await;
    let expected = format!("[-]upstream failed: --upstream {url}: ");
    let line = bridge.readyz(&expected).await;
    has(&line, &["the port does not use TLS", "--secure-port"]);
}

#[tokio::test]
async fn an_etcd_that_is_down() {
    let etcd = closed_port().to_string();
    let setup = Setup::new().await.peers(&format!("http://{etcd}"));
    let bridge = setup.serves().await;
    let parts = [
        "--etcd-servers: ",
        &etcd,
        "start etcd, or correct the address",
    ];
    let line = bridge
        .readyz("[-]registry failed: peer addresses have not been read: --etcd")
        .await;
    has(&line, &parts);
    has(&bridge.logs("peer addresses").await, &parts);
    has(&bridge.get("/debug/peers"), &parts);
    has(&bridge.get("/metrics"), &["skewbridge_peer_registry_up 0"]);
}

#[tokio::test]
async fn a_host_name_that_upstreams_certificate_is_not_for() {
    let ca = Ca::new("upstream");
    let leaf = ca.server(&["kube.example"]);
    let setup = Setup::with_upstream(ca, leaf, |_| None).await;
    let bridge = setup.serves().await;
    let line = bridge.readyz("[-]upstream failed: --upstream ").await;
    let url = setup.given("upstream");
    has(&line, &[url, "kube.example", "as --upstream-server-name"]);

    let corrected = setup.flag("upstream-server-name", "kube.example");
    corrected.serves().await.readyz("[+]upstream ok").await;
}

#[tokio::test]
async fn a_port_that_is_in_use() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let rows = [
        ("secure-port", taken.port().to_string()),
        ("admin-address", taken.to_string()),
    ];
    for (flag, value) in rows {
        let text = Setup::new().await.flag(flag, &value).fails(FAILURE);
        let expected = format!("--{flag}: {taken} is in use by another program");
        has(&text, &[&expected, "choose another port"]);
    }
}

#[tokio::test]
async fn a_value_that_is_wrong() {
    let setup = Setup::new().await;
    let setup = setup
        .flag("request-timeout", "soon")
        .flag("secure-port", "https");
    let text = setup.fails(USAGE);
    let duration = "--request-timeout: \"soon\" is not a duration; write it like 30s, 1m30s";
    let number = "--secure-port: \"https\" is not a whole number from 0 to 65535";
    has(&text, &[duration, number, "see skewbridge serve --help"]);
}

#[tokio::test]
async fn a_requestheader_ca_that_is_missing() {
    // The file.
    let setup = Setup::new().await;
    let missing = setup.dir.path().join("missing.crt").display().to_string();
    let text = setup
        .flag("requestheader-client-ca-file", &missing)
        .fails(USAGE);
    let expected = format!("--requestheader-client-ca-file {missing}: no such file; correct");
    has(&text, &[&expected]);

    // The flag, with peering.
    let etcd = format!("http://{}", closed_port());
    let setup = Setup::new().await.peers(&etcd);
    let bridge = setup.without("requestheader-client-ca-file").serves().await;
    let line = bridge.logs("peering is off").await;
    let missing = "has no effect without --requestheader-client-ca-file";
    has(
        &line,
        &[
            "WARN",
            "--peer-ca-file",
            missing,
            "set --requestheader-client-ca-file",
        ],
    );
    let line = bridge.readyz("[+]peers ok: local only").await;
    has(&line, &["since --requestheader-client-ca-file is not set"]);

    // The CA, at upstream.
    let ca = Ca::new("upstream");
    let leaf = ca.server(&["127.0.0.1"]);
    let setup = Setup::with_upstream(ca, leaf, |seen| {
        let is_review = seen.path() == REVIEWS;
        is_review.then(|| Reply::json(r#"{"kind":"Status","code":401}"#).status(401))
    })
    .await;
    let bridge = setup.serves().await;
    let line = bridge.readyz("[-]self-test failed: front_proxy: ").await;
    let flag = format!(
        "--proxy-client-cert-file {}: ",
        setup.given("proxy-client-cert-file")
    );
    let remedy =
        "its --requestheader-client-ca-file must hold the CA that issued it (CN=front-proxies)";
    has(&line, &[&flag, remedy]);
    has(&bridge.logs("self-test failed").await, &[&flag, remedy]);
    has(
        &bridge.get("/metrics"),
        &["skewbridge_self_test_up{test=\"front_proxy\"} 0"],
    );
}

/// Not one of the ten, but also reported at the start.
#[tokio::test]
async fn certificates_that_peers_would_not_accept() {
    let setup = Setup::new().await;
    let serving = setup.serving.server(&["localhost"]);
    let setup = setup
        .file("tls-cert-file", "local.crt", &serving.cert_pem)
        .file("tls-private-key-file", "local.key", &serving.key_pem)
        .flag("requestheader-allowed-names", "aggregator");
    let bridge = setup.serves().await;
    let line = bridge.logs("is not for kubernetes.default.svc").await;
    let flag = format!("--tls-cert-file {}: ", setup.given("tls-cert-file"));
    has(&line, &["WARN", &flag, "subject alternative name"]);
    let line = bridge.logs("is not in --requestheader-allowed-names").await;
    let flag = format!(
        "--proxy-client-cert-file {}: ",
        setup.given("proxy-client-cert-file")
    );
    has(
        &line,
        &[
            "WARN",
            &flag,
            "\"front-proxy-client\"",
            "(aggregator)",
            "add it there",
        ],
    );
}

#[tokio::test]
async fn a_replaced_certificate_is_judged_again() {
    let setup = Setup::new().await;
    let bridge = setup.serves().await;
    let serving = setup.serving.server(&["localhost"]);
    setup.dir.write("serving.key", &serving.key_pem);
    setup.dir.write("serving.crt", &serving.cert_pem);
    let line = bridge.logs("is not for kubernetes.default.svc").await;
    let flag = format!("--tls-cert-file {}: ", setup.given("tls-cert-file"));
    has(&line, &["WARN", &flag]);
}
