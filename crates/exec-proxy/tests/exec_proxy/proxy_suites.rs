//! The suites of the HTTP engine, through a plugin's forwarder.

use std::net::SocketAddr;

use skewbridge_exec_proxy::forward::BoxFuture;
use skewbridge_exec_proxy::{ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_testkit::proxy_suites::{self as suites, ProxyFixture};
use skewbridge_testkit::{Ca, Leaf, TlsClient};

use crate::forwarder_fixture::ForwarderFixture;

pub(crate) struct PluginFixture {
    ca: Ca,
    forwarder: Option<ForwarderFixture>,
}

impl ProxyFixture for PluginFixture {
    fn new() -> Self {
        Self {
            ca: Ca::new("cluster"),
            forwarder: None,
        }
    }

    fn server_certificate(&self) -> Leaf {
        self.ca.server(&["localhost", "127.0.0.1"])
    }

    fn proxy_ca(&self) -> Option<&Ca> {
        None
    }

    async fn start(&mut self, server: SocketAddr) {
        self.forwarder = Some(ForwarderFixture::start(server, &self.ca, Vec::new()).await);
    }

    fn address(&self) -> SocketAddr {
        self.forwarder.as_ref().unwrap().addr
    }

    fn client(&self) -> TlsClient {
        self.forwarder.as_ref().unwrap().client()
    }
}

skewbridge_testkit::proxy_suites!(PluginFixture);

/// A plugin whose signer needs the complete body.
struct SigningPluginFixture(PluginFixture);

struct BodySigner;

impl RequestModifier for BodySigner {
    fn name(&self) -> &'static str {
        "body signer"
    }

    fn needs_body(&self) -> NeedsBody {
        NeedsBody::Whole
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let length = request.body.unwrap().len();
            request.headers.insert("x-signed-length", length.into());
            Ok(())
        })
    }
}

impl ProxyFixture for SigningPluginFixture {
    fn new() -> Self {
        Self(PluginFixture::new())
    }

    fn server_certificate(&self) -> Leaf {
        self.0.server_certificate()
    }

    fn proxy_ca(&self) -> Option<&Ca> {
        None
    }

    async fn start(&mut self, server: SocketAddr) {
        let modifiers: Vec<Box<dyn RequestModifier>> = vec![Box::new(BodySigner)];
        let forwarder = ForwarderFixture::start(server, &self.0.ca, modifiers).await;
        self.0.forwarder = Some(forwarder);
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn client(&self) -> TlsClient {
        self.0.client()
    }
}

#[tokio::test]
async fn a_write_that_is_signed_and_retried_has_the_same_length_and_body() {
    suites::retries::a_retried_write_has_the_same_length_and_body::<SigningPluginFixture>().await;
}
