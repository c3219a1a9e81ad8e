//! After GOAWAY a request that upstream has not processed is sent on another connection.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::scripted_requests::{
    RequestLog, accept_with_large_windows, answer_h2, body_length, read_h2, send,
};
use super::{ApiProxy, ProxyFixture, ScriptedProxy};
use crate::h2frames::{self, code, flag, kind, setting};
use crate::protocols::Proto::{H1, H2};
use crate::protocols::{Client, assert_status, request, with_timeout};
use crate::{Reply, TEST_TIMEOUT, eventually};

/// Requests above the last stream of goaway are retried.
pub async fn requests_above_the_last_stream_of_goaway_are_retried<P: ProxyFixture>() {
    for client in [H1, H2] {
        for method in ["GET", "POST"] {
            let (acted, mut bodies) = mpsc::unbounded_channel();
            let fixture = ScriptedProxy::<P>::new(H2, move |mut conn| {
                let acted = acted.clone();
                async move {
                    if conn.ordinal == 0 {
                        conn.accept_h2(&[]).await;
                        conn.read_frame(kind::HEADERS).await;
                        conn.write(h2frames::goaway(0, code::NO_ERROR)).await;
                        conn.read_to_end().await;
                    } else {
                        accept_with_large_windows(&mut conn).await;
                        let (stream, length) = read_h2(&mut conn).await;
                        acted.send(length).unwrap();
                        answer_h2(&mut conn, stream).await;
                        conn.stall().await;
                    }
                }
            })
            .await;
            let mut client = fixture.client(client).await;
            assert_eq!(send(&mut client, method).await.status, 200);
            assert_eq!(with_timeout(bodies.recv()).await, Some(body_length(method)));
            assert!(bodies.try_recv().is_err());
            assert_eq!(fixture.upstream.connections(), 2);
        }
    }
}

/// kube-apiserver sends GOAWAY to anonymous clients that send several requests at once.
/// A request that meets repeated goaways is retried until it is accepted.
pub async fn a_request_that_meets_repeated_goaways_is_retried_until_it_is_accepted<
    P: ProxyFixture,
>() {
    for (goaways, expected) in [(2, 200), (5, 200), (6, 503)] {
        for method in ["GET", "POST"] {
            let log = RequestLog::default();
            let upstream = log.clone();
            let fixture = ScriptedProxy::<P>::new(H2, move |mut conn| {
                let log = upstream.clone();
                async move {
                    accept_with_large_windows(&mut conn).await;
                    let (stream, length) = read_h2(&mut conn).await;
                    if conn.ordinal < goaways {
                        conn.write(h2frames::goaway(0, code::NO_ERROR)).await;
                        conn.read_to_end().await;
                    } else {
                        log.add(format!("{length}"));
                        answer_h2(&mut conn, stream).await;
                        conn.stall().await;
                    }
                }
            })
            .await;
            let mut client = fixture.client(H2).await;
            let answer = send(&mut client, method).await;
            assert_eq!(answer.status, expected, "{method} after {goaways}");
            let taken = usize::from(expected == 200);
            assert_eq!(log.all(), vec![body_length(method).to_string(); taken]);
            assert_eq!(fixture.upstream.connections(), goaways.min(5) + 1);
        }
    }
}

/// Requests up to the last stream of goaway are not retried.
pub async fn requests_up_to_the_last_stream_of_goaway_are_not_retried<P: ProxyFixture>() {
    for client in [H1, H2] {
        for method in ["GET", "POST"] {
            let fixture = ScriptedProxy::<P>::new(H2, |mut conn| async move {
                accept_with_large_windows(&mut conn).await;
                let (stream, _) = read_h2(&mut conn).await;
                conn.write(h2frames::goaway(stream, code::NO_ERROR)).await;
                conn.half_close().await;
            })
            .await;
            let mut client = fixture.client(client).await;
            assert_status(&send(&mut client, method).await, 502);
            assert_eq!(fixture.upstream.connections(), 1);
        }
    }
}

/// A watch survives goaway and new requests use another connection.
pub async fn a_watch_survives_goaway_and_new_requests_use_another_connection<P: ProxyFixture>() {
    let (senders, mut watches) = mpsc::unbounded_channel();
    let fixture = ApiProxy::<P>::new(H2, move |recorded| {
        if recorded.path() != "/watch" {
            return Reply::json("{}");
        }
        let (reply, sender) = Reply::stream();
        senders.send(sender).unwrap();
        reply
    })
    .await;
    let watching = fixture.client(H2).await;
    let mut watch = watching.begin(request("GET", "/watch")).await;
    let events = with_timeout(watches.recv()).await.unwrap();
    events.send("before").await.unwrap();
    assert_eq!(watch.head().await, 200);
    watch.expect(b"before").await;

    fixture.upstream.goaway();
    let mut client = fixture.client(H2).await;
    eventually(
        "a request on another connection",
        TEST_TIMEOUT,
        async || {
            assert_eq!(client.get("/").await.status, 200);
            fixture.upstream.connections() == 2
        },
    )
    .await;
    events.send("after").await.unwrap();
    watch.expect(b"after").await;
    events.finish().await.unwrap();
    assert_eq!(watch.read_to_end().await.unwrap(), b"");
    let old_connections_closed = async || fixture.upstream.live_connections() == 1;
    eventually(
        "the old connection is closed",
        TEST_TIMEOUT,
        old_connections_closed,
    )
    .await;
}

/// Goaway on every connection does not fail requests.
pub async fn goaway_on_every_connection_does_not_fail_requests<P: ProxyFixture>() {
    // Two connections, each with an open watch, a free stream slot, and a GOAWAY.
    let all_open = Arc::new(tokio::sync::Barrier::new(2));
    let fixture = ScriptedProxy::<P>::new(H2, move |mut conn| {
        let all_open = Arc::clone(&all_open);
        async move {
            conn.accept_h2(&[(setting::MAX_CONCURRENT_STREAMS, 2)])
                .await;
            if conn.ordinal < 2 {
                let watch = conn.read_frame(kind::HEADERS).await.header.stream;
                let other = conn.read_frame(kind::HEADERS).await.header.stream;
                all_open.wait().await;
                let head = h2frames::headers(watch, flag::END_HEADERS, h2frames::STATUS_200);
                let goaway = h2frames::goaway(other, code::NO_ERROR);
                conn.write([head, goaway].concat()).await;
                answer_h2(&mut conn, other).await;
            } else {
                let (stream, _) = read_h2(&mut conn).await;
                answer_h2(&mut conn, stream).await;
            }
            conn.read_to_end().await;
        }
    })
    .await;
    let Client::H2(client) = fixture.client(H2).await else {
        unreachable!("the client speaks HTTP/2")
    };
    let mut streams = Vec::new();
    for _ in 0..4 {
        let get = request("GET", "/").body(()).unwrap();
        let mut stream = with_timeout(client.stream(get)).await.unwrap();
        stream.finish().unwrap();
        streams.push(stream);
    }
    for stream in &mut streams {
        assert_eq!(with_timeout(stream.head()).await.unwrap().status, 200);
    }
    assert_eq!(fixture.upstream.connections(), 2);
    assert_eq!(with_timeout(client.get("/")).await.unwrap().status, 200);
    assert_eq!(fixture.upstream.connections(), 3);
}
