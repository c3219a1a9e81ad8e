//! A bridge between a client and an upstream, in every combination of HTTP/1.1 and HTTP/2.

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
pub(crate) use skewbridge_testkit::protocols::*;
use skewbridge_testkit::{
    ApiServer, BodySender, ClientAuth, H1Client, H2Client, Options, RecordedRequest, Reply,
    ScriptedConn, ScriptedServer,
};
use tokio::sync::mpsc;

use crate::support::pki::PkiFixture;

/// A bridge in front of a well-behaved upstream. Upstream requires the front-proxy certificate, and
/// so records the requests of users but not the bridge's own ones.
pub(crate) struct ApiServerFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ApiServer,
    pub(crate) bridge: Handle,
}

impl ApiServerFixture {
    /// Upstream supports only this protocol.
    pub(crate) async fn new(
        upstream: Proto,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(upstream, |options| options, handler).await
    }

    pub(crate) async fn with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let pki = PkiFixture::new();
        let options = Options::new(pki.upstream.clone())
            .clients(ClientAuth::Require(&pki.front_proxy_ca))
            .alpn(upstream.alpn());
        let upstream = ApiServer::start(change(options), handler).await;
        let bridge = pki.start_bridge(upstream.addr());
        Self {
            pki,
            upstream,
            bridge,
        }
    }

    /// Upstream answers every request with a body that the test sends.
    pub(crate) async fn streaming(upstream: Proto) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        Self::streaming_with(upstream, |options| options).await
    }

    pub(crate) async fn streaming_with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
    ) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        let (senders, bodies) = mpsc::unbounded_channel();
        let fixture = Self::with(upstream, change, move |_| {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply
        })
        .await;
        (fixture, bodies)
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        client(&self.pki, &self.bridge, proto).await
    }

    pub(crate) async fn h1(&self) -> H1Client {
        let user = self.pki.user("alice", &["dev"]);
        user.http1(self.bridge.address()).await.unwrap()
    }

    pub(crate) async fn h2(&self) -> H2Client {
        let user = self.pki.user("alice", &["dev"]);
        user.http2(self.bridge.address()).await.unwrap()
    }

    /// The only request that upstream has recorded.
    pub(crate) fn only_request(&self) -> RecordedRequest {
        let mut requests = self.upstream.requests();
        assert_eq!(requests.len(), 1, "{requests:#?}");
        requests.remove(0)
    }
}

/// A bridge in front of a scripted upstream that writes raw bytes. Upstream requires the
/// front-proxy certificate, and so the script gets only the connections for users.
pub(crate) struct ScriptedFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ScriptedServer,
    pub(crate) bridge: Handle,
}

impl ScriptedFixture {
    pub(crate) async fn new<F, Fut>(upstream: Proto, script: F) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self::with(upstream, |_| {}, script).await
    }

    /// The same, with other limits.
    pub(crate) async fn with<F, Fut>(
        upstream: Proto,
        change: impl FnOnce(&mut Limits),
        script: F,
    ) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let pki = PkiFixture::new();
        let ca = Some(&pki.front_proxy_ca);
        let upstream = ScriptedServer::start(&pki.upstream, ca, upstream.alpn(), script).await;
        let mut config = pki.config(upstream.addr());
        change(&mut config.limits);
        let bridge = crate::support::pki::start(&config);
        Self {
            pki,
            upstream,
            bridge,
        }
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        client(&self.pki, &self.bridge, proto).await
    }
}

async fn client(pki: &PkiFixture, bridge: &Handle, proto: Proto) -> Client {
    Client::connect(&pki.user("alice", &["dev"]), bridge.address(), proto).await
}
