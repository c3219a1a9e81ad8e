//! Memory that clients can pin: unread responses, stalled bodies and incomplete heads are bounded,
//! and unauthenticated clients are evicted first.

use std::sync::Arc;

use http::Version;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::h2frames::{self, Frame, code, flag, kind, setting};
use skewbridge_testkit::{Connection, ScriptedServer, TEST_TIMEOUT, eventually};
use tokio::io::AsyncBufReadExt;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::exhaustion::{
    BUFFERED_BYTES_METRIC, COMPLETE_REQUEST, DATA_FRAME_BYTES, POST, PROXY, SHORT_TIMEOUT,
    exhaustion_fixture, fixture_with_options, frames_until_pong, get_block, kinds, post_block,
    read_frame, write_flushed,
};
use crate::support::pki::PkiFixture;
use crate::support::scripted_upstream::{assert_json_status, client_requests};

#[tokio::test]
async fn the_rest_of_a_rejected_body_is_discarded_and_its_window_released() {
    let fixture = exhaustion_fixture(|_| {}).await;
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
    let mut fixture = exhaustion_fixture(|_| {}).await;
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
    let fixture =
        exhaustion_fixture(|limits| limits.unauthenticated_stall_timeout = SHORT_TIMEOUT).await;
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
    let fixture = exhaustion_fixture(|limits| {
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

/// Streams with small responses use memory as well.
#[tokio::test]
async fn the_state_of_stalled_streams_counts_towards_the_budget() {
    const STREAM_COUNT: u32 = 8;
    let fixture =
        exhaustion_fixture(|limits| limits.unauthenticated_stall_timeout = TEST_TIMEOUT).await;
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

/// An HTTP/1.1 client that stops in the middle of its request head.
#[tokio::test]
async fn an_incomplete_request_head_counts_towards_the_budget() {
    let fixture = exhaustion_fixture(|limits| limits.max_buffered_bytes = 300 * 1024).await;
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
