//! A forwarder to a fake API server, and clients of the forwarder.

use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::Authority;
use skewbridge_exec_proxy::forward::{Dial, Forwarder, Listener, serve};
use skewbridge_exec_proxy::{ClientKey, Cluster, RequestModifier};
use skewbridge_k8s_api::exec_credential;
use skewbridge_testkit::{Ca, ClientAuth, H1Client, H2Client, TlsClient};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running forwarder, which ends when it is dropped.
pub(crate) struct ForwarderFixture {
    pub(crate) addr: SocketAddr,
    pub(crate) forwarder: Arc<Forwarder>,
    ca: Ca,
    _stop: oneshot::Sender<()>,
}

/// The configuration of a cluster with this server.
pub(crate) fn cluster(server: SocketAddr, ca: &Ca) -> exec_credential::Cluster {
    exec_credential::Cluster {
        server: format!("https://{server}"),
        certificate_authority_data: ca.pem().into_bytes(),
        ..exec_credential::Cluster::default()
    }
}

impl ForwarderFixture {
    pub(crate) async fn start(
        server: SocketAddr,
        ca: &Ca,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        Self::with_cluster(&cluster(server, ca), None, modifiers).await
    }

    pub(crate) async fn with_cluster(
        cluster: &exec_credential::Cluster,
        key: Option<Arc<dyn ClientKey>>,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        let cluster = Cluster::new(cluster, key).unwrap();
        let authority = cluster.authority().clone();
        Self::serve(Forwarder::new(cluster, authority, modifiers)).await
    }

    /// With another way to open connections.
    pub(crate) async fn with_dial(dial: impl Dial, authority: Authority) -> Self {
        Self::serve(Forwarder::new(dial, authority, Vec::new())).await
    }

    async fn serve(forwarder: Forwarder) -> Self {
        let forwarder = forwarder.body_limit(100_000).total_body_limit(150_000);
        let forwarder = Arc::new(forwarder);
        let ca = Ca::new("clients");
        let tls = ca
            .server(&["localhost"])
            .server_config(ClientAuth::Require(&ca), &["h2", "http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = forwarder.clone();
        tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            serve(Listener::Tcp(listener), tls, running, shutdown).await;
        });
        Self {
            addr,
            forwarder,
            ca,
            _stop: stop,
        }
    }

    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::new(&self.ca).identity(&self.ca.client("me", &[]))
    }

    /// A client with a certificate of another CA.
    pub(crate) fn untrusted_client(&self) -> TlsClient {
        TlsClient::new(&self.ca).identity(&Ca::new("others").client("me", &[]))
    }

    pub(crate) async fn h1(&self) -> H1Client {
        self.client().http1(self.addr).await.unwrap()
    }

    pub(crate) async fn h2(&self) -> H2Client {
        self.client().http2(self.addr).await.unwrap()
    }
}
