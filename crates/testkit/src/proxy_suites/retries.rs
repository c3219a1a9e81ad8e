//! A request that upstream cannot have processed is retried; one that it may have processed is not.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use super::scripted_requests::{
    RequestLog, accept_with_large_windows, answer_h1, answer_h2, body_length, read_h1, read_h2,
    send,
};
use super::{ApiProxy, ProxyFixture, ScriptedProxy};
use crate::h2frames::{self, code, kind};
use crate::protocols::Proto::{self, H1, H2};
use crate::protocols::{Client, assert_status, request, with_timeout};
use crate::upstream::Body;
use crate::{Reply, ScriptedConn};

/// An idle connection closed by upstream is not used.
pub async fn an_idle_connection_closed_by_upstream_is_not_used<P: ProxyFixture>() {
    for client in [H1, H2] {
        let fixture = ApiProxy::<P>::new(H1, |_| Reply::json("{}")).await;
        let mut client = fixture.client(client).await;
        assert_eq!(client.get("/").await.status, 200);
        for (at, method) in ["GET", "POST"].into_iter().enumerate() {
            fixture.upstream.goaway();
            fixture.upstream.wait_until_idle().await;
            assert_eq!(send(&mut client, method).await.status, 200);
            assert_eq!(fixture.upstream.connections(), at + 2);
        }
        assert_eq!(fixture.upstream.requests().len(), 3);
    }
}

/// Connection close of upstream is honoured.
pub async fn connection_close_of_upstream_is_honoured<P: ProxyFixture>() {
    for client in [H1, H2] {
        let fixture =
            ApiProxy::<P>::new(H1, |_| Reply::json("{}").header("Connection", "close")).await;
        let mut client = fixture.client(client).await;
        for connections in 1..4 {
            let answer = client.post("/", "x").await;
            assert_eq!(answer.status, 200);
            // The header is hop-by-hop and not forwarded.
            assert_eq!(answer.header("connection"), None);
            assert_eq!(fixture.upstream.connections(), connections);
        }
    }
}

/// Answers one request on each connection; reads a second one completely and closes the connection.
async fn close_after_second(mut conn: ScriptedConn, log: RequestLog) {
    while let Some(request) = read_h1(&mut conn).await {
        let second = request.ends_with("/second") && conn.ordinal == 0;
        log.add(request);
        if second {
            return;
        }
        answer_h1(&mut conn).await;
    }
}

/// A write on a reused connection that breaks is not retried.
pub async fn a_write_on_a_reused_connection_that_breaks_is_not_retried<P: ProxyFixture>() {
    for client in [H1, H2] {
        let log = RequestLog::default();
        let upstream = log.clone();
        let fixture =
            ScriptedProxy::<P>::new(H1, move |conn| close_after_second(conn, upstream.clone()))
                .await;
        let mut client = fixture.client(client).await;
        assert_eq!(client.get("/first").await.status, 200);
        assert_status(&client.post("/second", "body").await, 502);
        assert_eq!(client.get("/third").await.status, 200);
        assert_eq!(log.all(), ["GET /first", "POST /second", "GET /third"]);
    }
}

/// A read on a reused connection that breaks is retried.
pub async fn a_read_on_a_reused_connection_that_breaks_is_retried<P: ProxyFixture>() {
    for client in [H1, H2] {
        let log = RequestLog::default();
        let upstream = log.clone();
        let fixture =
            ScriptedProxy::<P>::new(H1, move |conn| close_after_second(conn, upstream.clone()))
                .await;
        let mut client = fixture.client(client).await;
        assert_eq!(client.get("/first").await.status, 200);
        assert_eq!(client.get("/second").await.status, 200);
        assert_eq!(log.all(), ["GET /first", "GET /second", "GET /second"]);
        assert_eq!(fixture.upstream.connections(), 2);
    }
}

/// exec over WebSocket is a GET that runs a command.
/// A request to a workload is never sent twice.
pub async fn a_request_to_a_workload_is_never_sent_twice<P: ProxyFixture>() {
    for upgrade in ["", "Connection: Upgrade\r\nUpgrade: websocket\r\n"] {
        for subresource in ["exec?command=rm", "attach", "portforward", "proxy/run"] {
            let log = RequestLog::default();
            let kept = log.clone();
            let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| {
                let log = kept.clone();
                async move {
                    while let Some(line) = read_h1(&mut conn).await {
                        if line != "GET /" {
                            log.add(line);
                            return;
                        }
                        answer_h1(&mut conn).await;
                    }
                }
            })
            .await;
            let Client::H1(mut client) = fixture.client(H1).await else {
                unreachable!("the client speaks HTTP/1.1")
            };
            client
                .send("GET / HTTP/1.1\r\nHost: k\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(client.read_response().await.unwrap().status, 200);
            let path = format!("/api/v1/namespaces/a/pods/b/{subresource}");
            let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n{upgrade}\r\n");
            client.send(request).await.unwrap();
            assert_eq!(client.read_response().await.unwrap().status, 502);
            assert_eq!(log.all(), [format!("GET {path}")]);
        }
    }
}

/// A request whose response has begun is not retried.
pub async fn a_request_whose_response_has_begun_is_not_retried<P: ProxyFixture>() {
    for begun in [
        "HTTP/1.1 200 OK\r\nAudit-Id: x\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\n",
    ] {
        let log = RequestLog::default();
        let kept = log.clone();
        let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| {
            let log = kept.clone();
            async move {
                while let Some(line) = read_h1(&mut conn).await {
                    if line == "GET /second" {
                        log.add(line);
                        conn.write(begun).await;
                        return;
                    }
                    answer_h1(&mut conn).await;
                }
            }
        })
        .await;
        let mut client = fixture.client(H1).await;
        assert_eq!(client.get("/first").await.status, 200);
        assert_status(&client.get("/second").await, 502);
        assert_eq!(log.all(), ["GET /second"]);
    }
}

/// A read on a new connection that breaks is not retried.
pub async fn a_read_on_a_new_connection_that_breaks_is_not_retried<P: ProxyFixture>() {
    for client in [H1, H2] {
        let log = RequestLog::default();
        let upstream = log.clone();
        let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| {
            let log = upstream.clone();
            async move { log.add(read_h1(&mut conn).await.unwrap()) }
        })
        .await;
        assert_status(&fixture.client(client).await.get("/").await, 502);
        assert_eq!(log.all(), ["GET /"]);
    }
}

/// A request whose connection is reset before the response is not retried.
pub async fn a_request_whose_connection_is_reset_before_the_response_is_not_retried<
    P: ProxyFixture,
>() {
    for client in [H1, H2] {
        for method in ["GET", "POST"] {
            let fixture = ScriptedProxy::<P>::new(H2, |mut conn| async move {
                accept_with_large_windows(&mut conn).await;
                read_h2(&mut conn).await;
                conn.reset();
            })
            .await;
            let mut client = fixture.client(client).await;
            assert_status(&send(&mut client, method).await, 502);
            assert_eq!(fixture.upstream.connections(), 1);
        }
    }
}

/// Resets the first streams of a connection with this reason and answers the following ones.
async fn reset_streams(mut conn: ScriptedConn, times: usize, reason: u32, log: RequestLog) {
    accept_with_large_windows(&mut conn).await;
    for at in 0.. {
        let (stream, length) = read_h2(&mut conn).await;
        log.add(format!("stream {stream}: {length}"));
        if at < times {
            conn.write(h2frames::rst_stream(stream, reason)).await;
        } else {
            answer_h2(&mut conn, stream).await;
        }
    }
}

/// A refused stream is retried once.
pub async fn a_refused_stream_is_retried_once<P: ProxyFixture>() {
    for client in [H1, H2] {
        for method in ["GET", "POST"] {
            let log = RequestLog::default();
            let upstream = log.clone();
            let script = move |conn| reset_streams(conn, 1, code::REFUSED_STREAM, upstream.clone());
            let fixture = ScriptedProxy::<P>::new(H2, script).await;
            let mut client = fixture.client(client).await;
            assert_eq!(send(&mut client, method).await.status, 200);
            let length = body_length(method);
            let both = [1, 3].map(|stream| format!("stream {stream}: {length}"));
            assert_eq!(log.all(), both);
        }
    }
}

/// A stream that is refused twice fails.
pub async fn a_stream_that_is_refused_twice_fails<P: ProxyFixture>() {
    for client in [H1, H2] {
        for method in ["GET", "POST"] {
            let log = RequestLog::default();
            let upstream = log.clone();
            let script = move |conn| reset_streams(conn, 2, code::REFUSED_STREAM, upstream.clone());
            let fixture = ScriptedProxy::<P>::new(H2, script).await;
            let mut client = fixture.client(client).await;
            let answer = send(&mut client, method).await;
            assert_status(&answer, 503);
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(log.all().len(), 2);
        }
    }
}

/// A stream that is reset for another reason is not retried.
pub async fn a_stream_that_is_reset_for_another_reason_is_not_retried<P: ProxyFixture>() {
    for reason in [code::INTERNAL_ERROR, code::CANCEL, code::ENHANCE_YOUR_CALM] {
        for client in [H1, H2] {
            let log = RequestLog::default();
            let upstream = log.clone();
            let script = move |conn| reset_streams(conn, 1, reason, upstream.clone());
            let fixture = ScriptedProxy::<P>::new(H2, script).await;
            let mut client = fixture.client(client).await;
            assert_status(&send(&mut client, "POST").await, 502);
            assert_eq!(log.all().len(), 1);
            // The connection itself stays usable.
            assert_eq!(send(&mut client, "GET").await.status, 200);
            assert_eq!(fixture.upstream.connections(), 1);
        }
    }
}

/// A body too large to replay is never sent partially.
pub async fn a_body_too_large_to_replay_is_never_sent_partially<P: ProxyFixture>() {
    for (client, goaway) in [(H1, false), (H2, false), (H1, true), (H2, true)] {
        let fixture = ScriptedProxy::<P>::new(H2, move |mut conn| async move {
            assert_eq!(conn.ordinal, 0, "the request was sent again");
            accept_with_large_windows(&mut conn).await;
            let stream = conn.read_frame(kind::HEADERS).await.header.stream;
            let mut arrived = 0;
            while arrived <= 300 << 10 {
                arrived += conn.read_frame(kind::DATA).await.payload.len();
            }
            if goaway {
                conn.write(h2frames::goaway(0, code::NO_ERROR)).await;
            } else {
                conn.write(h2frames::rst_stream(stream, code::REFUSED_STREAM))
                    .await;
            }
            while let Ok(frame) = h2frames::read_frame(&mut conn.io).await {
                assert_ne!(
                    frame.header.kind,
                    kind::HEADERS,
                    "the request was sent again"
                );
            }
        })
        .await;
        // The rest of the body is sent only after the response, so no request is complete before.
        let mut upload = fixture
            .client(client)
            .await
            .upload(request("POST", "/"))
            .await;
        for _ in 0..40 {
            upload.send(&[b'x'; 8 << 10]).await;
        }
        assert_eq!(upload.head().await, 503);
    }
}

/// Further connections are opened when all streams are in use.
pub async fn further_connections_are_opened_when_all_streams_are_in_use<P: ProxyFixture>() {
    for client in [H1, H2] {
        let limited =
            ApiProxy::<P>::streaming_with(H2, |options| options.max_concurrent_streams(3));
        let (fixture, mut bodies) = limited.await;
        let mut exchanges = Vec::new();
        if client == H2 {
            let client = fixture.h2().await;
            for _ in 0..10 {
                let get = request("GET", "/").body(()).unwrap();
                let mut stream = with_timeout(client.stream(get)).await.unwrap();
                stream.finish().unwrap();
                exchanges.push(stream);
            }
            hold_ten_requests(&fixture, &mut bodies).await;
            for mut stream in exchanges {
                assert_eq!(with_timeout(stream.head()).await.unwrap().status, 200);
            }
        } else {
            let mut clients = Vec::new();
            for _ in 0..10 {
                clients.push(fixture.client(H1).await.begin(request("GET", "/")).await);
            }
            hold_ten_requests(&fixture, &mut bodies).await;
            for mut client in clients {
                assert_eq!(client.head().await, 200);
            }
        }
    }
}

/// All ten requests run at the same time, over no more connections than they need.
async fn hold_ten_requests<P: ProxyFixture>(
    fixture: &ApiProxy<P>,
    bodies: &mut mpsc::UnboundedReceiver<crate::BodySender>,
) {
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(with_timeout(bodies.recv()).await.unwrap());
    }
    assert_eq!(fixture.upstream.connections(), 4);
    for body in running {
        body.finish().await.unwrap();
    }
}

/// Upstream hangs: its host is lost, or its process is stopped. Requests recover from a restart of
/// upstream.
pub async fn requests_recover_from_a_restart_of_upstream<P: ProxyFixture>() {
    for client in [H1, H2] {
        for upstream in [H1, H2] {
            restart::<P>(client, upstream).await;
        }
    }
}

async fn restart<P: ProxyFixture>(proto: Proto, upstream: Proto) {
    let fixture = ApiProxy::<P>::new(upstream, |_| Reply::json("{}")).await;
    let mut client = fixture.client(proto).await;
    assert_eq!(client.get("/").await.status, 200);
    fixture.upstream.stop_listening().await;
    fixture.upstream.kill_connections().await;
    assert_status(&client.get("/").await, 503);
    assert_status(&client.post("/", "x").await, 503);
    fixture.upstream.listen_again().await;
    // Over HTTP/1.1 an unread request body closes the connection.
    let mut client = fixture.client(proto).await;
    assert_eq!(client.post("/", "x").await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(fixture.upstream.requests().len(), 3);
}

/// Connections closed by upstream are replaced without an error.
pub async fn connections_closed_by_upstream_are_replaced_without_an_error<P: ProxyFixture>() {
    for client in [H1, H2] {
        for upstream in [H1, H2] {
            let fixture = ApiProxy::<P>::new(upstream, |_| Reply::json("{}")).await;
            let mut client = fixture.client(client).await;
            for _ in 0..5 {
                assert_eq!(client.get("/").await.status, 200);
                fixture.upstream.kill_connections().await;
                assert_eq!(client.post("/", "x").await.status, 200);
                fixture.upstream.kill_connections().await;
            }
        }
    }
}

/// A request in flight is not retried when upstream is killed.
pub async fn a_request_in_flight_is_not_retried_when_upstream_is_killed<P: ProxyFixture>() {
    for client in [H1, H2] {
        for upstream in [H1, H2] {
            let never = Arc::new(Notify::new());
            let fixture =
                ApiProxy::<P>::new(upstream, move |_| Reply::new(200).after(&never)).await;
            let mut waiting = fixture
                .client(client)
                .await
                .begin(request("GET", "/"))
                .await;
            fixture.upstream.wait_for_requests(1).await;
            fixture.upstream.kill_connections().await;
            assert_eq!(waiting.head().await, 502);
            assert_eq!(fixture.upstream.requests().len(), 1);
        }
    }
}

/// A retried write has the same length and the same body.
pub async fn a_retried_write_has_the_same_length_and_body<P: ProxyFixture>() {
    for client in [H1, H2] {
        for length in [0_usize, 1, 10_000, 90_000] {
            let fixture = ApiProxy::<P>::new(H2, |recorded| match recorded.ordinal {
                0 => Reply::reset(h2::Reason::REFUSED_STREAM),
                _ => Reply::json("{}"),
            })
            .await;
            let body = vec![b'x'; length];
            let sent = request("DELETE", "/api/v1/namespaces/a/pods/b")
                .header("content-type", "application/json");
            let sent = match client {
                H1 => sent,
                H2 => sent.header("content-length", length),
            };
            let mut sender = fixture.client(client).await;
            let response = sender.request(sent, body.clone()).await;
            assert_eq!(response.status, 200, "{client:?} {length}");
            let recorded = fixture.upstream.requests();
            assert_eq!(recorded.len(), 2, "{client:?} {length}");
            assert_eq!(recorded[1].body, body, "{client:?} {length}");
            assert_eq!(recorded[1].body_state, Body::Complete);
            for recorded in &recorded {
                let announced = recorded.header("content-length").unwrap_or("0");
                assert_eq!(announced, length.to_string(), "{client:?} {length}");
            }
        }
    }
}
