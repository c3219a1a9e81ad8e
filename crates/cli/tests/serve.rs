//! `skewbridge serve` as a process: files and flags in, requests through, log lines out, and
//! signals to end it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

#[path = "support/serve_fixture.rs"]
mod serve_fixture;

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Request;
use rustix::process::Signal;
use serde_json::Value;
use skewbridge_testkit::{Ca, TEST_TIMEOUT, eventually, unprivileged_user};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use serve_fixture::{ServeFixture, send, text_field};

/// A process that cannot be traced or dumped belongs to root in `/proc`, under any user.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn no_other_process_of_its_user_can_read_its_keys() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    let fixture = ServeFixture::new().await;
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fixture.dir.path(), all).unwrap();
    let mut command = fixture.command(&[]);
    // As root, every process can be read.
    let Some(user) = unprivileged_user() else {
        return;
    };
    command.uid(user).gid(user);
    let bridge = fixture.serve_by(command).await;
    let process = format!("/proc/{}", bridge.child.id());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    assert!(status.contains(&format!("Uid:\t{user}\t")), "{status}");
    let owner = std::fs::metadata(format!("{process}/mem")).unwrap().uid();
    assert_eq!(owner, 0, "it can be traced");
    let limits = std::fs::read_to_string(format!("{process}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{words:?}");
}

#[tokio::test]
async fn peering_with_a_front_proxy_that_is_a_user_is_refused_at_the_start() {
    let fixture = ServeFixture::new().await;
    fixture
        .dir
        .write("users-ca.crt", fixture.front_proxies.pem());
    let peer_ca = fixture.dir.path().join("upstream-ca.crt");
    let peer_ca = format!("--peer-ca-file={}", peer_ca.display());
    let names = "--requestheader-allowed-names=front-proxy";
    let output = fixture.command(&[&peer_ca, names]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().next().unwrap();
    for part in [
        "skewbridge: --proxy-client-cert-file ",
        "/front-proxy.crt: this certificate also authenticates as a user",
        "--client-ca-file ",
        "/users-ca.crt",
        "from its own CA",
    ] {
        assert!(first.contains(part), "{part}: {stderr}");
    }
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    // Without allowed names every user is a front proxy as well.
    let output = fixture.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8_lossy(&output.stderr);
    for part in [
        "--requestheader-client-ca-file ",
        "/front-proxies-ca.crt: has a CA in common with --client-ca-file ",
        "/users-ca.crt",
        "set --requestheader-allowed-names",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[tokio::test]
async fn requests_pass_through_the_process_over_both_protocols() {
    let fixture = ServeFixture::new().await;
    let served = fixture.serve(&[]).await;
    assert_ne!(served.address.port(), 0);

    let mut h1 = fixture.client().http1(served.address).await.unwrap();
    let answer = send(&mut h1, "GET /api/v1/pods?limit=1", "").await;
    assert_eq!(
        (answer.status, &*answer.text()),
        (200, "\"/api/v1/pods?limit=1\"")
    );
    let jane = fixture
        .client()
        .identity(&fixture.users.client("jane", &["dev"]));
    let h2 = jane.http2(served.address).await.unwrap();
    let answer = h2.get("/apis").await.unwrap();
    assert_eq!((answer.status, &*answer.text()), (200, "\"/apis\""));
    let seen = fixture.upstream.requests();
    let apis = seen.iter().find(|seen| seen.target == "/apis").unwrap();
    assert_eq!(apis.header("x-remote-user"), Some("jane"));

    let mut admin = tokio::net::TcpStream::connect(served.admin).await.unwrap();
    let request = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    admin.write_all(request).await.unwrap();
    let mut answer = String::new();
    admin.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

/// It names files with keys; it has neither their content nor a password of a URL.
#[tokio::test]
async fn a_dry_run_prints_no_secret() {
    let fixture = ServeFixture::new().await;
    let output = fixture
        .command(&["--dry-run"])
        .stdout(Stdio::piped())
        .output();
    let printed = String::from_utf8(output.unwrap().stdout).unwrap();
    for name in ["serving.key", "front-proxy.key"] {
        assert!(printed.contains(name), "{name}: {printed}");
        let key = std::fs::read_to_string(fixture.dir.path().join(name)).unwrap();
        for line in key.lines() {
            assert!(!printed.contains(line), "{line}: {printed}");
        }
    }
    for url in ["--upstream=", "--etcd-servers="] {
        let url = format!("{url}https://admin:hunter2@10.0.0.11:6443");
        let mut command = fixture.command(&["--dry-run", &url]);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[tokio::test]
async fn the_configuration_that_a_dry_run_prints_serves_from_a_file() {
    let fixture = ServeFixture::new().await;
    let dry_run = |mut command: Command| {
        let output = command.arg("--dry-run").stdout(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = dry_run(fixture.command(&["--guard-admission=off", "--idle-timeout=45s"]));
    for line in [
        "apiVersion: skewbridge.io/v1alpha1",
        "guardAdmission: off  # from the command line",
        "idleTimeout: 45s  # from the command line",
        "securePort: 6443  # default",
        "# peerCaFile:",
    ] {
        assert!(printed.lines().any(|it| it == line), "{line}: {printed}");
    }
    fixture.dir.write("bridge.yaml", &printed);
    let file = fixture.dir.path().join("bridge.yaml");
    let from_file = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("serve")
            .arg(format!("--config={}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    };
    // Its values are those of the file now.
    let values = |printed: &str| -> Vec<String> {
        let lines = printed.lines();
        lines
            .map(|it| it.split("  #").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(values(&dry_run(from_file())), values(&printed));

    // Flags win: the ports on the command line.
    let mut bridge = fixture.serve_by(from_file()).await;
    let mut client = fixture.client().http1(bridge.address).await.unwrap();
    let response = send(&mut client, "GET /api/v1/namespaces", "").await;
    assert_eq!(response.status, 200);
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_wrong_value_in_a_file_is_reported_with_its_key() {
    let fixture = ServeFixture::new().await;
    let head = "apiVersion: skewbridge.io/v1alpha1\nkind: BridgeConfiguration\n";
    let file = fixture.dir.path().join("bridge.yaml");
    let rows = [
        (
            "guardFields: some\n",
            format!(
                "skewbridge: --guard-fields (guardFields in {}): \"some\" is not off, writes or all",
                file.display()
            ),
        ),
        (
            "gaurdFields: all\n",
            format!(
                "skewbridge: --config {}: gaurdFields is not a key; similar keys: guardFields",
                file.display()
            ),
        ),
    ];
    for (text, expected) in rows {
        fixture.dir.write("bridge.yaml", format!("{head}{text}"));
        let flag = format!("--config={}", file.display());
        let output = fixture.command(&[&flag]).output().unwrap();
        assert_eq!(output.status.code(), Some(64));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.lines().next(), Some(expected.as_str()), "{stderr}");
    }
}

#[tokio::test]
async fn either_signal_drains_and_then_exits_with_0() {
    let fixture = ServeFixture::new().await;
    for (earlier, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let mut served = fixture.serve(&[]).await;
        let mut client = fixture.client().http1(served.address).await.unwrap();
        client
            .send("GET /slow HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        // Probes of the bridge may arrive first.
        let slow = |seen: &&skewbridge_testkit::RecordedRequest| seen.path() == "/slow";
        fixture
            .upstream
            .wait_for(
                |seen| seen.iter().filter(slow).count() > earlier,
                TEST_TIMEOUT,
            )
            .await;

        served.signal(signal);
        served.logs("shutting down").await;
        assert_eq!(served.child.try_wait().unwrap(), None);
        fixture.release.notify_one();
        let answer = client.read_response().await.unwrap();
        assert_eq!((answer.status, &*answer.text()), (200, "\"at last\""));
        drop(client);
        assert_eq!(served.exit().await.code(), Some(0), "{}", served.log());
    }
}

#[tokio::test]
async fn requests_are_served_during_the_shutdown_delay() {
    let fixture = ServeFixture::new().await;
    let mut served = fixture.serve(&["--shutdown-delay-duration=3s"]).await;
    let mut client = fixture.client().http1(served.address).await.unwrap();
    // The bridge is ready after the first response of upstream.
    let ready = async || send(&mut client, "GET /readyz", "").await.status == 200;
    eventually("readiness", TEST_TIMEOUT, ready).await;
    served.signal(Signal::TERM);
    served.logs("shutting down").await;
    assert_eq!(send(&mut client, "GET /readyz", "").await.status, 500);
    assert_eq!(send(&mut client, "GET /version", "").await.status, 200);
    assert_eq!(served.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_the_bridge_at_once_with_exit_code_1() {
    let fixture = ServeFixture::new().await;
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM)] {
        let mut served = fixture.serve(&["--shutdown-delay-duration=1h"]).await;
        let mut client = fixture.client().http1(served.address).await.unwrap();
        assert_eq!(send(&mut client, "GET /version", "").await.status, 200);
        served.signal(first);
        served.logs("shutting down").await;
        // SIGTERMs within a second count as one.
        sleep(Duration::from_millis(1200)).await;
        served.signal(second);
        assert_eq!(served.exit().await.code(), Some(1));
        assert!(
            served.log().contains("second signal received"),
            "{}",
            served.log()
        );
        assert!(client.read_head().await.is_err());
    }
}

#[tokio::test]
async fn sigterms_within_a_second_are_one_signal() {
    let fixture = ServeFixture::new().await;
    let mut served = fixture.serve(&["--shutdown-delay-duration=2s"]).await;
    for _ in 0..10 {
        served.signal(Signal::TERM);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(served.exit().await.code(), Some(0), "{}", served.log());
    // After another signal, a SIGTERM is the second one at once.
    let mut served = fixture.serve(&["--shutdown-delay-duration=1h"]).await;
    served.signal(Signal::INT);
    served.logs("shutting down").await;
    served.signal(Signal::TERM);
    assert_eq!(served.exit().await.code(), Some(1), "{}", served.log());
}

#[tokio::test]
async fn a_refused_certificate_is_explained_at_the_default_verbosity() {
    let fixture = ServeFixture::new().await;
    let served = fixture.serve(&[]).await;
    let unknown = Ca::new("unknown-ca").client("mallory\nERROR", &[]);
    let client = fixture.client().identity(&unknown);
    // More requests than rejected certificates are logged per minute.
    for _ in 0..40 {
        let mut client = client.http1(served.address).await.unwrap();
        assert_eq!(send(&mut client, "GET /version", "").await.status, 401);
    }
    let log = served.whole_log().await;
    let lines = log.lines().filter(|it| it.contains("certificate rejected"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 20, "{log}");
    for expected in [
        "WARN",
        "client=127.0.0.1:",
        "mallory",
        "CN=unknown-ca",
        "--client-ca-file: invalid peer certificate: UnknownIssuer",
        "--requestheader-client-ca-file: ",
    ] {
        assert!(lines[0].contains(expected), "{expected} in {}", lines[0]);
    }
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_its_flag() {
    let fixture = ServeFixture::new().await;
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    for (flag, other) in [
        (
            format!("--secure-port={}", taken.port()),
            "--admin-address=127.0.0.1:0",
        ),
        (format!("--admin-address={taken}"), "--secure-port=0"),
    ] {
        let output = fixture.command(&[&flag, other]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let log = String::from_utf8(output.stderr).unwrap();
        let name = flag.split('=').next().unwrap();
        let expected = format!("{name}: {taken} is in use by another program");
        assert!(log.contains(&expected), "{log}");
    }
}

#[tokio::test]
async fn each_request_is_one_line_with_its_fields() {
    let fixture = ServeFixture::new().await;
    let served = fixture.serve(&["--v=2"]).await;
    let mut h1 = fixture.client().http1(served.address).await.unwrap();
    send(&mut h1, "GET /api/v1/pods?limit=1", "").await;
    let headers = "Authorization: Bearer secret\r\nAudit-ID: asked\r\nCookie: secret\r\n";
    send(&mut h1, "GET /apis/gone", headers).await;
    let jane = fixture
        .client()
        .identity(&fixture.users.client("jane", &[]));
    let h2 = jane.http2(served.address).await.unwrap();
    let request = Request::get("https://localhost/apis").header("impersonate-user", "bob");
    h2.request(request.body(()).unwrap(), "").await.unwrap();

    let log = served.whole_log().await;
    assert!(!log.contains("secret"), "{log}");
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("method="))
        .collect();
    let lines: [&str; 3] = lines.try_into().expect("three lines");
    let table = [
        [
            "GET",
            "/api/v1/pods",
            "HTTP/1.1",
            "(anonymous)",
            "local",
            "list",
            "200",
            "22",
        ],
        [
            "GET",
            "/apis/gone",
            "HTTP/1.1",
            "(bearer)",
            "local",
            "get",
            "404",
            "2",
        ],
        [
            "GET", "/apis", "HTTP/2.0", "jane", "local", "get", "200", "7",
        ],
    ];
    let names = [
        "method", "path", "protocol", "caller", "route", "verb", "code", "bytes",
    ];
    for (line, expected) in lines.into_iter().zip(table) {
        let found = names.map(|name| text_field(line, name).unwrap_or_default());
        assert_eq!(found, expected, "{line}");
        let took = text_field(line, "duration_seconds").unwrap_or_default();
        assert!(took.parse::<f64>().is_ok(), "{line}");
        let client = text_field(line, "client").unwrap_or_default();
        assert!(client.starts_with("127.0.0.1:"), "{line}");
    }
    let optional = ["audit_id", "impersonate_user"];
    let found = lines.map(|line| optional.map(|name| text_field(line, name)));
    let given = Some("given");
    assert_eq!(
        found,
        [[None, None], [Some("asked"), None], [given, Some("bob")],]
    );
}

#[tokio::test]
async fn json_logs_are_json_to_the_last_line() {
    let fixture = ServeFixture::new().await;
    let served = fixture.serve(&["--v=10", "--log-format=json"]).await;
    let mut h1 = fixture.client().http1(served.address).await.unwrap();
    let headers = "Audit-ID: asked\r\n";
    send(&mut h1, "DELETE /api/v1/namespaces/a/pods/b", headers).await;

    let log = served.whole_log().await;
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    let requests: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "request")
        .collect();
    let [request] = requests[..] else {
        panic!("one request: {log}");
    };
    for (name, expected) in [
        ("method", Value::from("DELETE")),
        ("path", "/api/v1/namespaces/a/pods/b".into()),
        ("caller", "(anonymous)".into()),
        ("route", "local".into()),
        ("verb", "delete".into()),
        ("code", 200.into()),
        ("bytes", 29.into()),
        ("truncated", false.into()),
        ("cut", false.into()),
        ("audit_id", "asked".into()),
        ("level", "INFO".into()),
    ] {
        assert_eq!(request[name], expected, "{request}");
    }
    for name in ["timestamp", "protocol", "client"] {
        assert!(request[name].is_string(), "{name} in {request}");
    }
    assert!(request["duration_seconds"].is_f64(), "{request}");
}

#[tokio::test]
async fn below_verbosity_2_requests_are_not_logged() {
    let fixture = ServeFixture::new().await;
    let served = fixture.serve(&["--v=1"]).await;
    let mut h1 = fixture.client().http1(served.address).await.unwrap();
    assert_eq!(send(&mut h1, "GET /apis", "").await.status, 200);
    let log = served.whole_log().await;
    assert!(log.contains("serving"), "{log}");
    assert!(!log.contains("/apis") && !log.contains("method="), "{log}");
}

#[tokio::test]
async fn no_secret_is_logged_at_any_verbosity() {
    const HEADERS: &str = "Authorization: Bearer SECRET-TOKEN\r\n\
        Cookie: session=SECRET-COOKIE\r\n\
        X-Remote-User: SECRET-USER\r\n\
        X-Remote-Group: SECRET-GROUP\r\n\
        X-Remote-Extra-Scopes: SECRET-EXTRA\r\n\
        Impersonate-User: known-by-name\r\nImpersonate-Extra-Scopes: SECRET-EXTRA\r\n";
    const PATHS: [&str; 7] = [
        "/api/v1/pods?token=SECRET-QUERY",
        "/api/v1/namespaces/a/services/b/proxy/SECRET-TAIL?x=SECRET-QUERY",
        "/api/v1/namespaces/a/pods/b/pr%6Fxy/SECRET-TAIL",
        "/api/v1/namespaces/a/pods/b%2Fproxy%2FSECRET-TAIL",
        "/api/v1/proxy/namespaces/a/pods/b/SECRET-TAIL",
        "/broken?token=SECRET-QUERY",
        "/bad%zz?token=SECRET-QUERY",
    ];
    let fixture = ServeFixture::new().await;
    for format in ["text", "json"] {
        fixture.upstream.listen_again().await;
        let flag = format!("--log-format={format}");
        let served = fixture.serve(&["--v=10", &flag]).await;
        // An unknown client, a user and a front proxy.
        let user = fixture
            .client()
            .identity(&fixture.users.client("jane", &[]));
        for client in [fixture.client(), user.clone()] {
            let h2 = client.http2(served.address).await.unwrap();
            for path in PATHS {
                let mut h1 = client.http1(served.address).await.unwrap();
                let _ = send(&mut h1, &format!("GET {path}"), HEADERS).await;
                let mut request = Request::get(format!("https://k{path}"));
                for line in HEADERS.trim_end().split("\r\n") {
                    let (name, value) = line.split_once(": ").unwrap();
                    request = request.header(name, value);
                }
                let Ok(request) = request.body(()) else {
                    continue;
                };
                let _ = h2.request(request, "SECRET-BODY").await;
            }
        }
        let proxy = fixture
            .client()
            .identity(&fixture.front_proxies.client("front-proxy", &[]));
        let mut proxy = proxy.http1(served.address).await.unwrap();
        let asserted = "X-Remote-User: known\r\nX-Remote-Extra-Scopes: SECRET-EXTRA\r\n";
        assert_eq!(send(&mut proxy, "GET /apis", asserted).await.status, 200);
        // As a terminal in a browser does.
        let mut browser = fixture.client().http1(served.address).await.unwrap();
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: \
            base64url.bearer.authorization.k8s.io.SECRET-SUBPROTOCOL, v5.channel.k8s.io\r\n";
        let exec = "GET /api/v1/namespaces/a/pods/b/exec?command=SECRET-COMMAND";
        assert_eq!(send(&mut browser, exec, upgrade).await.status, 101);
        drop(browser);
        // Bytes that are not a request.
        for bad in [
            "GET /SECRET-PATH HTTP/1.1\r\nAuthorization: Bearer SECRET-TOKEN\r\nSECRET-LINE\r\n\r\n",
            "GET https://user:SECRET-PASSWORD@k/ HTTP/1.1\r\nHost: k\r\n\r\n",
            "GET /apis HTTP/1.1\r\nHost: SECRET PASSWORD@k\r\n\r\n",
        ] {
            let mut h1 = fixture.client().http1(served.address).await.unwrap();
            h1.send(bad).await.unwrap();
            let _ = h1.read_response().await;
        }
        // Upstream is down, which is logged.
        fixture.upstream.stop_listening().await;
        fixture.upstream.kill_connections().await;
        let mut h1 = fixture.client().http1(served.address).await.unwrap();
        let refused = send(&mut h1, &format!("GET {}", PATHS[1]), HEADERS).await;
        assert_eq!(refused.status, 503);
        drop((h1, proxy));

        let log = served.whole_log().await;
        for expected in [
            "jane",
            "known",
            "(bearer)",
            "/api/v1/pods",
            "503",
            "/proxy/…",
        ] {
            assert!(log.contains(expected), "{expected} in {log}");
        }
        let leaks: Vec<_> = log.lines().filter(|line| line.contains("SECRET")).collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
}
