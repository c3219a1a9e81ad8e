//! Bodies pass piece by piece as they come, no faster than they are taken, and whole or
//! visibly cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::client::Builder;
use skewbridge_testkit::h2frames::{self, code, flag, kind, setting};
use skewbridge_testkit::upstream::Body;
use skewbridge_testkit::{
    H2Client, Options, PATIENCE, RecordedRequest, Reply, ScriptedConn, eventually,
};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc};

use crate::either::Proto::{H1, H2};
use crate::either::{
    COMBINATIONS, Client, Exchange, Proto, RawStand, Stand, Truncated, lower, owned, request, soon,
};

/// Around the edges of TLS records, DATA frames and windows, and larger than all of them.
const SIZES: [usize; 7] = [0, 1, 16383, 16384, 16385, 65536, 3 << 20];

/// Much more than may wait anywhere.
const ENDLESS: usize = 32 << 20;
const PIECE: usize = 16 << 10;

/// Upstream answers before the body has come.
fn at_head(options: Options<'_>) -> Options<'_> {
    options.respond_at_head()
}

/// Bytes of which no two stretches look alike.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Waits until a sender has come to a stand, and gives how far it came. A slow machine makes
/// the number smaller, never larger.
async fn stand_still(sent: &AtomicUsize) -> usize {
    let (mut last, mut same) = (0, 0);
    eventually("a sender that stands still", PATIENCE, async || {
        let now = sent.load(Ordering::Relaxed);
        same = if now == last && now > 0 { same + 1 } else { 0 };
        last = now;
        same == 60
    })
    .await;
    last
}

/// What may wait between two ends, at most: in HTTP/2 the windows say it, in HTTP/1.1 the
/// kernel's buffers come on top, which grow to several MiB for each socket.
fn bound(client: Proto, upstream: Proto) -> usize {
    let kernel = |leg| if leg == H1 { 12 << 20 } else { 0 };
    (1 << 20) + kernel(client) + kernel(upstream)
}

#[tokio::test]
async fn bodies_of_any_size_arrive_byte_by_byte() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |seen: RecordedRequest| {
            let length = seen.path()[1..].parse().unwrap();
            Reply::new(200).body(pattern(length))
        })
        .await;
        let mut client = stand.client(client).await;
        for (at, size) in SIZES.into_iter().enumerate() {
            let sent = pattern(size);
            let answer = client.post(&format!("/{size}"), sent.clone()).await;
            assert_eq!(answer.status, 200);
            assert!(answer.body == sent, "{size} bytes down");
            let seen = &stand.upstream.requests()[at];
            assert_eq!(seen.body_len, size as u64);
            assert!(sent.starts_with(&seen.body), "{size} bytes up");
            assert!(seen.body.len() == size.min(1 << 20));
        }
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_goes_up_as_it_comes() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |seen| Reply::new(200).body(seen.body)).await;
        let mut upload = stand
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"first ").await;
        let came = |length| {
            move |seen: &[RecordedRequest]| seen.iter().any(|seen| seen.body_len == length)
        };
        stand.upstream.wait_for(came(6), PATIENCE).await;
        upload.send(b"second").await;
        stand.upstream.wait_for(came(12), PATIENCE).await;
        upload.finish(&[]).await;
        assert_eq!(upload.head().await, 200);
        assert_eq!(upload.rest().await.unwrap(), b"first second");

        let seen = stand.only_request();
        assert_eq!(seen.header("content-length"), None);
        let coding = (upstream == H1).then_some("chunked");
        assert_eq!(seen.header("transfer-encoding"), coding);
    }
}

#[tokio::test]
async fn a_length_that_was_announced_is_announced_upstream() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |_| Reply::new(200)).await;
        let ask = request("POST", "/");
        let ask = match client {
            H1 => ask,
            H2 => ask.header("content-length", "5"),
        };
        stand.client(client).await.request(ask, "12345").await;
        let seen = stand.only_request();
        assert_eq!(seen.all("content-length"), ["5"]);
        assert_eq!(seen.header("transfer-encoding"), None);
        assert_eq!(seen.body, "12345");
    }
}

/// Reads nothing of a request's body before it is told to; then all of it, and says how much.
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
            let mut piece = vec![0; PIECE];
            let got = conn.io.read(&mut piece).await.unwrap();
            tail = [&tail, &piece[..got]].concat();
            tail = tail.split_off(tail.len().saturating_sub(7));
            length += got;
        }
        conn.write("HTTP/1.1 204 No Content\r\n\r\n").await;
        read.send(length).unwrap();
    } else {
        conn.accept_h2(&[]).await;
        conn.read_frame(kind::HEADERS).await;
        go.notified().await;
        let room = u32::try_from(ENDLESS).unwrap();
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
async fn an_upload_that_upstream_does_not_read_makes_the_client_wait() {
    for (client, upstream) in COMBINATIONS {
        let go = Arc::new(Notify::new());
        let (sender, mut read) = mpsc::unbounded_channel();
        let stand = {
            let go = Arc::clone(&go);
            let script = move |conn| late_reader(conn, upstream, Arc::clone(&go), sender.clone());
            RawStand::new(upstream, script).await
        };
        let mut upload = stand
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = {
            let sent = Arc::clone(&sent);
            tokio::spawn(async move {
                while sent.load(Ordering::Relaxed) < ENDLESS {
                    upload.push(&[b'u'; PIECE]).await;
                    sent.fetch_add(PIECE, Ordering::Relaxed);
                }
                upload.finish(&[]).await;
                upload.head().await
            })
        };
        let accepted = stand_still(&sent).await;
        assert!(accepted < bound(client, upstream), "{accepted}");

        go.notify_one();
        assert!(soon(read.recv()).await.unwrap() >= ENDLESS);
        assert!(soon(sending).await.unwrap() < 300);
    }
}

#[tokio::test]
async fn an_answer_that_the_client_does_not_read_makes_upstream_wait() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let mut stalled = stand.client(client).await.begin(request("GET", "/")).await;
        let body = soon(bodies.recv()).await.unwrap();
        let sent = Arc::new(AtomicUsize::new(0));
        let sending = {
            let sent = Arc::clone(&sent);
            tokio::spawn(async move {
                while sent.load(Ordering::Relaxed) < ENDLESS {
                    body.send(vec![b'd'; PIECE]).await.unwrap();
                    sent.fetch_add(PIECE, Ordering::Relaxed);
                }
                body.finish().await.unwrap();
            })
        };
        let accepted = stand_still(&sent).await;
        assert!(accepted < bound(client, upstream), "{accepted}");

        assert_eq!(stalled.head().await, 200);
        assert_eq!(stalled.rest().await.unwrap().len(), ENDLESS);
        soon(sending).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_event_is_delivered_when_it_arrives() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let ask = request("GET", "/api/v1/pods?watch=1");
        let mut watch = stand.client(client).await.begin(ask).await;
        let body = soon(bodies.recv()).await.unwrap();
        assert_eq!(watch.head().await, 200);
        for event in 0..20 {
            let event = format!("{{\"type\":\"ADDED\",\"object\":{event}}}\n");
            body.send(event.clone()).await.unwrap();
            watch.expect(event.as_bytes()).await;
        }
        body.finish().await.unwrap();
        assert_eq!(watch.rest().await.unwrap(), b"");
    }
}

#[tokio::test]
async fn many_small_events_that_nobody_reads_disturb_no_other_stream() {
    const EVENTS: usize = 5000;
    let (stand, mut bodies) = Stand::streaming(H2).await;
    let user = stand.bed.user("alice", &["dev"]).alpn(&["h2"]);
    let connection = user.connect(stand.bridge.address(), "localhost").await;
    // With a window that small, what is sent waits in the bridge.
    let mut narrow = Builder::new();
    narrow.initial_window_size(100);
    let client = soon(H2Client::with(&narrow, connection.unwrap())).await;
    let client = Client::H2(client.unwrap());
    let mut watch = client.begin(request("GET", "/watch")).await;
    let body = soon(bodies.recv()).await.unwrap();
    for event in 0..EVENTS {
        soon(body.send(format!("{event:09}\n"))).await.unwrap();
    }

    let mut other = stand.client(H2).await.begin(request("GET", "/")).await;
    let answer = soon(bodies.recv()).await.unwrap();
    answer.send("undisturbed").await.unwrap();
    answer.finish().await.unwrap();
    assert_eq!(other.head().await, 200);
    assert_eq!(other.rest().await.unwrap(), b"undisturbed");
    assert_eq!(stand.upstream.connections(), 1);

    body.finish().await.unwrap();
    assert_eq!(watch.head().await, 200);
    let expected: Vec<_> = (0..EVENTS).map(|event| format!("{event:09}\n")).collect();
    assert!(watch.rest().await.unwrap() == expected.concat().as_bytes());
}

#[tokio::test]
async fn many_small_pieces_of_a_stalled_upload_disturb_no_other_stream() {
    const PIECES: usize = 5000;
    let (told, mut begun) = mpsc::unbounded_channel();
    let stand = RawStand::new(H2, move |mut conn| {
        let told = told.clone();
        async move {
            // No room for a body at all.
            conn.accept_h2(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
            let stalled = conn.read_frame(kind::HEADERS).await;
            assert!(!stalled.header.has(flag::END_STREAM));
            told.send(()).unwrap();
            let other = conn.read_frame(kind::HEADERS).await.header.stream;
            let done = flag::END_HEADERS | flag::END_STREAM;
            conn.write(h2frames::headers(other, done, h2frames::STATUS_200))
                .await;
            conn.stall().await;
        }
    })
    .await;
    let upload = stand.client(H2).await.upload(request("POST", "/")).await;
    soon(begun.recv()).await.unwrap();
    let Exchange::H2(client, mut stream) = upload else {
        unreachable!("it is a client of HTTP/2")
    };
    for piece in 0..PIECES {
        soon(stream.send(format!("{piece:09}\n"))).await.unwrap();
    }
    assert_eq!(soon(client.get("/")).await.unwrap().status, 200);
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |seen| {
            Reply::new(200)
                .body(seen.body)
                .trailer("X-Sum", "down")
                .trailer("Grpc-Status", "0")
        })
        .await;
        let ask = request("POST", "/").header("te", "trailers");
        let mut upload = stand.client(client).await.upload(ask).await;
        upload.send(b"body").await;
        upload.finish(&[("x-sum", "up"), ("x-more", "1")]).await;
        assert_eq!(upload.head().await, 200);
        assert_eq!(upload.rest().await.unwrap(), b"body");
        assert_eq!(
            upload.trailers().await,
            owned(&[("x-sum", "down"), ("grpc-status", "0")])
        );
        let seen = stand.only_request();
        assert_eq!(seen.body, "body");
        assert_eq!(
            lower(&seen.trailers),
            owned(&[("x-sum", "up"), ("x-more", "1")])
        );
    }
}

/// Trailers travel on connections that other users share.
#[tokio::test]
async fn trailers_above_their_limit_do_not_go_upstream() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |_| Reply::new(200)).await;
        let ask = request("POST", "/");
        let mut upload = stand.client(client).await.upload(ask).await;
        upload.send(b"body").await;
        upload.finish(&[("x-sum", &"x".repeat(9 * 1024))]).await;
        assert_eq!(upload.head().await, 400);
        let seen = stand.upstream.requests();
        assert!(seen.iter().all(|seen| seen.trailers.is_empty()));
    }
}

#[tokio::test]
async fn nobody_is_impersonated_behind_a_body() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |_| Reply::new(200)).await;
        let mut upload = stand
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
        let seen = stand.only_request();
        assert_eq!(lower(&seen.trailers), owned(&[("x-sum", "kept")]));
        assert_eq!(seen.all("x-remote-user"), ["alice"]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_cancels_the_request() {
    for (client, upstream) in COMBINATIONS {
        let (told, mut events) = mpsc::unbounded_channel();
        let stand = RawStand::new(upstream, move |mut conn| {
            let told = told.clone();
            async move {
                if upstream == H1 {
                    conn.read_head().await;
                    told.send("request").unwrap();
                    conn.read_to_end().await;
                } else {
                    conn.accept_h2(&[]).await;
                    conn.read_frame(kind::HEADERS).await;
                    told.send("request").unwrap();
                    let reset = conn.read_frame(kind::RST_STREAM).await;
                    assert_eq!(reset.error_code(), Some(code::CANCEL));
                }
                told.send("cancelled").unwrap();
            }
        })
        .await;
        let exchange = stand.client(client).await.begin(request("GET", "/")).await;
        assert_eq!(soon(events.recv()).await, Some("request"));
        let _connection = exchange.leave();
        assert_eq!(soon(events.recv()).await, Some("cancelled"));
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_midst_of_the_answer_cancels_it() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let mut exchange = stand.client(client).await.begin(request("GET", "/")).await;
        let body = soon(bodies.recv()).await.unwrap();
        body.send("event").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"event").await;
        let _connection = exchange.leave();
        body.cancelled().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_with_its_connection_cancels_all_its_requests() {
    for upstream in [H1, H2] {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let client = stand.h2().await;
        let (mut streams, mut senders) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let ask = request("GET", "/").body(()).unwrap();
            let mut stream = soon(client.stream(ask)).await.unwrap();
            stream.finish().unwrap();
            streams.push(stream);
            senders.push(soon(bodies.recv()).await.unwrap());
        }
        drop(client);
        for body in senders {
            body.cancelled().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_midst_of_its_body_breaks_it_off() {
    for (client, upstream) in COMBINATIONS {
        let stand = Stand::new(upstream, |_| Reply::new(200)).await;
        let mut upload = stand
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"half").await;
        let half = |seen: &[RecordedRequest]| seen.iter().any(|seen| seen.body_len == 4);
        stand.upstream.wait_for(half, PATIENCE).await;
        let _connection = upload.leave();
        let broken = |seen: &[RecordedRequest]| seen[0].body_state == Body::BrokenOff;
        stand.upstream.wait_for(broken, PATIENCE).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_both_bodies_are_open_cancels_the_answer() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming_with(upstream, at_head).await;
        let mut upload = stand
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        let body = soon(bodies.recv()).await.unwrap();
        body.send("event").await.unwrap();
        assert_eq!(upload.head().await, 200);
        upload.expect(b"event").await;
        let _connection = upload.leave();
        body.cancelled().await;
    }
}

#[tokio::test]
async fn an_answer_that_upstream_cuts_never_looks_whole() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let mut exchange = stand.client(client).await.begin(request("GET", "/")).await;
        let body = soon(bodies.recv()).await.unwrap();
        body.send("half").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        drop(body);
        assert_eq!(exchange.rest().await, Err(Truncated));
    }
}

#[tokio::test]
async fn an_answer_whose_connection_is_reset_never_looks_whole() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming(upstream).await;
        let mut exchange = stand.client(client).await.begin(request("GET", "/")).await;
        let body = soon(bodies.recv()).await.unwrap();
        body.send("half").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        stand.upstream.kill_connections().await;
        assert_eq!(exchange.rest().await, Err(Truncated));
    }
}

#[tokio::test]
async fn an_answer_shorter_than_announced_never_looks_whole() {
    for client in [H1, H2] {
        let cut = Arc::new(Notify::new());
        let script_cut = Arc::clone(&cut);
        let stand = RawStand::new(H1, move |mut conn| {
            let cut = Arc::clone(&script_cut);
            async move {
                conn.read_head().await;
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
                conn.write(answer).await;
                cut.notified().await;
                conn.half_close().await;
            }
        })
        .await;
        let mut exchange = stand.client(client).await.begin(request("GET", "/")).await;
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        cut.notify_one();
        assert_eq!(exchange.rest().await, Err(Truncated));
    }
}

#[tokio::test]
async fn an_answer_that_its_connection_ends_is_whole_only_after_a_farewell() {
    for client in [H1, H2] {
        let end = Arc::new(Notify::new());
        let script_end = Arc::clone(&end);
        let stand = RawStand::new(H1, move |mut conn| {
            let end = Arc::clone(&script_end);
            async move {
                let head = conn.read_head().await;
                conn.write("HTTP/1.1 200 OK\r\n\r\nall of it").await;
                end.notified().await;
                if head.starts_with("GET /whole") {
                    conn.half_close().await;
                } else {
                    conn.truncate().await;
                }
                conn.read_to_end().await;
            }
        })
        .await;
        for (path, rest) in [("/whole", Ok(Vec::new())), ("/cut", Err(Truncated))] {
            let mut exchange = stand.client(client).await.begin(request("GET", path)).await;
            assert_eq!(exchange.head().await, 200);
            exchange.expect(b"all of it").await;
            end.notify_one();
            assert_eq!(exchange.rest().await, rest);
        }
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_sees_that_an_answer_was_cut() {
    let (stand, mut bodies) = Stand::streaming(H1).await;
    let mut client = stand.h1().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let body = soon(bodies.recv()).await.unwrap();
    body.send("half").await.unwrap();
    drop(body);
    let mut connection = client.into_connection();
    let end = soon(connection.read_to_end(&mut Vec::new())).await;
    assert!(end.is_err(), "TLS ended in good order");
}

#[tokio::test]
async fn an_early_answer_is_passed_on_while_the_body_still_comes() {
    for (client, upstream) in COMBINATIONS {
        let (stand, mut bodies) = Stand::streaming_with(upstream, at_head).await;
        let mut upload = stand
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        upload.send(b"first ").await;
        let body = soon(bodies.recv()).await.unwrap();
        body.send("early").await.unwrap();
        assert_eq!(upload.head().await, 200);
        upload.expect(b"early").await;
        upload.send(b"second").await;
        upload.finish(&[]).await;
        if upstream == H2 {
            let came = |seen: &[RecordedRequest]| seen[0].body_state == Body::Complete;
            let seen = stand.upstream.wait_for(came, PATIENCE).await;
            assert_eq!(seen[0].body, "first second");
        }
        body.finish().await.unwrap();
        assert_eq!(upload.rest().await.unwrap(), b"");
    }
}
