//! Peers are reached only through the proxy that `--egress-selector-config-file` names.
//!
//! The peer publishes an unroutable address (RFC 5737); the proxies of these tests know its real
//! one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_gateway::config::{ApiServerIdentity, Config, Egress, ProxyTransport, RegistryKind};
use skewbridge_peer_directory::registry::{Addresses, Registry, SharedMemoryRegistry};
use skewbridge_peer_directory::{Identity, IdentityLease};
use skewbridge_testkit::upstream::Upgrade;
use skewbridge_testkit::{
    ApiServer, BodySender, Ca, ClientAuth, Connection, Leaf, Options, RecordedRequest, Reply,
    TEST_TIMEOUT, eventually,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::support::admin_client;
use crate::support::pki::{PkiFixture, start};
use crate::support::scripted_upstream::assert_json_status;

const LOCAL_IDENTITY: &str = "apiserver-here";
const PEER_IDENTITY: &str = "apiserver-there";

/// The address that the peer publishes. It is unroutable.
const PUBLISHED_ADDRESS: &str = "192.0.2.7:6443";

/// Served by the peer only.
const WIDGETS: &str = "/apis/new.example/v1/namespaces/a/widgets";

/// Two servers of a cluster, only one of which serves widgets.
struct EgressFixture {
    pki: PkiFixture,
    local_server: ApiServer,
    peer_server: ApiServer,
    exchange: SharedMemoryRegistry,
    watches: mpsc::UnboundedReceiver<BodySender>,
    tunnels: mpsc::UnboundedReceiver<Upgrade>,
    registry: JoinHandle<()>,
    _published: watch::Sender<Option<(Identity, SocketAddr)>>,
}

impl EgressFixture {
    async fn new() -> Self {
        let pki = PkiFixture::new();
        let peer_ca = Ca::new("peer-ca");
        pki.dir.write("peer-ca.crt", peer_ca.pem());
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let silent = Mutex::new(Vec::new());
        let local_server =
            ApiServer::start(options, move |recorded| upstream(&recorded, &silent)).await;

        let (say_watch, watches) = mpsc::unbounded_channel();
        let (say_tunnel, tunnels) = mpsc::unbounded_channel();
        let options = Options::new(peer_ca.server(&["kubernetes.default.svc"]))
            .clients(ClientAuth::Require(&pki.front_proxy_ca));
        let peer_server = ApiServer::start(options, move |recorded| {
            if let Some(protocol) = recorded.header("upgrade") {
                let (reply, upgrade) = Reply::upgrade(protocol);
                say_tunnel.send(upgrade).unwrap();
                return reply;
            }
            match (recorded.path(), recorded.query()) {
                (WIDGETS, Some("watch=true")) => {
                    let (reply, sender) = Reply::stream();
                    say_watch.send(sender).unwrap();
                    reply.header("Content-Type", "application/json")
                }
                (WIDGETS, _) => Reply::json(r#"{"kind":"WidgetList"}"#),
                _ => discovery(&recorded, Some("new.example")),
            }
        })
        .await;

        let exchange = SharedMemoryRegistry::default();
        let address = PUBLISHED_ADDRESS.parse().unwrap();
        let (published, own) =
            watch::channel(Some((Identity::named(PEER_IDENTITY).unwrap(), address)));
        let registry = exchange.registry();
        let registry = tokio::spawn(async move {
            let (found, _) = watch::channel(Addresses::new());
            registry.run(own, found).await;
        });
        Self {
            pki,
            local_server,
            peer_server,
            exchange,
            watches,
            tunnels,
            registry,
            _published: published,
        }
    }

    fn config(&self, egress: Egress) -> Config {
        let mut config = self.pki.config(self.local_server.addr());
        config.peers.identity = ApiServerIdentity::Named(LOCAL_IDENTITY.to_owned());
        config.peers.registry = RegistryKind::Memory(self.exchange.clone());
        config.peers.ca = Some(self.pki.path().join("peer-ca.crt"));
        config.peers.egress = egress;
        config
    }

    fn through(&self, transport: ProxyTransport) -> Handle {
        start(&self.config(Egress::HttpConnect(transport)))
    }

    fn socket(&self) -> PathBuf {
        self.pki.path().join("proxy.sock")
    }
}

impl Drop for EgressFixture {
    fn drop(&mut self) {
        self.registry.abort();
    }
}

/// Responses of the kube-apiserver behind the bridge. Its watches have no events; their senders are
/// kept so that the watches stay open.
fn upstream(recorded: &RecordedRequest, silent: &Mutex<Vec<BodySender>>) -> Reply {
    let watch = recorded
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let (kind, items) = match recorded.path() {
        skewbridge_peer_directory::lease::LEASES_PATH => (
            "LeaseList",
            [LOCAL_IDENTITY, PEER_IDENTITY].map(lease).to_vec(),
        ),
        "/apis/apiregistration.k8s.io/v1/apiservices" => ("APIServiceList", Vec::new()),
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" => ("CRDList", Vec::new()),
        _ => return discovery(recorded, None),
    };
    if watch {
        let (reply, sender) = Reply::stream();
        silent.lock().unwrap().push(sender);
        return reply;
    }
    let list = json!({"kind": kind, "metadata": {"resourceVersion": "1"}, "items": items});
    Reply::json(list.to_string())
}

fn lease(name: &str) -> Value {
    let identity = Identity::named(name).unwrap();
    let lease = IdentityLease::new(&identity, name, name, SystemTime::now());
    let mut lease: Value = serde_json::from_str(&lease.to_json()).unwrap();
    lease["metadata"]["resourceVersion"] = "1".into();
    lease["metadata"]["uid"] = name.into();
    lease
}

/// The discovery document of either server.
fn discovery(recorded: &RecordedRequest, group: Option<&str>) -> Reply {
    let resource = json!({
        "resource": "widgets", "scope": "Namespaced", "singularResource": "widget",
        "verbs": ["get", "list", "watch", "create"],
        "responseKind": {"group": "", "version": "", "kind": "Widget"},
        "subresources": [{"subresource": "exec", "verbs": ["create", "get"]}],
    });
    let groups: Vec<_> = group
        .into_iter()
        .map(|group| {
            json!({
                "metadata": {"name": group},
                "versions": [{"version": "v1", "freshness": "Current", "resources": [resource]}],
            })
        })
        .collect();
    let items = match recorded.path() {
        "/readyz" => return Reply::new(200).body("ok"),
        "/version" => return Reply::json(r#"{"gitVersion":"v1.35.0"}"#),
        "/apis" => groups,
        "/api" => Vec::new(),
        _ => return Reply::json("{}").status(404),
    };
    let document = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    });
    Reply::new(200)
        .header(
            "Content-Type",
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        )
        .body(document.to_string())
}

/// How a proxy answers CONNECT.
#[derive(Clone)]
enum ProxyBehavior {
    /// Opens a tunnel to this server.
    Tunnel(SocketAddr),
    /// Answers with this text and closes.
    Say(&'static [u8]),
    /// Reads, and never answers.
    Silent,
}

/// An HTTP CONNECT proxy.
struct Proxy {
    connect_requests: Arc<Mutex<Vec<String>>>,
    behavior: watch::Sender<ProxyBehavior>,
    task: JoinHandle<()>,
}

/// The listener of a proxy.
enum ProxyListener {
    Tcp(TcpListener),
    Unix(UnixListener),
    Tls(TcpListener, TlsAcceptor),
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl ProxyListener {
    async fn open(&self) -> io::Result<Box<dyn Io>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Tls(listener, tls) => Box::new(tls.accept(listener.accept().await?.0).await?),
        })
    }
}

impl Proxy {
    async fn tcp(behavior: ProxyBehavior) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (Self::start(behavior, ProxyListener::Tcp(listener)), addr)
    }

    fn unix(path: PathBuf, behavior: ProxyBehavior) -> Self {
        Self::start(
            behavior,
            ProxyListener::Unix(UnixListener::bind(path).unwrap()),
        )
    }

    async fn tls(behavior: ProxyBehavior, tls: &Leaf, clients: &Ca) -> (Self, SocketAddr) {
        let acceptor = tls.server_config(ClientAuth::Require(clients), &[]).into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (
            Self::start(behavior, ProxyListener::Tls(listener, acceptor)),
            addr,
        )
    }

    fn start(behavior: ProxyBehavior, listener: ProxyListener) -> Self {
        let connect_requests = Arc::<Mutex<Vec<String>>>::default();
        let record = connect_requests.clone();
        let (behavior, current) = watch::channel(behavior);
        let task = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                if let Ok(io) = listener.open().await {
                    let behavior = current.borrow().clone();
                    clients.spawn(serve(io, behavior, record.clone()));
                }
            }
        });
        Self {
            connect_requests,
            behavior,
            task,
        }
    }

    fn connect_requests(&self) -> Vec<String> {
        self.connect_requests.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut io: Box<dyn Io>,
    behavior: ProxyBehavior,
    connect_requests: Arc<Mutex<Vec<String>>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = io.read_u8().await else {
            return;
        };
        head.push(byte);
    }
    connect_requests
        .lock()
        .unwrap()
        .push(String::from_utf8(head).unwrap());
    match behavior {
        ProxyBehavior::Tunnel(to) => {
            let mut server = TcpStream::connect(to).await.unwrap();
            let opened = b"HTTP/1.1 200 Connection established\r\n\r\n";
            if io.write_all(opened).await.is_ok() && io.flush().await.is_ok() {
                let _ = copy_bidirectional(&mut io, &mut server).await;
            }
        }
        ProxyBehavior::Say(bytes) => {
            let _ = io.write_all(bytes).await;
            let _ = io.shutdown().await;
        }
        ProxyBehavior::Silent => std::future::pending().await,
    }
}

/// The entry of the peer in `/debug/peers`.
async fn peer(bridge: &Handle) -> Value {
    let view = admin_client::get(bridge.admin_address(), "/debug/peers").await;
    let view: Value = serde_json::from_str(&view.body).unwrap();
    view["peers"][0].clone()
}

async fn wait_until_peer_is_known(bridge: &Handle) {
    eventually(
        "discovery of the peer has succeeded",
        TEST_TIMEOUT,
        async || {
            let peer = peer(bridge).await;
            peer["servesAlone"]
                .as_array()
                .is_some_and(|it| !it.is_empty())
        },
    )
    .await;
}

async fn wait_for_problem(bridge: &Handle, expected: &str) {
    eventually(expected, TEST_TIMEOUT, async || {
        let peer = peer(bridge).await;
        (peer["problem"].as_str()).is_some_and(|problem| problem.contains(expected))
    })
    .await;
}

const UPGRADE: &str = "POST /apis/new.example/v1/namespaces/a/widgets/b/exec HTTP/1.1\r\nHost: k\r\n\
    Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n";

/// Sends more than the buffers on the way hold.
async fn assert_transfers(from: &mut Connection, to: &mut Connection) {
    let bulk: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let mut received_bytes = vec![0; bulk.len()];
    let sending = async {
        from.write_all(&bulk).await.unwrap();
        from.flush().await.unwrap();
    };
    let ((), read) = tokio::join!(sending, to.read_exact(&mut received_bytes));
    read.unwrap();
    assert!(received_bytes == bulk, "the bytes arrive unchanged");
}

/// A GET, a watch and an upgrade reach the peer through this proxy only.
async fn assert_all_requests_pass(cluster: &mut EgressFixture, bridge: &Handle, proxy: &Proxy) {
    wait_until_peer_is_known(bridge).await;
    for _ in 0..2 {
        let client = cluster.pki.user("alice", &[]);
        let h2 = client.http2(bridge.address()).await.unwrap();
        let answer = h2.get(WIDGETS).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.text(), r#"{"kind":"WidgetList"}"#);
    }

    let client = cluster.pki.user("alice", &[]);
    let mut h1 = client.http1(bridge.address()).await.unwrap();
    let watch = format!("GET {WIDGETS}?watch=true HTTP/1.1\r\nHost: k\r\n\r\n");
    h1.send(watch).await.unwrap();
    let events = cluster.watches.recv().await.unwrap();
    // Larger than any buffer on the way.
    let large = format!(
        "{{\"type\":\"ADDED\",\"pad\":\"{}\"}}\n",
        "x".repeat(200_000)
    );
    events.send("{}\n").await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 200);
    assert_eq!(h1.read_chunk().await.unwrap().unwrap(), "{}\n");
    let (sent, received) = tokio::join!(events.send(large.clone()), async {
        let mut received = Vec::new();
        while received.len() < large.len() {
            received.extend_from_slice(&h1.read_chunk().await.unwrap().unwrap());
        }
        received
    });
    sent.unwrap();
    assert!(received == large.as_bytes(), "the event arrives unchanged");
    events.finish().await.unwrap();
    assert!(h1.read_chunk().await.unwrap().is_none());

    let mut h1 = client.http1(bridge.address()).await.unwrap();
    h1.send(UPGRADE).await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 101);
    let mut ours = h1.into_connection();
    let mut theirs = cluster.tunnels.recv().await.unwrap().connection().await;
    assert_transfers(&mut ours, &mut theirs).await;
    assert_transfers(&mut theirs, &mut ours).await;
    ours.shutdown().await.unwrap();
    assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
    theirs.write_all(b"the rest").await.unwrap();
    theirs.shutdown().await.unwrap();
    let mut rest = String::new();
    ours.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "the rest");

    let expected =
        format!("CONNECT {PUBLISHED_ADDRESS} HTTP/1.1\r\nHost: {PUBLISHED_ADDRESS}\r\n\r\n");
    let connect_requests = proxy.connect_requests();
    assert!(
        connect_requests.iter().all(|head| *head == expected),
        "{connect_requests:?}"
    );
    // One connection of the bridge itself, one of the client's worker, one of the upgrade.
    assert_eq!(connect_requests.len(), cluster.peer_server.connections());
    assert!(connect_requests.len() >= 3, "{connect_requests:?}");
}

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_unix_socket_proxy() {
    let mut cluster = EgressFixture::new().await;
    let proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    let bridge = cluster.through(ProxyTransport::Uds(cluster.socket()));
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
}

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_tcp_proxy() {
    let mut cluster = EgressFixture::new().await;
    let (proxy, addr) = Proxy::tcp(ProxyBehavior::Tunnel(cluster.peer_server.addr())).await;
    let bridge = cluster.through(ProxyTransport::Tcp {
        host: "localhost".to_owned(),
        port: addr.port(),
    });
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
}

/// A proxy that requires TLS and a client certificate, and the transport that reaches it.
async fn tls_proxy(cluster: &EgressFixture) -> (Proxy, ProxyTransport, Ca) {
    let (ca, clients) = (Ca::new("proxy-ca"), Ca::new("proxy-client-ca"));
    let behavior = ProxyBehavior::Tunnel(cluster.peer_server.addr());
    let (proxy, addr) = Proxy::tls(behavior, &ca.server(&["localhost"]), &clients).await;
    let pair = clients.client("skewbridge", &[]);
    let dir = &cluster.pki.dir;
    let transport = ProxyTransport::Tls {
        host: addr.ip().to_string(),
        port: addr.port(),
        server_name: ServerName::try_from("localhost").unwrap(),
        ca: dir.write("proxy-ca.crt", ca.pem()),
        key_pair: KeyPairFiles {
            cert: dir.write("proxy-client.crt", &pair.cert_pem),
            key: dir.write("proxy-client.key", &pair.key_pem),
        },
    };
    (proxy, transport, ca)
}

#[tokio::test]
async fn all_requests_reach_the_peer_through_a_tls_proxy_with_a_client_certificate() {
    let mut cluster = EgressFixture::new().await;
    let (proxy, transport, _) = tls_proxy(&cluster).await;
    let bridge = cluster.through(transport);
    assert_all_requests_pass(&mut cluster, &bridge, &proxy).await;
    let metrics = admin_client::get(bridge.admin_address(), "/metrics")
        .await
        .body;
    for what in ["caBundle", "clientCert"] {
        let series = format!("{{flag=\"--egress-selector-config-file {what}\"}}");
        assert!(metrics.contains(&series), "{series}");
    }
}

#[tokio::test]
async fn the_certificate_files_of_the_proxy_are_reloaded_when_they_change() {
    let cluster = EgressFixture::new().await;
    let (proxy, transport, ca) = tls_proxy(&cluster).await;
    let dir = &cluster.pki.dir;
    dir.write("proxy-ca.crt", Ca::new("another").pem());
    let ProxyTransport::Tls { port, .. } = transport else {
        unreachable!("the transport is TLS");
    };
    let bridge = cluster.through(transport);
    let problem = format!(
        "--egress-selector-config-file: the proxy at https://127.0.0.1:{port} cannot be reached: \
         TLS: invalid peer certificate: UnknownIssuer"
    );
    wait_for_problem(&bridge, &problem).await;
    assert!(proxy.connect_requests().is_empty());
    dir.write("proxy-ca.crt", ca.pem());
    wait_until_peer_is_known(&bridge).await;
}

#[tokio::test]
async fn a_certificate_that_the_proxy_refuses_can_be_replaced() {
    let cluster = EgressFixture::new().await;
    let (proxy, transport, _) = tls_proxy(&cluster).await;
    let ProxyTransport::Tls { key_pair, .. } = &transport else {
        unreachable!("the transport is TLS");
    };
    let files = [key_pair.cert.clone(), key_pair.key.clone()];
    let good = files.each_ref().map(|path| std::fs::read(path).unwrap());
    let untrusted = Ca::new("another").client("skewbridge", &[]);
    std::fs::write(&files[0], &untrusted.cert_pem).unwrap();
    std::fs::write(&files[1], &untrusted.key_pem).unwrap();
    let bridge = cluster.through(transport);
    let problem =
        format!("closed the connection before it responded to CONNECT {PUBLISHED_ADDRESS}");
    wait_for_problem(&bridge, &problem).await;
    assert!(proxy.connect_requests().is_empty());
    for (path, good) in files.iter().zip(good) {
        std::fs::write(path, good).unwrap();
    }
    wait_until_peer_is_known(&bridge).await;
}

/// The bridge reports this problem of the peer when its proxy behaves so.
async fn assert_reported(behavior: ProxyBehavior, expected: &str) {
    let cluster = EgressFixture::new().await;
    let _proxy = Proxy::unix(cluster.socket(), behavior);
    let bridge = cluster.through(ProxyTransport::Uds(cluster.socket()));
    let named = format!(
        "--egress-selector-config-file: the proxy at unix://{} {expected}",
        cluster.socket().display()
    );
    wait_for_problem(&bridge, &named).await;
}

#[tokio::test]
async fn a_proxy_that_refuses_is_reported_with_its_status() {
    let forbidden = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    let expected = format!("answered 403 to CONNECT {PUBLISHED_ADDRESS}");
    assert_reported(ProxyBehavior::Say(forbidden), &expected).await;
}

#[tokio::test]
async fn a_server_that_is_not_an_http_proxy_is_reported() {
    let expected = format!(
        "sent an invalid HTTP/1.1 response to CONNECT {PUBLISHED_ADDRESS}: it does not begin with \
         HTTP/1."
    );
    assert_reported(ProxyBehavior::Say(b"220 mail.example ESMTP\r\n"), &expected).await;
}

#[tokio::test]
async fn a_proxy_that_closes_the_connection_is_reported() {
    let expected =
        format!("closed the connection before it responded to CONNECT {PUBLISHED_ADDRESS}");
    assert_reported(ProxyBehavior::Say(b"HTTP/1.1 20"), &expected).await;
}

#[tokio::test]
async fn an_unreachable_proxy_is_reported_and_used_again_when_it_returns() {
    let cluster = EgressFixture::new().await;
    let bridge = cluster.through(ProxyTransport::Uds(cluster.socket()));
    let named = format!(
        "the proxy at unix://{} cannot be reached: No such file or directory",
        cluster.socket().display()
    );
    wait_for_problem(&bridge, &named).await;
    let _proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    wait_until_peer_is_known(&bridge).await;
}

#[tokio::test]
async fn the_client_gets_the_reason_and_retry_after_when_the_proxy_refuses() {
    let cluster = EgressFixture::new().await;
    let (proxy, addr) = Proxy::tcp(ProxyBehavior::Tunnel(cluster.peer_server.addr())).await;
    let bridge = cluster.through(ProxyTransport::Tcp {
        host: addr.ip().to_string(),
        port: addr.port(),
    });
    wait_until_peer_is_known(&bridge).await;
    proxy
        .behavior
        .send_replace(ProxyBehavior::Say(b"HTTP/1.1 502 Bad Gateway\r\n\r\n"));
    let client = cluster.pki.user("alice", &[]);
    let mut h1 = client.http1(bridge.address()).await.unwrap();
    // An upgrade opens its own connection.
    h1.send(UPGRADE).await.unwrap();
    let answer = h1.read_response().await.unwrap();
    let message = assert_json_status(&answer, 503)["message"].to_string();
    let named = format!(
        "--egress-selector-config-file: the proxy at http://{addr} answered 502 to CONNECT \
         {PUBLISHED_ADDRESS}"
    );
    assert!(message.contains(&named), "{message}");
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn the_wait_for_a_silent_proxy_is_bounded() {
    let cluster = EgressFixture::new().await;
    let proxy = Proxy::unix(
        cluster.socket(),
        ProxyBehavior::Tunnel(cluster.peer_server.addr()),
    );
    let bridge = cluster.through(ProxyTransport::Uds(cluster.socket()));
    wait_until_peer_is_known(&bridge).await;
    proxy.behavior.send_replace(ProxyBehavior::Silent);
    let client = cluster.pki.user("alice", &[]);
    let mut h1 = client.http1(bridge.address()).await.unwrap();
    h1.send(UPGRADE).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(15), h1.read_response()).await;
    let answer = answer.expect("the wait is bounded").unwrap();
    let message = assert_json_status(&answer, 503)["message"].to_string();
    let silent = format!("did not answer CONNECT {PUBLISHED_ADDRESS} within 3 s");
    assert!(message.contains(&silent), "{message}");
}
