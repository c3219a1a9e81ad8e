//! A control plane: one etcd, kube-apiservers of chosen versions, and a bridge
//! in front of each.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use skewbridge_testkit::{Ca, TlsClient, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::binaries;
use crate::endpoint::Via;
use crate::etcd::Etcd;
use crate::http_client::{HttpClient, Protocol, Request};
use crate::pki::Pki;
use crate::ports::free_address;
use crate::process::Process;

/// kube-apiserver needs some 15 s on two busy cores; more than a minute is a
/// failure.
pub(crate) const READY: Duration = Duration::from_mins(2);

/// A kube-apiserver to be started.
#[derive(Debug, Clone)]
pub struct ServerSpec {
    version: String,
    flags: Vec<String>,
    gates: Vec<String>,
    bridge: Bridging,
    bridge_program: Option<PathBuf>,
    bridge_flags: Vec<String>,
}

/// What stands in front of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bridging {
    /// Nothing.
    None,
    /// A bridge that knows of no other server.
    Alone,
    /// A bridge that is a peer of the others.
    Peer,
}

impl ServerSpec {
    /// This version, with all its APIs turned on.
    pub fn of(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            flags: vec!["--runtime-config=api/all=true".to_owned()],
            gates: Vec::new(),
            bridge: Bridging::Alone,
            bridge_program: None,
            bridge_flags: Vec::new(),
        }
    }

    /// With a bridge that is a peer of the other servers and bridges.
    #[must_use]
    pub fn peer(mut self) -> Self {
        self.bridge = Bridging::Peer;
        self
    }

    /// Without a bridge.
    #[must_use]
    pub fn without_bridge(mut self) -> Self {
        self.bridge = Bridging::None;
        self
    }

    /// With another bridge than the one that the tests are told of.
    #[must_use]
    pub fn bridge_program(mut self, program: &Path) -> Self {
        self.bridge_program = Some(program.to_owned());
        self
    }

    /// Without a bridge, and a peer of the others by itself, by no other flags
    /// than its own. That it has an identity Lease needs no flag since 1.26.
    #[must_use]
    pub fn native_peer(self) -> Self {
        self.without_bridge()
            .gate("UnknownVersionInteroperabilityProxy", true)
            .flag("--peer-ca-file=ca.crt")
            .flag("--peer-advertise-ip=127.0.0.1")
    }

    /// With other APIs than all of them.
    #[must_use]
    pub fn runtime_config(mut self, config: &str) -> Self {
        self.flags
            .retain(|flag| !flag.starts_with("--runtime-config="));
        self.flag(&format!("--runtime-config={config}"))
    }

    /// With a further flag of its bridge.
    #[must_use]
    pub fn bridge_flag(mut self, flag: &str) -> Self {
        self.bridge_flags.push(flag.to_owned());
        self
    }

    /// With a further flag.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// With a feature on or off.
    #[must_use]
    pub fn gate(mut self, feature: &str, on: bool) -> Self {
        self.gates.push(format!("{feature}={on}"));
        self
    }

    /// All flags; of several `--feature-gates` kube-apiserver would take the
    /// last.
    fn flags(&self) -> impl Iterator<Item = String> {
        let gates = format!("--feature-gates={}", self.gates.join(","));
        let gates = (!self.gates.is_empty()).then_some(gates);
        self.flags.iter().cloned().chain(gates)
    }
}

/// A running control plane. Everything ends when it is dropped.
pub struct ControlPlane {
    /// In the order in which they were asked for.
    pub servers: Vec<ServerInstance>,
    pub(crate) pki: Pki,
    etcd: Vec<Etcd>,
}

/// A kube-apiserver with its bridge.
pub struct ServerInstance {
    /// As released: `1.36.4`.
    pub version: String,
    /// The name of the machine that it, and its bridge, take to be theirs.
    pub host: String,
    /// Where the server itself listens.
    pub address: SocketAddr,
    /// Where its bridge listens.
    pub bridge: SocketAddr,
    /// Where its bridge tells about itself.
    pub admin: SocketAddr,
    /// What the server has written to its audit log.
    pub audit_log: PathBuf,
    /// The server, while it runs.
    pub process: Option<Process>,
    /// The bridge, while it runs.
    pub bridge_process: Option<Process>,
    start: Start,
    start_bridge: Option<Start>,
}

/// How a server was started, to start it again.
struct Start {
    name: String,
    host: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
}

impl ControlPlane {
    /// Starts everything and waits until it is ready, through the bridges.
    pub async fn start(servers: &[ServerSpec]) -> Self {
        let mut plane = Self::prepare(servers);
        plane.run_all();
        plane.all_ready().await;
        plane
    }

    /// Starts only etcd.
    pub fn prepare(servers: &[ServerSpec]) -> Self {
        Self::prepare_on(1, servers)
    }

    /// Starts only etcd, of so many members.
    pub fn prepare_on(members: usize, servers: &[ServerSpec]) -> Self {
        let pki = Pki::new();
        let etcd = Etcd::start_members(pki.path(), members);
        let endpoints: Vec<_> = etcd
            .iter()
            .map(|member| format!("http://{}", member.address))
            .collect();
        let endpoints = endpoints.join(",");
        let servers: Vec<_> = servers
            .iter()
            .enumerate()
            .map(|(number, server)| ServerInstance::prepare(number, server, &pki, &endpoints))
            .collect();
        Self { servers, pki, etcd }
    }

    /// Starts every server and every bridge.
    pub fn run_all(&mut self) {
        for number in 0..self.servers.len() {
            self.run_server(number);
            self.run_bridge(number);
        }
    }

    /// Starts a server.
    pub fn run_server(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.process = Some(server.start.run());
    }

    /// Starts the bridge of a server, where it has one.
    pub fn run_bridge(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.bridge_process = server.start_bridge.as_ref().map(Start::run);
    }

    /// Waits until all servers are ready, through their bridges.
    pub async fn all_ready(&self) {
        for server in &self.servers {
            let what = format!("kube-apiserver {} through its bridge", server.version);
            self.ready(&what, server.bridge).await;
        }
    }

    /// Waits until `/readyz` is 200 there.
    pub async fn ready(&self, what: &str, address: SocketAddr) {
        self.answers(what, address, "/readyz").await;
    }

    /// Waits until this path is 200 there.
    pub(crate) async fn answers(&self, what: &str, address: SocketAddr, path: &str) {
        let client = self.client("admin");
        eventually(what, READY, async || {
            matches!(get(&client, address, path).await, Some(200))
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

    /// A client with a certificate that servers and bridges take for a front proxy's.
    pub fn front_proxy(&self) -> TlsClient {
        let leaf = self.pki.front_proxy_ca.client("front-proxy-client", &[]);
        TlsClient::new(self.ca()).identity(&leaf)
    }

    /// A client without a certificate.
    pub fn anonymous_client(&self) -> TlsClient {
        TlsClient::new(self.ca())
    }

    /// From now on the CA of front proxies is one of users too, in the file that servers
    /// and bridges read.
    pub fn share_front_proxy_ca(&self) {
        let both = self.pki.ca.pem() + &self.pki.front_proxy_ca.pem();
        self.file("ca.crt", &both);
    }

    /// Signs servers and users.
    pub fn ca(&self) -> &Ca {
        &self.pki.ca
    }

    /// Signs front proxies.
    pub fn front_proxy_ca(&self) -> &Ca {
        &self.pki.front_proxy_ca
    }

    /// Of all that runs for it.
    pub fn process_ids(&self) -> Vec<u32> {
        let servers = self.servers.iter();
        let servers = servers.flat_map(|it| [&it.process, &it.bridge_process]);
        let servers = servers.flatten().map(Process::id);
        let etcd = self.etcd.iter().filter_map(Etcd::id);
        etcd.chain(servers).collect()
    }

    /// Sends a server a signal, and waits until it has ended.
    pub fn end_server(&mut self, number: usize, signal: &str) {
        end(self.servers[number].process.take(), signal);
    }

    /// Sends the bridge of a server a signal, and waits until it has ended.
    pub fn end_bridge(&mut self, number: usize, signal: &str) {
        end(self.servers[number].bridge_process.take(), signal);
    }

    /// Ends a server as its node would, and starts it again.
    pub fn restart_server(&mut self, number: usize) {
        self.end_server(number, "TERM");
        self.run_server(number);
    }

    /// From its next start on, a server is of another version: the same machine,
    /// the same flags.
    pub fn replace_server(&mut self, number: usize, version: &str) {
        let server = &mut self.servers[number];
        server.start.program = binaries::kube_apiserver(version);
        version.clone_into(&mut server.version);
    }

    /// From its next start on, the bridge of a server is without this flag.
    pub fn remove_bridge_flag(&mut self, number: usize, flag: &str) {
        if let Some(start) = &mut self.servers[number].start_bridge {
            start.arguments.retain(|it| it != flag);
        }
    }

    /// What a GET by the admin comes to, 0 for no answer.
    pub async fn status(&self, server: usize, via: Via, path: &str) -> u16 {
        let mut client = self.raw(server, via, Protocol::H2);
        match client.send(&Request::get(path)).await {
            Ok(response) => response.status,
            Err(_) => 0,
        }
    }

    /// A client with the admin's certificate.
    pub fn raw(&self, server: usize, via: Via, protocol: Protocol) -> HttpClient {
        HttpClient::new(self.client("admin"), self.servers[server].at(via), protocol)
    }

    /// What a bridge tells about itself.
    pub async fn admin(&self, server: usize, path: &str) -> String {
        let answer = admin_at(self.servers[server].admin, path).await;
        answer.expect("an answer of an admin port").1
    }

    /// Writes a file for a program, and gives its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        self.pki.dir.write(name, text).display().to_string()
    }

    /// The etcd of all servers, where it is one member.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd[0]
    }

    /// All members of the etcd of all servers.
    pub fn etcd_members(&mut self) -> &mut [Etcd] {
        &mut self.etcd
    }
}

/// The status and the body of what a bridge tells about itself there.
pub(crate) async fn admin_at(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?;
    Some((status.parse().ok()?, body.to_owned()))
}

fn end(process: Option<Process>, signal: &str) {
    if let Some(mut process) = process {
        process.signal(signal);
        process.wait();
    }
}

async fn get(client: &TlsClient, address: SocketAddr, path: &str) -> Option<u16> {
    let mut connection = client.http1(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.send(request).await.ok()?;
    Some(connection.read_response().await.ok()?.status)
}

impl ServerInstance {
    /// Where to connect.
    pub fn at(&self, via: Via) -> SocketAddr {
        match via {
            Via::Server => self.address,
            Via::Bridge => self.bridge,
        }
    }

    fn prepare(number: usize, server: &ServerSpec, pki: &Pki, etcd: &str) -> Self {
        let address = free_address();
        let admin = free_address();
        let bridge = match server.bridge {
            Bridging::None => address,
            Bridging::Alone | Bridging::Peer => free_address(),
        };
        let name = format!("kube-apiserver-{number}-{}", server.version);
        // A bridge has its server's host name, as it stands beside it.
        let host = name.replace('.', "-");
        let audit_log = pki.file(&format!("audit-{number}.log"));
        let start = Start {
            program: binaries::kube_apiserver(&server.version),
            arguments: apiserver_flags(pki, address, etcd, &audit_log)
                .into_iter()
                .chain(server.flags())
                .collect(),
            directory: pki.path().to_owned(),
            host: host.clone(),
            name,
        };
        let mut arguments = bridge_flags(pki, address, bridge, admin);
        if server.bridge == Bridging::Peer {
            arguments.push(format!("--peer-ca-file={}", pki.file("ca.crt").display()));
            arguments.push(format!("--etcd-servers={etcd}"));
        }
        arguments.extend(server.bridge_flags.iter().cloned());
        let start_bridge = (server.bridge != Bridging::None).then(|| Start {
            name: format!("bridge-{number}"),
            host: host.clone(),
            program: server
                .bridge_program
                .clone()
                .unwrap_or_else(binaries::bridge),
            arguments,
            directory: pki.path().to_owned(),
        });
        Self {
            version: server.version.clone(),
            host,
            address,
            bridge,
            admin,
            audit_log,
            process: None,
            bridge_process: None,
            start,
            start_bridge,
        }
    }
}

impl Start {
    fn run(&self) -> Process {
        Process::start(
            &self.name,
            &self.host,
            &self.program,
            &self.arguments,
            &self.directory,
        )
    }
}

fn apiserver_flags(pki: &Pki, address: SocketAddr, etcd: &str, audit_log: &Path) -> Vec<String> {
    let policy = pki.dir.write(
        "audit-policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
    );
    let file = |name: &str| pki.file(name).display().to_string();
    vec![
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", address.port()),
        format!("--etcd-servers={etcd}"),
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
        format!("--kubelet-certificate-authority={}", file("ca.crt")),
        format!(
            "--kubelet-client-certificate={}",
            file("apiserver-kubelet-client.crt")
        ),
        format!(
            "--kubelet-client-key={}",
            file("apiserver-kubelet-client.key")
        ),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("sa.pub")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        format!("--token-auth-file={}", file("tokens.csv")),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit_log.display()),
    ]
}

pub(crate) fn bridge_flags(
    pki: &Pki,
    upstream: SocketAddr,
    address: SocketAddr,
    admin: SocketAddr,
) -> Vec<String> {
    let file = |name: &str| pki.file(name).display().to_string();
    vec![
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", address.port()),
        format!("--admin-address={admin}"),
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
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_gates_are_in_one_flag() {
        let server = ServerSpec::of("1.36.4")
            .gate("CBORServingAndStorage", true)
            .flag("--v=2")
            .gate("WatchList", false);
        let flags: Vec<_> = server.flags().collect();
        assert_eq!(
            flags,
            [
                "--runtime-config=api/all=true",
                "--v=2",
                "--feature-gates=CBORServingAndStorage=true,WatchList=false"
            ]
        );
        let plain: Vec<_> = ServerSpec::of("1.36.4").flags().collect();
        assert_eq!(plain, ["--runtime-config=api/all=true"]);
    }
}
