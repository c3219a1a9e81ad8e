//! A bridge with limits, and clients that exceed them.

use std::sync::Arc;

use bytes::Bytes;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::h2frames::{self, Frame, kind};
use skewbridge_testkit::{
    ApiServer, BodySender, Connection, H1Client, H2Client, Options, Reply, TEST_TIMEOUT,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::support::pki::{self, PkiFixture};

pub(crate) const GET: &str = "GET /api HTTP/1.1\r\nHost: k\r\n\r\n";

/// An upstream whose watch events the test sends, and a bridge with these limits.
pub(crate) struct LimitsFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ApiServer,
    pub(crate) bridge: Handle,
    pub(crate) watches: mpsc::UnboundedReceiver<BodySender>,
}

pub(crate) async fn fixture(change: impl FnOnce(&mut Limits)) -> LimitsFixture {
    let pki = PkiFixture::new();
    let (senders, watches) = mpsc::unbounded_channel();
    let options = Options::new(pki.upstream.clone()).max_concurrent_streams(250);
    let (held, big) = (Arc::new(Notify::new()), Bytes::from(vec![b'x'; 8 << 20]));
    // More than all socket buffers on the way hold.
    let huge = Bytes::from(vec![b'x'; 64 << 20]);
    let upstream = ApiServer::start(options, move |recorded| match recorded.path() {
        "/api/v1/pods" => {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply
        }
        "/held" => Reply::new(200).after(&held),
        "/big" => Reply::json(big.clone()),
        "/huge" => Reply::json(huge.clone()),
        _ => Reply::json("{}"),
    })
    .await;
    let mut config = pki.config(upstream.addr());
    change(&mut config.limits);
    let bridge = pki::start(&config);
    LimitsFixture {
        pki,
        upstream,
        bridge,
        watches,
    }
}

impl LimitsFixture {
    pub(crate) async fn h1(&self) -> H1Client {
        self.pki
            .client()
            .http1(self.bridge.address())
            .await
            .unwrap()
    }

    pub(crate) async fn h2(&self) -> H2Client {
        self.pki
            .client()
            .http2(self.bridge.address())
            .await
            .unwrap()
    }

    /// An HTTP/2 connection for raw frames.
    pub(crate) async fn raw_h2_connection(&self) -> Connection {
        let client = self.pki.client().alpn(&["h2"]);
        let address = self.bridge.address();
        let mut io = client.connect(address, "localhost").await.unwrap();
        h2frames::open(&mut io, &[]).await.unwrap();
        io
    }

    /// Other clients are still served.
    pub(crate) async fn assert_serves_others(&self) {
        let mut h1 = self.h1().await;
        h1.send(GET).await.unwrap();
        assert_eq!(h1.read_response().await.unwrap().status, 200);
        let h2 = self.h2().await;
        assert_eq!(h2.get("/api").await.unwrap().status, 200);
    }
}

pub(crate) async fn write_flushed(io: &mut Connection, bytes: impl AsRef<[u8]>) {
    io.write_all(bytes.as_ref()).await.unwrap();
    io.flush().await.unwrap();
}

/// Reads to the end of the connection, whether it is clean or not.
pub(crate) async fn frames_to_end(io: &mut Connection) -> Vec<Frame> {
    let mut frames = Vec::new();
    let reading = async {
        while let Ok(frame) = h2frames::read_frame(io).await {
            frames.push(frame);
        }
    };
    timeout(TEST_TIMEOUT, reading)
        .await
        .expect("the connection is still open");
    frames
}

pub(crate) fn goaways(frames: &[Frame]) -> Vec<u32> {
    let mut goaways = frames.to_vec();
    goaways.retain(|frame| frame.header.kind == kind::GOAWAY);
    goaways.iter().filter_map(Frame::error_code).collect()
}

pub(crate) fn get_block(path: &str) -> Vec<u8> {
    h2frames::request_block("GET", "k", path)
}
