//! A control plane: one etcd, kube-apiservers of chosen versions, and a bridge
//! in front of each.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use skewbridge_testkit::{Ca, TlsClient, eventually};

use crate::binaries;
use crate::kubectl::Via;
use crate::pki::Pki;
use crate::process::Process;

/// kube-apiserver needs some 15 s on two busy cores; more than a minute is a
/// failure.
const READY: Duration = Duration::from_mins(2);

/// A kube-apiserver to be started.
#[derive(Debug, Clone)]
pub struct Server {
    version: String,
    flags: Vec<String>,
}

impl Server {
    /// This version, with all its APIs turned on.
    pub fn of(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            flags: vec!["--runtime-config=api/all=true".to_owned()],
        }
    }

    /// With a further flag.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// A running control plane. Everything ends when it is dropped.
pub struct Plane {
    /// In the order in which they were asked for.
    pub servers: Vec<Running>,
    pub(crate) pki: Pki,
    _etcd: Process,
}

/// A kube-apiserver with its bridge.
pub struct Running {
    /// As released: `1.36.4`.
    pub version: String,
    /// Where the server itself listens.
    pub address: SocketAddr,
    /// Where its bridge listens.
    pub bridge: SocketAddr,
    /// What the server has written to its audit log.
    pub audit_log: PathBuf,
    /// The server.
    pub process: Process,
    /// The bridge.
    pub bridge_process: Process,
    start: Start,
}

/// How a server was started, to start it again.
struct Start {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
}

impl Plane {
    /// Starts everything and waits until it is ready, through the bridges.
    pub async fn start(servers: &[Server]) -> Self {
        let pki = Pki::new();
        let etcd_address = free_address();
        let etcd = start_etcd(&pki, etcd_address);
        let servers: Vec<_> = servers
            .iter()
            .enumerate()
            .map(|(number, server)| Running::start(number, server, &pki, etcd_address))
            .collect();
        let plane = Self {
            servers,
            pki,
            _etcd: etcd,
        };
        for server in &plane.servers {
            let what = format!("kube-apiserver {} through its bridge", server.version);
            plane.ready(&what, server.bridge).await;
        }
        plane
    }

    /// Waits until `/readyz` is 200 there.
    pub async fn ready(&self, what: &str, address: SocketAddr) {
        let client = self.client("admin");
        eventually(what, READY, async || {
            matches!(get(&client, address, "/readyz").await, Some(200))
        })
        .await;
    }

    /// A client with the certificate of this user.
    pub fn client(&self, user: &str) -> TlsClient {
        let leaf = match user {
            "admin" => self.pki.ca.client("admin", &["system:masters"]),
            name => self.pki.ca.client(name, &["dev", "ops"]),
        };
        TlsClient::new(self.ca()).identity(&leaf)
    }

    /// Signs servers and users.
    pub fn ca(&self) -> &Ca {
        &self.pki.ca
    }

    /// Ends a server as its node would, and starts it again.
    pub fn restart_server(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.process.signal("TERM");
        server.process.wait();
        server.process = server.start.run();
    }
}

async fn get(client: &TlsClient, address: SocketAddr, path: &str) -> Option<u16> {
    let mut connection = client.http1(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.send(request).await.ok()?;
    Some(connection.read_response().await.ok()?.status)
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
}

fn start_etcd(pki: &Pki, address: SocketAddr) -> Process {
    let peers = free_address();
    let data = pki.file("etcd");
    let arguments = [
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls=http://{address}"),
        format!("--advertise-client-urls=http://{address}"),
        format!("--listen-peer-urls=http://{peers}"),
        format!("--initial-advertise-peer-urls=http://{peers}"),
        format!("--initial-cluster=default=http://{peers}"),
        // The data is thrown away: nothing is gained by waiting for a disk.
        "--unsafe-no-fsync".to_owned(),
    ];
    Process::start("etcd", "etcd", &binaries::etcd(), &arguments, pki.path())
}

impl Running {
    /// Where to connect.
    pub fn at(&self, via: Via) -> SocketAddr {
        match via {
            Via::Server => self.address,
            Via::Bridge => self.bridge,
        }
    }

    fn start(number: usize, server: &Server, pki: &Pki, etcd: SocketAddr) -> Self {
        let address = free_address();
        let bridge = free_address();
        let name = format!("kube-apiserver-{number}-{}", server.version);
        let audit_log = pki.file(&format!("audit-{number}.log"));
        let start = Start {
            program: binaries::kube_apiserver(&server.version),
            arguments: apiserver_flags(pki, address, etcd, &audit_log)
                .into_iter()
                .chain(server.flags.iter().cloned())
                .collect(),
            directory: pki.path().to_owned(),
            name,
        };
        Self {
            version: server.version.clone(),
            address,
            bridge,
            audit_log,
            process: start.run(),
            bridge_process: start_bridge(number, pki, address, bridge),
            start,
        }
    }
}

impl Start {
    fn run(&self) -> Process {
        Process::start(
            &self.name,
            &self.name.replace('.', "-"),
            &self.program,
            &self.arguments,
            &self.directory,
        )
    }
}

fn apiserver_flags(
    pki: &Pki,
    address: SocketAddr,
    etcd: SocketAddr,
    audit_log: &std::path::Path,
) -> Vec<String> {
    let policy = pki.dir.write(
        "audit-policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
    );
    let file = |name: &str| pki.file(name).display().to_string();
    vec![
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", address.port()),
        format!("--etcd-servers=http://{etcd}"),
        "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!(
            "--requestheader-client-ca-file={}",
            file("front-proxy-ca.crt")
        ),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!(
            "--proxy-client-cert-file={}",
            file("front-proxy-client.crt")
        ),
        format!("--proxy-client-key-file={}", file("front-proxy-client.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("sa.pub")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        format!("--token-auth-file={}", file("tokens.csv")),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit_log.display()),
    ]
}

fn start_bridge(number: usize, pki: &Pki, upstream: SocketAddr, address: SocketAddr) -> Process {
    let file = |name: &str| pki.file(name).display().to_string();
    let arguments = [
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", address.port()),
        "--admin-address=127.0.0.1:0".to_owned(),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!(
            "--requestheader-client-ca-file={}",
            file("front-proxy-ca.crt")
        ),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        format!(
            "--proxy-client-cert-file={}",
            file("front-proxy-client.crt")
        ),
        format!("--proxy-client-key-file={}", file("front-proxy-client.key")),
        format!("--upstream=https://{upstream}"),
        format!("--upstream-ca-file={}", file("ca.crt")),
        "--v=2".to_owned(),
    ];
    let name = format!("bridge-{number}");
    Process::start(&name, &name, &binaries::bridge(), &arguments, pki.path())
}
