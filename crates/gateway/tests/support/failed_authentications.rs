//! A bridge with a limit of failed authentications, and clients with valid and wrong tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skewbridge_gateway::Handle;
use skewbridge_testkit::{ApiServer, H1Client, Options, Reply, Response, TlsClient};

use crate::support::admin_client;
use crate::support::pki::{self, PkiFixture};

/// One failure a minute: the budget does not refill while a test runs.
pub(crate) const FAILURES_PER_MINUTE: u32 = 1;

pub(crate) struct AuthenticationLimitFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) bridge: Handle,
    pub(crate) upstream: ApiServer,
    /// Upstream refuses all tokens.
    pub(crate) revoked: Arc<AtomicBool>,
}

pub(crate) async fn fixture() -> AuthenticationLimitFixture {
    fixture_with_limit(FAILURES_PER_MINUTE).await
}

pub(crate) async fn fixture_with_limit(limit: u32) -> AuthenticationLimitFixture {
    let pki = PkiFixture::new();
    let revoked = Arc::new(AtomicBool::new(false));
    let refuses = revoked.clone();
    let upstream =
        ApiServer::start(
            Options::new(pki.upstream.clone()),
            move |recorded| match recorded.header("authorization") {
                Some(_) if refuses.load(Ordering::Relaxed) => Reply::new(401),
                None | Some("Bearer good") => Reply::json("{}"),
                Some(token) if token.starts_with("Bearer new-") => Reply::json("{}"),
                _ => Reply::new(401),
            },
        )
        .await;
    let mut config = pki.config(upstream.addr());
    config.limits.max_authentication_failures_per_source = limit;
    let bridge = pki::start(&config);
    AuthenticationLimitFixture {
        pki,
        bridge,
        upstream,
        revoked,
    }
}

impl AuthenticationLimitFixture {
    pub(crate) async fn open(&self, client: &TlsClient) -> H1Client {
        client.http1(self.bridge.address()).await.unwrap()
    }

    pub(crate) async fn anonymous(&self) -> H1Client {
        self.open(&self.pki.client()).await
    }

    pub(crate) async fn metric_value(&self, name: &str, reason: &str) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value(name, &[("reason", reason)])
    }
}

pub(crate) async fn get(client: &mut H1Client, headers: &str) -> Response {
    let request = format!("GET /api HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}
