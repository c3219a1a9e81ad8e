//! Clients that try to exhaust the bridge or to disturb other clients: pinned memory, header
//! amplification, and upstream connections that are shared with other users.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::h2frames::{self, Frame, code, flag, kind, setting};
use skewbridge_testkit::{
    ApiServer, BodySender, Connection, H2Client, Options, RecordedRequest, Reply, ScriptedServer,
    TEST_TIMEOUT, TlsClient, eventually,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::cluster::{self, ClusterFixture, NEW, NEW_PATH, served_by};
use crate::support::pki::{self, PkiFixture};
use crate::support::scripted_upstream::{assert_json_status, client_requests};

/// Long enough for a loaded machine to send a request within it.
const SHORT_TIMEOUT: Duration = Duration::from_millis(500);

const POST: &str = "/api/v1/namespaces/a/configmaps";
const PROXY: &str = "/api/v1/namespaces/a/services/s/proxy/echo";
const WATCH: &str = "/api/v1/pods?watch=1";

const COMPLETE_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

const BUFFERED_BYTES_METRIC: &str = "skewbridge_buffered_bytes";

/// The HPACK reference to the newest entry of the dynamic table (RFC 7541, 6.1).
const INDEXED_62: u8 = 0x80 | 0x3e;

/// The largest DATA frame that clients send by default.
const DATA_FRAME_BYTES: usize = 16 * 1024;

struct Fixture {
    pki: PkiFixture,
    upstream: ApiServer,
    bridge: Handle,
    watches: mpsc::UnboundedReceiver<BodySender>,
}

/// An upstream that answers when it has read the request's head, and a bridge with these limits.
async fn fixture(change: impl FnOnce(&mut Limits)) -> Fixture {
    fixture_with_options(Options::respond_at_head, change).await
}

async fn fixture_with_options(
    options: impl FnOnce(Options<'static>) -> Options<'static>,
    change: impl FnOnce(&mut Limits),
) -> Fixture {
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
    Fixture {
        pki,
        upstream,
        bridge,
        watches,
    }
}

impl Fixture {
    /// An HTTP/2 connection for raw frames whose initial window allows no byte of a response body.
    async fn connection_with_zero_window(&self, client: &TlsClient) -> Connection {
        self.raw_h2_connection(client, &[(setting::INITIAL_WINDOW_SIZE, 0)])
            .await
    }

    async fn raw_h2_connection(&self, client: &TlsClient, settings: &[(u16, u32)]) -> Connection {
        let client = client.clone().alpn(&["h2"]);
        let address = self.bridge.address();
        let mut io = client.connect(address, "localhost").await.unwrap();
        h2frames::open(&mut io, settings).await.unwrap();
        io
    }

    /// How many requests have exceeded a limit on headers.
    async fn header_limit_count(&self, limit: &str) -> Option<f64> {
        let labels = [("limit", limit)];
        self.metric("skewbridge_header_limits_total", &labels).await
    }

    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value(name, labels)
    }
}

async fn write_flushed(io: &mut Connection, bytes: impl AsRef<[u8]>) {
    io.write_all(bytes.as_ref()).await.unwrap();
    io.flush().await.unwrap();
}

/// The next frame of this kind on this stream.
async fn read_frame(io: &mut Connection, kind: u8, stream: u32) -> Frame {
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
async fn frames_until_pong(io: &mut Connection) -> Vec<Frame> {
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

fn kinds(frames: &[Frame]) -> Vec<u8> {
    frames.iter().map(|frame| frame.header.kind).collect()
}

fn post_block(path: &str) -> Vec<u8> {
    h2frames::request_block("POST", "k", path)
}

fn get_block(path: &str) -> Vec<u8> {
    h2frames::request_block("GET", "k", path)
}

#[tokio::test]
async fn the_rest_of_a_rejected_body_is_discarded_and_its_window_released() {
    let fixture = fixture(|_| {}).await;
    let mut io = fixture
        .connection_with_zero_window(&fixture.pki.client())
        .await;
    write_flushed(
        &mut io,
        h2frames::headers(1, flag::END_HEADERS, &post_block(POST)),
    )
    .await;
    read_frame(&mut io, kind::HEADERS, 1).await;
    frames_until_pong(&mut io).await;
    // Half of what an unauthenticated client may send ahead, repeatedly. If the bridge buffered any
    // of it, the window would stay closed.
    for stream in [1, 3, 5, 7] {
        if stream > 1 {
            let head = h2frames::headers(stream, flag::END_HEADERS, &post_block(POST));
            write_flushed(&mut io, head).await;
            read_frame(&mut io, kind::HEADERS, stream).await;
        }
        for _ in 0..2 {
            let data = h2frames::data(stream, flag::NONE, &[b'x'; DATA_FRAME_BYTES]);
            write_flushed(&mut io, data).await;
        }
        read_frame(&mut io, kind::WINDOW_UPDATE, 0).await;
    }
    // RFC 9113, 8.1: the complete response, then RST_STREAM with NO_ERROR.
    write_flushed(&mut io, h2frames::window_update(1, 1000)).await;
    let answer = read_frame(&mut io, kind::DATA, 1).await;
    assert_eq!(answer.payload, b"no");
    let reset = read_frame(&mut io, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::NO_ERROR));
    assert_eq!(fixture.metric(BUFFERED_BYTES_METRIC, &[]).await, Some(0.0));
    let recorded = client_requests(&fixture.upstream);
    assert!(
        recorded.iter().all(|recorded| recorded.body_len == 0),
        "{recorded:?}"
    );
}

#[tokio::test]
async fn a_workload_that_answers_early_still_gets_the_complete_body() {
    let mut fixture = fixture(|_| {}).await;
    let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &post_block(PROXY));
    write_flushed(&mut io, head).await;
    read_frame(&mut io, kind::HEADERS, 1).await;
    write_flushed(&mut io, h2frames::data(1, flag::END_STREAM, b"read me")).await;
    let _answer = fixture.watches.recv().await.unwrap();
    eventually("the workload has the body", TEST_TIMEOUT, async || {
        let recorded = client_requests(&fixture.upstream);
        recorded.iter().any(|recorded| recorded.body == "read me")
    })
    .await;
}

#[tokio::test]
async fn an_unauthenticated_client_that_does_not_read_is_reset_after_the_stall_timeout_and_a_user_is_not()
 {
    let fixture = fixture(|limits| limits.unauthenticated_stall_timeout = SHORT_TIMEOUT).await;
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.connection_with_zero_window(&user).await;
    write_flushed(
        &mut user,
        h2frames::headers(1, COMPLETE_REQUEST, &get_block("/big")),
    )
    .await;
    read_frame(&mut user, kind::HEADERS, 1).await;
    let mut unauthenticated = fixture
        .connection_with_zero_window(&fixture.pki.client())
        .await;
    let request = h2frames::headers(1, COMPLETE_REQUEST, &get_block("/big"));
    write_flushed(&mut unauthenticated, request).await;
    let reset = read_frame(&mut unauthenticated, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::CANCEL));
    // The user's request began earlier, and its stream is still open.
    let since = frames_until_pong(&mut user).await;
    assert!(!kinds(&since).contains(&kind::RST_STREAM), "{since:?}");
    let stalled = [("reason", "stalled")];
    let evictions = fixture
        .metric("skewbridge_buffer_evictions_total", &stalled)
        .await;
    assert_eq!(evictions, Some(1.0));
}

#[tokio::test]
async fn a_stalled_request_body_is_408_for_an_unauthenticated_client_and_allowed_for_a_user() {
    let change = |limits: &mut Limits| limits.unauthenticated_stall_timeout = SHORT_TIMEOUT;
    let fixture = fixture_with_options(|options| options, change).await;
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.raw_h2_connection(&user, &[]).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &post_block("/api"));
    write_flushed(&mut user, &head).await;

    let mut h1 = fixture.pki.client().http1(fixture.bridge.address()).await;
    let h1 = h1.as_mut().unwrap();
    h1.send("POST /api HTTP/1.1\r\nHost: k\r\nContent-Length: 10\r\n\r\n12")
        .await
        .unwrap();
    let answer = timeout(TEST_TIMEOUT, h1.read_response()).await.unwrap();
    assert_json_status(&answer.unwrap(), 408);
    h1.read_close().await.unwrap();

    let mut unauthenticated = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    write_flushed(&mut unauthenticated, &head).await;
    write_flushed(&mut unauthenticated, h2frames::data(1, flag::NONE, b"12")).await;
    let answer = read_frame(&mut unauthenticated, kind::DATA, 1).await;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["code"], 408);
    let reset = read_frame(&mut unauthenticated, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::NO_ERROR));

    write_flushed(&mut user, h2frames::data(1, flag::END_STREAM, b"late")).await;
    let answer = read_frame(&mut user, kind::DATA, 1).await;
    assert_eq!(answer.payload, b"{}");
}

#[tokio::test]
async fn over_the_budget_the_oldest_unauthenticated_streams_are_reset_and_those_of_users_stay() {
    const BUDGET_BYTES: u32 = 512 * 1024;
    let fixture = fixture(|limits| {
        limits.max_buffered_bytes = BUDGET_BYTES as usize;
        limits.unauthenticated_stall_timeout = TEST_TIMEOUT;
    })
    .await;
    let request = h2frames::headers(1, COMPLETE_REQUEST, &get_block("/big"));
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.connection_with_zero_window(&user).await;
    write_flushed(&mut user, &request).await;
    read_frame(&mut user, kind::HEADERS, 1).await;
    let stall = async |count: usize| {
        let mut unauthenticated = Vec::new();
        for _ in 0..count {
            let mut io = fixture
                .connection_with_zero_window(&fixture.pki.client())
                .await;
            write_flushed(&mut io, &request).await;
            read_frame(&mut io, kind::HEADERS, 1).await;
            unauthenticated.push(io);
        }
        unauthenticated
    };
    // Each stream buffers 128 KiB of its response.
    let mut unauthenticated = stall(2).await;
    eventually("the buffered bytes are counted", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED_BYTES_METRIC, &[]).await >= Some(f64::from(3 * 128 * 1024))
    })
    .await;
    let more = stall(3).await;
    for io in &mut unauthenticated {
        let reset = read_frame(io, kind::RST_STREAM, 1).await;
        assert_eq!(reset.error_code(), Some(code::ENHANCE_YOUR_CALM));
    }
    eventually(
        "the buffered bytes are within the budget",
        TEST_TIMEOUT,
        async || {
            let held = fixture.metric(BUFFERED_BYTES_METRIC, &[]).await;
            held.is_some_and(|held| held <= f64::from(BUDGET_BYTES))
        },
    )
    .await;
    let over = [("reason", "over-budget")];
    let evictions = fixture.metric("skewbridge_buffer_evictions_total", &over);
    assert!(evictions.await >= Some(2.0));
    let since = frames_until_pong(&mut user).await;
    assert!(!kinds(&since).contains(&kind::RST_STREAM), "{since:?}");
    drop(more);
}

#[tokio::test]
async fn a_header_block_without_end_closes_the_connection() {
    let fixture = fixture(|limits| limits.read_header_timeout = SHORT_TIMEOUT).await;
    let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    write_flushed(
        &mut io,
        h2frames::headers(1, COMPLETE_REQUEST, &get_block("/api")),
    )
    .await;
    read_frame(&mut io, kind::DATA, 1).await;
    let open = h2frames::headers(3, flag::END_STREAM, &get_block("/api"));
    write_flushed(&mut io, open).await;
    let ended = async { while h2frames::read_frame(&mut io).await.is_ok() {} };
    timeout(TEST_TIMEOUT, ended)
        .await
        .expect("the connection is closed");
}

/// A header in the HPACK table, and one byte for each reference to it.
struct HeaderBomb {
    stream: u32,
}

impl HeaderBomb {
    const VALUE: usize = 4000;
    const COUNT: usize = 250;

    fn request(&mut self, path: &str) -> Vec<u8> {
        let mut block = get_block(path);
        if self.stream == 1 {
            // With incremental indexing (RFC 7541, 6.2.1): entry 62 from now on.
            let mut literal = h2frames::literal("x-bomb", &"b".repeat(Self::VALUE));
            literal[0] = 0x40;
            block.extend(literal);
        } else {
            block.extend(std::iter::repeat_n(INDEXED_62, Self::COUNT));
        }
        let frame = h2frames::headers(self.stream, COMPLETE_REQUEST, &block);
        self.stream += 2;
        frame
    }
}

fn header_bytes(recorded: &[RecordedRequest]) -> usize {
    let fields = recorded.iter().flat_map(|recorded| &recorded.headers);
    fields.map(|(name, value)| name.len() + value.len()).sum()
}

#[tokio::test]
async fn unauthenticated_hpack_expansion_closes_the_connection() {
    let fixture = fixture(|_| {}).await;
    let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
    let mut bomb = HeaderBomb { stream: 1 };
    // Without the limit, 54 KB of requests became 200 MB at upstream.
    for _ in 0..200 {
        if io.write_all(&bomb.request("/api")).await.is_err() {
            break;
        }
    }
    let _ = io.flush().await;
    let goaway = h2frames::read_until(&mut io, kind::GOAWAY);
    let goaway = timeout(TEST_TIMEOUT, goaway).await.expect("GOAWAY");
    // Unless the client was still sending and got a reset connection.
    if let Ok(goaway) = goaway {
        assert_eq!(goaway.error_code(), Some(code::ENHANCE_YOUR_CALM));
    }
    let sent_up = header_bytes(&client_requests(&fixture.upstream));
    assert!(sent_up < 8 << 20, "{} MiB", sent_up >> 20);
    assert_eq!(
        fixture.header_limit_count("expansion-ended").await,
        Some(1.0)
    );
    assert!(fixture.header_limit_count("expansion-delayed").await >= Some(1.0));
}

#[tokio::test]
async fn requests_with_large_headers_never_share_an_upstream_connection() {
    for alpn in [&["h2", "http/1.1"][..], &["h2"]] {
        let mut fixture = fixture_with_options(|options| options.alpn(alpn), |_| {}).await;
        let victim = fixture.pki.client().http2(fixture.bridge.address()).await;
        let victim = victim.unwrap();
        let mut watches = Vec::new();
        for _ in 0..6 {
            let request = Request::get(format!("https://k{WATCH}")).body(()).unwrap();
            let mut watch = victim.stream(request).await.unwrap();
            watch.finish().unwrap();
            watches.push((watch, fixture.watches.recv().await.unwrap()));
        }
        let shared = client_requests(&fixture.upstream)[0].connection;
        let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
        let mut bomb = HeaderBomb { stream: 1 };
        for stream in [1, 3] {
            write_flushed(&mut io, bomb.request("/bomb")).await;
            read_frame(&mut io, kind::HEADERS, stream).await;
        }
        let mut bombs = client_requests(&fixture.upstream);
        bombs.retain(|recorded| recorded.path() == "/bomb");
        assert_eq!(
            (bombs[0].connection, bombs[0].version),
            (shared, Version::HTTP_2)
        );
        let expected = if alpn.len() == 2 {
            Version::HTTP_11
        } else {
            Version::HTTP_2
        };
        assert_ne!(bombs[1].connection, shared);
        assert_eq!(bombs[1].version, expected);
        assert!(header_bytes(&bombs[1..]) > HeaderBomb::COUNT * HeaderBomb::VALUE);
        for (watch, events) in &mut watches {
            events.send("{}\n").await.unwrap();
            assert_eq!(watch.head().await.unwrap().status, 200);
            assert_eq!(watch.chunk().await.unwrap().unwrap(), "{}\n");
        }
        // Other requests stay on their connection.
        assert_eq!(victim.get("/api").await.unwrap().status, 200);
        let last = client_requests(&fixture.upstream).pop().unwrap();
        assert_eq!(last.connection, shared);
        assert_eq!(
            fixture.header_limit_count("own-connection").await,
            Some(1.0)
        );
    }
}

#[tokio::test]
async fn a_valid_token_with_200_impersonated_groups_passes_repeatedly() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let token = format!("Bearer {}", "t".repeat(3000));
    for _ in 0..500 {
        let mut request = Request::get("https://k/api").header("authorization", &token);
        request = request.header("impersonate-user", "jane");
        for group in 0..200 {
            let group = format!("example.org:department-{group}:engineers");
            request = request.header("impersonate-group", group);
        }
        let answer = client.request(request.body(()).unwrap(), "").await.unwrap();
        assert_eq!(answer.status, 200);
    }
    let recorded = client_requests(&fixture.upstream);
    assert_eq!(recorded.len(), 500);
    // The first request is sent on its own connection: kube-apiserver has not accepted the token
    // yet.
    let (second, last) = (&recorded[1], &recorded[499]);
    assert_eq!(last.all("impersonate-group").len(), 200);
    assert_eq!(
        (last.connection, last.version),
        (second.connection, Version::HTTP_2)
    );
}

#[tokio::test]
async fn a_request_that_the_bridges_own_headers_make_too_large_is_431() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    // 20 fields fill a mebibyte except for less than the bridge adds.
    let request = |spare: usize| {
        let mut request = Request::get("https://k/api");
        let each = (1 << 20) / 20 - 32 - "x-00".len();
        for number in 0..20 {
            let length = if number == 0 { each - spare } else { each };
            request = request.header(format!("x-{number:02}"), "x".repeat(length));
        }
        request.body(()).unwrap()
    };
    let answer = client.request(request(1000), "").await.unwrap();
    assert_eq!(answer.status, 200, "all headers fit");
    let answer = client.request(request(150), "").await.unwrap();
    assert_json_status(&answer, 431);
    assert_eq!(client_requests(&fixture.upstream).len(), 1);
    assert_eq!(
        fixture.header_limit_count("outgoing-too-large").await,
        Some(1.0)
    );
    assert_eq!(
        fixture.header_limit_count("request-too-large").await,
        Some(0.0)
    );
}

#[tokio::test]
async fn joined_header_values_are_capped() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let request = |name: &str, count: usize| {
        let mut request = Request::get("https://k/api");
        for number in 0..count {
            let value = format!("c{number}={}", "v".repeat(1000));
            request = request.header(name, value);
        }
        request.body(()).unwrap()
    };
    let answer = client.request(request("cookie", 60), "").await.unwrap();
    assert_eq!(answer.status, 200);
    let answer = client.request(request("cookie", 70), "").await.unwrap();
    assert_json_status(&answer, 431);
    let forwarded = request("x-forwarded-for", 200);
    let answer = client.request(forwarded, "").await.unwrap();
    assert_eq!(answer.status, 200);
    let recorded = client_requests(&fixture.upstream).pop().unwrap();
    let chain = recorded.all("x-forwarded-for").join(", ");
    assert!(chain.len() < 4200, "{}", chain.len());
    assert!(chain.ends_with(", 127.0.0.1"), "the newest hop stays");
    assert_eq!(
        fixture.header_limit_count("cookie-too-large").await,
        Some(1.0)
    );
    let shortened = fixture.header_limit_count("forwarded-for-shortened");
    assert_eq!(shortened.await, Some(1.0));
}

#[tokio::test]
async fn headers_that_are_too_large_on_arrival_are_431_and_counted() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let mut request = Request::get("https://k/api");
    for number in 0..11 {
        request = request.header(format!("x-{number}"), "x".repeat(100_000));
    }
    let answer = client.unwrap().request(request.body(()).unwrap(), "").await;
    assert_json_status(&answer.unwrap(), 431);
    assert_eq!(
        fixture.header_limit_count("request-too-large").await,
        Some(1.0)
    );
    let client = fixture.pki.client().http1(fixture.bridge.address()).await;
    let mut client = client.unwrap();
    let large = "x".repeat(2 << 20);
    // The bridge may answer and close while the client still sends.
    let _ = client
        .send(format!("GET /api HTTP/1.1\r\nHost: k\r\nX: {large}"))
        .await;
    eventually("the exceeded limit is counted", TEST_TIMEOUT, async || {
        fixture.header_limit_count("request-too-large").await == Some(2.0)
    })
    .await;
    assert_eq!(client_requests(&fixture.upstream).len(), 0);
}

/// At most 64 of them are in flight at a time.
#[tokio::test]
async fn concurrent_requests_with_large_headers_are_bounded() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    let large = "x".repeat(100_000);
    let request = |path: &str| {
        let request = Request::get(format!("https://k{path}")).header("x-large", &large);
        request.body(()).unwrap()
    };
    let mut under_way = Vec::new();
    for _ in 0..64 {
        let mut stream = client.stream(request("/never")).await.unwrap();
        stream.finish().unwrap();
        under_way.push(stream);
    }
    eventually("all requests are in flight", TEST_TIMEOUT, async || {
        fixture.header_limit_count("own-connection").await == Some(64.0)
    })
    .await;
    let refused = client.request(request("/api"), "").await.unwrap();
    assert_json_status(&refused, 503);
    // Retried once after a backoff, like every failed connection.
    let refused = fixture.header_limit_count("own-connection-refused").await;
    assert_eq!(refused, Some(2.0));
    drop(under_way);
}

/// kube-apiserver closes the HTTP/2 connection of an anonymous client together with its response.
#[tokio::test]
async fn goaway_for_anonymous_clients_reaches_them_and_no_user() {
    for ends in [true, false] {
        let pki = PkiFixture::new();
        let upstream =
            ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| async move {
                conn.accept_h2(&[]).await;
                while let Ok(head) = h2frames::read_until(&mut conn.io, kind::HEADERS).await {
                    let stream = head.header.stream;
                    let block = h2frames::literal(":status", "403");
                    let mut answer = h2frames::headers(stream, COMPLETE_REQUEST, &block);
                    if ends {
                        answer.extend(h2frames::goaway(stream, code::NO_ERROR));
                    }
                    let _ = conn.io.write_all(&answer).await;
                    let _ = conn.io.flush().await;
                }
            })
            .await;
        let bridge = pki.start_bridge(upstream.addr());
        let send_request = async |client: TlsClient| {
            let client = client.alpn(&["h2"]);
            let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
            h2frames::open(&mut io, &[]).await.unwrap();
            write_flushed(
                &mut io,
                h2frames::headers(1, COMPLETE_REQUEST, &get_block("/api")),
            )
            .await;
            read_frame(&mut io, kind::HEADERS, 1).await;
            io
        };
        for _ in 0..3 {
            let mut unauthenticated = send_request(pki.client()).await;
            if ends {
                let goaway = read_frame(&mut unauthenticated, kind::GOAWAY, 0).await;
                assert_eq!(goaway.error_code(), Some(code::NO_ERROR));
            } else {
                let since = frames_until_pong(&mut unauthenticated).await;
                assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
            }
            let mut user = send_request(pki.user("alice", &[])).await;
            let since = frames_until_pong(&mut user).await;
            assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
        }
    }
}

/// kube-apiserver closes a connection with its 401, which may hit other users' requests on it.
#[tokio::test]
async fn tokens_not_yet_accepted_share_no_upstream_connection_with_accepted_ones() {
    let pki = PkiFixture::new();
    let upstream = ApiServer::start(
        Options::new(pki.upstream.clone()),
        |recorded| match recorded.header("authorization") {
            None | Some("Bearer good") => Reply::json("{}"),
            _ => Reply::new(401),
        },
    )
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let connection = async |client: &H2Client, token: Option<&str>| {
        let mut request = Request::get("https://k/api");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        client.request(request.body(()).unwrap(), "").await.unwrap();
        client_requests(&upstream).pop().unwrap().connection
    };
    let open = async || pki.client().http2(bridge.address()).await.unwrap();
    let user = open().await;
    let unproven = connection(&user, Some("good")).await;
    let accepted = connection(&user, Some("good")).await;
    assert_ne!(unproven, accepted);
    for (client, token, expected) in [
        (open().await, Some("junk"), unproven),
        (open().await, None, unproven),
        // Accepted earlier, on another connection.
        (open().await, Some("good"), accepted),
        (user, Some("good"), accepted),
    ] {
        let connection = connection(&client, token).await;
        assert_eq!(connection, expected, "{token:?}");
    }
}

/// Streams with small responses use memory as well.
#[tokio::test]
async fn the_state_of_stalled_streams_counts_towards_the_budget() {
    const STREAM_COUNT: u32 = 8;
    let fixture = fixture(|limits| limits.unauthenticated_stall_timeout = TEST_TIMEOUT).await;
    let mut io = fixture
        .connection_with_zero_window(&fixture.pki.client())
        .await;
    for number in 0..STREAM_COUNT {
        let stream = 2 * number + 1;
        write_flushed(
            &mut io,
            h2frames::headers(stream, COMPLETE_REQUEST, &get_block("/api")),
        )
        .await;
        read_frame(&mut io, kind::HEADERS, stream).await;
    }
    eventually("each stream counts 4 KiB", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED_BYTES_METRIC, &[]).await >= Some(f64::from(STREAM_COUNT * 4096))
    })
    .await;
    drop(io);
    eventually("no bytes are buffered", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED_BYTES_METRIC, &[]).await == Some(0.0)
    })
    .await;
}

/// An upstream that accepts no body before `open` is notified, notifies `complete` when the body
/// has arrived, and never answers it.
async fn upstream_with_closed_window(
    pki: &PkiFixture,
    open: &Arc<Notify>,
    complete: &Arc<Notify>,
) -> ScriptedServer {
    let received = (open.clone(), complete.clone());
    ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| {
        let (open, complete) = received.clone();
        async move {
            conn.accept_h2(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
            let stream = loop {
                let head = h2frames::read_until(&mut conn.io, kind::HEADERS).await;
                let Ok(Frame { header, .. }) = head else {
                    return;
                };
                if !header.has(flag::END_STREAM) {
                    break header.stream;
                }
                let block = h2frames::literal(":status", "200");
                let answer = h2frames::headers(header.stream, COMPLETE_REQUEST, &block);
                write_flushed(&mut conn.io, answer).await;
            };
            open.notified().await;
            for stream in [0, stream] {
                write_flushed(&mut conn.io, h2frames::window_update(stream, 1 << 20)).await;
            }
            loop {
                let data = h2frames::read_until(&mut conn.io, kind::DATA).await;
                if data.unwrap().header.has(flag::END_STREAM) {
                    break;
                }
            }
            complete.notify_one();
            conn.stall().await;
        }
    })
    .await
}

/// A body that upstream accepts late counts while it is buffered, but not while its response is
/// pending.
#[tokio::test]
async fn a_buffered_body_is_released_before_its_response() {
    // Less than HTTP/2's default window, which clients may use before they learn of a larger one.
    const PART_BYTES: usize = 12 * 1024;
    const FIRST_BYTES: usize = 4 * PART_BYTES;
    const BODY_BYTES: usize = FIRST_BYTES + PART_BYTES;
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let pki = PkiFixture::new();
        let (open, complete) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let upstream = upstream_with_closed_window(&pki, &open, &complete).await;
        let bridge = pki.start_bridge(upstream.addr());
        let buffered = async || {
            let scrape = admin_client::scrape(bridge.admin_address()).await;
            scrape.value(BUFFERED_BYTES_METRIC, &[]).unwrap()
        };
        let is_h2 = version == Version::HTTP_2;
        let alpn = if is_h2 { "h2" } else { "http/1.1" };
        let user = pki.user("alice", &[]).alpn(&[alpn]);
        let mut io = user.connect(bridge.address(), "localhost").await.unwrap();
        let part = vec![b'x'; PART_BYTES];
        // The first request lets the bridge learn the window of its upstream connection.
        if is_h2 {
            h2frames::open(&mut io, &[]).await.unwrap();
            write_flushed(
                &mut io,
                h2frames::headers(1, COMPLETE_REQUEST, &get_block("/api")),
            )
            .await;
            read_frame(&mut io, kind::HEADERS, 1).await;
            let head = h2frames::headers(3, flag::END_HEADERS, &post_block("/api"));
            write_flushed(&mut io, head).await;
        } else {
            write_flushed(&mut io, "GET /api HTTP/1.1\r\nHost: k\r\n\r\n").await;
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                let read = io.read_line(&mut line);
                timeout(TEST_TIMEOUT, read).await.expect("a head").unwrap();
            }
            let length = format!("Content-Length: {BODY_BYTES}");
            let head = format!("POST /api HTTP/1.1\r\nHost: k\r\n{length}\r\n\r\n");
            write_flushed(&mut io, head).await;
        }
        let send = async |io: &mut Connection, flags: u8| match version {
            Version::HTTP_2 => write_flushed(io, h2frames::data(3, flags, &part)).await,
            _ => write_flushed(io, &part).await,
        };
        let counts = async |count: usize| {
            let expected = f64::from(u32::try_from(count).unwrap());
            eventually("the buffered bytes are counted", TEST_TIMEOUT, async || {
                buffered().await >= expected
            })
            .await;
        };
        // The bridge buffers the first part to send it; later parts stay in the receive buffer.
        send(&mut io, flag::NONE).await;
        counts(PART_BYTES).await;
        for _ in 1..FIRST_BYTES / PART_BYTES {
            send(&mut io, flag::NONE).await;
        }
        counts(FIRST_BYTES).await;
        // Over HTTP/1.1 arriving bytes are progress, over HTTP/2 consumed bytes are: the last part
        // is sent before the bridge can send, or after.
        if is_h2 {
            open.notify_one();
            send(&mut io, flag::END_STREAM).await;
        } else {
            send(&mut io, flag::END_STREAM).await;
            counts(BODY_BYTES).await;
            open.notify_one();
        }
        timeout(TEST_TIMEOUT, complete.notified())
            .await
            .expect("upstream accepts the body");
        // The replay buffer holds the body once, plus overhead for its chunks.
        let once = f64::from(u32::try_from(BODY_BYTES + 4096).unwrap());
        eventually("the body counts once", TEST_TIMEOUT, async || {
            buffered().await <= once
        })
        .await;
        drop(io);
    }
}

#[tokio::test]
async fn requests_with_large_headers_share_no_peer_connection() {
    let (cluster, [peer], bridge) =
        ClusterFixture::with_peers(&[], [("apiserver-b", &[NEW])]).await;
    let large = "x".repeat(100_000);
    let alice = cluster.alice();
    let usual = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&usual), "apiserver-b");
    let fields = [("x-large", large.as_str())];
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(served_by(&answer), "apiserver-b");
    let recorded = peer.client_requests();
    let (usual, large) = (&recorded[recorded.len() - 2], &recorded[recorded.len() - 1]);
    assert_eq!(
        (usual.version, large.version),
        (Version::HTTP_2, Version::HTTP_11)
    );
    assert_ne!(usual.connection, large.connection);
    // A request that every receiver would reject is not sent at all.
    let name = |number: usize| format!("x-{number}");
    let names: Vec<_> = (0..10).map(name).collect();
    let filler = "x".repeat((1 << 20) / 10 - 60);
    let fields: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), filler.as_str()))
        .collect();
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(answer.status, 431);
    assert_eq!(peer.client_requests().len(), recorded.len());
}

/// An HTTP/1.1 client that stops in the middle of its request head.
#[tokio::test]
async fn an_incomplete_request_head_counts_towards_the_budget() {
    let fixture = fixture(|limits| limits.max_buffered_bytes = 300 * 1024).await;
    let mut clients = Vec::new();
    let filler = format!("GET /api HTTP/1.1\r\nHost: k\r\nX: {}", "x".repeat(200_000));
    for _ in 0..2 {
        let client = fixture.pki.client().http1(fixture.bridge.address()).await;
        let mut client = client.unwrap();
        client.send(&filler).await.unwrap();
        clients.push(client);
    }
    let ended = clients[0].read_close();
    timeout(TEST_TIMEOUT, ended)
        .await
        .expect("the connection is closed")
        .unwrap();
    clients[1].send("\r\n\r\n").await.unwrap();
    let answer = clients[1].read_response().await.unwrap();
    assert_eq!(answer.status, 200);
    eventually("no bytes are buffered", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED_BYTES_METRIC, &[]).await == Some(0.0)
    })
    .await;
}
