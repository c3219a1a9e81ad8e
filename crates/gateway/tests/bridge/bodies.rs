//! Bodies are forwarded chunk by chunk as they arrive, with backpressure, and a truncated body is
//! visible as truncated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::client::Builder;
use skewbridge_testkit::h2frames::{self, code, flag, kind, setting};
use skewbridge_testkit::upstream::Body;
use skewbridge_testkit::{
    H2Client, Options, RecordedRequest, Reply, ScriptedConn, TEST_TIMEOUT, eventually,
};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc};

use crate::support::protocols::Proto::{H1, H2};
use crate::support::protocols::{
    ApiServerFixture, COMBINATIONS, Client, Exchange, Proto, ScriptedFixture, lower_case_names,
    owned, request, with_timeout,
};

/// Around the sizes of TLS records, DATA frames and windows, and larger than all of them.
const BODY_SIZES: [usize; 7] = [0, 1, 16383, 16384, 16385, 65536, 3 << 20];

/// Much more than all buffers on the way hold.
const UNBOUNDED_BODY_BYTES: usize = 32 << 20;
const CHUNK_BYTES: usize = 16 << 10;

/// Upstream answers as soon as it has read the request's head.
fn answer_at_head(options: Options<'_>) -> Options<'_> {
    options.respond_at_head()
}

/// Bytes without repeating stretches.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Waits until a sender makes no more progress and returns how much it has sent. A slow machine
/// makes the number smaller, never larger.
async fn wait_until_stalled(sent: &AtomicUsize) -> usize {
    let (mut last, mut same) = (0, 0);
    eventually(
        "the sender makes no more progress",
        TEST_TIMEOUT,
        async || {
            let now = sent.load(Ordering::Relaxed);
            same = if now == last && now > 0 { same + 1 } else { 0 };
            last = now;
            same == 60
        },
    )
    .await;
    last
}

/// Upper bound of the bytes buffered between both ends. HTTP/2 is bounded by its windows; HTTP/1.1
/// adds the kernel's socket buffers, which grow to several MiB each.
fn max_buffered_bytes(client: Proto, upstream: Proto) -> usize {
    let kernel = |certificate| if certificate == H1 { 12 << 20 } else { 0 };
    (1 << 20) + kernel(client) + kernel(upstream)
}

#[tokio::test]
async fn bodies_of_any_size_arrive_unchanged() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |recorded: RecordedRequest| {
            let length = recorded.path()[1..].parse().unwrap();
            Reply::new(200).body(pattern(length))
        })
        .await;
        let mut client = fixture.client(client).await;
        for (at, size) in BODY_SIZES.into_iter().enumerate() {
            let sent = pattern(size);
            let answer = client.post(&format!("/{size}"), sent.clone()).await;
            assert_eq!(answer.status, 200);
            assert!(answer.body == sent, "{size} bytes down");
            let recorded = &fixture.upstream.requests()[at];
            assert_eq!(recorded.body_len, size as u64);
            assert!(sent.starts_with(&recorded.body), "{size} bytes up");
            assert!(recorded.body.len() == size.min(1 << 20));
        }
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_forwarded_as_it_arrives() {
    for (client, upstream) in COMBINATIONS {
        let fixture =
            ApiServerFixture::new(upstream, |recorded| Reply::new(200).body(recorded.body)).await;
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"first ").await;
        let arrived = |length| {
            move |recorded: &[RecordedRequest]| {
                recorded.iter().any(|recorded| recorded.body_len == length)
            }
        };
        fixture.upstream.wait_for(arrived(6), TEST_TIMEOUT).await;
        upload.send(b"second").await;
        fixture.upstream.wait_for(arrived(12), TEST_TIMEOUT).await;
        upload.finish(&[]).await;
        assert_eq!(upload.head().await, 200);
        assert_eq!(upload.read_to_end().await.unwrap(), b"first second");

        let recorded = fixture.only_request();
        assert_eq!(recorded.header("content-length"), None);
        let coding = (upstream == H1).then_some("chunked");
        assert_eq!(recorded.header("transfer-encoding"), coding);
    }
}

#[tokio::test]
async fn content_length_is_forwarded_upstream() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| Reply::new(200)).await;
        let builder = request("POST", "/");
        let builder = match client {
            H1 => builder,
            H2 => builder.header("content-length", "5"),
        };
        fixture.client(client).await.request(builder, "12345").await;
        let recorded = fixture.only_request();
        assert_eq!(recorded.all("content-length"), ["5"]);
        assert_eq!(recorded.header("transfer-encoding"), None);
        assert_eq!(recorded.body, "12345");
    }
}

/// Reads the request's body only when notified; then reads all of it and answers with its length.
async fn late_reader(
    mut conn: ScriptedConn,
    upstream: Proto,
    go: Arc<Notify>,
    read: mpsc::UnboundedSender<usize>,
) {
    if upstream == H1 {
        conn.read_head().await;
        go.notified().await;
        let mut length = 0;
        let mut tail = Vec::new();
        while !tail.ends_with(b"\r\n0\r\n\r\n") {
            let mut piece = vec![0; CHUNK_BYTES];
            let read_bytes = conn.io.read(&mut piece).await.unwrap();
            tail = [&tail, &piece[..read_bytes]].concat();
            tail = tail.split_off(tail.len().saturating_sub(7));
            length += read_bytes;
        }
        conn.write("HTTP/1.1 204 No Content\r\n\r\n").await;
        read.send(length).unwrap();
    } else {
        conn.accept_h2(&[]).await;
        conn.read_frame(kind::HEADERS).await;
        go.notified().await;
        let room = u32::try_from(UNBOUNDED_BODY_BYTES).unwrap();
        let room = [
            h2frames::window_update(0, room),
            h2frames::window_update(1, room),
        ];
        conn.write(room.concat()).await;
        let mut length = 0;
        loop {
            let frame = conn.read_frame(kind::DATA).await;
            length += frame.payload.len();
            if frame.header.has(flag::END_STREAM) {
                break;
            }
        }
        let done = flag::END_HEADERS | flag::END_STREAM;
        conn.write(h2frames::headers(1, done, h2frames::STATUS_200))
            .await;
        read.send(length).unwrap();
    }
    conn.stall().await;
}

#[tokio::test]
async fn an_upload_that_upstream_does_not_read_blocks_the_client() {
    for (client, upstream) in COMBINATIONS {
        let go = Arc::new(Notify::new());
        let (sender, mut read) = mpsc::unbounded_channel();
        let fixture = {
            let go = Arc::clone(&go);
            let script = move |conn| late_reader(conn, upstream, Arc::clone(&go), sender.clone());
            ScriptedFixture::new(upstream, script).await
        };
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = {
            let sent = Arc::clone(&sent);
            tokio::spawn(async move {
                while sent.load(Ordering::Relaxed) < UNBOUNDED_BODY_BYTES {
                    upload.push(&[b'u'; CHUNK_BYTES]).await;
                    sent.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                }
                upload.finish(&[]).await;
                upload.head().await
            })
        };
        let accepted = wait_until_stalled(&sent).await;
        assert!(
            accepted < max_buffered_bytes(client, upstream),
            "{accepted}"
        );

        go.notify_one();
        assert!(with_timeout(read.recv()).await.unwrap() >= UNBOUNDED_BODY_BYTES);
        assert!(with_timeout(sending).await.unwrap() < 300);
    }
}

#[tokio::test]
async fn a_response_that_the_client_does_not_read_blocks_upstream() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) = ApiServerFixture::streaming(upstream).await;
        let mut stalled = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = {
            let sent = Arc::clone(&sent);
            tokio::spawn(async move {
                while sent.load(Ordering::Relaxed) < UNBOUNDED_BODY_BYTES {
                    body.send(vec![b'd'; CHUNK_BYTES]).await.unwrap();
                    sent.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                }
                body.finish().await.unwrap();
            })
        };
        let accepted = wait_until_stalled(&sent).await;
        assert!(
            accepted < max_buffered_bytes(client, upstream),
            "{accepted}"
        );

        assert_eq!(stalled.head().await, 200);
        assert_eq!(
            stalled.read_to_end().await.unwrap().len(),
            UNBOUNDED_BODY_BYTES
        );
        with_timeout(sending).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_event_is_delivered_when_it_arrives() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) = ApiServerFixture::streaming(upstream).await;
        let builder = request("GET", "/api/v1/pods?watch=1");
        let mut watch = fixture.client(client).await.begin(builder).await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        assert_eq!(watch.head().await, 200);
        for event in 0..20 {
            let event = format!("{{\"type\":\"ADDED\",\"object\":{event}}}\n");
            body.send(event.clone()).await.unwrap();
            watch.expect(event.as_bytes()).await;
        }
        body.finish().await.unwrap();
        assert_eq!(watch.read_to_end().await.unwrap(), b"");
    }
}

#[tokio::test]
async fn many_small_unread_events_do_not_disturb_other_streams() {
    const EVENT_COUNT: usize = 5000;
    let (fixture, mut bodies) = ApiServerFixture::streaming(H2).await;
    let user = fixture.pki.user("alice", &["dev"]).alpn(&["h2"]);
    let connection = user.connect(fixture.bridge.address(), "localhost").await;
    // With a window this small, sent events are buffered in the bridge.
    let mut narrow = Builder::new();
    narrow.initial_window_size(100);
    let client = with_timeout(H2Client::with(&narrow, connection.unwrap())).await;
    let client = Client::H2(client.unwrap());
    let mut watch = client.begin(request("GET", "/watch")).await;
    let body = with_timeout(bodies.recv()).await.unwrap();
    for event in 0..EVENT_COUNT {
        with_timeout(body.send(format!("{event:09}\n")))
            .await
            .unwrap();
    }

    let mut other = fixture.client(H2).await.begin(request("GET", "/")).await;
    let answer = with_timeout(bodies.recv()).await.unwrap();
    answer.send("undisturbed").await.unwrap();
    answer.finish().await.unwrap();
    assert_eq!(other.head().await, 200);
    assert_eq!(other.read_to_end().await.unwrap(), b"undisturbed");
    assert_eq!(fixture.upstream.connections(), 1);

    body.finish().await.unwrap();
    assert_eq!(watch.head().await, 200);
    let expected: Vec<_> = (0..EVENT_COUNT)
        .map(|event| format!("{event:09}\n"))
        .collect();
    assert!(watch.read_to_end().await.unwrap() == expected.concat().as_bytes());
}

#[tokio::test]
async fn many_small_chunks_of_a_stalled_upload_do_not_disturb_other_streams() {
    const CHUNK_COUNT: usize = 5000;
    let (received, mut begun) = mpsc::unbounded_channel();
    let fixture = ScriptedFixture::new(H2, move |mut conn| {
        let received = received.clone();
        async move {
            // No window for a body at all.
            conn.accept_h2(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
            let stalled = conn.read_frame(kind::HEADERS).await;
            assert!(!stalled.header.has(flag::END_STREAM));
            received.send(()).unwrap();
            let other = conn.read_frame(kind::HEADERS).await.header.stream;
            let done = flag::END_HEADERS | flag::END_STREAM;
            conn.write(h2frames::headers(other, done, h2frames::STATUS_200))
                .await;
            conn.stall().await;
        }
    })
    .await;
    let upload = fixture.client(H2).await.upload(request("POST", "/")).await;
    with_timeout(begun.recv()).await.unwrap();
    let Exchange::H2(client, mut stream) = upload else {
        unreachable!("the client speaks HTTP/2")
    };
    for piece in 0..CHUNK_COUNT {
        with_timeout(stream.send(format!("{piece:09}\n")))
            .await
            .unwrap();
    }
    assert_eq!(with_timeout(client.get("/")).await.unwrap().status, 200);
}

#[tokio::test]
async fn trailers_are_forwarded_both_ways() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |recorded| {
            Reply::new(200)
                .body(recorded.body)
                .trailer("X-Sum", "down")
                .trailer("Grpc-Status", "0")
        })
        .await;
        let builder = request("POST", "/").header("te", "trailers");
        let mut upload = fixture.client(client).await.upload(builder).await;
        upload.send(b"body").await;
        upload.finish(&[("x-sum", "up"), ("x-more", "1")]).await;
        assert_eq!(upload.head().await, 200);
        assert_eq!(upload.read_to_end().await.unwrap(), b"body");
        assert_eq!(
            upload.trailers().await,
            owned(&[("x-sum", "down"), ("grpc-status", "0")])
        );
        let recorded = fixture.only_request();
        assert_eq!(recorded.body, "body");
        assert_eq!(
            lower_case_names(&recorded.trailers),
            owned(&[("x-sum", "up"), ("x-more", "1")])
        );
    }
}

/// Trailers travel on connections that are shared with other users.
#[tokio::test]
async fn trailers_above_their_limit_are_not_forwarded() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| Reply::new(200)).await;
        let builder = request("POST", "/");
        let mut upload = fixture.client(client).await.upload(builder).await;
        upload.send(b"body").await;
        upload.finish(&[("x-sum", &"x".repeat(9 * 1024))]).await;
        assert_eq!(upload.head().await, 400);
        let recorded = fixture.upstream.requests();
        assert!(recorded.iter().all(|recorded| recorded.trailers.is_empty()));
    }
}

#[tokio::test]
async fn impersonation_headers_in_trailers_are_dropped() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| Reply::new(200)).await;
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"body").await;
        let forged = [
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x-remote-uid", "0"),
            ("x-remote-extra-scopes", "all"),
            ("x_remote_user", "root"),
            ("x-kubernetes-peer-proxied", "true"),
            ("x-sum", "kept"),
        ];
        upload.finish(&forged).await;
        assert_eq!(upload.head().await, 200);
        let recorded = fixture.only_request();
        assert_eq!(
            lower_case_names(&recorded.trailers),
            owned(&[("x-sum", "kept")])
        );
        assert_eq!(recorded.all("x-remote-user"), ["alice"]);
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_response_cancels_the_request() {
    for (client, upstream) in COMBINATIONS {
        let (received, mut events) = mpsc::unbounded_channel();
        let fixture = ScriptedFixture::new(upstream, move |mut conn| {
            let received = received.clone();
            async move {
                if upstream == H1 {
                    conn.read_head().await;
                    received.send("request").unwrap();
                    conn.read_to_end().await;
                } else {
                    conn.accept_h2(&[]).await;
                    conn.read_frame(kind::HEADERS).await;
                    received.send("request").unwrap();
                    let reset = conn.read_frame(kind::RST_STREAM).await;
                    assert_eq!(reset.error_code(), Some(code::CANCEL));
                }
                received.send("cancelled").unwrap();
            }
        })
        .await;
        let exchange = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        assert_eq!(with_timeout(events.recv()).await, Some("request"));
        let _connection = exchange.disconnect();
        assert_eq!(with_timeout(events.recv()).await, Some("cancelled"));
    }
}

#[tokio::test]
async fn a_client_that_disconnects_during_the_response_cancels_it() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) = ApiServerFixture::streaming(upstream).await;
        let mut exchange = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("event").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"event").await;
        let _connection = exchange.disconnect();
        body.cancelled().await;
    }
}

#[tokio::test]
async fn a_closed_client_connection_cancels_all_its_requests() {
    for upstream in [H1, H2] {
        let (fixture, mut bodies) = ApiServerFixture::streaming(upstream).await;
        let client = fixture.h2().await;
        let (mut streams, mut senders) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let builder = request("GET", "/").body(()).unwrap();
            let mut stream = with_timeout(client.stream(builder)).await.unwrap();
            stream.finish().unwrap();
            streams.push(stream);
            senders.push(with_timeout(bodies.recv()).await.unwrap());
        }
        drop(client);
        for body in senders {
            body.cancelled().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_during_its_body_truncates_it_upstream() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| Reply::new(200)).await;
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"half").await;
        let half =
            |recorded: &[RecordedRequest]| recorded.iter().any(|recorded| recorded.body_len == 4);
        fixture.upstream.wait_for(half, TEST_TIMEOUT).await;
        let _connection = upload.disconnect();
        let broken = |recorded: &[RecordedRequest]| recorded[0].body_state == Body::Aborted;
        fixture.upstream.wait_for(broken, TEST_TIMEOUT).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_while_both_bodies_are_open_cancels_the_response() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) =
            ApiServerFixture::streaming_with(upstream, answer_at_head).await;
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("event").await.unwrap();
        assert_eq!(upload.head().await, 200);
        upload.expect(b"event").await;
        let _connection = upload.disconnect();
        body.cancelled().await;
    }
}

#[tokio::test]
async fn an_early_response_is_forwarded_while_the_request_body_still_arrives() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) =
            ApiServerFixture::streaming_with(upstream, answer_at_head).await;
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"first ").await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("early").await.unwrap();
        assert_eq!(upload.head().await, 200);
        upload.expect(b"early").await;
        upload.send(b"second").await;
        upload.finish(&[]).await;
        if upstream == H2 {
            let arrived = |recorded: &[RecordedRequest]| recorded[0].body_state == Body::Complete;
            let recorded = fixture.upstream.wait_for(arrived, TEST_TIMEOUT).await;
            assert_eq!(recorded[0].body, "first second");
        }
        body.finish().await.unwrap();
        assert_eq!(upload.read_to_end().await.unwrap(), b"");
    }
}
