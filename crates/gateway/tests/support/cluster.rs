//! A bridge in front of a stand-in server, and other stand-ins that are its peers.

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

/// The identity that the bridge speaks for.
pub(crate) const OWN: &str = "apiserver-own";

/// What every server here serves.
pub(crate) const SHARED: &str = "apps/v1 deployments";
pub(crate) const SHARED_PATH: &str = "/apis/apps/v1/namespaces/a/deployments";

/// What only peers serve.
pub(crate) const NEW: &str = "storage.k8s.io/v1alpha1 volumeattributesclasses";
pub(crate) const NEW_PATH: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";

/// What nobody serves.
pub(crate) const UNSERVED_PATH: &str = "/apis/storage.k8s.io/v1alpha1/nothings";

/// Servers that share an etcd, and a bridge beside one of them.
pub(crate) struct ClusterFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) peer_ca: Ca,
    pub(crate) exchange: SharedMemoryRegistry,
    pub(crate) local: FakeApiServer,
}

/// A server whose address is known to the others.
pub(crate) struct PeerServer {
    pub(crate) name: &'static str,
    pub(crate) apiserver: FakeApiServer,
    published: Option<PublishedAddress>,
}

/// An address in the registry, until it is dropped.
pub(crate) struct PublishedAddress {
    /// The registry withdraws what nobody publishes any more.
    _publish: watch::Sender<Option<(Identity, SocketAddr)>>,
}

impl ClusterFixture {
    /// The local server serves [`SHARED`] and this, and keeps its own Lease.
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

    /// A cluster with peers, and a bridge that knows all of them.
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
        let running = running.try_into().ok().expect("as many as were asked for");
        (cluster, running, bridge)
    }

    /// A server that has a Lease and has published its address.
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
        apiserver.is_bridge();
        self.local.lease(name, "one");
        let published = Some(self.publish(name, apiserver.server.addr()));
        PeerServer {
            name,
            apiserver,
            published,
        }
    }

    /// A server that nobody has heard of.
    pub(crate) async fn server(
        &self,
        name: &str,
        serves: &[&str],
        certificate: Leaf,
    ) -> FakeApiServer {
        self.server_with_alpn(&["h2", "http/1.1"], name, serves, certificate)
            .await
    }

    /// The same, speaking these protocols alone.
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

    /// All addresses that servers have published, as they change.
    pub(crate) fn addresses(&self) -> watch::Receiver<Addresses> {
        let nobody = Identity::named("apiserver-nobody").unwrap();
        let (stays, own) = watch::channel(Some((nobody, SocketAddr::from(([127, 0, 0, 1], 1)))));
        let registry = self.exchange.registry();
        let (found, seen) = watch::channel(Addresses::new());
        tokio::spawn(async move {
            registry.run(own, found).await;
            drop(stays);
        });
        seen
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

    /// A bridge that has learnt what every published peer serves.
    pub(crate) async fn start(&self) -> Handle {
        let bridge = start(&self.config());
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

    /// Waits until a GET is answered so.
    pub(crate) async fn wait_for_status(&self, bridge: &Handle, path: &str, code: u16) {
        let what = format!("{path} is answered with {code}");
        eventually(&what, TEST_TIMEOUT, async || {
            self.get(bridge, path).await.status == code
        })
        .await;
    }
}

impl PeerServer {
    /// What came from clients, by way of the bridge.
    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        self.apiserver.client_requests()
    }

    /// Neither listens nor answers any more.
    pub(crate) async fn shut_down(&self) {
        self.apiserver.server.stop_listening().await;
        self.apiserver.server.kill_connections().await;
    }

    pub(crate) fn withdraw_address(&mut self) {
        self.published = None;
    }
}

/// A request over HTTP/2, on a connection of its own.
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
    answered.expect("an answer").unwrap()
}

/// Which stand-in answered.
#[track_caller]
pub(crate) fn served_by(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    let body: Value = serde_json::from_slice(&response.body).unwrap();
    body["servedBy"].as_str().unwrap().to_owned()
}

/// Checks that an answer is a Status with this code, and gives its message.
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
