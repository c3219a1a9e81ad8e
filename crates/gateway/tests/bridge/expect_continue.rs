//! `Expect: 100-continue` is end to end: the bridge requests a body only when upstream requests it.

use skewbridge_testkit::h2frames::{self, flag, kind};
use skewbridge_testkit::{Connection, H1Client, Reply, ScriptedConn};
use tokio::io::AsyncWriteExt;

use crate::support::protocols::Proto::{self, H1, H2};
use crate::support::protocols::{ApiServerFixture, COMBINATIONS, ScriptedFixture, with_timeout};

const HEAD: &str =
    "POST / HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";

/// What a client received, in order.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    /// Response heads before the body was sent.
    before: usize,
    /// Whether the body was sent because the server requested it.
    body_sent: bool,
    /// The text of the final response.
    answer: Vec<u8>,
}

/// A client that sends its body only after `100 Continue`.
async fn client_that_waits(connection: Connection, client: Proto) -> Received {
    match client {
        H1 => h1_client_that_waits(H1Client::over(connection)).await,
        H2 => h2_client_that_waits(connection).await,
    }
}

async fn h1_client_that_waits(mut client: H1Client) -> Received {
    client.send(HEAD).await.unwrap();
    let body_sent = client.read_head().await.unwrap().status == 100;
    if body_sent {
        client.send("body").await.unwrap();
        client.read_head().await.unwrap();
    }
    let mut answer = Vec::new();
    while let Some(chunk) = client.read_chunk().await.unwrap() {
        answer.extend(chunk);
    }
    Received {
        before: 1,
        body_sent,
        answer,
    }
}

async fn h2_client_that_waits(mut connection: Connection) -> Received {
    h2frames::open(&mut connection, &[]).await.unwrap();
    let block = [
        h2frames::request_block("POST", "k", "/"),
        h2frames::literal("expect", "100-continue"),
    ];
    let head = h2frames::headers(1, flag::END_HEADERS, &block.concat());
    connection.write_all(&head).await.unwrap();
    connection.flush().await.unwrap();

    let (mut heads, mut before, mut answer) = (0, 0, Vec::new());
    loop {
        let frame = h2frames::read_frame(&mut connection).await.unwrap();
        match frame.header.kind {
            kind::HEADERS => {
                heads += 1;
                // The scripted upstreams answer 401 and 200 with an indexed or literal status; only
                // the interim head consists of nothing but `:status: 100`.
                if is_continue(&frame.payload) {
                    before = heads;
                    let body = h2frames::data(1, flag::END_STREAM, b"body");
                    connection.write_all(&body).await.unwrap();
                    connection.flush().await.unwrap();
                }
            }
            kind::DATA => answer.extend(frame.payload),
            _ => continue,
        }
        if frame.header.has(flag::END_STREAM) {
            return Received {
                before: before.max(1),
                body_sent: before > 0,
                answer,
            };
        }
    }
}

/// Whether a header block is exactly `:status: 100`: a literal whose name is one of the static
/// table (8 to 14), with the value plain or Huffman-coded.
fn is_continue(block: &[u8]) -> bool {
    let plain = block.ends_with(b"\x03100");
    let huffman = block.ends_with(&[0x82, 0x08, 0x01]);
    block.len() <= 5 && (plain || huffman)
}

async fn connect(fixture: &ScriptedFixture, client: Proto) -> Connection {
    let user = fixture.pki.user("alice", &["dev"]).alpn(client.alpn());
    with_timeout(user.connect(fixture.bridge.address(), "localhost"))
        .await
        .unwrap()
}

/// Requests the body and answers when it has arrived.
async fn request_body(mut conn: ScriptedConn, upstream: Proto) {
    if upstream == H1 {
        let head = conn.read_head().await.to_lowercase();
        assert!(head.contains("expect: 100-continue\r\n"), "{head}");
        conn.write("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            .await;
        let body = if head.contains("chunked") {
            conn.read(14).await
        } else {
            conn.read(4).await
        };
        assert!(body.windows(4).any(|it| it == b"body"));
        conn.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthank")
            .await;
    } else {
        conn.accept_h2(&[]).await;
        conn.read_frame(kind::HEADERS).await;
        let interim =
            |status| h2frames::headers(1, flag::END_HEADERS, &h2frames::literal(":status", status));
        conn.write([interim("103"), interim("100")].concat()).await;
        assert_eq!(conn.read_frame(kind::DATA).await.payload, b"body");
        let head = h2frames::headers(1, flag::END_HEADERS, h2frames::STATUS_200);
        let data = h2frames::data(1, flag::END_STREAM, b"thank");
        conn.write([head, data].concat()).await;
    }
    conn.stall().await;
}

#[tokio::test]
async fn the_client_gets_100_continue_when_upstream_sends_it() {
    for (client, upstream) in COMBINATIONS {
        let fixture =
            ScriptedFixture::new(upstream, move |conn| request_body(conn, upstream)).await;
        let connection = connect(&fixture, client).await;
        let received = with_timeout(client_that_waits(connection, client)).await;
        let expected = Received {
            before: 1,
            body_sent: true,
            answer: b"thank".to_vec(),
        };
        assert_eq!(received, expected, "{client:?} to {upstream:?}");
    }
}

/// Rejects the request at once, and then receives no byte of a body.
async fn reject_before_body(mut conn: ScriptedConn, upstream: Proto) {
    if upstream == H1 {
        conn.read_head().await;
        conn.write("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
            .await;
        assert_eq!(conn.read_to_end().await, b"");
        return;
    }
    conn.accept_h2(&[]).await;
    conn.read_frame(kind::HEADERS).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &h2frames::literal(":status", "401"));
    let data = h2frames::data(1, flag::END_STREAM, b"no");
    conn.write([head, data].concat()).await;
    while let Ok(frame) = h2frames::read_frame(&mut conn.io).await {
        assert_ne!(
            frame.header.kind,
            kind::DATA,
            "a body arrived without 100 Continue"
        );
    }
}

#[tokio::test]
async fn an_upstream_that_rejects_the_request_gets_no_body() {
    for (client, upstream) in COMBINATIONS {
        let fixture =
            ScriptedFixture::new(upstream, move |conn| reject_before_body(conn, upstream)).await;
        let connection = connect(&fixture, client).await;
        let received = with_timeout(client_that_waits(connection, client)).await;
        let expected = Received {
            before: 1,
            body_sent: false,
            answer: b"no".to_vec(),
        };
        assert_eq!(received, expected, "{client:?} to {upstream:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_sends_no_100_gets_the_body_after_a_timeout() {
    // The scripted upstream never sends 100 over HTTP/2.
    let fixture = ApiServerFixture::new(H2, |recorded| Reply::new(200).body(recorded.body)).await;
    let received = with_timeout(h1_client_that_waits(fixture.h1().await)).await;
    assert!(received.body_sent);
    assert_eq!(received.answer, b"body");
}

#[tokio::test]
async fn a_client_that_sends_its_body_at_once_is_not_delayed() {
    for upstream in [H1, H2] {
        let fixture =
            ApiServerFixture::new(upstream, |recorded| Reply::new(200).body(recorded.body)).await;
        let mut client = fixture.h1().await;
        client.send(format!("{HEAD}body")).await.unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().text(),
            "body"
        );
        client
            .send("GET /next HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().status,
            200
        );
    }
}
