//! A cluster's server, a forwarder to it, and clients of that.

use std::net::SocketAddr;
use std::sync::Arc;

use http::uri::Authority;
use skewbridge_exec_proxy::forward::{Dial, Forwarder, Listener, serve};
use skewbridge_exec_proxy::{ClientKey, Cluster, RequestModifier};
use skewbridge_k8s_api::exec_credential;
use skewbridge_testkit::{Ca, ClientAuth, H1Client, H2Client, TlsClient};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running forwarder. Dropping it ends it.
pub(crate) struct Rig {
    pub(crate) addr: SocketAddr,
    pub(crate) forwarder: Arc<Forwarder>,
    ca: Ca,
    _stop: oneshot::Sender<()>,
}

/// A cluster whose server is here.
pub(crate) fn cluster(server: SocketAddr, ca: &Ca) -> exec_credential::Cluster {
    exec_credential::Cluster {
        server: format!("https://{server}"),
        certificate_authority_data: ca.pem().into_bytes(),
        ..exec_credential::Cluster::default()
    }
}

impl Rig {
    pub(crate) async fn start(
        server: SocketAddr,
        ca: &Ca,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        Self::with(&cluster(server, ca), None, modifiers).await
    }

    pub(crate) async fn with(
        cluster: &exec_credential::Cluster,
        key: Option<Arc<dyn ClientKey>>,
        modifiers: Vec<Box<dyn RequestModifier>>,
    ) -> Self {
        let cluster = Cluster::new(cluster, key).unwrap();
        let authority = cluster.authority().clone();
        Self::forwarding(Forwarder::new(cluster, authority, modifiers)).await
    }

    /// With a way of its own.
    pub(crate) async fn dialling(dial: impl Dial, authority: Authority) -> Self {
        Self::forwarding(Forwarder::new(dial, authority, Vec::new())).await
    }

    async fn forwarding(forwarder: Forwarder) -> Self {
        let forwarder = forwarder.body_limit(100_000).held_limit(150_000);
        let forwarder = Arc::new(forwarder);
        let ca = Ca::new("clients");
        let tls = ca
            .server(&["localhost"])
            .server_config(ClientAuth::Require(&ca), &["h2", "http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = forwarder.clone();
        tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            serve(Listener::Tcp(listener), tls, served, shutdown).await;
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

    pub(crate) fn stranger(&self) -> TlsClient {
        TlsClient::new(&self.ca).identity(&Ca::new("others").client("me", &[]))
    }

    pub(crate) async fn h1(&self) -> H1Client {
        self.client().http1(self.addr).await.unwrap()
    }

    pub(crate) async fn h2(&self) -> H2Client {
        self.client().http2(self.addr).await.unwrap()
    }
}
