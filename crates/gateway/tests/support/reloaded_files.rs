//! A bridge whose files a test replaces, and watches through it.

use http::Request;
use rustls_pki_types::CertificateDer;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{
    ApiServer, BodySender, ClientAuth, H1Client, H2Client, H2Stream, Leaf, Options, Reply,
    TEST_TIMEOUT, TlsClient, eventually,
};
use tokio::sync::mpsc;

use crate::support::admin_client::scrape;
use crate::support::pki::{PkiFixture, start};

/// A bridge in front of an upstream whose watch events the test sends.
pub(crate) struct ReloadFixture {
    pub(crate) bridge: Handle,
    pub(crate) upstream: ApiServer,
    pub(crate) watches: mpsc::UnboundedReceiver<BodySender>,
    pub(crate) pki: PkiFixture,
}

impl ReloadFixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&PkiFixture, &mut Config)) -> Self {
        let pki = PkiFixture::new();
        let (started, watches) = mpsc::unbounded_channel();
        let options =
            Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
        let upstream = ApiServer::start(options, move |recorded| {
            if recorded.query() != Some("watch=1") {
                return Reply::json("{}");
            }
            let (reply, sender) = Reply::stream();
            started.send(sender).unwrap();
            reply
        })
        .await;
        let mut config = pki.config(upstream.addr());
        change(&pki, &mut config);
        Self {
            bridge: start(&config),
            upstream,
            watches,
            pki,
        }
    }

    pub(crate) fn write_pair(&self, name: &str, leaf: &Leaf) {
        self.pki.dir.write(&format!("{name}.crt"), &leaf.cert_pem);
        self.pki.dir.write(&format!("{name}.key"), &leaf.key_pem);
    }

    /// The certificate that a new connection gets.
    pub(crate) async fn served_certificate(&self) -> CertificateDer<'static> {
        let client = self.pki.client();
        let io = client.connect(self.bridge.address(), "localhost").await;
        let io = io.unwrap();
        let chain = io.get_ref().get_ref().1.peer_certificates().unwrap();
        chain[0].clone().into_owned()
    }

    pub(crate) async fn wait_until_served(&self, leaf: &Leaf) {
        eventually("the new certificate is served", TEST_TIMEOUT, async || {
            self.served_certificate().await == leaf.chain_der[0]
        })
        .await;
    }

    /// How many times files of this flag were reloaded with this result, if ever.
    pub(crate) async fn reloads(&self, flag: &str, result: &str) -> Option<f64> {
        let labels = [("flag", flag), ("result", result)];
        let scrape = scrape(self.bridge.admin_address()).await;
        scrape.value("skewbridge_file_reloads_total", &labels)
    }

    pub(crate) async fn wait_until_failed(&self, flag: &str) {
        let what = format!("a failed reload of {flag}");
        eventually(&what, TEST_TIMEOUT, async || {
            self.reloads(flag, "failed")
                .await
                .is_some_and(|count| count > 0.0)
        })
        .await;
    }

    /// The status code of a request on a new connection of this client.
    pub(crate) async fn code(&self, client: &TlsClient, headers: &str) -> u16 {
        let mut h1 = client.http1(self.bridge.address()).await.unwrap();
        get(&mut h1, headers).await
    }

    pub(crate) async fn wait_for_code(&self, client: &TlsClient, headers: &str, code: u16) {
        eventually(&format!("an answer of {code}"), TEST_TIMEOUT, async || {
            self.code(client, headers).await == code
        })
        .await;
    }

    /// A watch over HTTP/2 that has received its first event.
    pub(crate) async fn watch(&mut self, client: &TlsClient) -> Watch {
        let h2 = client.http2(self.bridge.address()).await.unwrap();
        let request = Request::get("https://k/api/v1/pods?watch=1").body(());
        let mut stream = h2.stream(request.unwrap()).await.unwrap();
        stream.finish().unwrap();
        let sender = self.watches.recv().await.unwrap();
        assert_eq!(stream.head().await.unwrap().status, 200);
        let mut watch = Watch { sender, stream, h2 };
        watch.assert_continues("first").await;
        watch
    }

    /// The common name of the client certificate on upstream's last request from a client.
    pub(crate) fn last_certificate_name_at_upstream(&self) -> Option<String> {
        let mut recorded = self.upstream.requests();
        recorded.retain(|recorded| !recorded.is_probe());
        recorded.pop()?.client.map(|it| it.common_name)
    }
}

/// Both ends of a watch.
pub(crate) struct Watch {
    pub(crate) sender: BodySender,
    pub(crate) stream: H2Stream,
    pub(crate) h2: H2Client,
}

impl Watch {
    pub(crate) async fn assert_continues(&mut self, event: &'static str) {
        self.sender.send(event).await.unwrap();
        assert_eq!(self.stream.chunk().await.unwrap().unwrap(), event);
    }

    pub(crate) async fn assert_ends(mut self) {
        self.sender.finish().await.unwrap();
        while let Some(chunk) = self.stream.chunk().await {
            assert_eq!(chunk.unwrap(), "");
        }
    }
}

/// The status code of another request on this connection.
pub(crate) async fn get(h1: &mut H1Client, headers: &str) -> u16 {
    let request = format!("GET /api HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    h1.send(request).await.unwrap();
    h1.read_response().await.unwrap().status
}
