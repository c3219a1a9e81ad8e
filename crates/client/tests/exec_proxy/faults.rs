//! Faulty plugins: each causes an error that names the plugin and the kubeconfig's user, within
//! its timeout.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skewbridge_client::Endpoint;
use skewbridge_client::api_server::Timeouts;
use skewbridge_testkit::{
    ApiServer, Ca, Options, Reply, ReservedPort, Stopwatch, TEST_TIMEOUT, eventually,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::client_process;
use crate::fixture::{Fixture, KEY_OWNER, PluginKind, Socket, TIMEOUTS, get};

/// Extra time beyond a timeout: for killing a process and reading its last output.
const EXTRA_TIME: Duration = Duration::from_secs(2);

async fn error_of(fixture: &Fixture, plugin: &Value, timeouts: Timeouts) -> String {
    let target = fixture.target_of("alice", plugin);
    let watch = Stopwatch::start();
    let request = async {
        let endpoint = Endpoint::prepare_with_timeouts(&target, timeouts).await?;
        get(&endpoint, "/").await
    };
    let error = request.await.unwrap_err().to_string();
    let limit = timeouts.plugin + timeouts.request.unwrap_or_default() + EXTRA_TIME;
    watch.within(limit, "an error", async || true).await;
    let named = format!(
        "getting credentials: exec: {} (user \"alice\"): ",
        plugin["command"].as_str().unwrap()
    );
    assert!(error.starts_with(&named), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    error
}

fn document(status: &Value) -> String {
    json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": status,
    })
    .to_string()
}

#[tokio::test]
async fn a_plugin_without_output_is_named_with_its_user() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let rows = [
        (
            "printf hunter2",
            "does not print an ExecCredential: it is not JSON from line 1",
        ),
        (
            "printf '{\"hunter2\"'",
            "does not print an ExecCredential: it ends before",
        ),
        (
            "echo hunter2; exec sleep 300",
            "does not print an ExecCredential",
        ),
        ("true", "ended without printing an ExecCredential"),
        ("exit 1", "failed with exit status: 1"),
        (
            "echo 'no card in the reader' >&2; exit 1",
            "failed with exit status: 1; its stderr: no card in the reader",
        ),
        ("printf '{'; exit 2", "failed with exit status: 2"),
        ("exec yes", "does not print an ExecCredential"),
        (
            "printf '{\"'; yes | tr -d '\\n'",
            "prints more than a credential",
        ),
        ("kill -9 $$", "failed with signal: 9"),
    ];
    for (script, expected) in rows {
        let error = error_of(&fixture, &Fixture::script(script), TIMEOUTS).await;
        assert!(error.contains(expected), "{script}: {error}");
    }
    // Whether it exits in time for its exit code to be read is not certain.
    let error = error_of(&fixture, &Fixture::script("echo oops; exit 2"), TIMEOUTS).await;
    assert!(
        error.contains("failed with exit status: 2")
            || error.contains("does not print an ExecCredential"),
        "{error}"
    );
    let mut absent = Fixture::script("");
    absent["command"] = json!("/nonexistent/login");
    absent["installHint"] = json!("see the wiki\n");
    let error = error_of(&fixture, &absent, TIMEOUTS).await;
    assert!(
        error.ends_with("executable not found\nsee the wiki"),
        "{error}"
    );
    assert!(fixture.server.requests().is_empty());
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_at_its_timeout() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let hasty = Timeouts {
        request: Some(Duration::ZERO),
        plugin: Duration::from_millis(300),
    };
    let pid = fixture.dir.path().join("hanging");
    let token = document(&json!({"token": "hunter2"}));
    let rows = [
        (String::new(), "did not give a credential within 0.3 s"),
        (
            format!("echo '{token}';"),
            "printed a credential, but did not end within 0.3 s",
        ),
    ];
    for (first, expected) in rows {
        let script = format!("{first} echo $$ > {}; sleep 300", pid.display());
        // Under load the timeout may pass before the script has started.
        let _ = std::fs::remove_file(&pid);
        let error = error_of(&fixture, &Fixture::script(&script), hasty).await;
        assert!(
            error.contains(expected) || error.contains("did not give a credential"),
            "{error}"
        );
        if let Ok(pid) = std::fs::read_to_string(&pid) {
            let pid = pid.trim().parse().unwrap();
            eventually("its end", TEST_TIMEOUT, async || {
                crate::fixture::is_gone(pid)
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_listen_causes_one_more_exec_and_then_an_error() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let status = |url: &str| {
        json!({
            "clientCertificateData": fixture.recorded("client.crt"),
            "clientKeyData": fixture.recorded("client.key"),
            "proxyConfig": {
                "url": url,
                "certificate-authority-data": STANDARD.encode(fixture.recorded("plugin-ca.crt")),
            },
        })
    };
    let unresponsive = ReservedPort::new();
    for url in [
        format!("unix://{}/nobody", fixture.dir.path().display()),
        format!("https://{}", unresponsive.addr()),
    ] {
        let file = fixture.dir.write("document", document(&status(&url)));
        let count = fixture.dir.write("count", "");
        let script = format!(
            "echo x >> {}; cat {}; echo 'I am tired' >&2",
            count.display(),
            file.display()
        );
        let error = error_of(&fixture, &Fixture::script(&script), TIMEOUTS).await;
        let expected = format!("its proxy at {url} is not listening");
        assert!(error.contains(&expected), "{error}");
        let count = std::fs::read_to_string(count).unwrap();
        assert_eq!(count.lines().count(), 2);
    }
    for (url, expected) in [
        ("https://10.0.0.1:1", "not on this machine"),
        ("http://127.0.0.1:1", "is not secured"),
        ("unix://relative", "has no absolute path"),
    ] {
        let file = fixture.dir.write("document", document(&status(url)));
        let script = format!("cat {}", file.display());
        let error = error_of(&fixture, &Fixture::script(&script), TIMEOUTS).await;
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_that_exits_during_the_handshake_causes_one_more_exec_and_then_an_error() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let socket = fixture.dir.path().join("closing");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    let url = format!("unix://{}", socket.display());
    let status = json!({
        "clientCertificateData": fixture.recorded("client.crt"),
        "clientKeyData": fixture.recorded("client.key"),
        "proxyConfig": {
            "url": url,
            "certificate-authority-data": STANDARD.encode(fixture.recorded("plugin-ca.crt")),
        },
    });
    let file = fixture.dir.write("document", document(&status));
    let count = fixture.dir.path().join("count");
    let script = format!("echo x >> {}; cat {}", count.display(), file.display());
    let error = error_of(&fixture, &Fixture::script(&script), TIMEOUTS).await;
    let expected = format!("its proxy at {url} breaks off the handshake");
    assert!(error.contains(&expected), "{error}");
    let count = std::fs::read_to_string(count).unwrap();
    assert_eq!(count.lines().count(), 2);
    closing.abort();
}

/// A port that forwards to the plugin's port, except for a number of connections that another
/// program answers.
struct Port {
    address: std::net::SocketAddr,
    diverted_connections: Arc<AtomicUsize>,
}

impl Port {
    async fn open(plugin: PathBuf, other_program: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = Self {
            address: listener.local_addr().unwrap(),
            diverted_connections: Arc::default(),
        };
        let diverted_connections = port.diverted_connections.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let decrement = |count: usize| count.checked_sub(1);
                let is_diverted = diverted_connections
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement)
                    .is_ok();
                let address = if is_diverted {
                    other_program.to_string()
                } else {
                    std::fs::read_to_string(&plugin).unwrap()
                };
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(address).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        port
    }
}

#[tokio::test]
async fn a_port_taken_by_another_program_causes_another_exec() {
    let other = Ca::new("plugin");
    let of_another_ca = ApiServer::start(Options::new(other.server(&["127.0.0.1"])), |_| {
        Reply::json("other program")
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let without_tls = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let rows = [
        (
            of_another_ca.addr(),
            "cannot be trusted: its certificate is not signed by the plugin's",
        ),
        (without_tls, "TLS handshake failed"),
    ];
    for (other_program, expected) in rows {
        let mut fixture = Fixture::new(PluginKind::Itself).await;
        fixture.socket = Socket::Tcp;
        let port = Port::open(fixture.dir.path().join("address"), other_program).await;
        let url = format!("https://{}", port.address);
        fixture.extra = json!({"proxyConfig": {
            "url": url,
            "certificate-authority-data": STANDARD.encode(fixture.recorded("plugin-ca.crt")),
        }});
        let endpoint = fixture.endpoint().await;
        assert_eq!(
            get(&endpoint, "/x").await.unwrap(),
            format!("{KEY_OWNER} /x")
        );
        assert_eq!(fixture.execs(), 1);
        port.diverted_connections.store(1, Ordering::Relaxed);
        assert_eq!(
            get(&endpoint, "/y").await.unwrap(),
            format!("{KEY_OWNER} /y")
        );
        assert_eq!(fixture.execs(), 2, "{expected}");
        // If the other program stays, an error is reported after one more exec.
        port.diverted_connections
            .store(usize::MAX, Ordering::Relaxed);
        let error = get(&endpoint, "/z").await.unwrap_err().to_string();
        assert!(
            error.contains(&format!("its proxy at {url} {expected}")),
            "{error}"
        );
        assert_eq!(fixture.execs(), 3, "{expected}");
    }
    assert!(of_another_ca.requests().is_empty());
}

#[tokio::test]
async fn a_proxy_with_another_ca_is_an_error() {
    let mut fixture = Fixture::new(PluginKind::Itself).await;
    let other = Ca::new("plugin");
    let url = format!("unix://{}", fixture.socket_path().display());
    fixture.extra = json!({"proxyConfig": {
        "url": url,
        "certificate-authority-data": STANDARD.encode(other.pem()),
    }});
    let error = error_of(&fixture, &fixture.plugin(), TIMEOUTS).await;
    let expected = format!(
        "its proxy at {url} cannot be trusted: its certificate is not signed by the plugin's \
         certificate-authority-data"
    );
    assert!(error.contains(&expected), "{error}");
}

#[tokio::test]
async fn with_the_feature_off_a_proxy_is_rejected_and_the_plugin_gets_no_lock_file() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let off = [("KUBE_FEATURE_ClientExecProxy", "false")];
    let mut client = client_process::start(&fixture, &off);
    client.wait().unwrap();
    let output = fixture.recorded("client-output");
    assert!(
        output.contains("turned off by $KUBE_FEATURE_ClientExecProxy"),
        "{output}"
    );
    assert!(!fixture.recorded("exec-info").contains("lockFilePath"));
}
