//! A response that was cut never looks complete to the client.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use super::{ApiProxy, ProxyFixture, ScriptedProxy};
use crate::protocols::Proto::{H1, H2};
use crate::protocols::{COMBINATIONS, Client, Truncated, request, with_timeout};

/// A response truncated by upstream never looks complete.
pub async fn a_response_truncated_by_upstream_never_looks_complete<P: ProxyFixture>() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) = ApiProxy::<P>::streaming(upstream).await;
        let mut exchange = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("half").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        drop(body);
        assert_eq!(exchange.read_to_end().await, Err(Truncated));
    }
}

/// A response whose connection is reset never looks complete.
pub async fn a_response_whose_connection_is_reset_never_looks_complete<P: ProxyFixture>() {
    for (client, upstream) in COMBINATIONS {
        let (fixture, mut bodies) = ApiProxy::<P>::streaming(upstream).await;
        let mut exchange = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("half").await.unwrap();
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        fixture.upstream.kill_connections().await;
        assert_eq!(exchange.read_to_end().await, Err(Truncated));
    }
}

/// A response shorter than its content length never looks complete.
pub async fn a_response_shorter_than_its_content_length_never_looks_complete<P: ProxyFixture>() {
    for client in [H1, H2] {
        let cut = Arc::new(Notify::new());
        let script_cut = Arc::clone(&cut);
        let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| {
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
        let mut exchange = fixture
            .client(client)
            .await
            .begin(request("GET", "/"))
            .await;
        assert_eq!(exchange.head().await, 200);
        exchange.expect(b"half").await;
        cut.notify_one();
        assert_eq!(exchange.read_to_end().await, Err(Truncated));
    }
}

/// A response delimited by close is complete only after `close_notify`.
pub async fn a_response_delimited_by_close_is_complete_only_after_close_notify<P: ProxyFixture>() {
    for client in [H1, H2] {
        let end = Arc::new(Notify::new());
        let script_end = Arc::clone(&end);
        let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| {
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
            let mut exchange = fixture
                .client(client)
                .await
                .begin(request("GET", path))
                .await;
            assert_eq!(exchange.head().await, 200);
            exchange.expect(b"all of it").await;
            end.notify_one();
            assert_eq!(exchange.read_to_end().await, rest);
        }
    }
}

/// An HTTP/1.0 client detects a truncated response.
pub async fn an_http_1_0_client_detects_a_truncated_response<P: ProxyFixture>() {
    let (fixture, mut bodies) = ApiProxy::<P>::streaming(H1).await;
    let Client::H1(mut client) = fixture.client(H1).await else {
        unreachable!("the client speaks HTTP/1.1")
    };
    client.send("GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let body = with_timeout(bodies.recv()).await.unwrap();
    body.send("half").await.unwrap();
    drop(body);
    let mut connection = client.into_connection();
    let end = with_timeout(connection.read_to_end(&mut Vec::new())).await;
    assert!(end.is_err(), "TLS ended with close_notify");
}

/// A workload that responds early, with any status, still gets the complete request body.
pub async fn a_workload_that_responds_early_gets_the_complete_body<P: ProxyFixture>() {
    const PATH: &str = "/api/v1/namespaces/a/services/b/proxy/upload";
    for client in [H1, H2] {
        for status in ["200 OK", "404 Not Found", "500 Internal Server Error"] {
            let fixture = ScriptedProxy::<P>::new(H1, move |mut conn| async move {
                conn.read_head().await;
                conn.read(b"5\r\nfirst\r\n".len()).await;
                let head = format!("HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n");
                conn.write(head + "5\r\nearly\r\n").await;
                let rest = b"4\r\nlast\r\n0\r\n\r\n";
                assert_eq!(conn.read(rest.len()).await, rest);
                conn.write("3\r\nend\r\n0\r\n\r\n").await;
                conn.stall().await;
            })
            .await;
            let sender = fixture.client(client).await;
            let mut upload = sender.upload(request("POST", PATH)).await;
            upload.send(b"first").await;
            assert_eq!(upload.head().await.to_string(), status[..3]);
            upload.expect(b"early").await;
            upload.send(b"last").await;
            upload.finish(&[]).await;
            assert_eq!(upload.read_to_end().await.unwrap(), b"end");
        }
    }
}
