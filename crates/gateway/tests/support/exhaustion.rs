//! A bridge with limits, in front of an upstream with stalled and large responses, and raw HTTP/2
//! clients that try to exhaust it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::h2frames::{self, Frame, flag, kind, setting};
use skewbridge_testkit::{
    ApiServer, BodySender, Connection, Options, RecordedRequest, Reply, TEST_TIMEOUT, TlsClient,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::pki::{self, PkiFixture};

/// Long enough for a loaded machine to send a request within it.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) const POST: &str = "/api/v1/namespaces/a/configmaps";
pub(crate) const PROXY: &str = "/api/v1/namespaces/a/services/s/proxy/echo";
pub(crate) const WATCH: &str = "/api/v1/pods?watch=1";

pub(crate) const COMPLETE_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

pub(crate) const BUFFERED_BYTES_METRIC: &str = "skewbridge_buffered_bytes";

/// The HPACK reference to the newest entry of the dynamic table (RFC 7541, 6.1).
pub(crate) const INDEXED_62: u8 = 0x80 | 0x3e;

/// The largest DATA frame that clients send by default.
pub(crate) const DATA_FRAME_BYTES: usize = 16 * 1024;

pub(crate) struct ExhaustionFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) upstream: ApiServer,
    pub(crate) bridge: Handle,
    pub(crate) watches: mpsc::UnboundedReceiver<BodySender>,
}

/// An upstream that answers when it has read the request's head, and a bridge with these limits.
pub(crate) async fn exhaustion_fixture(change: impl FnOnce(&mut Limits)) -> ExhaustionFixture {
    fixture_with_options(Options::respond_at_head, change).await
}

pub(crate) async fn fixture_with_options(
    options: impl FnOnce(Options<'static>) -> Options<'static>,
    change: impl FnOnce(&mut Limits),
) -> ExhaustionFixture {
    let pki = PkiFixture::new();
    let (senders, watches) = mpsc::unbounded_channel();
    let big = Bytes::from(vec![b'x'; 8 << 20]);
    let options = options(Options::new(pki.upstream.clone()));
    let never = Arc::new(Notify::new());
    let upstream = ApiServer::start(options, move |recorded| match recorded.path() {
        POST => Reply::new(403).body("no"),
        PROXY | "/api/v1/pods" => {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply.status(if recorded.path() == PROXY { 404 } else { 200 })
        }
        "/big" => Reply::json(big.clone()),
        "/never" => Reply::new(200).after(&never),
        _ => Reply::json("{}"),
    })
    .await;
    let mut config = pki.config(upstream.addr());
    change(&mut config.limits);
    let bridge = pki::start(&config);
    ExhaustionFixture {
        pki,
        upstream,
        bridge,
        watches,
    }
}

impl ExhaustionFixture {
    /// An HTTP/2 connection for raw frames whose initial window allows no byte of a response body.
    pub(crate) async fn connection_with_zero_window(&self, client: &TlsClient) -> Connection {
        self.raw_h2_connection(client, &[(setting::INITIAL_WINDOW_SIZE, 0)])
            .await
    }

    pub(crate) async fn raw_h2_connection(
        &self,
        client: &TlsClient,
        settings: &[(u16, u32)],
    ) -> Connection {
        let client = client.clone().alpn(&["h2"]);
        let address = self.bridge.address();
        let mut io = client.connect(address, "localhost").await.unwrap();
        h2frames::open(&mut io, settings).await.unwrap();
        io
    }

    /// How many requests have exceeded a limit on headers.
    pub(crate) async fn header_limit_count(&self, limit: &str) -> Option<f64> {
        let labels = [("limit", limit)];
        self.metric("skewbridge_header_limits_total", &labels).await
    }

    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value(name, labels)
    }
}

pub(crate) async fn write_flushed(io: &mut Connection, bytes: impl AsRef<[u8]>) {
    io.write_all(bytes.as_ref()).await.unwrap();
    io.flush().await.unwrap();
}

/// The next frame of this kind on this stream.
pub(crate) async fn read_frame(io: &mut Connection, kind: u8, stream: u32) -> Frame {
    let reading = async {
        loop {
            let frame = h2frames::read_until(io, kind).await.unwrap();
            if frame.header.stream == stream {
                return frame;
            }
        }
    };
    timeout(TEST_TIMEOUT, reading).await.expect("a frame")
}

/// All frames up to the answer to a PING.
pub(crate) async fn frames_until_pong(io: &mut Connection) -> Vec<Frame> {
    write_flushed(io, h2frames::ping(flag::NONE, *b"reached?")).await;
    let mut frames = Vec::new();
    loop {
        let frame = timeout(TEST_TIMEOUT, h2frames::read_frame(io)).await;
        let frame = frame.expect("a frame").unwrap();
        let pong = frame.header.kind == kind::PING && frame.header.has(flag::ACK);
        frames.push(frame);
        if pong {
            return frames;
        }
    }
}

pub(crate) fn kinds(frames: &[Frame]) -> Vec<u8> {
    frames.iter().map(|frame| frame.header.kind).collect()
}

pub(crate) fn post_block(path: &str) -> Vec<u8> {
    h2frames::request_block("POST", "k", path)
}

pub(crate) fn get_block(path: &str) -> Vec<u8> {
    h2frames::request_block("GET", "k", path)
}

/// A header in the HPACK table, and one byte for each reference to it.
pub(crate) struct HeaderBomb {
    pub(crate) stream: u32,
}

impl HeaderBomb {
    pub(crate) const VALUE_BYTES: usize = 4000;
    pub(crate) const FIELD_COUNT: usize = 250;

    pub(crate) fn request(&mut self, path: &str) -> Vec<u8> {
        let mut block = get_block(path);
        if self.stream == 1 {
            // With incremental indexing (RFC 7541, 6.2.1): entry 62 from now on.
            let mut literal = h2frames::literal("x-bomb", &"b".repeat(Self::VALUE_BYTES));
            literal[0] = 0x40;
            block.extend(literal);
        } else {
            block.extend(std::iter::repeat_n(INDEXED_62, Self::FIELD_COUNT));
        }
        let frame = h2frames::headers(self.stream, COMPLETE_REQUEST, &block);
        self.stream += 2;
        frame
    }
}

pub(crate) fn header_bytes(recorded: &[RecordedRequest]) -> usize {
    let fields = recorded.iter().flat_map(|recorded| &recorded.headers);
    fields.map(|(name, value)| name.len() + value.len()).sum()
}
