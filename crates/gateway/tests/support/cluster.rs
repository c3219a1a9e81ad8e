//! A bridge in front of a fake API server, and other fake API servers that are its peers.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use serde_json::Value;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{ApiServerIdentity, Config, RegistryKind};
use skewbridge_peer_directory::Identity;
use skewbridge_peer_directory::registry::{Addresses, Registry, SharedMemoryRegistry};
use skewbridge_testkit::{
    Ca, ClientAuth, Leaf, Options, RecordedRequest, Response, TEST_TIMEOUT, TlsClient, eventually,
};
use tokio::sync::watch;

use crate::support::admin_client;
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::pki::{PkiFixture, start};

/// The identity of the local server.
pub(crate) const OWN: &str = "apiserver-own";

/// Served by every server.
pub(crate) const SHARED: &str = "apps/v1 deployments";
pub(crate) const SHARED_PATH: &str = "/apis/apps/v1/namespaces/a/deployments";

/// Served by peers only.
pub(crate) const NEW: &str = "storage.k8s.io/v1alpha1 volumeattributesclasses";
pub(crate) const NEW_PATH: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";

/// Served by no server.
pub(crate) const UNSERVED_PATH: &str = "/apis/storage.k8s.io/v1alpha1/nothings";

/// Servers that share an etcd, and a bridge beside one of them.
pub(crate) struct ClusterFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) peer_ca: Ca,
    pub(crate) exchange: SharedMemoryRegistry,
    pub(crate) local: FakeApiServer,
}

/// A server whose address is published.
pub(crate) struct PeerServer {
    pub(crate) name: &'static str,
    pub(crate) apiserver: FakeApiServer,
    published: Option<PublishedAddress>,
}

/// An address in the registry; dropping this withdraws it.
pub(crate) struct PublishedAddress {
    /// The registry withdraws an address when its sender is dropped.
    _publish: watch::Sender<Option<(Identity, SocketAddr)>>,
}

impl ClusterFixture {
    /// The local server serves [`SHARED`] and `serves`, and maintains its own Lease.
    pub(crate) async fn new(serves: &[&str]) -> Self {
        let pki = PkiFixture::new();
        let peer_ca = Ca::new("peer-ca");
        pki.dir.write("peer-ca.crt", peer_ca.pem());
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let serves = [&[SHARED], serves].concat();
        let local = FakeApiServer::start(options, OWN, &serves).await;
        local.lease(OWN, "one");
        Self {
            pki,
            peer_ca,
            exchange: SharedMemoryRegistry::default(),
            local,
        }
    }

    /// A cluster with peers, and a bridge that has discovered all of them.
    pub(crate) async fn with_peers<const N: usize>(
        local: &[&str],
        peers: [(&'static str, &[&str]); N],
    ) -> (Self, [PeerServer; N], Handle) {
        let cluster = Self::new(local).await;
        let mut running = Vec::new();
        for (name, serves) in peers {
            running.push(cluster.peer(name, serves).await);
        }
        let bridge = cluster.start().await;
        let running = running.try_into().ok().expect("one server for each peer");
        (cluster, running, bridge)
    }

    /// A server with a Lease and a published address.
    pub(crate) async fn peer(&self, name: &'static str, serves: &[&str]) -> PeerServer {
        let leaf = self.peer_ca.server(&["kubernetes.default.svc"]);
        self.peer_with_certificate(name, serves, leaf).await
    }

    pub(crate) async fn peer_with_certificate(
        &self,
        name: &'static str,
        serves: &[&str],
        certificate: Leaf,
    ) -> PeerServer {
        let apiserver = self.server(name, serves, certificate).await;
        apiserver.answer_as_bridge();
        self.local.lease(name, "one");
        let published = Some(self.publish(name, apiserver.server.addr()));
        PeerServer {
            name,
            apiserver,
            published,
        }
    }

    /// A server without a Lease and without a published address.
    pub(crate) async fn server(
        &self,
        name: &str,
        serves: &[&str],
        certificate: Leaf,
    ) -> FakeApiServer {
        self.server_with_alpn(&["h2", "http/1.1"], name, serves, certificate)
            .await
    }

    /// The same, with these ALPN protocols only.
    pub(crate) async fn server_with_alpn(
        &self,
        alpn: &[&'static str],
        name: &str,
        serves: &[&str],
        certificate: Leaf,
    ) -> FakeApiServer {
        let options = Options::new(certificate)
            .clients(ClientAuth::Require(&self.pki.front_proxy_ca))
            .alpn(alpn);
        let serves = [&[SHARED], serves].concat();
        FakeApiServer::start(options, name, &serves).await
    }

    /// All published addresses, as they change.
    pub(crate) fn addresses(&self) -> watch::Receiver<Addresses> {
        let observer = Identity::named("apiserver-observer").unwrap();
        let (stays, own) = watch::channel(Some((observer, SocketAddr::from(([127, 0, 0, 1], 1)))));
        let registry = self.exchange.registry();
        let (found, recorded) = watch::channel(Addresses::new());
        tokio::spawn(async move {
            registry.run(own, found).await;
            drop(stays);
        });
        recorded
    }

    pub(crate) fn publish(&self, name: &str, address: SocketAddr) -> PublishedAddress {
        let identity = Identity::named(name).unwrap();
        let (publish, own) = watch::channel(Some((identity, address)));
        let registry = self.exchange.registry();
        let (found, _) = watch::channel(Addresses::new());
        tokio::spawn(async move { registry.run(own, found).await });
        PublishedAddress { _publish: publish }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = self.pki.config(self.local.server.addr());
        config.peers.ca = Some(self.pki.path().join("peer-ca.crt"));
        config.peers.registry = RegistryKind::Memory(self.exchange.clone());
        config.peers.identity = ApiServerIdentity::Named(OWN.to_owned());
        config
    }

    /// Starts a bridge and waits until it has the discovery of every published peer.
    pub(crate) async fn start(&self) -> Handle {
        self.start_with(&self.config()).await
    }

    /// Like [`Self::start`], with a changed configuration.
    pub(crate) async fn start_with(&self, config: &Config) -> Handle {
        let bridge = start(config);
        eventually("the cluster is known", TEST_TIMEOUT, async || {
            let view = peers(&bridge).await;
            let all = view["peers"].as_array().unwrap();
            view["waitingFor"].is_null()
                && !view["local"].is_null()
                && all.len() == self.leases() - 1
                && all.iter().all(|it| !it["secondsSinceSync"].is_null())
        })
        .await;
        bridge
    }

    fn leases(&self) -> usize {
        self.local.count(crate::support::fake_apiserver::LEASES)
    }

    pub(crate) fn alice(&self) -> TlsClient {
        self.pki.user("alice", &["dev"])
    }

    /// A GET of a user with a certificate.
    pub(crate) async fn get(&self, bridge: &Handle, path: &str) -> Response {
        send_request(&self.alice(), bridge, "GET", path, &[], "").await
    }

    pub(crate) async fn post(
        &self,
        bridge: &Handle,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Response {
        send_request(&self.alice(), bridge, "POST", path, &[], body).await
    }

    /// Waits until a GET is answered with this status code.
    pub(crate) async fn wait_for_status(&self, bridge: &Handle, path: &str, code: u16) {
        let what = format!("{path} is answered with {code}");
        eventually(&what, TEST_TIMEOUT, async || {
            self.get(bridge, path).await.status == code
        })
        .await;
    }
}

impl PeerServer {
    /// The requests of clients that the bridge has forwarded here.
    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        self.apiserver.client_requests()
    }

    /// Closes the listener and all connections.
    pub(crate) async fn shut_down(&self) {
        self.apiserver.server.stop_listening().await;
        self.apiserver.server.kill_connections().await;
    }

    pub(crate) fn withdraw_address(&mut self) {
        self.published = None;
    }
}

/// Sends a request over HTTP/2, on its own connection.
pub(crate) async fn send_request(
    client: &TlsClient,
    bridge: &Handle,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Response {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://k{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let h2 = client.http2(bridge.address()).await.unwrap();
    let answered = h2.request(request.body(()).unwrap(), body);
    let answered = tokio::time::timeout(TEST_TIMEOUT, answered).await;
    answered.expect("a response").unwrap()
}

/// The name of the fake API server that answered.
#[track_caller]
pub(crate) fn served_by(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    body["servedBy"].as_str().unwrap().to_owned()
}

/// Checks that a response is a Status with this code, and returns its message.
#[track_caller]
pub(crate) fn status_message(response: &Response, code: u16) -> String {
    assert_eq!(response.status, code, "{}", response.text());
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(body["kind"], "Status", "{body}");
    assert_eq!(body["code"], code, "{body}");
    body["message"].as_str().unwrap().to_owned()
}

/// `/debug/peers`
pub(crate) async fn peers(bridge: &Handle) -> Value {
    let answer = admin_client::get(bridge.admin_address(), "/debug/peers").await;
    assert_eq!(answer.status, 200);
    serde_json::from_str(&answer.body).unwrap()
}

/// One peer of `/debug/peers`.
pub(crate) async fn peer_view(bridge: &Handle, name: &str) -> Value {
    let view = peers(bridge).await;
    let all = view["peers"].as_array().unwrap();
    let found = all.iter().find(|it| it["identity"] == name);
    found.cloned().unwrap_or(Value::Null)
}
