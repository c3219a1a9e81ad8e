//! A cluster, a client that holds a lock, and the plugin.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, RecordedRequest, Reply, ScratchDir, Stopwatch,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Long enough for a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct AgentFixture {
    pub(crate) ca: Ca,
    pub(crate) dir: ScratchDir,
}

impl AgentFixture {
    pub(crate) fn new() -> Self {
        let fixture = Self {
            ca: Ca::new("cluster"),
            dir: ScratchDir::new(),
        };
        let jane = fixture.ca.client("jane", &["developers"]);
        fixture.dir.write("jane.crt", &jane.cert_pem);
        fixture.dir.write("jane.key", &jane.key_pem);
        let runtime = fixture.dir.path().join("run");
        std::fs::DirBuilder::new().create(&runtime).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&runtime, private).unwrap();
        fixture
    }

    /// A server that returns the user of a request.
    pub(crate) async fn server(&self) -> ApiServer {
        let answer = |seen: RecordedRequest| {
            let name = seen.client.as_ref().map(|it| it.common_name.clone());
            Reply::json(name.unwrap_or_else(|| "unknown".to_owned()))
        };
        let leaf = self.ca.server(&["127.0.0.1", "0.0.0.0", "cluster.example"]);
        let options = Options::new(leaf)
            .alpn(&["h2", "http/1.1"])
            .clients(ClientAuth::Accept(&self.ca));
        ApiServer::start(options, answer).await
    }

    /// The exec info of a client: with this server and this lock.
    pub(crate) fn info(&self, server: &str, lock: Option<&Path>) -> String {
        let mut spec = json!({
            "interactive": false,
            "cluster": {
                "server": server,
                "certificate-authority-data": STANDARD.encode(self.ca.pem()),
            },
        });
        if let Some(lock) = lock {
            spec["lockFilePath"] = json!(lock);
        }
        json!({
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1",
            "spec": spec,
        })
        .to_string()
    }

    pub(crate) fn agent(&self, info: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("agent")
            .args(args)
            .env("KUBERNETES_EXEC_INFO", info)
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        command
    }

    /// A plugin with jane's key in files.
    pub(crate) fn start(&self, server: SocketAddr, client: &Client, args: &[&str]) -> Plugin {
        let info = self.info(&format!("https://{server}"), Some(&client.lock));
        let args = [&FILE[..], args].concat();
        Plugin::start(self.agent(&info, &args))
    }

    /// The files in the runtime directory.
    pub(crate) fn remaining_files(&self) -> Vec<PathBuf> {
        self.entries("run")
    }

    /// The files in the directory of shared instances.
    pub(crate) fn instance_files(&self) -> Vec<PathBuf> {
        self.entries("run/skewbridge-agent")
    }

    fn entries(&self, directory: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

pub(crate) const FILE: [&str; 3] = [
    "--signer=file",
    "--client-certificate=jane.crt",
    "--client-key=jane.key",
];

/// A process that holds a lock until it ends.
pub(crate) struct Client {
    child: Child,
    pub(crate) lock: PathBuf,
}

impl Client {
    pub(crate) fn start(fixture: &AgentFixture) -> Self {
        let directory = fixture.dir.path().join("skewbridge-client");
        std::fs::create_dir(&directory).unwrap();
        let lock = directory.join("lock");
        std::fs::write(&lock, "").unwrap();
        let child = Command::new("flock")
            .args(["--no-fork", "--exclusive"])
            .arg(&lock)
            .args(["sleep", "600"])
            .process_group(0)
            .spawn()
            .unwrap();
        let client = Self { child, lock };
        client.wait_until_locked();
        client
    }

    fn wait_until_locked(&self) {
        let start = Instant::now();
        let file = std::fs::File::open(&self.lock).unwrap();
        while file.try_lock().is_ok() {
            file.unlock().unwrap();
            assert!(start.elapsed() < TEST_TIMEOUT, "no process takes the lock");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// With SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running plugin, and its output.
pub(crate) struct Plugin {
    pub(crate) child: Child,
    pub(crate) printed: Value,
}

impl Plugin {
    pub(crate) fn start(command: Command) -> Self {
        Self::spawn(command).with_output()
    }

    /// Starts a plugin without waiting for its output.
    pub(crate) fn spawn(mut command: Command) -> Self {
        Self {
            child: command.spawn().unwrap(),
            printed: Value::Null,
        }
    }

    /// Waits for the output of a started plugin.
    pub(crate) fn with_output(mut self) -> Self {
        // The plugin closes its output, so this ends while it runs.
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        let Ok(printed) = serde_json::from_str(&text) else {
            let mut printed = String::new();
            let mut stderr = self.child.stderr.take().unwrap();
            std::io::Read::read_to_string(&mut stderr, &mut printed).unwrap();
            panic!("{text:?} {printed}");
        };
        self.printed = printed;
        self
    }

    pub(crate) fn url(&self) -> &str {
        self.printed["status"]["proxyConfig"]["url"]
            .as_str()
            .unwrap()
    }

    /// The socket, if the plugin listens on one.
    pub(crate) fn socket(&self) -> PathBuf {
        PathBuf::from(self.url().strip_prefix("unix://").unwrap())
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The exit status of the plugin, if it ends in time.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "the plugin does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asserts that it ends successfully and in time.
    pub(crate) async fn ends_within(&mut self, limit: Duration, watch: &Stopwatch) {
        let ended = async || self.child.try_wait().unwrap().is_some();
        watch.within(limit, "the end of the plugin", ended).await;
        assert!(self.ended().await.success());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// GET, as the client of the plugin.
    pub(crate) async fn get(&self, path: &str) -> std::io::Result<String> {
        get(&self.printed, path).await
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

trait Io: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Io for T {}

/// Sends one request over HTTP/1.1, and returns the whole response as text.
pub(crate) async fn get(printed: &Value, path: &str) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    send(printed, &request).await
}

pub(crate) async fn send(printed: &Value, request: &str) -> std::io::Result<String> {
    let status = &printed["status"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let authority = &status["proxyConfig"]["certificate-authority-data"];
    let authority = STANDARD.decode(text(authority)).unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&authority).unwrap())
        .unwrap();
    let certificate = text(&status["clientCertificateData"]);
    let key = text(&status["clientKeyData"]);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let url = text(&status["proxyConfig"]["url"]);
    let io: Box<dyn Io> = if let Some(path) = url.strip_prefix("unix://") {
        Box::new(UnixStream::connect(path).await?)
    } else {
        let address = url.strip_prefix("https://").unwrap();
        Box::new(TcpStream::connect(address).await?)
    };
    let name = match url.strip_prefix("https://") {
        Some(address) => address.rsplit_once(':').unwrap().0.to_owned(),
        None => "localhost".to_owned(),
    };
    let name = ServerName::try_from(name).unwrap();
    let mut tls = TlsConnector::from(Arc::new(config))
        .connect(name, io)
        .await?;
    tls.write_all(request.as_bytes()).await?;
    tls.flush().await?;
    let mut answer = String::new();
    tls.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Whether a process has ended, including zombies that are not waited for.
pub(crate) fn is_gone(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| {
        let state = stat.rsplit(") ").next().and_then(|it| it.chars().next());
        matches!(state, Some('Z' | 'X'))
    })
}
