//! Clients that try to exhaust the bridge, or to disturb others through it: pinned memory,
//! header amplification, and connections that other users share.

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
use crate::support::scripted_upstream::{requests, status};

/// Long enough for a busy machine to send a request in it.
const SHORT: Duration = Duration::from_millis(500);

const POST: &str = "/api/v1/namespaces/a/configmaps";
const PROXY: &str = "/api/v1/namespaces/a/services/s/proxy/echo";
const WATCH: &str = "/api/v1/pods?watch=1";

const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;

const BUFFERED: &str = "skewbridge_buffered_bytes";

/// HPACK's reference to the newest entry of the dynamic table (RFC 7541, 6.1).
const INDEXED_62: u8 = 0x80 | 0x3e;

/// A frame of DATA, as large as clients send them.
const DATA_FRAME: usize = 16 * 1024;

struct Fixture {
    pki: PkiFixture,
    upstream: ApiServer,
    bridge: Handle,
    watches: mpsc::UnboundedReceiver<BodySender>,
}

/// An upstream that answers when it has read the head, and a bridge with these limits.
async fn fixture(change: impl FnOnce(&mut Limits)) -> Fixture {
    scene_with(Options::respond_at_head, change).await
}

async fn scene_with(
    options: impl FnOnce(Options<'static>) -> Options<'static>,
    change: impl FnOnce(&mut Limits),
) -> Fixture {
    let pki = PkiFixture::new();
    let (senders, watches) = mpsc::unbounded_channel();
    let big = Bytes::from(vec![b'x'; 8 << 20]);
    let options = options(Options::new(pki.upstream.clone()));
    let never = Arc::new(Notify::new());
    let upstream = ApiServer::start(options, move |seen| match seen.path() {
        POST => Reply::new(403).body("no"),
        PROXY | "/api/v1/pods" => {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply.status(if seen.path() == PROXY { 404 } else { 200 })
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
    /// Frames by hand, with a window that lets no byte of an answer pass.
    async fn closed_window(&self, client: &TlsClient) -> Connection {
        self.frames(client, &[(setting::INITIAL_WINDOW_SIZE, 0)])
            .await
    }

    async fn frames(&self, client: &TlsClient, settings: &[(u16, u32)]) -> Connection {
        let client = client.clone().alpn(&["h2"]);
        let address = self.bridge.address();
        let mut io = client.connect(address, "localhost").await.unwrap();
        h2frames::open(&mut io, settings).await.unwrap();
        io
    }

    /// How often a limit on headers was met.
    async fn header_limit(&self, limit: &str) -> Option<f64> {
        let labels = [("limit", limit)];
        self.metric("skewbridge_header_limits_total", &labels).await
    }

    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value(name, labels)
    }
}

async fn say(io: &mut Connection, bytes: impl AsRef<[u8]>) {
    io.write_all(bytes.as_ref()).await.unwrap();
    io.flush().await.unwrap();
}

/// The next frame of this kind on this stream.
async fn frame_of(io: &mut Connection, kind: u8, stream: u32) -> Frame {
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

/// What has come when a ping is answered.
async fn until_pong(io: &mut Connection) -> Vec<Frame> {
    say(io, h2frames::ping(flag::NONE, *b"reached?")).await;
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
async fn the_rest_of_a_refused_body_is_dropped_and_its_window_given_back() {
    let fixture = fixture(|_| {}).await;
    let mut io = fixture.closed_window(&fixture.pki.client()).await;
    say(
        &mut io,
        h2frames::headers(1, flag::END_HEADERS, &post_block(POST)),
    )
    .await;
    frame_of(&mut io, kind::HEADERS, 1).await;
    until_pong(&mut io).await;
    // Half of what a client that has not authenticated may send ahead, over and over. If
    // the bridge held any of it, the window would stay closed.
    for stream in [1, 3, 5, 7] {
        if stream > 1 {
            let head = h2frames::headers(stream, flag::END_HEADERS, &post_block(POST));
            say(&mut io, head).await;
            frame_of(&mut io, kind::HEADERS, stream).await;
        }
        for _ in 0..2 {
            let data = h2frames::data(stream, flag::NONE, &[b'x'; DATA_FRAME]);
            say(&mut io, data).await;
        }
        frame_of(&mut io, kind::WINDOW_UPDATE, 0).await;
    }
    // RFC 9113, 8.1: the whole answer, and then that the rest is not wanted.
    say(&mut io, h2frames::window_update(1, 1000)).await;
    let answer = frame_of(&mut io, kind::DATA, 1).await;
    assert_eq!(answer.payload, b"no");
    let reset = frame_of(&mut io, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::NO_ERROR));
    assert_eq!(fixture.metric(BUFFERED, &[]).await, Some(0.0));
    let seen = requests(&fixture.upstream);
    assert!(seen.iter().all(|seen| seen.body_len == 0), "{seen:?}");
}

#[tokio::test]
async fn a_workload_that_answers_early_still_gets_the_whole_body() {
    let mut fixture = fixture(|_| {}).await;
    let mut io = fixture.frames(&fixture.pki.client(), &[]).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &post_block(PROXY));
    say(&mut io, head).await;
    frame_of(&mut io, kind::HEADERS, 1).await;
    say(&mut io, h2frames::data(1, flag::END_STREAM, b"read me")).await;
    let _answer = fixture.watches.recv().await.unwrap();
    eventually("the workload has the body", TEST_TIMEOUT, async || {
        let seen = requests(&fixture.upstream);
        seen.iter().any(|seen| seen.body == "read me")
    })
    .await;
}

#[tokio::test]
async fn an_unauthenticated_client_that_does_not_read_is_given_seconds_and_a_user_is_not() {
    let fixture = fixture(|limits| limits.unauthenticated_stall_timeout = SHORT).await;
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.closed_window(&user).await;
    say(&mut user, h2frames::headers(1, WHOLE, &get_block("/big"))).await;
    frame_of(&mut user, kind::HEADERS, 1).await;
    let mut stranger = fixture.closed_window(&fixture.pki.client()).await;
    let request = h2frames::headers(1, WHOLE, &get_block("/big"));
    say(&mut stranger, request).await;
    let reset = frame_of(&mut stranger, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::CANCEL));
    // The user began before, and is still there.
    let since = until_pong(&mut user).await;
    assert!(!kinds(&since).contains(&kind::RST_STREAM), "{since:?}");
    let stalled = [("reason", "stalled")];
    let evictions = fixture
        .metric("skewbridge_buffer_evictions_total", &stalled)
        .await;
    assert_eq!(evictions, Some(1.0));
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408_for_an_unauthenticated_client_and_waited_for_from_a_user()
{
    let change = |limits: &mut Limits| limits.unauthenticated_stall_timeout = SHORT;
    let fixture = scene_with(|options| options, change).await;
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.frames(&user, &[]).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &post_block("/api"));
    say(&mut user, &head).await;

    let mut h1 = fixture.pki.client().http1(fixture.bridge.address()).await;
    let h1 = h1.as_mut().unwrap();
    h1.send("POST /api HTTP/1.1\r\nHost: k\r\nContent-Length: 10\r\n\r\n12")
        .await
        .unwrap();
    let answer = timeout(TEST_TIMEOUT, h1.read_response()).await.unwrap();
    status(&answer.unwrap(), 408);
    h1.read_close().await.unwrap();

    let mut stranger = fixture.frames(&fixture.pki.client(), &[]).await;
    say(&mut stranger, &head).await;
    say(&mut stranger, h2frames::data(1, flag::NONE, b"12")).await;
    let answer = frame_of(&mut stranger, kind::DATA, 1).await;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["code"], 408);
    let reset = frame_of(&mut stranger, kind::RST_STREAM, 1).await;
    assert_eq!(reset.error_code(), Some(code::NO_ERROR));

    say(&mut user, h2frames::data(1, flag::END_STREAM, b"late")).await;
    let answer = frame_of(&mut user, kind::DATA, 1).await;
    assert_eq!(answer.payload, b"{}");
}

#[tokio::test]
async fn over_the_budget_the_oldest_unauthenticated_streams_are_reset_and_users_stay() {
    const BUDGET: u32 = 512 * 1024;
    let fixture = fixture(|limits| {
        limits.max_buffered_bytes = BUDGET as usize;
        limits.unauthenticated_stall_timeout = TEST_TIMEOUT;
    })
    .await;
    let request = h2frames::headers(1, WHOLE, &get_block("/big"));
    let user = fixture.pki.user("alice", &[]);
    let mut user = fixture.closed_window(&user).await;
    say(&mut user, &request).await;
    frame_of(&mut user, kind::HEADERS, 1).await;
    let stall = async |count: usize| {
        let mut strangers = Vec::new();
        for _ in 0..count {
            let mut io = fixture.closed_window(&fixture.pki.client()).await;
            say(&mut io, &request).await;
            frame_of(&mut io, kind::HEADERS, 1).await;
            strangers.push(io);
        }
        strangers
    };
    // Each holds 128 KiB of its answer.
    let mut strangers = stall(2).await;
    eventually("what waits is counted", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED, &[]).await >= Some(f64::from(3 * 128 * 1024))
    })
    .await;
    let more = stall(3).await;
    for io in &mut strangers {
        let reset = frame_of(io, kind::RST_STREAM, 1).await;
        assert_eq!(reset.error_code(), Some(code::ENHANCE_YOUR_CALM));
    }
    eventually("the budget is kept", TEST_TIMEOUT, async || {
        let held = fixture.metric(BUFFERED, &[]).await;
        held.is_some_and(|held| held <= f64::from(BUDGET))
    })
    .await;
    let over = [("reason", "over-budget")];
    let evictions = fixture.metric("skewbridge_buffer_evictions_total", &over);
    assert!(evictions.await >= Some(2.0));
    let since = until_pong(&mut user).await;
    assert!(!kinds(&since).contains(&kind::RST_STREAM), "{since:?}");
    drop(more);
}

#[tokio::test]
async fn a_header_block_that_does_not_end_is_cut() {
    let fixture = fixture(|limits| limits.read_header_timeout = SHORT).await;
    let mut io = fixture.frames(&fixture.pki.client(), &[]).await;
    say(&mut io, h2frames::headers(1, WHOLE, &get_block("/api"))).await;
    frame_of(&mut io, kind::DATA, 1).await;
    let open = h2frames::headers(3, flag::END_STREAM, &get_block("/api"));
    say(&mut io, open).await;
    let ended = async { while h2frames::read_frame(&mut io).await.is_ok() {} };
    timeout(TEST_TIMEOUT, ended).await.expect("it is ended");
}

/// A header in HPACK's table, and one byte for each time that it is meant.
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
        let frame = h2frames::headers(self.stream, WHOLE, &block);
        self.stream += 2;
        frame
    }
}

fn header_bytes(seen: &[RecordedRequest]) -> usize {
    let fields = seen.iter().flat_map(|seen| &seen.headers);
    fields.map(|(name, value)| name.len() + value.len()).sum()
}

#[tokio::test]
async fn unauthenticated_hpack_expansion_closes_the_connection() {
    let fixture = fixture(|_| {}).await;
    let mut io = fixture.frames(&fixture.pki.client(), &[]).await;
    let mut bomb = HeaderBomb { stream: 1 };
    // 54 KB of requests became 200 MB at upstream.
    for _ in 0..200 {
        if io.write_all(&bomb.request("/api")).await.is_err() {
            break;
        }
    }
    let _ = io.flush().await;
    let goaway = h2frames::read_until(&mut io, kind::GOAWAY);
    let goaway = timeout(TEST_TIMEOUT, goaway).await.expect("GOAWAY");
    // Unless it was still sending and met the closed connection.
    if let Ok(goaway) = goaway {
        assert_eq!(goaway.error_code(), Some(code::ENHANCE_YOUR_CALM));
    }
    let sent_up = header_bytes(&requests(&fixture.upstream));
    assert!(sent_up < 8 << 20, "{} MiB", sent_up >> 20);
    assert_eq!(fixture.header_limit("expansion-ended").await, Some(1.0));
    assert!(fixture.header_limit("expansion-delayed").await >= Some(1.0));
}

#[tokio::test]
async fn large_headers_never_share_a_connection() {
    for alpn in [&["h2", "http/1.1"][..], &["h2"]] {
        let mut fixture = scene_with(|options| options.alpn(alpn), |_| {}).await;
        let victim = fixture.pki.client().http2(fixture.bridge.address()).await;
        let victim = victim.unwrap();
        let mut watches = Vec::new();
        for _ in 0..6 {
            let request = Request::get(format!("https://k{WATCH}")).body(()).unwrap();
            let mut watch = victim.stream(request).await.unwrap();
            watch.finish().unwrap();
            watches.push((watch, fixture.watches.recv().await.unwrap()));
        }
        let shared = requests(&fixture.upstream)[0].connection;
        let mut io = fixture.frames(&fixture.pki.client(), &[]).await;
        let mut bomb = HeaderBomb { stream: 1 };
        for stream in [1, 3] {
            say(&mut io, bomb.request("/bomb")).await;
            frame_of(&mut io, kind::HEADERS, stream).await;
        }
        let mut bombs = requests(&fixture.upstream);
        bombs.retain(|seen| seen.path() == "/bomb");
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
        // Others go on where they were.
        assert_eq!(victim.get("/api").await.unwrap().status, 200);
        let last = requests(&fixture.upstream).pop().unwrap();
        assert_eq!(last.connection, shared);
        assert_eq!(fixture.header_limit("own-connection").await, Some(1.0));
    }
}

#[tokio::test]
async fn a_real_token_and_200_impersonated_groups_pass_again_and_again() {
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
    let seen = requests(&fixture.upstream);
    assert_eq!(seen.len(), 500);
    // The first one is sent apart: kube-apiserver has not accepted the token yet.
    let (second, last) = (&seen[1], &seen[499]);
    assert_eq!(last.all("impersonate-group").len(), 200);
    assert_eq!(
        (last.connection, last.version),
        (second.connection, Version::HTTP_2)
    );
}

#[tokio::test]
async fn what_becomes_too_large_by_what_the_bridge_adds_is_431() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let client = client.unwrap();
    // 20 fields fill a mebibyte but for less than the bridge adds.
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
    assert_eq!(answer.status, 200, "room for all");
    let answer = client.request(request(150), "").await.unwrap();
    status(&answer, 431);
    assert_eq!(requests(&fixture.upstream).len(), 1);
    assert_eq!(fixture.header_limit("outgoing-too-large").await, Some(1.0));
    assert_eq!(fixture.header_limit("request-too-large").await, Some(0.0));
}

#[tokio::test]
async fn joined_values_are_capped() {
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
    status(&answer, 431);
    let forwarded = request("x-forwarded-for", 200);
    let answer = client.request(forwarded, "").await.unwrap();
    assert_eq!(answer.status, 200);
    let seen = requests(&fixture.upstream).pop().unwrap();
    let chain = seen.all("x-forwarded-for").join(", ");
    assert!(chain.len() < 4200, "{}", chain.len());
    assert!(chain.ends_with(", 127.0.0.1"), "the newest hop stays");
    assert_eq!(fixture.header_limit("cookie-too-large").await, Some(1.0));
    let shortened = fixture.header_limit("forwarded-for-shortened");
    assert_eq!(shortened.await, Some(1.0));
}

#[tokio::test]
async fn headers_that_are_too_large_as_they_come_are_431_and_counted() {
    let fixture = fixture(|_| {}).await;
    let client = fixture.pki.client().http2(fixture.bridge.address()).await;
    let mut request = Request::get("https://k/api");
    for number in 0..11 {
        request = request.header(format!("x-{number}"), "x".repeat(100_000));
    }
    let answer = client.unwrap().request(request.body(()).unwrap(), "").await;
    status(&answer.unwrap(), 431);
    assert_eq!(fixture.header_limit("request-too-large").await, Some(1.0));
    let client = fixture.pki.client().http1(fixture.bridge.address()).await;
    let mut client = client.unwrap();
    let large = "x".repeat(2 << 20);
    // It may be answered and closed while it is still sent.
    let _ = client
        .send(format!("GET /api HTTP/1.1\r\nHost: k\r\nX: {large}"))
        .await;
    eventually("it is counted", TEST_TIMEOUT, async || {
        fixture.header_limit("request-too-large").await == Some(2.0)
    })
    .await;
    assert_eq!(requests(&fixture.upstream).len(), 0);
}

/// 64 of them at one time are under way.
#[tokio::test]
async fn requests_with_large_headers_are_bounded() {
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
    eventually("all are under way", TEST_TIMEOUT, async || {
        fixture.header_limit("own-connection").await == Some(64.0)
    })
    .await;
    let refused = client.request(request("/api"), "").await.unwrap();
    status(&refused, 503);
    // Once more after a moment, as with every connection that fails.
    let refused = fixture.header_limit("own-connection-refused").await;
    assert_eq!(refused, Some(2.0));
    drop(under_way);
}

/// kube-apiserver ends the HTTP/2 connection of a caller without an identity with its answer.
#[tokio::test]
async fn goaway_for_anonymous_callers_reaches_them_and_no_user() {
    for ends in [true, false] {
        let pki = PkiFixture::new();
        let upstream =
            ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| async move {
                conn.accept_h2(&[]).await;
                while let Ok(head) = h2frames::read_until(&mut conn.io, kind::HEADERS).await {
                    let stream = head.header.stream;
                    let block = h2frames::literal(":status", "403");
                    let mut answer = h2frames::headers(stream, WHOLE, &block);
                    if ends {
                        answer.extend(h2frames::goaway(stream, code::NO_ERROR));
                    }
                    let _ = conn.io.write_all(&answer).await;
                    let _ = conn.io.flush().await;
                }
            })
            .await;
        let bridge = pki.bridge(upstream.addr());
        let send_request = async |client: TlsClient| {
            let client = client.alpn(&["h2"]);
            let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
            h2frames::open(&mut io, &[]).await.unwrap();
            say(&mut io, h2frames::headers(1, WHOLE, &get_block("/api"))).await;
            frame_of(&mut io, kind::HEADERS, 1).await;
            io
        };
        for _ in 0..3 {
            let mut stranger = send_request(pki.client()).await;
            if ends {
                let goaway = frame_of(&mut stranger, kind::GOAWAY, 0).await;
                assert_eq!(goaway.error_code(), Some(code::NO_ERROR));
            } else {
                let since = until_pong(&mut stranger).await;
                assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
            }
            let mut user = send_request(pki.user("alice", &[])).await;
            let since = until_pong(&mut user).await;
            assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
        }
    }
}

/// kube-apiserver ends a connection with its 401, and other users' requests on it may meet that.
#[tokio::test]
async fn tokens_that_are_not_accepted_yet_share_no_connection_with_accepted_ones() {
    let pki = PkiFixture::new();
    let upstream = ApiServer::start(Options::new(pki.upstream.clone()), |seen| {
        match seen.header("authorization") {
            None | Some("Bearer good") => Reply::json("{}"),
            _ => Reply::new(401),
        }
    })
    .await;
    let bridge = pki.bridge(upstream.addr());
    let connection = async |client: &H2Client, token: Option<&str>| {
        let mut request = Request::get("https://k/api");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        client.request(request.body(()).unwrap(), "").await.unwrap();
        requests(&upstream).pop().unwrap().connection
    };
    let open = async || pki.client().http2(bridge.address()).await.unwrap();
    let user = open().await;
    let unproven = connection(&user, Some("good")).await;
    let accepted = connection(&user, Some("good")).await;
    assert_ne!(unproven, accepted);
    for (client, token, expected) in [
        (open().await, Some("junk"), unproven),
        (open().await, None, unproven),
        // Accepted before, on another connection.
        (open().await, Some("good"), accepted),
        (user, Some("good"), accepted),
    ] {
        let connection = connection(&client, token).await;
        assert_eq!(connection, expected, "{token:?}");
    }
}

/// Streams whose answers are small cost memory as well.
#[tokio::test]
async fn the_state_of_stalled_streams_counts() {
    const STREAMS: u32 = 8;
    let fixture = fixture(|limits| limits.unauthenticated_stall_timeout = TEST_TIMEOUT).await;
    let mut io = fixture.closed_window(&fixture.pki.client()).await;
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        say(
            &mut io,
            h2frames::headers(stream, WHOLE, &get_block("/api")),
        )
        .await;
        frame_of(&mut io, kind::HEADERS, stream).await;
    }
    eventually("each counts with 4 KiB", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED, &[]).await >= Some(f64::from(STREAMS * 4096))
    })
    .await;
    drop(io);
    eventually("nothing is held", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED, &[]).await == Some(0.0)
    })
    .await;
}

/// An upstream that takes nothing of a body before its window is to be opened, tells when the body
/// is complete, and does not answer it.
async fn closed_upstream(
    pki: &PkiFixture,
    open: &Arc<Notify>,
    complete: &Arc<Notify>,
) -> ScriptedServer {
    let told = (open.clone(), complete.clone());
    ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| {
        let (open, complete) = told.clone();
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
                let answer = h2frames::headers(header.stream, WHOLE, &block);
                say(&mut conn.io, answer).await;
            };
            open.notified().await;
            for stream in [0, stream] {
                say(&mut conn.io, h2frames::window_update(stream, 1 << 20)).await;
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

/// Of a body that upstream took late: it counts while it waits, and not while its answer does.
#[tokio::test]
async fn a_body_that_has_waited_is_released_before_its_answer() {
    // Less than what HTTP/2 allows a client before it has heard of a larger window.
    const PART: usize = 12 * 1024;
    const FIRST: usize = 4 * PART;
    const WHOLE_BODY: usize = FIRST + PART;
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let pki = PkiFixture::new();
        let (open, complete) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let upstream = closed_upstream(&pki, &open, &complete).await;
        let bridge = pki.bridge(upstream.addr());
        let buffered = async || {
            let scrape = admin_client::scrape(bridge.admin_address()).await;
            scrape.value(BUFFERED, &[]).unwrap()
        };
        let is_h2 = version == Version::HTTP_2;
        let alpn = if is_h2 { "h2" } else { "http/1.1" };
        let user = pki.user("alice", &[]).alpn(&[alpn]);
        let mut io = user.connect(bridge.address(), "localhost").await.unwrap();
        let part = vec![b'x'; PART];
        // The first request has the bridge know the window of its connection to upstream.
        if is_h2 {
            h2frames::open(&mut io, &[]).await.unwrap();
            say(&mut io, h2frames::headers(1, WHOLE, &get_block("/api"))).await;
            frame_of(&mut io, kind::HEADERS, 1).await;
            let head = h2frames::headers(3, flag::END_HEADERS, &post_block("/api"));
            say(&mut io, head).await;
        } else {
            say(&mut io, "GET /api HTTP/1.1\r\nHost: k\r\n\r\n").await;
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                let read = io.read_line(&mut line);
                timeout(TEST_TIMEOUT, read).await.expect("a head").unwrap();
            }
            let length = format!("Content-Length: {WHOLE_BODY}");
            let head = format!("POST /api HTTP/1.1\r\nHost: k\r\n{length}\r\n\r\n");
            say(&mut io, head).await;
        }
        let send = async |io: &mut Connection, flags: u8| match version {
            Version::HTTP_2 => say(io, h2frames::data(3, flags, &part)).await,
            _ => say(io, &part).await,
        };
        let counts = async |count: usize| {
            let expected = f64::from(u32::try_from(count).unwrap());
            eventually("what waits is counted", TEST_TIMEOUT, async || {
                buffered().await >= expected
            })
            .await;
        };
        // The bridge holds the first part to send it; what comes later is left where it came.
        send(&mut io, flag::NONE).await;
        counts(PART).await;
        for _ in 1..FIRST / PART {
            send(&mut io, flag::NONE).await;
        }
        counts(FIRST).await;
        // What arrives is progress over HTTP/1.1, and what is taken over HTTP/2: the last of
        // it comes before the bridge can send, or after it.
        if is_h2 {
            open.notify_one();
            send(&mut io, flag::END_STREAM).await;
        } else {
            send(&mut io, flag::END_STREAM).await;
            counts(WHOLE_BODY).await;
            open.notify_one();
        }
        timeout(TEST_TIMEOUT, complete.notified())
            .await
            .expect("it is taken");
        // What is kept for a second try is the body once, with some room for its pieces.
        let once = f64::from(u32::try_from(WHOLE_BODY + 4096).unwrap());
        eventually("it counts once", TEST_TIMEOUT, async || {
            buffered().await <= once
        })
        .await;
        drop(io);
    }
}

#[tokio::test]
async fn large_headers_share_no_connection_to_a_peer_either() {
    let (cluster, [peer], bridge) =
        ClusterFixture::with_peers(&[], [("apiserver-b", &[NEW])]).await;
    let large = "x".repeat(100_000);
    let alice = cluster.alice();
    let usual = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&usual), "apiserver-b");
    let fields = [("x-large", large.as_str())];
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(served_by(&answer), "apiserver-b");
    let seen = peer.client_requests();
    let (usual, large) = (&seen[seen.len() - 2], &seen[seen.len() - 1]);
    assert_eq!(
        (usual.version, large.version),
        (Version::HTTP_2, Version::HTTP_11)
    );
    assert_ne!(usual.connection, large.connection);
    // And what no receiver would accept does not leave at all.
    let name = |number: usize| format!("x-{number}");
    let names: Vec<_> = (0..10).map(name).collect();
    let filler = "x".repeat((1 << 20) / 10 - 60);
    let fields: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), filler.as_str()))
        .collect();
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(answer.status, 431);
    assert_eq!(peer.client_requests().len(), seen.len());
}

/// A client that stops in the middle of its head, over HTTP/1.1.
#[tokio::test]
async fn a_head_that_is_not_complete_counts() {
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
        .expect("it is ended")
        .unwrap();
    clients[1].send("\r\n\r\n").await.unwrap();
    let answer = clients[1].read_response().await.unwrap();
    assert_eq!(answer.status, 200);
    eventually("nothing is held", TEST_TIMEOUT, async || {
        fixture.metric(BUFFERED, &[]).await == Some(0.0)
    })
    .await;
}
