//! The suites of the HTTP engine, through a bridge.

use std::net::SocketAddr;

use skewbridge_gateway::Handle;
use skewbridge_testkit::proxy_suites::ProxyFixture;
use skewbridge_testkit::{Ca, Leaf, TlsClient};

use crate::support::pki::PkiFixture;

pub(crate) struct BridgeFixture {
    pki: PkiFixture,
    bridge: Option<Handle>,
}

impl ProxyFixture for BridgeFixture {
    fn new() -> Self {
        Self {
            pki: PkiFixture::new(),
            bridge: None,
        }
    }

    fn server_certificate(&self) -> Leaf {
        self.pki.upstream.clone()
    }

    fn proxy_ca(&self) -> Option<&Ca> {
        Some(&self.pki.front_proxy_ca)
    }

    async fn start(&mut self, server: SocketAddr) {
        self.bridge = Some(self.pki.start_bridge(server));
    }

    fn address(&self) -> SocketAddr {
        self.bridge.as_ref().unwrap().address()
    }

    fn client(&self) -> TlsClient {
        self.pki.user("alice", &["dev"])
    }
}

skewbridge_testkit::proxy_suites!(BridgeFixture);
