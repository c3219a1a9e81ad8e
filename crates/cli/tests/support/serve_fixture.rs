//! A bridge as a process, between clients and an upstream.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, H1Client, Options, Reply, Response, ScratchDir, TEST_TIMEOUT,
    TlsClient, eventually,
};
use tokio::sync::Notify;

/// All certificates, and an upstream.
pub(crate) struct ServeFixture {
    pub(crate) dir: ScratchDir,
    pub(crate) serving: Ca,
    pub(crate) users: Ca,
    pub(crate) front_proxies: Ca,
    pub(crate) upstream: ApiServer,
    /// Releases the response to `/slow`.
    pub(crate) release: Arc<Notify>,
}

impl ServeFixture {
    pub(crate) async fn new() -> Self {
        let dir = ScratchDir::new();
        let [serving, users, front_proxies, upstream_ca] =
            ["serving", "users", "front-proxies", "upstream"].map(Ca::new);
        for (name, leaf) in [
            ("serving", serving.server(&["localhost"])),
            ("front-proxy", front_proxies.client("front-proxy", &[])),
        ] {
            dir.write(&format!("{name}.crt"), &leaf.cert_pem);
            dir.write(&format!("{name}.key"), &leaf.key_pem);
        }
        dir.write("users-ca.crt", users.pem());
        dir.write("front-proxies-ca.crt", front_proxies.pem());
        dir.write("upstream-ca.crt", upstream_ca.pem());

        let release = Arc::new(Notify::new());
        let slow = release.clone();
        let options = Options::new(upstream_ca.server(&["127.0.0.1"]))
            .clients(ClientAuth::Accept(&front_proxies));
        let upstream = ApiServer::start(options, move |seen| match seen.path() {
            "/slow" => Reply::json("\"at last\"").after(&slow),
            "/broken" => Reply::reset(h2::Reason::INTERNAL_ERROR),
            "/apis/gone" => Reply::new(404).body("no"),
            "/apis" => Reply::json(format!("\"{}\"", seen.target)).header("audit-id", "given"),
            _ if seen.header("upgrade").is_some() => Reply::upgrade("websocket").0,
            _ => Reply::json(format!("\"{}\"", seen.target)),
        })
        .await;
        Self {
            dir,
            serving,
            users,
            front_proxies,
            upstream,
            release,
        }
    }

    /// The command line, with all required flags.
    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        let file = |flag: &str, name: &str| {
            let path = self.dir.path().join(name);
            format!("--{flag}={}", path.display())
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("serve")
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--upstream=https://{}", self.upstream.addr()))
            .arg(file("upstream-ca-file", "upstream-ca.crt"))
            .arg(file("tls-cert-file", "serving.crt"))
            .arg(file("tls-private-key-file", "serving.key"))
            .arg(file("client-ca-file", "users-ca.crt"))
            .arg(file("requestheader-client-ca-file", "front-proxies-ca.crt"))
            .arg(file("proxy-client-cert-file", "front-proxy.crt"))
            .arg(file("proxy-client-key-file", "front-proxy.key"))
            .args(flags)
            // `RUST_LOG` must have no effect, because libraries would log headers.
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the bridge on free ports, and waits until it serves.
    pub(crate) async fn serve(&self, flags: &[&str]) -> Served {
        self.serve_by(self.command(flags)).await
    }

    /// Runs the bridge with this command, and waits until it serves.
    pub(crate) async fn serve_by(&self, mut command: Command) -> Served {
        command.args(["--secure-port=0", "--admin-address=127.0.0.1:0"]);
        let mut child = command.spawn().unwrap();
        let (log, reader) = collect(&mut child);
        let mut served = Served {
            child,
            log,
            reader: Some(reader),
            address: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
        };
        served.logs("admin_address").await;
        let line = served.lines_with("admin_address").remove(0);
        (served.address, served.admin) = (field(&line, "address"), field(&line, "admin_address"));
        served
    }

    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::new(&self.serving)
    }
}

/// A running bridge, killed when the test ends.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) log: Arc<Mutex<String>>,
    pub(crate) reader: Option<JoinHandle<()>>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Served {
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The log lines that contain this text.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    /// Waits until the bridge has logged this text.
    pub(crate) async fn logs(&self, text: &str) {
        eventually(text, TEST_TIMEOUT, async || self.log().contains(text)).await;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the bridge and of its log.
    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it exits", TEST_TIMEOUT, async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status.unwrap()
    }

    /// Ends the bridge, and returns its whole log.
    pub(crate) async fn whole_log(mut self) -> String {
        self.signal(Signal::TERM);
        assert_eq!(self.exit().await.code(), Some(0));
        self.log()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A bridge that has ended already gets no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(child: &mut Child) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let log = Arc::new(Mutex::new(String::new()));
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let collected = log.clone();
    let reader = std::thread::spawn(move || {
        for line in stderr.lines() {
            let mut log = collected.lock().unwrap();
            log.push_str(&line.unwrap());
            log.push('\n');
        }
    });
    (log, reader)
}

/// A field of a line, in either format.
fn field(line: &str, name: &str) -> SocketAddr {
    let text = match serde_json::from_str::<Value>(line) {
        Ok(json) => json[name].as_str().unwrap().to_owned(),
        Err(_) => text_field(line, name).unwrap_or_default().to_owned(),
    };
    text.parse()
        .unwrap_or_else(|_| panic!("no {name} in {line}"))
}

pub(crate) fn text_field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim_matches('"'))
}

pub(crate) async fn send(client: &mut H1Client, line: &str, headers: &str) -> Response {
    let request = format!("{line} HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}
