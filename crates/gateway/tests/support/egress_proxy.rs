//! A bridge whose connections to a peer go through a proxy, and that proxy.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{ApiServerIdentity, Config, Egress, ProxyTransport, RegistryKind};
use skewbridge_peer_directory::registry::{Addresses, Registry as _, SharedMemoryRegistry};
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

pub(crate) const LOCAL_IDENTITY: &str = "apiserver-here";

pub(crate) const PEER_IDENTITY: &str = "apiserver-there";

/// The address that the peer publishes. It is unroutable.
pub(crate) const PUBLISHED_ADDRESS: &str = "192.0.2.7:6443";

/// Served by the peer only.
pub(crate) const WIDGETS: &str = "/apis/new.example/v1/namespaces/a/widgets";

/// Two servers of a cluster, only one of which serves widgets.
pub(crate) struct EgressFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) local_server: ApiServer,
    pub(crate) peer_server: ApiServer,
    pub(crate) exchange: SharedMemoryRegistry,
    pub(crate) watches: mpsc::UnboundedReceiver<BodySender>,
    pub(crate) tunnels: mpsc::UnboundedReceiver<Upgrade>,
    pub(crate) registry: JoinHandle<()>,
    pub(crate) _published: watch::Sender<Option<(Identity, SocketAddr)>>,
}

impl EgressFixture {
    pub(crate) async fn new() -> Self {
        let pki = PkiFixture::new();
        let peer_ca = Ca::new("peer-ca");
        pki.dir.write("peer-ca.crt", peer_ca.pem());
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let unresponsive = Mutex::new(Vec::new());
        let local_server =
            ApiServer::start(options, move |recorded| upstream(&recorded, &unresponsive)).await;

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

    pub(crate) fn config(&self, egress: Egress) -> Config {
        let mut config = self.pki.config(self.local_server.addr());
        config.peers.identity = ApiServerIdentity::Named(LOCAL_IDENTITY.to_owned());
        config.peers.registry = RegistryKind::Memory(self.exchange.clone());
        config.peers.ca = Some(self.pki.path().join("peer-ca.crt"));
        config.peers.egress = egress;
        config
    }

    pub(crate) fn start_bridge(&self, transport: ProxyTransport) -> Handle {
        start(&self.config(Egress::HttpConnect(transport)))
    }

    pub(crate) fn socket(&self) -> PathBuf {
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
pub(crate) fn upstream(recorded: &RecordedRequest, unresponsive: &Mutex<Vec<BodySender>>) -> Reply {
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
        unresponsive.lock().unwrap().push(sender);
        return reply;
    }
    let list = json!({"kind": kind, "metadata": {"resourceVersion": "1"}, "items": items});
    Reply::json(list.to_string())
}

pub(crate) fn lease(name: &str) -> Value {
    let identity = Identity::named(name).unwrap();
    let lease = IdentityLease::new(&identity, name, name, SystemTime::now());
    let mut lease: Value = serde_json::from_str(&lease.to_json()).unwrap();
    lease["metadata"]["resourceVersion"] = "1".into();
    lease["metadata"]["uid"] = name.into();
    lease
}

/// The discovery document of either server.
pub(crate) fn discovery(recorded: &RecordedRequest, group: Option<&str>) -> Reply {
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
pub(crate) enum ProxyBehavior {
    /// Opens a tunnel to this server.
    Tunnel(SocketAddr),
    /// Answers with this text and closes.
    Answer(&'static [u8]),
    /// Reads, and never answers.
    Unresponsive,
}

/// An HTTP CONNECT proxy.
pub(crate) struct Proxy {
    pub(crate) connect_requests: Arc<Mutex<Vec<String>>>,
    pub(crate) behavior: watch::Sender<ProxyBehavior>,
    pub(crate) task: JoinHandle<()>,
}

/// The listener of a proxy.
pub(crate) enum ProxyListener {
    Tcp(TcpListener),
    Unix(UnixListener),
    Tls(TcpListener, TlsAcceptor),
}

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl ProxyListener {
    pub(crate) async fn open(&self) -> io::Result<Box<dyn Io>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Tls(listener, tls) => Box::new(tls.accept(listener.accept().await?.0).await?),
        })
    }
}

impl Proxy {
    pub(crate) async fn tcp(behavior: ProxyBehavior) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (Self::start(behavior, ProxyListener::Tcp(listener)), addr)
    }

    pub(crate) fn unix(path: PathBuf, behavior: ProxyBehavior) -> Self {
        Self::start(
            behavior,
            ProxyListener::Unix(UnixListener::bind(path).unwrap()),
        )
    }

    pub(crate) async fn tls(
        behavior: ProxyBehavior,
        tls: &Leaf,
        clients: &Ca,
    ) -> (Self, SocketAddr) {
        let acceptor = tls.server_config(ClientAuth::Require(clients), &[]).into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        (
            Self::start(behavior, ProxyListener::Tls(listener, acceptor)),
            addr,
        )
    }

    pub(crate) fn start(behavior: ProxyBehavior, listener: ProxyListener) -> Self {
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

    pub(crate) fn connect_requests(&self) -> Vec<String> {
        self.connect_requests.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn serve(
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
        ProxyBehavior::Answer(bytes) => {
            let _ = io.write_all(bytes).await;
            let _ = io.shutdown().await;
        }
        ProxyBehavior::Unresponsive => std::future::pending().await,
    }
}

/// The entry of the peer in `/debug/peers`.
async fn peer(bridge: &Handle) -> Value {
    let view = admin_client::get(bridge.admin_address(), "/debug/peers").await;
    let view: Value = serde_json::from_str(&view.body).unwrap();
    view["peers"][0].clone()
}

pub(crate) async fn wait_until_peer_is_known(bridge: &Handle) {
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

pub(crate) async fn wait_for_problem(bridge: &Handle, expected: &str) {
    eventually(expected, TEST_TIMEOUT, async || {
        let peer = peer(bridge).await;
        (peer["problem"].as_str()).is_some_and(|problem| problem.contains(expected))
    })
    .await;
}

pub(crate) const UPGRADE: &str = "POST /apis/new.example/v1/namespaces/a/widgets/b/exec HTTP/1.1\r\nHost: k\r\n\
    Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n";

/// Sends more than the buffers on the way hold.
pub(crate) async fn assert_transfers(from: &mut Connection, to: &mut Connection) {
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
pub(crate) async fn assert_all_requests_pass(
    cluster: &mut EgressFixture,
    bridge: &Handle,
    proxy: &Proxy,
) {
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
    let mut client_end = h1.into_connection();
    let mut peer_end = cluster.tunnels.recv().await.unwrap().connection().await;
    assert_transfers(&mut client_end, &mut peer_end).await;
    assert_transfers(&mut peer_end, &mut client_end).await;
    client_end.shutdown().await.unwrap();
    assert_eq!(peer_end.read(&mut [0]).await.unwrap(), 0);
    peer_end.write_all(b"the rest").await.unwrap();
    peer_end.shutdown().await.unwrap();
    let mut rest = String::new();
    client_end.read_to_string(&mut rest).await.unwrap();
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
