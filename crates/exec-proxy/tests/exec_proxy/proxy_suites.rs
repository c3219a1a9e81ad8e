//! The suites of the HTTP engine, through a plugin's forwarder.

use std::net::SocketAddr;

use skewbridge_testkit::proxy_suites::ProxyFixture;
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
