//! A control plane: one etcd, kube-apiservers of given versions, and a bridge in front of each.

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

/// kube-apiserver needs about 15 s on two busy cores.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_mins(2);

/// The configuration of a kube-apiserver and its bridge.
#[derive(Debug, Clone)]
pub struct ServerSpec {
    version: String,
    flags: Vec<String>,
    gates: Vec<String>,
    address: Option<SocketAddr>,
    bridge: BridgeMode,
    bridge_program: Option<PathBuf>,
    bridge_flags: Vec<String>,
}

/// The bridge in front of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BridgeMode {
    /// No bridge.
    None,
    /// A bridge without peers.
    Alone,
    /// A bridge that is a peer of the others.
    Peer,
}

impl ServerSpec {
    /// A server of this version, with all its APIs enabled.
    pub fn of(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            flags: vec!["--runtime-config=api/all=true".to_owned()],
            gates: Vec::new(),
            address: None,
            bridge: BridgeMode::Alone,
            bridge_program: None,
            bridge_flags: Vec::new(),
        }
    }

    /// At this address, which it publishes in the `EndpointSlice` of the Service `kubernetes`; with
    /// a serving certificate of its own, as kubeadm issues it. kube-apiserver requires that all
    /// servers have the same port, and rejects loopback addresses.
    #[must_use]
    pub fn published_at(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// With a bridge that is a peer of the other servers and bridges.
    #[must_use]
    pub fn peer(mut self) -> Self {
        self.bridge = BridgeMode::Peer;
        self
    }

    /// Without a bridge.
    #[must_use]
    pub fn without_bridge(mut self) -> Self {
        self.bridge = BridgeMode::None;
        self
    }

    /// With another bridge program than the default one.
    #[must_use]
    pub fn bridge_program(mut self, program: &Path) -> Self {
        self.bridge_program = Some(program.to_owned());
        self
    }

    /// Without a bridge, and itself a peer of the others, by its own flags only. An
    /// identity Lease needs no flag since 1.26.
    #[must_use]
    pub fn native_peer(self) -> Self {
        self.without_bridge()
            .gate("UnknownVersionInteroperabilityProxy", true)
            .flag("--peer-ca-file=ca.crt")
            .flag("--peer-advertise-ip=127.0.0.1")
    }

    /// With these APIs instead of all.
    #[must_use]
    pub fn runtime_config(mut self, config: &str) -> Self {
        self.flags
            .retain(|flag| !flag.starts_with("--runtime-config="));
        self.flag(&format!("--runtime-config={config}"))
    }

    /// With an additional flag for its bridge.
    #[must_use]
    pub fn bridge_flag(mut self, flag: &str) -> Self {
        self.bridge_flags.push(flag.to_owned());
        self
    }

    /// With an additional flag.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// With a feature gate on or off.
    #[must_use]
    pub fn gate(mut self, feature: &str, on: bool) -> Self {
        self.gates.push(format!("{feature}={on}"));
        self
    }

    /// All flags; kube-apiserver would use only the last of several `--feature-gates`.
    fn flags(&self) -> impl Iterator<Item = String> {
        let gates = format!("--feature-gates={}", self.gates.join(","));
        let gates = (!self.gates.is_empty()).then_some(gates);
        self.flags.iter().cloned().chain(gates)
    }
}

/// A running control plane. Everything stops when it is dropped.
pub struct ControlPlane {
    /// The servers, in the given order.
    pub servers: Vec<ServerInstance>,
    pub(crate) pki: Pki,
    etcd: Vec<Etcd>,
}

/// A kube-apiserver with its bridge.
pub struct ServerInstance {
    /// The version: `1.36.4`.
    pub version: String,
    /// The host name of the server and its bridge.
    pub host: String,
    /// The address of the server itself.
    pub address: SocketAddr,
    /// The address of its bridge.
    pub bridge: SocketAddr,
    /// The admin address of its bridge.
    pub admin: SocketAddr,
    /// The audit log of the server.
    pub audit_log: PathBuf,
    /// The server process, while it runs.
    pub process: Option<Process>,
    /// The bridge process, while it runs.
    pub bridge_process: Option<Process>,
    server_command: LaunchCommand,
    bridge_command: Option<LaunchCommand>,
}

/// The command line of a server or bridge, to start it again.
struct LaunchCommand {
    name: String,
    host: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
}

impl ControlPlane {
    /// Starts everything and waits until all servers are ready through their bridges.
    pub async fn start(servers: &[ServerSpec]) -> Self {
        let mut plane = Self::prepare(servers);
        plane.start_all();
        plane.wait_until_ready().await;
        plane
    }

    /// Starts only etcd.
    pub fn prepare(servers: &[ServerSpec]) -> Self {
        Self::prepare_on(1, servers)
    }

    /// Starts only etcd, with this many members.
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
    pub fn start_all(&mut self) {
        for number in 0..self.servers.len() {
            self.start_server(number);
            self.start_bridge(number);
        }
    }

    /// Starts a server.
    pub fn start_server(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.process = Some(server.server_command.run());
    }

    /// Starts the bridge of a server, if it has one.
    pub fn start_bridge(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.bridge_process = server.bridge_command.as_ref().map(LaunchCommand::run);
    }

    /// Waits until all servers are ready, through their bridges.
    pub async fn wait_until_ready(&self) {
        for server in &self.servers {
            let what = format!("kube-apiserver {} through its bridge", server.version);
            self.wait_for_ready(&what, server.bridge).await;
        }
    }

    /// Waits until `/readyz` of this address responds 200.
    pub async fn wait_for_ready(&self, what: &str, address: SocketAddr) {
        self.wait_for_ok(what, address, "/readyz").await;
    }

    /// Waits until this path responds 200.
    pub(crate) async fn wait_for_ok(&self, what: &str, address: SocketAddr, path: &str) {
        let client = self.client("admin");
        eventually(what, READY_TIMEOUT, async || {
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

    /// A client with a certificate that servers and bridges accept as that of a front proxy.
    pub fn front_proxy_client(&self) -> TlsClient {
        let leaf = self.pki.front_proxy_ca.client("front-proxy-client", &[]);
        TlsClient::new(self.ca()).identity(&leaf)
    }

    /// A client without a certificate.
    pub fn anonymous_client(&self) -> TlsClient {
        TlsClient::new(self.ca())
    }

    /// Adds the front-proxy CA to the file of client CAs that servers and bridges read.
    pub fn share_front_proxy_ca(&self) {
        let both = self.pki.ca.pem() + &self.pki.front_proxy_ca.pem();
        self.file("ca.crt", &both);
    }

    /// The CA of servers and users.
    pub fn ca(&self) -> &Ca {
        &self.pki.ca
    }

    /// The CA of front proxies.
    pub fn front_proxy_ca(&self) -> &Ca {
        &self.pki.front_proxy_ca
    }

    /// The process IDs of all its processes.
    pub fn process_ids(&self) -> Vec<u32> {
        let servers = self.servers.iter();
        let servers = servers.flat_map(|it| [&it.process, &it.bridge_process]);
        let servers = servers.flatten().map(Process::id);
        let etcd = self.etcd.iter().filter_map(Etcd::id);
        etcd.chain(servers).collect()
    }

    /// Sends a server a signal, and waits until it has exited.
    pub fn stop_server(&mut self, number: usize, signal: &str) {
        end(self.servers[number].process.take(), signal);
    }

    /// Sends the bridge of a server a signal, and waits until it has exited.
    pub fn stop_bridge(&mut self, number: usize, signal: &str) {
        end(self.servers[number].bridge_process.take(), signal);
    }

    /// Changes the version of a server from its next start on: the same host, the same flags.
    pub fn replace_server(&mut self, number: usize, version: &str) {
        let server = &mut self.servers[number];
        server.server_command.program = binaries::kube_apiserver(version);
        version.clone_into(&mut server.version);
    }

    /// Removes a flag of a server's bridge from its next start on.
    pub fn remove_bridge_flag(&mut self, number: usize, flag: &str) {
        if let Some(command) = &mut self.servers[number].bridge_command {
            command.arguments.retain(|it| it != flag);
        }
    }

    /// Adds a flag to a server's bridge from its next start on.
    pub fn add_bridge_flag(&mut self, number: usize, flag: &str) {
        if let Some(command) = &mut self.servers[number].bridge_command {
            command.arguments.push(flag.to_owned());
        }
    }

    /// The directory with all certificates, logs and data.
    pub fn directory(&self) -> &Path {
        self.pki.path()
    }

    /// The status of a GET by the admin; 0 without a response.
    pub async fn status(&self, server: usize, via: Via, path: &str) -> u16 {
        let mut client = self.http_client(server, via, Protocol::H2);
        match client.send(&Request::get(path)).await {
            Ok(response) => response.status,
            Err(_) => 0,
        }
    }

    /// A client with the admin's certificate.
    pub fn http_client(&self, server: usize, via: Via, protocol: Protocol) -> HttpClient {
        HttpClient::new(self.client("admin"), self.servers[server].at(via), protocol)
    }

    /// The same for a server at another address.
    pub fn http_client_at(&self, address: SocketAddr, protocol: Protocol) -> HttpClient {
        HttpClient::new(self.client("admin"), address, protocol)
    }

    /// A page of the admin port of a bridge.
    pub async fn admin_page(&self, server: usize, path: &str) -> String {
        let answer = admin_at(self.servers[server].admin, path).await;
        answer.expect("a response of the admin port").1
    }

    /// Writes a file for a program, and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        self.pki.dir.write(name, text).display().to_string()
    }

    /// The etcd of all servers, if it has one member.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd[0]
    }

    /// All members of the etcd of all servers.
    pub fn etcd_members(&mut self) -> &mut [Etcd] {
        &mut self.etcd
    }
}

/// The status and the body of a page of an admin port.
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
    /// The address for a client.
    pub fn at(&self, via: Via) -> SocketAddr {
        match via {
            Via::Server => self.address,
            Via::Bridge => self.bridge,
        }
    }

    fn prepare(number: usize, server: &ServerSpec, pki: &Pki, etcd: &str) -> Self {
        let address = server.address.unwrap_or_else(free_address);
        let admin = free_address();
        let bridge = match server.bridge {
            BridgeMode::None => address,
            BridgeMode::Alone | BridgeMode::Peer => free_address(),
        };
        let name = format!("kube-apiserver-{number}-{}", server.version);
        // A bridge has the host name of its server, as if it ran on the same host.
        let host = name.replace('.', "-");
        let audit_log = pki.file(&format!("audit-{number}.log"));
        let server_command = LaunchCommand {
            program: binaries::kube_apiserver(&server.version),
            arguments: apiserver_flags(pki, address, etcd, &audit_log)
                .into_iter()
                .chain(published_address_flags(server, pki, &host))
                .chain(server.flags())
                .collect(),
            directory: pki.path().to_owned(),
            host: host.clone(),
            name,
        };
        let mut arguments = bridge_flags(pki, address, bridge, admin);
        if server.bridge == BridgeMode::Peer {
            arguments.push(format!("--peer-ca-file={}", pki.file("ca.crt").display()));
            arguments.push(format!("--etcd-servers={etcd}"));
        }
        arguments.extend(server.bridge_flags.iter().cloned());
        let bridge_command = (server.bridge != BridgeMode::None).then(|| LaunchCommand {
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
            server_command,
            bridge_command,
        }
    }
}

impl LaunchCommand {
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

/// The flags of a server that publishes its address. The last flag of a name counts.
fn published_address_flags(server: &ServerSpec, pki: &Pki, host: &str) -> Vec<String> {
    let Some(address) = server.address else {
        return Vec::new();
    };
    let [certificate, key] = pki.serving_certificate(host, address.ip());
    vec![
        "--endpoint-reconciler-type=lease".to_owned(),
        format!("--tls-cert-file={}", certificate.display()),
        format!("--tls-private-key-file={}", key.display()),
    ]
}

fn apiserver_flags(pki: &Pki, address: SocketAddr, etcd: &str, audit_log: &Path) -> Vec<String> {
    let policy = pki.dir.write(
        "audit-policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
    );
    let file = |name: &str| pki.file(name).display().to_string();
    vec![
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
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
    fn all_feature_gates_are_in_one_flag() {
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
